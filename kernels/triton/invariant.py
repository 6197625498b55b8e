"""The functions of this package with results that have the same bits in every call, whatever rows lie beside a row, and how many.

A plan follows from the length of a row and the dtypes alone (`planner.invariant_plan`). Rows of whole vectors have a program or a
cluster each. Others are loaded element by element, so that where a row begins changes nothing (`generic.py`; losses:
`reduce_row_by_element`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..common.invariance import placed
from ..common.rows import Launch
from ..common.softmax import Softmax
from . import dispatch, losses, masked_softmax as scores

MAX_COLUMNS = scores.MAX_COLUMNS


def _of_placed(log: bool, reads: int) -> Launch:
    """The launcher of the invariant plan. It copies those of the first `reads` tensors whose rows begin elsewhere."""

    def launch(*given: Any) -> None:
        dispatch._launch((*map(placed, given[:reads]), given[reads]), log, *(given[reads + 1 :] or (None,)), invariant=True)

    return launch


launch_forward, launch_backward = _of_placed(False, 1), _of_placed(False, 2)
launch_log_forward, launch_log_backward = _of_placed(True, 1), _of_placed(True, 2)
softmax = Softmax(launch_forward, launch_backward, dispatch.DEVICE_TYPES)
"""softmax(x, dim=-1), differentiable once; see `softbench.kernels.common.softmax.Softmax`."""
log_softmax = Softmax(launch_log_forward, launch_log_backward, dispatch.DEVICE_TYPES, "log_softmax")
"""log_softmax(x, dim=-1), likewise."""
masked_softmax = scores.MaskedSoftmax(softmax, by_column=True)


def __getattr__(name: str) -> Any:
    """A pass of a loss, such as `cross_entropy_forward`. A backward adds nothing, so its bits depend on its row alone."""
    function = getattr(losses, name)
    return function if name.endswith("_backward") else partial(function, invariant=True)
