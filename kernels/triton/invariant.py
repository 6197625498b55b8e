"""The functions of this package with results that have the same bits in every call, whatever rows lie beside a row, and how many.

A plan follows from the length of a row and the dtypes alone (`heuristics.invariant_plan`). Rows of whole vectors have a program or a
cluster each. Others are loaded element by element, so that where a row begins changes nothing (`generic.py`; losses:
`reduce_row_by_element`).
"""

from __future__ import annotations

import functools

import torch

from ..common.invariance import placed
from ..common.masked_softmax import MaskedSoftmax
from ..common.rows import Scale
from ..common.softmax import Softmax
from . import dispatch, losses, masked_softmax as scores

MAX_COLUMNS = scores.MAX_COLUMNS


def launch_forward(x: torch.Tensor, y: torch.Tensor, scale: Scale | None = None) -> None:
    """As `softbench.kernels.triton.dispatch.launch_forward`."""
    dispatch._launch((placed(x), y), False, scale, invariant=True)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, scale: Scale | None = None) -> None:
    """As `softbench.kernels.triton.dispatch.launch_backward`."""
    dispatch._launch((placed(dy), placed(y), dx), False, scale, invariant=True)


def launch_log_forward(x: torch.Tensor, y: torch.Tensor, scale: Scale | None = None) -> None:
    """As `softbench.kernels.triton.dispatch.launch_log_forward`."""
    dispatch._launch((placed(x), y), True, scale, invariant=True)


def launch_log_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, scale: Scale | None = None) -> None:
    """As `softbench.kernels.triton.dispatch.launch_log_backward`."""
    dispatch._launch((placed(dy), placed(y), dx), True, scale, invariant=True)


softmax = Softmax(launch_forward, launch_backward, dispatch.DEVICE_TYPES)
"""softmax(x, dim=-1), differentiable once; see `softbench.kernels.common.softmax.Softmax`."""
log_softmax = Softmax(launch_log_forward, launch_log_backward, dispatch.DEVICE_TYPES, "log_softmax")
"""log_softmax(x, dim=-1), likewise."""
masked_softmax = MaskedSoftmax(
    softmax,
    functools.partial(scores.launch_forward, by_column=True),
    functools.partial(scores.launch_backward, by_column=True),
    MAX_COLUMNS,
)
"""masked_softmax(x), differentiable in x and sink; see `softbench.kernels.common.masked_softmax.MaskedSoftmax`."""
cross_entropy_forward = functools.partial(losses.cross_entropy_forward, invariant=True)
cross_entropy_statistics = functools.partial(losses.cross_entropy_statistics, invariant=True)
cross_entropy_backward = losses.cross_entropy_backward
"""It adds nothing, so its bits depend on its row alone."""
cross_entropy_fused = functools.partial(losses.cross_entropy_fused, invariant=True)
logprob_forward = functools.partial(losses.logprob_forward, invariant=True)
logprob_statistics = functools.partial(losses.logprob_statistics, invariant=True)
logprob_backward = losses.logprob_backward
