"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

The plans are those of `heuristics.py`, as far as a compiler can launch them. Inductor passes on how many warps a kernel has, but neither
clusters (num_ctas) nor a register limit (maxnreg). It makes no cooperative launch. If a kernel has assembly with side effects, Inductor
assumes that the kernel writes its inputs. So compilers trace the tiers rows, tile and loop, and a tier split whose assembly
has no side effects (`traceable_split.py`).

- Rows of up to LONG_ROW bytes are traced, because those tiers are the fastest there.
- For longer rows, a graph that torch.compile runs calls the opaque operator (`calls_operator`). The operator chooses its plan at run time.
- Packages of AOTInductor call no Python, so they have traced kernels for longer rows too (`shared_plan`). One program holds a row of up to
  64 KiB in 16 bits, or of up to 128 KiB in float32, counted over all inputs. Several programs share a longer row. A fill zeroes the places
  where they exchange partial results.
- Two passes, each a kernel, take the place of the fill and the exchange for inputs of up to 12 MiB, which stay in L2 between them. Rows
  that more than 256 programs would share (beyond 11 MiB) have them too. Few rows have two passes from LONG_ROW on.
- No programs share rows of a symbolic N, of float64 or of two dtypes, or rows whose offsets from a 16-byte boundary differ between tensors.
  What one program cannot hold, it reads in a loop.

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
from .launch_plan import LINE_VECTORS, VECTOR_BYTES, WARP, Plan, Problem, chunk_of, chunk_vectors, vectors_in_row
from .staggered_start import stagger
from .traceable_passes import dots_traceable, gradients_traceable, normalize_traceable, partials_traceable
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
PROGRAM_BYTES = 2048  # that a program of short rows reads and writes at least
BLOCK_THREADS = (64, 128, 256, 512, 1024)
SHARED_THREADS = 128  # of a program that has a part of a row
# Tiles of each tensor. False is the forward, True the gradient. The first number is for aligned rows, the second for other and long rows.
SPLIT_TILES = {False: (16, 22), True: (8, 10)}
LONG_SPLIT = 32  # programs of a row: if it has more, they are larger.
SPLIT_PROGRAMS = 4  # that an SM surely holds: with these tiles a thread has at most 128 registers.
MOST_SPLIT = 256  # programs of a row. Each polls the results of all others, and that delays their loads and stores.
PASS_BYTES = 12 << 20  # of all inputs: up to here, a second pass that finds them in L2 takes less time than the exchange.
PASS_TILES = 8  # of all inputs, the most of a thread in a pass
PASS_PROGRAMS = 4  # for each SM: beyond, threads have more tiles.
MOST_COLUMNS = 2**31 - 2**14  # kernels of shared rows count columns in 32 bits.
MAX_PARTS = 512  # of a row, with a partial result each.
PROGRAM_ROW = {2: 64 << 10, 4: 128 << 10}  # bytes of all inputs, by element size: above it, several programs share a row.
# Of a thread of a split row: beside its tiles, and in all.
OTHER_REGISTERS, REGISTERS, MOST_REGISTERS = 32, (80, 96, 128), 168
STAGGERED_ROWS = 4  # that the device holds at once: with fewer, rows of packages start together.
STEP = 128  # columns that each warp takes at once of rows that vectors cannot move.


class Launch(NamedTuple):
    """How a traced kernel is launched."""

    tier: str  # rows, tile, loop, split or passes
    programs: int | torch.SymInt
    arguments: tuple[int | torch.SymInt, ...]  # after the tensors: strides, sizes, constants
    num_warps: int
    slots: int | torch.SymInt = 0  # words of int64 that a kernel takes after the tensors: zeros (split), or what the first pass writes.
    first: tuple[int | torch.SymInt, tuple[int | torch.SymInt, ...]] = (0, ())  # programs and arguments of the first pass


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
    plan = _one_row_a_lane(problem, choose(problem, device))
    if plan.tier in ("tile", "loop") or (plan.tier == "rows" and plan.tiles * plan.vector_words * problem.reads <= MAX_WORDS):
        return replace(plan, registers=None)
    elements, base, vectors = _vectors(problem)
    for threads in BLOCK_THREADS:
        tiles = math.ceil(vectors / threads)
        if tiles * 4 * problem.reads <= MAX_WORDS:
            return Plan("rows", tiles, threads, 4, elements, base, threads // 32)
    return Plan("loop")


def _one_row_a_lane(problem: Problem, plan: Plan) -> Plan:
    """A plan of short unaligned rows, without lanes that have parts of two rows, which were slow (docs/kernels/notes-triton.md).

    It has fewer rows, or more warps if fewer rows would be less than PROGRAM_BYTES.
    """
    lanes = WARP * plan.warps
    if plan.tier != "rows" or problem.alignment == VECTOR_BYTES or not 1 < plan.threads <= WARP or plan.rows * plan.threads <= lanes:
        return plan
    rows = lanes // plan.threads
    if rows * problem.N * problem.element_size * (problem.reads + 1) >= PROGRAM_BYTES:
        return replace(plan, rows=rows)
    return replace(plan, warps=plan.rows * plan.threads // WARP)


def shared_plan(problem: Problem) -> Plan | None:
    """The plan for rows of a static N that several programs share, of a package of AOTInductor; None for other rows.

    All programs of a split row must run at once. Those of two passes need not.
    """
    row = problem.N * problem.element_size * problem.reads
    if not problem.congruent or row <= LONG_ROW or (row <= PROGRAM_ROW[problem.element_size] and problem.M > problem.sms):
        return None
    if problem.N > MOST_COLUMNS:
        return None
    elements, base, vectors = _vectors(problem)
    threads = SHARED_THREADS
    usual, most = SPLIT_TILES[problem.backward]
    ctas = math.ceil(vectors / (threads * (most if base else usual)))
    if ctas > LONG_SPLIT:
        ctas = math.ceil(vectors / (threads * most))
    ctas, tier = max(2, ctas), "split"
    if problem.M * row <= PASS_BYTES or ctas > min(SPLIT_PROGRAMS * problem.sms, MOST_SPLIT):
        tier, tiles = "passes", 1
        while 2 * tiles * problem.reads <= PASS_TILES and problem.M * vectors > tiles * threads * PASS_PROGRAMS * problem.sms:
            tiles *= 2
        ctas = math.ceil(vectors / (tiles * threads))
    tiles = math.ceil(chunk_vectors(vectors, ctas) / threads)
    return Plan(tier, tiles, threads, 4, elements, base, threads // 32, split_ctas=ctas)


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
    plan = (shared_plan(problem) if isinstance(N, int) else None) or plan_for(problem, name)
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
        start = _stagger(problem, plan) if isinstance(M, int) else (0, 0)
        arguments = *units, N, ctas, chunk, *start, *layout, places, problem.keep_in_l2, block, log
        return Launch("split", M * ctas, arguments, plan.warps, M * ctas)
    parts = min(ctas, MAX_PARTS)
    part = chunk_vectors(vectors_in_row(problem, plan.vector_elements, plan.base_alignment), parts)
    first = *units[:-1], N, parts, part, *layout, block, *((log,) if problem.backward else ())
    arguments = *units, N, parts, ctas, chunk, *layout, places, block, log
    return Launch("passes", M * ctas, arguments, plan.warps, M * parts, (M * parts, first))


def _stagger(problem: Problem, plan: Plan) -> tuple[int, int]:
    """The stagger of a split plan. The registers that ptxas takes without a limit decide how many programs an SM holds."""
    rows, cycles = stagger(problem, replace(plan, registers=split_registers(problem, plan)))
    return (rows, cycles) if rows >= STAGGERED_ROWS else (0, 0)


def split_registers(problem: Problem, plan: Plan) -> int:
    """The most that ptxas takes for a thread of such a split row: as many programs of an SM as with what it takes."""
    if plan.base_alignment and problem.element_size == 2 and not problem.backward and plan.tiles in (15, 16):
        return MOST_REGISTERS
    needed = 4 * plan.tiles * problem.reads + OTHER_REGISTERS
    return next((most for most in REGISTERS if needed <= most), MOST_REGISTERS)


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
    if how.tier == "passes":
        slots = x.new_empty((how.slots,), dtype=torch.int64)
        programs, arguments = how.first
        wrap_triton(partials_traceable)[(programs,)](x, slots, *arguments, num_warps=how.num_warps)
        wrap_triton(normalize_traceable)[(how.programs,)](x, y, slots, *how.arguments, num_warps=how.num_warps)
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
    if how.tier == "passes":
        slots = y.new_empty((how.slots,), dtype=torch.int64)
        programs, arguments = how.first
        wrap_triton(dots_traceable)[(programs,)](dy, y, slots, *arguments, num_warps=how.num_warps)
        wrap_triton(gradients_traceable)[(how.programs,)](dy, y, dx, slots, *how.arguments, num_warps=how.num_warps)
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
