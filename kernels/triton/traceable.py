"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

The plans are those of `heuristics.py`, as far as a compiler can launch them. Inductor passes on how many warps a kernel has, but neither
clusters (num_ctas) nor a register limit (maxnreg). It makes no cooperative launch. If a kernel has assembly with side effects, Inductor
assumes that the kernel writes its inputs. So compilers trace the tiers rows, tile and loop, and a tier split without assembly
(`traceable_split.py`).

- Rows of up to LONG_ROW bytes are traced, because those tiers are the fastest there.
- For longer rows, a graph that torch.compile runs calls the opaque operator (`calls_operator`). The operator chooses its plan at run time.
- Packages of AOTInductor call no Python, so they have traced kernels for longer rows too. One program holds a row of up to 64 KiB in 16
  bits, or of up to 128 KiB in float32, counted over all inputs. Several programs share a longer row, and a row beyond LONG_ROW where rows
  are few (`split_plan`). Before such a launch, a fill zeroes the places where they exchange partial results.
- No programs share rows of a symbolic N, of float64 or of two dtypes, or rows whose offsets from a 16-byte boundary differ between tensors.
  Rows of more than 128 KiB for each SM (16.5 MiB on an H200) are not shared either. What one program cannot hold, it reads in a loop.

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
from .generic import LOOP_COLUMNS, TILE_ELEMENTS, block_n, warps
from .heuristics import LONG_ROW, choose
from .launch_plan import LINE_VECTORS, VECTOR_BYTES, Plan, Problem, chunk_of, chunk_vectors, vectors_in_row
from .traceable_rows import (
    backward_traceable,
    forward_traceable,
    gradient_loop_traceable,
    gradient_tile_traceable,
    loop_traceable,
    tile_traceable,
)
from .traceable_split import backward_split_traceable, forward_split_traceable

SYMBOLIC_BYTES = (512, 2048, 8192, 16384, LONG_ROW, 64 << 10, 128 << 10)
"""Bytes of all inputs: rows of a symbolic N have the plan of the next of these lengths. With the call for longer rows, six graphs of
torch.compile cover all N; it allows a function eight by default. A plan for four times the row has idle lanes, but moves no more bytes."""
TYPICAL_ROWS = 4096  # what a symbolic M counts as in the choice of a plan.
MAX_WORDS = 32  # of a thread, of all inputs: ptxas then takes at most 64 registers without a limit.
BLOCK_THREADS = (64, 128, 256, 512, 1024)
SPLIT_THREADS = {128: 4, 1024: 1}  # of a program that has a part of a row, and how many such programs an SM surely holds.
SPLIT_VECTORS = 128  # of a part, at least
PROGRAM_ROW = {2: 64 << 10, 4: 128 << 10}  # bytes of all inputs, by element size: above it, several programs share a row.
STEP = 128  # columns that each warp takes at once of rows that vectors cannot move.


class Launch(NamedTuple):
    """How a traced kernel is launched."""

    tier: str  # rows, tile, loop or split
    programs: int | torch.SymInt
    arguments: tuple[int | torch.SymInt, ...]  # after the tensors: strides, sizes, constants
    num_warps: int
    slots: int | torch.SymInt = 0  # zeros of int64 that a split kernel takes after the tensors


def calls_operator(N: int | torch.SymInt, element_size: int, reads: int) -> bool:
    """Whether a traced graph calls the opaque operator for rows of N columns, of `reads` inputs."""
    return bool(N * (element_size * reads) > LONG_ROW) and not _packaging()


def _packaging() -> bool:
    """Whether the graph is for AOTInductor. True if torch does not say so: traced kernels are right everywhere."""
    try:
        from torch._inductor.virtualized import V

        return bool(V.aot_compilation)
    except (ImportError, AttributeError):
        return True


def plan_for(problem: Problem, device: str) -> Plan:
    """The plan for a problem, among those that compilers can launch."""
    plan = choose(problem, device)
    if plan.tier in ("tile", "loop") or (plan.tier == "rows" and plan.tiles * plan.vector_words * problem.reads <= MAX_WORDS):
        return replace(plan, registers=None)
    elements, base, vectors = _vectors(problem)
    for threads in BLOCK_THREADS:
        tiles = math.ceil(vectors / threads)
        if tiles * 4 * problem.reads <= MAX_WORDS:
            return Plan("rows", tiles, threads, 4, elements, base, threads // 32)
    return Plan("loop")


def split_plan(problem: Problem) -> Plan | None:
    """The plan for rows of a static N that several programs share, of a package of AOTInductor; None for other rows.

    Few rows get twice as many programs as the device has SMs. At most as many programs share a row as surely run at once.
    """
    row = problem.N * problem.element_size * problem.reads
    few = 2 * problem.sms // problem.M
    if not problem.congruent or row <= LONG_ROW or (row <= PROGRAM_ROW[problem.element_size] and few < 2):
        return None
    elements, base, vectors = _vectors(problem)
    for threads, programs in SPLIT_THREADS.items():
        most = problem.sms * programs
        fewest = math.ceil(vectors / (threads * (MAX_WORDS // (4 * problem.reads))))
        if fewest <= most:
            ctas = max(2, fewest, min(few, most, vectors // SPLIT_VECTORS))
            tiles = math.ceil(chunk_vectors(vectors, ctas) / threads)
            return Plan("split", tiles, threads, 4, elements, base, threads // 32, split_ctas=ctas)
    return None


def _vectors(problem: Problem) -> tuple[int, int, int]:
    """(elements of a vector, base alignment, the most vectors that a row touches) of rows that no table decides on."""
    elements = VECTOR_BYTES // problem.element_size
    base = 0 if problem.alignment == VECTOR_BYTES else VECTOR_BYTES * LINE_VECTORS
    return elements, base, vectors_in_row(problem, elements, base)


def launch_of(tensors: tuple[torch.Tensor, ...], log: bool, device: torch.device | None = None) -> Launch:
    """The launch for a forward's (x, y) or a backward's (dy, y, dx), on a device that need not be the tensors'."""
    M, N = tensors[0].shape
    strides = tuple(tensor.stride(0) for tensor in tensors)
    name, *traits = device_traits(device or tensors[0].device)
    problem = _problem(tensors, strides, tuple(traits))
    plan = (split_plan(problem) if isinstance(N, int) else None) or plan_for(problem, name)
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
    if plan.tier == "split":
        places = max(plan.threads, triton.next_power_of_2(plan.split_ctas))
        sizes = N // unit, plan.split_ctas, chunk_of(problem, plan), plan.tiles, plan.threads, plan.vector_elements, plan.base_alignment
        arguments = *units, *sizes, places, problem.keep_in_l2, STEP * plan.warps, log
        programs = M * plan.split_ctas
        return Launch("split", programs, arguments, plan.warps, programs * (1 if problem.backward else 2))
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
    return Problem(reads == 2, rows, columns, size, misaligned, congruent and one_dtype and size < 8 and torch.version.hip is None, *traits)


# torch finds the kernels of an operator in the source of these functions: each names its own.
def _forward(x: torch.Tensor, y: torch.Tensor, log: bool) -> None:
    how = launch_of((x, y), log)
    if how.tier == "split":
        slots = x.new_zeros((how.slots,), dtype=torch.int64)
        wrap_triton(forward_split_traceable)[(how.programs,)](x, y, slots, *how.arguments, num_warps=how.num_warps)
        return
    if how.tier == "rows":
        kernel = wrap_triton(forward_traceable)
    else:
        kernel = wrap_triton(loop_traceable) if how.tier == "loop" else wrap_triton(tile_traceable)
    kernel[(how.programs,)](x, y, *how.arguments, num_warps=how.num_warps)


def _backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor, log: bool) -> None:
    how = launch_of((dy, y, dx), log)
    if how.tier == "split":
        slots = y.new_zeros((how.slots,), dtype=torch.int64)
        wrap_triton(backward_split_traceable)[(how.programs,)](dy, y, dx, slots, *how.arguments, num_warps=how.num_warps)
        return
    if how.tier == "rows":
        kernel = wrap_triton(backward_traceable)
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
