"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

The plans are those of `heuristics.py`, as far as a compiler can launch them. Inductor passes on how many warps a kernel has, but neither
clusters (num_ctas) nor a register limit (maxnreg). It makes no cooperative launch. If a kernel has assembly with side effects, Inductor
assumes that the kernel writes its inputs. So compilers trace the tiers rows, tile and loop, and tiers staged and split whose assembly
has no side effects (`traceable_staged.py`, `traceable_split.py`). `traceable_plans.py` chooses the plans.

- Rows of up to LONG_ROW bytes are traced, because those tiers are the fastest there. Rows of a symbolic M have no tier staged.
- For longer rows, a graph that torch.compile runs calls an operator on rows (`calls_operator`). It chooses its plan at run time.
- Packages of AOTInductor call no Python. C functions launch what compilers cannot, if the user wants them and sizes are fixed
  (`c_shims.py`).
- Else packages have traced kernels for longer rows too (`shared_plan`). One program holds a row of up to 64 KiB in 16 bits, or of up to
  128 KiB in float32, counted over all inputs. Several programs share a longer row. A fill zeroes the places where they exchange partial
  results.
- Two passes, each a kernel, take the place of the fill and the exchange for inputs of up to 12 MiB, which stay in L2 between them. Few rows
  have two passes from LONG_ROW on. So have rows that more than 256 programs would share. These begin at 12 MiB in aligned forwards, at
  11 MiB in unaligned ones, and at 10 MiB of both inputs in gradients.
- No programs share rows of a symbolic N, of float64 or of two dtypes. Nor do they share rows whose offsets from a 16-byte boundary differ
  between tensors. What one program cannot hold, it reads in a loop.

Sizes may be symbols. N is compared only with the ranges of SYMBOLIC_BYTES, and M with nothing. So a graph has guards for a range of N,
never for its value, and none for M.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import triton
from torch.library import wrap_triton

from .devices import device_traits
from .generic import INTERPRETED, LOOP_COLUMNS, TILE_ELEMENTS, block_n, warps
from .heuristics import LONG_ROW
from .launch_plan import VECTOR_BYTES, Plan, Problem, chunk_of, chunk_vectors, staged_layout, vectors_in_row
from .traceable_passes import dots_traceable, gradients_traceable, normalize_traceable, partials_traceable
from .traceable_plans import plan_for, shared_plan, split_stagger
from .traceable_rows import (
    backward_traceable,
    forward_traceable,
    gradient_loop_traceable,
    gradient_tile_traceable,
    loop_traceable,
    tile_traceable,
)
from .traceable_split import backward_split_traceable, forward_split_traceable
from .traceable_staged import backward_staged_traceable, forward_staged_traceable

SYMBOLIC_BYTES = (512, 2048, 8192, 16384, LONG_ROW, 64 << 10, 128 << 10)
"""Bytes of all inputs: rows of a symbolic N have the plan of the next of these lengths. With the call for longer rows, six graphs of
torch.compile cover all N; it allows a function eight by default. A plan for four times the row has idle lanes, but moves no more bytes."""
TYPICAL_ROWS = 4096  # what a symbolic M counts as in the choice of a plan.
MAX_PARTS = 512  # of a row, with a partial result each.
STEP = 128  # columns that each warp takes at once of rows that vectors cannot move.


class Launch(NamedTuple):
    """How a traced kernel is launched."""

    tier: str  # rows, tile, loop, staged, split or passes
    programs: int | torch.SymInt
    arguments: tuple[int | torch.SymInt, ...]  # after the tensors: strides, sizes, constants
    num_warps: int
    slots: int | torch.SymInt = 0  # words of int64 that a kernel takes after the tensors: zeros (split), or what the first pass writes.
    first: tuple[int | torch.SymInt, tuple[int | torch.SymInt, ...]] = (0, ())  # programs and arguments of the first pass


def calls_operator(N: int | torch.SymInt, element_size: int, reads: int) -> bool:
    """Whether a graph of torch.compile calls an operator on rows of N columns, of `reads` inputs."""
    return bool(N * (element_size * reads) > LONG_ROW)


def packaging() -> bool:
    """Whether the graph is for AOTInductor. True if torch does not say so: traced kernels are right everywhere."""
    try:
        from torch._inductor.virtualized import V

        return bool(V.aot_compilation)
    except (ImportError, AttributeError):
        return True


def launch_of(tensors: tuple[torch.Tensor, ...], log: bool, device: torch.device | None = None) -> Launch:
    """The launch for a forward's (x, y) or a backward's (dy, y, dx), on a device that need not be the tensors'."""
    M, N = tensors[0].shape
    strides = tuple(tensor.stride(0) for tensor in tensors)
    name, *traits = device_traits(device or tensors[0].device)
    problem = _problem(tensors, strides, tuple(traits))
    plan = (shared_plan(problem) if isinstance(N, int) else None) or plan_for(problem, name)
    if plan.tier == "staged":
        return Launch("staged", (M + plan.rows - 1) // plan.rows, (M, N, *staged_layout(problem, plan), log), plan.warps)
    if plan.tier == "loop":
        block = LOOP_COLUMNS // problem.reads // (2 if problem.element_size == 8 else 1)
        return Launch("loop", M, (*strides, M, N, block, log), warps(LOOP_COLUMNS))
    if plan.tier == "tile":
        columns = block_n(problem.N)
        short = plan.vector_elements > 1  # short aligned rows: a vector a thread, 4 warps
        rows = max(1, 128 * plan.vector_elements * plan.rows // columns if short else TILE_ELEMENTS // (problem.reads * columns))
        count = max(1, min(4, rows * columns // (32 * plan.vector_elements))) if short else warps(problem.reads * rows * columns)
        return Launch("tile", (M + rows - 1) // rows, (*strides, M, N, rows, columns, problem.keep_in_l2, log), count)
    unit = 1 if plan.base_alignment else plan.vector_elements
    units = tuple(stride // unit for stride in strides)
    if plan.tier in ("split", "passes"):
        return _shared_launch(problem, plan, units, (M, N // unit), log)
    layout = plan.rows, plan.tiles, plan.threads, plan.vector_words, plan.vector_elements, plan.base_alignment
    constants = *layout, problem.keep_in_l2, STEP * plan.warps, log
    return Launch("rows", (M + plan.rows - 1) // plan.rows, (*units, M, N // unit, *constants), plan.warps)


def _shared_launch(
    problem: Problem, plan: Plan, units: tuple[int | torch.SymInt, ...], sizes: tuple[int | torch.SymInt, int], log: bool
) -> Launch:
    """The launch for rows that several programs share. `units`: the strides as the kernels count them. `sizes`: M, and N likewise."""
    (M, N), ctas, chunk = sizes, plan.split_ctas, chunk_of(problem, plan)
    layout = plan.tiles, plan.threads, plan.vector_elements, plan.base_alignment
    block = STEP * plan.warps
    places = max(plan.threads, triton.next_power_of_2(min(ctas, MAX_PARTS)))
    if plan.tier == "split":
        start = split_stagger(problem, plan) if isinstance(M, int) else (0, 0)
        arguments = *units, N, ctas, chunk, *start, *layout, places, problem.keep_in_l2, block, log
        return Launch("split", M * ctas, arguments, plan.warps, M * ctas)
    parts = min(ctas, MAX_PARTS)
    part = chunk_vectors(vectors_in_row(problem, plan.vector_elements, plan.base_alignment), parts)
    first = *units[:-1], N, parts, part, *layout, block, *((log,) if problem.backward else ())
    arguments = *units, N, parts, ctas, chunk, *layout, places, block, log
    return Launch("passes", M * ctas, arguments, plan.warps, M * parts, (M * parts, first))


def _problem(tensors: tuple[torch.Tensor, ...], strides: tuple[int | torch.SymInt, ...], traits: tuple[Any, ...]) -> Problem:
    """What the choice of a plan depends on, as far as a compiler knows it: addresses count as aligned, and the kernels check them.

    A symbolic N has the plan of the longest row of its range, and rows that start anywhere.
    """
    M, N = tensors[0].shape
    size = tensors[0].element_size()
    reads = len(tensors) - 1
    static = isinstance(N, int) and all(isinstance(stride, int) for stride in strides)
    if static:
        columns = N
        apart = [0 if M == 1 else stride * size for stride in strides]
        misaligned = math.gcd(VECTOR_BYTES, N * size, *apart)
        congruent = not any((one - apart[0]) % VECTOR_BYTES for one in apart)
    else:
        lengths = (length // (size * reads) for length in SYMBOLIC_BYTES)
        columns = N if isinstance(N, int) else next((length for length in lengths if length >= N), SYMBOLIC_BYTES[-1])
        misaligned = size
        congruent = all(bool(stride == N) for stride in strides)
    one_dtype = all(tensor.dtype == tensors[0].dtype for tensor in tensors)
    rows = M if isinstance(M, int) else TYPICAL_ROWS
    fast = congruent and one_dtype and size < 8 and torch.version.hip is None
    # A staged program has more rows if there are more in all, so a symbolic M does not do. The interpreter runs no assembly.
    contiguous = fast and static and isinstance(M, int) and all(stride == N for stride in strides) and not INTERPRETED
    return replace(Problem(reads == 2, rows, columns, size, misaligned, fast, *traits), contiguous=contiguous)


# torch finds the kernels of an operator in the source of these functions: each names its own.
def _forward(x: torch.Tensor, y: torch.Tensor, log: bool) -> None:
    how = launch_of((x, y), log)
    if how.tier == "split":
        slots = x.new_zeros((how.slots,), dtype=torch.int64)
        wrap_triton(forward_split_traceable)[(how.programs,)](x, y, slots, *how.arguments, num_warps=how.num_warps)
        return
    if how.tier == "passes":
        slots = x.new_empty((how.slots,), dtype=torch.int64)
        programs, arguments = how.first
        wrap_triton(partials_traceable)[(programs,)](x, slots, *arguments, num_warps=how.num_warps)
        wrap_triton(normalize_traceable)[(how.programs,)](x, y, slots, *how.arguments, num_warps=how.num_warps)
        return
    if how.tier in ("rows", "staged"):
        kernel = wrap_triton(forward_traceable) if how.tier == "rows" else wrap_triton(forward_staged_traceable)
    else:
        kernel = wrap_triton(loop_traceable) if how.tier == "loop" else wrap_triton(tile_traceable)
    kernel[(how.programs,)](x, y, *how.arguments, num_warps=how.num_warps)


def _backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, log: bool) -> None:
    how = launch_of((dy, y, dx), log)
    if how.tier == "split":
        slots = y.new_zeros((how.slots,), dtype=torch.int64)
        wrap_triton(backward_split_traceable)[(how.programs,)](dy, y, dx, slots, *how.arguments, num_warps=how.num_warps)
        return
    if how.tier == "passes":
        slots = y.new_empty((how.slots,), dtype=torch.int64)
        programs, arguments = how.first
        wrap_triton(dots_traceable)[(programs,)](dy, y, slots, *arguments, num_warps=how.num_warps)
        wrap_triton(gradients_traceable)[(how.programs,)](dy, y, dx, slots, *how.arguments, num_warps=how.num_warps)
        return
    if how.tier in ("rows", "staged"):
        kernel = wrap_triton(backward_traceable) if how.tier == "rows" else wrap_triton(backward_staged_traceable)
    else:
        kernel = wrap_triton(gradient_loop_traceable) if how.tier == "loop" else wrap_triton(gradient_tile_traceable)
    kernel[(how.programs,)](dy, y, dx, *how.arguments, num_warps=how.num_warps)


def launch_forward_traceable(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    _forward(x, y, False)


def launch_backward_traceable(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of softmax by rows; see `softbench.kernels.common.rows.Launch`."""
    _backward(dy, y, dx, False)


def launch_log_forward_traceable(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = log_softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    _forward(x, y, True)


def launch_log_backward_traceable(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx of log_softmax by rows; see `softbench.kernels.common.rows.Launch`."""
    _backward(dy, y, dx, True)
