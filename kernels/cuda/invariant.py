"""The functions of this package with results that have the same bits in every call, whatever rows lie beside a row, and how many.

`invariant.cuh` has the plans. Rows of whole vectors of 16 bytes take the kernels of other plans. Others take tier `by_column`, and those of
masked softmax are copied to rows of whole vectors.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..common.invariance import missing_columns, padded, placed
from ..common.masked_softmax import MaskedSoftmax
from ..common.rows import Launch
from ..common.softmax import Softmax
from . import launch, losses, masked_softmax as scores
from .launch import INVARIANT, Plan

MAX_COLUMNS = scores.MAX_COLUMNS


def _of_placed(launch_rows: Launch, reads: int) -> Launch:
    """The launcher of the invariant plan. It copies those of the first `reads` tensors whose rows begin elsewhere."""
    return lambda *given: launch_rows(*map(placed, given[:reads]), *given[reads:], plan=Plan(INVARIANT))


launch_forward, launch_backward = _of_placed(launch.launch_forward, 1), _of_placed(launch.launch_backward, 2)
launch_log_forward, launch_log_backward = _of_placed(launch.launch_log_forward, 1), _of_placed(launch.launch_log_backward, 2)


def launch_scores(
    x: torch.Tensor, mask: torch.Tensor | None, sink: torch.Tensor | None, y: torch.Tensor, share: torch.Tensor | None,
    scale: float, causal: bool,
) -> None:  # fmt: skip
    """As `softbench.kernels.cuda.masked_softmax.launch_forward`. Columns of -inf complete vectors, and add 0 to the sum."""
    seen, more = scores.first_sees(x, causal), missing_columns(x.shape[3], x.element_size())
    if not more:
        scores.launch_forward(x, mask, sink, y, share, scale, causal, plan=Plan(INVARIANT))
        return
    whole = padded(x, more, -torch.inf)
    mask = None if mask is None else padded(mask, more, 0)
    result = torch.empty_like(whole, memory_format=torch.contiguous_format)
    scores.launch_forward(whole.contiguous(), mask, sink, result, share, scale, causal, plan=Plan(INVARIANT), seen=seen)
    y.copy_(result[..., : x.shape[3]])


def launch_scores_gradient(
    dy: torch.Tensor, y: torch.Tensor, share: torch.Tensor | None, dx: torch.Tensor, dsink: torch.Tensor | None,
    scale: float, causal: bool,
) -> None:  # fmt: skip
    """As `softbench.kernels.cuda.masked_softmax.launch_backward`. Columns of 0 complete vectors, and add 0 to the sum."""
    seen, more = scores.first_sees(y, causal), missing_columns(y.shape[3], y.element_size())
    if not more:
        scores.launch_backward(dy, y, share, dx, dsink, scale, causal, plan=Plan(INVARIANT))
        return
    whole_dy, whole_y = (padded(tensor, more, 0).contiguous() for tensor in (dy, y))
    result = torch.empty_like(whole_y)
    scores.launch_backward(whole_dy, whole_y, share, result, dsink, scale, causal, plan=Plan(INVARIANT), seen=seen)
    dx.copy_(result[..., : y.shape[3]])


softmax = Softmax(launch_forward, launch_backward)
"""softmax(x, dim=-1), differentiable once; see `softbench.kernels.common.softmax.Softmax`."""
log_softmax = Softmax(launch_log_forward, launch_log_backward, name="log_softmax", scales=False)
"""log_softmax(x, dim=-1), likewise. It takes no scale."""
masked_softmax = MaskedSoftmax(softmax, launch_scores, launch_scores_gradient, MAX_COLUMNS)
"""masked_softmax(x), differentiable in x and sink; see `softbench.kernels.common.masked_softmax.MaskedSoftmax`."""


def __getattr__(name: str) -> Any:
    """A pass of a loss, such as `cross_entropy_forward`. A backward adds nothing, so its bits depend on its row alone."""
    function = getattr(losses, name)
    return function if name.endswith("_backward") else partial(function, invariant=True)
