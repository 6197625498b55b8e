"""Launches of the CUDA C++ kernels on rows, through ctypes. nvcc compiles them on first use (`build.py`), once for each function.

Launches whose CTAs share a row anywhere on the device need a workspace. Each device and stream has one workspace, because launches on one
stream follow each other. A launch that a CUDA graph captures gets its own, which the graph sets to zero. The graph may be replayed on
another stream while the first stream still works.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch

from ..common import extension
from ..common.allocation import persistent_zeros
from ..common.losses import MOST_COLUMNS
from ..common.rows import DTYPES, Scale
from ..common.softmax import Softmax
from ..plans.table import PASSES, Family, table
from . import build

TIERS = ("sub_warp", "staged", "block", "cluster", "split", "generic", "cluster_bulk", "split_bulk", "warp", "by_column")
"""The names of the tiers, by their number in `Plan.tier`."""
INVARIANT = -2
"""The tier of a plan that stands for one of `invariant.cuh`, which follows from N and the dtypes alone."""
_DTYPE_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}
_MIN_WORKSPACE_BYTES = 1 << 20  # enough for nearly every launch, so that a workspace hardly ever grows
_workspaces: dict[tuple[int, int], torch.Tensor] = {}  # by device and stream
_counters: dict[tuple[int, int], torch.Tensor] = {}
"""As `_workspaces`, of launches that count the finished CTAs of a row: their counters are zeros between launches."""
CELL = 8
"""Numbers of a cell of a table as planner.cuh has it."""
INFINITE = (1 << 31) - 1
_libraries: dict[str, dict[int, ctypes.CDLL]] = {function: {} for function in build.ALL}  # by function and device
_loading = threading.Lock()  # two threads must not hand over plans at once, nor one while the other launches


class Plan(ctypes.Structure):
    """How a launch is done: SoftbenchPlan of launch_plan.cuh, which describes the fields.

    The planner fills in `Plan(-1)`, and `invariant.cuh` `Plan(INVARIANT)`. A launch carries out any other plan, or refuses it.
    """

    _fields_ = [
        (name, ctypes.c_int)
        for name in ("tier", "vectors", "threads", "per_row", "tier_option", "base_alignment", "max_polls", "stagger_cycles")
    ]


def launch_forward(x: torch.Tensor, y: torch.Tensor, scale: Scale | None = None, *, plan: Plan | None = None) -> None:
    """Writes the softmax of the rows of `x` (M, N) to `y`, on the current stream.

    `y` has x's dtype or float32. See `softbench.kernels.common.rows.Launch`.

    Raises:
        BuildError: the kernels cannot be compiled.
        RuntimeError: the launch failed, or `plan` does not fit.
    """
    if scale is None:
        _forward("softmax", (), x, y, plan)
    else:
        _forward("scaled_softmax", _scales(scale), x, y, plan)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, scale: Scale | None = None, *, plan: Plan | None = None) -> None:
    """Writes the gradient of rows (M, N) to `dx`. `dx` has the dtype of `dy` and `y`, or 16 bits where that is float32.

    Raises as `launch_forward`.
    """
    if scale is None:
        _backward("softmax", (), dy, y, dx, plan)
    else:
        _backward("scaled_softmax", _scales(scale), dy, y, dx, plan)


def launch_log_forward(x: torch.Tensor, y: torch.Tensor, *, plan: Plan | None = None) -> None:
    """As `launch_forward`, of log_softmax."""
    _forward("log_softmax", (), x, y, plan)


def launch_log_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, *, plan: Plan | None = None) -> None:
    """As `launch_backward`, of log_softmax."""
    _backward("log_softmax", (), dy, y, dx, plan)


def launch_columns(*tensors: torch.Tensor, log: bool = False, scale: Scale | None = None, lanes: int = 0, ctas: int = 0) -> bool:
    """y of x, or dx of dy and y, along R of (outer, R, inner) tensors, on the current stream; the last one is written.

    False, with nothing written, if columns do not lie beside each other, R is above MOST_COLUMNS, or `scale` is a tensor. `lanes` and
    `ctas` replace the rule of columns.cu. Raises as `launch_forward`.
    """
    first, out = tensors[0], tensors[-1]
    outers, R, inner = first.shape
    if isinstance(scale, torch.Tensor) or R > MOST_COLUMNS or (inner > 1 and any(tensor.stride(2) != 1 for tensor in tensors)):
        return False
    index = first.device.index
    if index != torch._C._cuda_getDevice():
        with torch.cuda.device(index):
            return launch_columns(*tensors, log=log, scale=scale, lanes=lanes, ctas=ctas)
    library = _library("columns", index)
    second = tensors[1] if len(tensors) == 3 else None
    addresses = first.data_ptr(), second.data_ptr() if second is not None else None, out.data_ptr()
    strides = *first.stride()[:2], *(second if second is not None else out).stride()[:2], *out.stride()[:2]
    dtypes = _DTYPE_NUMBERS[first.dtype], _DTYPE_NUMBERS[out.dtype]
    stream = torch._C._cuda_getCurrentRawStream(index)
    number = 1.0 if scale is None else scale
    code = library.softbench_columns(*addresses, *strides, outers, R, inner, *dtypes, log, number, lanes, ctas, stream)
    if code:
        raise RuntimeError(f"softbench_columns on {(outers, R, inner)}: {library.softbench_error(int(code)).decode()}")
    return True


def launch_log_columns(*tensors: torch.Tensor, scale: Scale | None = None) -> bool:
    """As `launch_columns`, of log_softmax."""
    return launch_columns(*tensors, log=True, scale=scale)


def launch_function(function: str, which: str, arguments: tuple[Any, ...], x: torch.Tensor, plan: Plan | None, *, accepted: int = 0) -> int:
    """Calls softbench_`which` of the library of a loss, on the current stream of x's device.

    `arguments` are those before the dtypes; M and N are last. Returns 0 or the CUDA error `accepted`. Raises as `launch_forward`.
    """
    index, number = x.device.index, _DTYPE_NUMBERS[x.dtype]
    library = _library(function, index)
    workspaces = _workspaces if which == "fused" else _counters
    return _launch(library, getattr(library, f"softbench_{which}"), (*arguments, number, number), index, plan, workspaces, accepted)


def _scales(scale: Scale) -> tuple[int | None, float]:
    """The first arguments of scaled softmax: the address of the rows' scales, or None and the scale of all rows."""
    return (scale.data_ptr(), 1.0) if isinstance(scale, torch.Tensor) else (None, scale)


def _forward(function: str, scales: tuple[Any, ...], x: torch.Tensor, y: torch.Tensor, plan: Plan | None) -> None:
    index = x.device.index
    M, N = x.shape
    library = _library(function, index)
    tensors = x.data_ptr(), y.data_ptr(), x.stride(0), y.stride(0), M, N, _DTYPE_NUMBERS[x.dtype], _DTYPE_NUMBERS[y.dtype]
    _launch(library, library.softbench_forward, (*scales, *tensors), index, plan)


def _backward(function: str, scales: tuple[Any, ...], dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, plan: Plan | None) -> None:
    index = y.device.index
    library = _library(function, index)
    M, N = y.shape
    addresses, strides = (dy.data_ptr(), y.data_ptr(), dx.data_ptr()), (dy.stride(0), y.stride(0), dx.stride(0))
    tensors = *addresses, *strides, M, N, _DTYPE_NUMBERS[y.dtype], _DTYPE_NUMBERS[dx.dtype]
    _launch(library, library.softbench_backward, (*scales, *tensors), index, plan)


def family_numbers(family: Family) -> list[int]:
    """A family as planner.cuh has it."""
    tier, *given = family
    return [TIERS.index(str(tier)), *map(int, given), *[0] * (4 - len(given))]


def planned_cells(card: str, capability: tuple[int, int]) -> list[int]:
    """The table of plans for a card as numbers: the fields of planner.cuh's cells, in its order of kinds."""
    numbers = []
    kinds = table("cuda", card, 10 * capability[0] + capability[1]).cells
    for (which, size, alignment), cells in sorted(kinds.items(), key=lambda one: (PASSES.index(one[0][0]), *one[0][1:])):
        for cell in cells:
            most = (int(min(INFINITE, one)) for one in (cell.row_bytes, cell.kib_per_sm))
            numbers += [100 * PASSES.index(which) + 20 * size + alignment, *most, *family_numbers(cell.family)]
    return numbers


def _library(function: str, index: int) -> ctypes.CDLL:
    libraries = _libraries[function]
    library = libraries.get(index)
    if library is not None:
        return library
    with _loading:
        if index not in libraries:
            library = build.load(torch.cuda.get_device_capability(index), function)
            if hasattr(library, "softbench_plans"):
                numbers = planned_cells(torch.cuda.get_device_name(index), torch.cuda.get_device_capability(index))
                library.softbench_plans(index, (ctypes.c_int * len(numbers))(*numbers), len(numbers) // CELL)
            libraries[index] = library
            found = (getattr(library, f"softbench_{one}", None) for one in extension.PASSES)
            extension.launchers(function, index, [None if one is None else ctypes.cast(one, ctypes.c_void_p).value for one in found])
    return libraries[index]


def _launch(
    library: ctypes.CDLL,
    call: Callable[..., int],
    arguments: tuple[Any, ...],
    index: int,
    plan: Plan | None,
    workspaces: dict[tuple[int, int], torch.Tensor] | None = None,
    accepted: int = 0,
) -> int:
    """Launches with the workspace of the current stream. Returns 0 or `accepted`, and raises RuntimeError for another error."""
    if workspaces is None:
        workspaces = _workspaces
    if index != torch._C._cuda_getDevice():  # torch.cuda calls these functions with more Python around them
        with torch.cuda.device(index):
            return _launch(library, call, arguments, index, plan, workspaces, accepted)
    stream = torch._C._cuda_getCurrentRawStream(index)
    workspace = workspaces.get((index, stream))
    capturing = workspace is not None and torch.cuda.is_current_stream_capturing()
    given = (None, 0) if workspace is None or capturing else (workspace.data_ptr(), workspace.numel())
    by_reference = None if plan is None else ctypes.addressof(plan)
    code = call(*arguments, *given, stream, by_reference)
    if code < 0:  # nothing was launched: the workspace lacks -code bytes
        if torch.cuda.is_current_stream_capturing():
            fresh = torch.zeros(-code, dtype=torch.uint8, device=f"cuda:{index}")
        else:
            fresh = persistent_zeros(index, max(-code, _MIN_WORKSPACE_BYTES), torch.uint8)
            extension.workspace(extension.COUNTERS if workspaces is _counters else extension.SLOTS, index or 0, stream, fresh)
            workspaces[index, stream] = fresh
        code = call(*arguments, fresh.data_ptr(), fresh.numel(), stream, by_reference)
    if code not in (0, accepted):
        raise RuntimeError(f"{call.__name__} on {arguments[-4:-2]}: {library.softbench_error(int(code)).decode()}")
    return code


softmax = Softmax(launch_forward, launch_backward, columns=launch_columns)
"""softmax(x, dim=-1), differentiable once, without an operator; see `softbench.kernels.common.softmax.Softmax`."""
log_softmax = Softmax(launch_log_forward, launch_log_backward, name="log_softmax", scales=False, columns=launch_log_columns)
"""log_softmax(x, dim=-1), likewise. It takes no scale."""
