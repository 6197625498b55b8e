"""The functions of this package with results that have the same bits in every call, whatever rows lie beside a row, and how many.

`invariant.cuh` has the plans. Rows of whole vectors of 16 bytes take the kernels of other plans. Others take tier `by_column`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..common.invariance import placed
from ..common.rows import Launch
from ..common.softmax import Softmax
from . import launch, losses
from .launch import INVARIANT, Plan


def _of_placed(launch_rows: Launch, reads: int) -> Launch:
    """The launcher of the invariant plan. It copies those of the first `reads` tensors whose rows begin elsewhere."""
    return lambda *given: launch_rows(*map(placed, given[:reads]), *given[reads:], plan=Plan(INVARIANT))


launch_forward, launch_backward = _of_placed(launch.launch_forward, 1), _of_placed(launch.launch_backward, 2)
launch_log_forward, launch_log_backward = _of_placed(launch.launch_log_forward, 1), _of_placed(launch.launch_log_backward, 2)


softmax = Softmax(launch_forward, launch_backward)
"""softmax(x, dim=-1), differentiable once; see `softbench.kernels.common.softmax.Softmax`."""
log_softmax = Softmax(launch_log_forward, launch_log_backward, name="log_softmax", scales=False)
"""log_softmax(x, dim=-1), likewise. It takes no scale."""


def __getattr__(name: str) -> Any:
    """A pass of a loss, such as `cross_entropy_forward`. A backward adds nothing, so its bits depend on its row alone."""
    function = getattr(losses, name)
    return function if name.endswith("_backward") else partial(function, invariant=True)
