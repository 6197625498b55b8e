"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

The plans are those of `planner.py`, as far as a compiler can launch them. Inductor passes on how many warps a kernel has, but neither
clusters (num_ctas) nor a register limit (maxnreg). It makes no cooperative launch. If a kernel has assembly with side effects, Inductor
assumes that the kernel writes its inputs. So compilers trace the tiers rows and tile.

- Rows of up to LONG_ROW bytes are traced, because those tiers are the fastest there, but for rows of tier staged.
- For longer rows, and for a fixed number of rows of tier staged, a graph that torch.compile runs calls the opaque operator. It chooses its
  plan at run time.
- Packages of AOTInductor call no Python. For longer rows they have torch's function, of which Inductor makes kernels. Others are traced.

Sizes may be symbols. N is compared only with the ranges of SYMBOLIC_BYTES, and M with nothing. So a graph has guards for a range of N,
never for its value, and none for M.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.library import wrap_triton

from .devices import Card, device_traits
from .generic import TILE_ELEMENTS, block_n, warps
from .launch_plan import LINE_VECTORS, VECTOR_BYTES, WARP, Plan, Problem, vectors_in_row
from .planner import choose
from .traceable_rows import (
    backward_traceable,
    forward_traceable,
    gradient_tile_traceable,
    tile_traceable,
)

LONG_ROW = 36 * 1024  # bytes of all inputs: above it, clusters are faster.
SYMBOLIC_BYTES = (512, 2048, 8192, 16384, LONG_ROW)
"""Bytes of all inputs: rows of a symbolic N have the plan of the next of these lengths. With the call for longer rows, six graphs of
torch.compile cover all N; it allows a function eight by default. A plan for four times the row has idle lanes, but moves no more bytes."""
TYPICAL_ROWS = 4096  # what a symbolic M counts as in the choice of a plan.
STEP = 128  # columns that each warp takes at once of rows that vectors cannot move.
MAX_WORDS = 32  # of a thread, of all inputs: ptxas then takes at most 64 registers without a limit.
ROW_A_LANE_BYTES = 2048  # that a program of short unaligned rows reads and writes at least; else it has more warps, not fewer rows
BLOCK_THREADS = (64, 128, 256, 512, 1024)


class Launch(NamedTuple):
    """How a traced kernel is launched."""

    tier: str  # rows or tile
    programs: int | torch.SymInt
    arguments: tuple[int | torch.SymInt, ...]  # after the tensors: strides, sizes, constants
    num_warps: int


def are_long(inputs: tuple[torch.Tensor, ...], axis: int) -> bool:
    """Whether the rows of a forward's x or a backward's (dy, y) are longer than what is traced."""
    like = inputs[-1]
    return like.dim() > 0 and bool(like.shape[axis] * (like.element_size() * len(inputs)) > LONG_ROW)


def calls_operator(inputs: tuple[torch.Tensor, ...], axis: int, device: torch.device | None = None) -> bool:
    """Whether a graph of torch.compile calls an opaque operator on a forward's x or a backward's (dy, y), on a device."""
    if are_long(inputs, axis):
        return True
    like, reads = inputs[-1], len(inputs)
    N, size = like.shape[axis], like.element_size()
    # A staged program has more rows if there are more in all, so a symbolic size does not do.
    fixed = all(isinstance(length, int) for length in like.shape) and axis == like.dim() - 1
    if not fixed or size == 8 or torch.version.hip is not None or not all(one.is_contiguous() for one in inputs):
        return False
    traits, misaligned = device_traits(device or like.device), math.gcd(VECTOR_BYTES, N * size)
    problem = Problem(reads == 2, like.numel() // N, N, size, misaligned, True, *traits[1:], contiguous=True)
    return choose(problem, traits[0]).tier == "staged"


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
    card, *traits = device_traits(device or tensors[0].device)
    problem = _problem(tensors, strides, tuple(traits))
    plan = plan_for(problem, card)
    if plan.tier == "tile":
        columns = block_n(problem.N)
        short = plan.vector_elements > 1  # short aligned rows: a vector a thread, 4 warps
        rows = max(1, 128 * plan.vector_elements * plan.rows // columns if short else TILE_ELEMENTS // (problem.reads * columns))
        count = max(1, min(4, rows * columns // (32 * plan.vector_elements))) if short else warps(problem.reads * rows * columns)
        return Launch("tile", (M + rows - 1) // rows, (*strides, M, N, rows, columns, problem.keep_in_l2, log), count)
    unit = 1 if plan.base_alignment else plan.vector_elements
    units = tuple(stride // unit for stride in strides)
    layout = plan.rows, plan.tiles, plan.threads, plan.vector_words, plan.vector_elements, plan.base_alignment
    constants = *layout, problem.keep_in_l2, STEP * plan.warps, log
    return Launch("rows", (M + plan.rows - 1) // plan.rows, (*units, M, N // unit, *constants), plan.warps)


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
    return Problem(reads == 2, rows, columns, size, misaligned, fast, *traits)


def plan_for(problem: Problem, card: Card) -> Plan:
    """The plan for a problem with rows of up to LONG_ROW, among those that compilers can launch."""
    plan = _one_row_a_lane(problem, choose(problem, card))
    if plan.tier in ("tile", "loop"):
        return replace(plan, tier="tile")
    if plan.tier == "rows" and plan.tiles * plan.vector_words * problem.reads <= MAX_WORDS:
        return replace(plan, registers=None)
    elements, base = VECTOR_BYTES // problem.element_size, 0 if problem.alignment == VECTOR_BYTES else VECTOR_BYTES * LINE_VECTORS
    vectors = vectors_in_row(problem, elements, base)
    threads = next(threads for threads in BLOCK_THREADS if math.ceil(vectors / threads) * 4 * problem.reads <= MAX_WORDS)
    return Plan("rows", math.ceil(vectors / threads), threads, 4, elements, base, threads // 32)


def _one_row_a_lane(problem: Problem, plan: Plan) -> Plan:
    """A plan of short unaligned rows, without lanes that have parts of two rows, which were slow.

    It has fewer rows, or more warps if fewer rows would have less than ROW_A_LANE_BYTES.
    """
    lanes = WARP * plan.warps
    if plan.tier != "rows" or problem.alignment == VECTOR_BYTES or not 1 < plan.threads <= WARP or plan.rows * plan.threads <= lanes:
        return plan
    rows = lanes // plan.threads
    if rows * problem.N * problem.element_size * (problem.reads + 1) >= ROW_A_LANE_BYTES:
        return replace(plan, rows=rows)
    return replace(plan, warps=plan.rows * plan.threads // WARP)


# torch finds the kernels of an operator in the source of these functions: each names its own.
def launch_forward(x: torch.Tensor, y: torch.Tensor, log: bool) -> None:
    """y = softmax(x) or log_softmax(x) by rows; see `softbench.kernels.common.rows.Launch`."""
    how = launch_of((x, y), log)
    kernel = wrap_triton(forward_traceable) if how.tier == "rows" else wrap_triton(tile_traceable)
    kernel[(how.programs,)](x, y, *how.arguments, num_warps=how.num_warps)


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, log: bool) -> None:
    """dx by rows, likewise."""
    how = launch_of((dy, y, dx), log)
    kernel = wrap_triton(backward_traceable) if how.tier == "rows" else wrap_triton(gradient_tile_traceable)
    kernel[(how.programs,)](dy, y, dx, *how.arguments, num_warps=how.num_warps)
