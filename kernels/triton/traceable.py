"""The launches that a compiler traces: torch.compile, torch.export and AOTInductor see the kernels themselves.

The plans are those of `planner.py`, as far as a compiler can launch them. Inductor passes on how many warps a kernel has, but neither
clusters (num_ctas) nor a register limit (maxnreg). It makes no cooperative launch. If a kernel has assembly with side effects, Inductor
assumes that the kernel writes its inputs. So compilers trace the tiers rows, tile and loop, and tiers staged and split whose assembly
has no side effects (`traceable_staged.py`, `traceable_split.py`).

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

from .devices import Card, device_traits
from .generic import LOOP_COLUMNS, TILE_ELEMENTS, block_n, warps
from .interpreter import INTERPRETED
from .launch_plan import LINE_VECTORS, VECTOR_BYTES, WARP, Plan, Problem, chunk_of, chunk_vectors, staged_layout, vectors_in_row
from .planner import choose
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
from .traceable_staged import backward_staged_traceable, forward_staged_traceable

LONG_ROW = 36 * 1024  # bytes of all inputs: above it, clusters are faster.
SYMBOLIC_BYTES = (512, 2048, 8192, 16384, LONG_ROW, 64 << 10, 128 << 10)
"""Bytes of all inputs: rows of a symbolic N have the plan of the next of these lengths. With the call for longer rows, six graphs of
torch.compile cover all N; it allows a function eight by default. A plan for four times the row has idle lanes, but moves no more bytes."""
TYPICAL_ROWS = 4096  # what a symbolic M counts as in the choice of a plan.
MAX_PARTS = 512  # of a row, with a partial result each.
STEP = 128  # columns that each warp takes at once of rows that vectors cannot move.
MAX_WORDS = 32  # of a thread, of all inputs: ptxas then takes at most 64 registers without a limit.
ROW_A_LANE_BYTES = 2048  # that a program of short unaligned rows reads and writes at least; else it has more warps, not fewer rows
BLOCK_THREADS = (64, 128, 256, 512, 1024)
SHARED_THREADS = 128  # of a program that has a part of a row
# Tiles of each tensor that a thread of a split row holds: usual, of unaligned rows, of long rows. False is the forward, True the gradient.
SPLIT_TILES = {False: (16, 22, 24), True: (8, 10, 10)}
LONG_SPLIT = 32  # programs of an aligned row: if the usual tiles need more, the row has the tiles of long rows.
USUAL_BYTES, USUAL_SPLIT = 64 << 20, 128  # A forward's input of up to so many bytes has the usual tiles up to so many programs a row.
FEW_WAVES_BYTES = 34 << 20  # of an aligned forward's input: up to here, half the usual tiles, if at most LONG_SPLIT programs share a row.
SPLIT_PROGRAMS = 3  # that an SM surely holds: with these tiles a thread has at most 168 registers, as on sm_100; on sm_90 it has 128.
MOST_SPLIT = 256  # programs of a row. Each polls the results of all others, and that delays their loads and stores.
PASS_BYTES = 12 << 20  # of all inputs: up to here, a second pass that finds them in L2 takes less time than the exchange.
PASS_TILES = 8  # of all inputs, the most of a thread in a pass
PASS_PROGRAMS = 4  # for each SM: beyond, threads have more tiles.
MOST_COLUMNS = 2**31 - 2**14  # kernels of shared rows count columns in 32 bits.
PROGRAM_ROW = {2: 64 << 10, 4: 128 << 10}  # bytes of all inputs, by element size: above it, several programs share a row.
# Of a thread of a split row: beside its tiles, and in all.
OTHER_REGISTERS, REGISTERS, MOST_REGISTERS = 32, (64, 80, 96, 128), 168
STAGGERED_ROWS = {False: 3, True: 4}  # that the device holds at once, of a forward and of a gradient: with fewer, rows start together.


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
    card, *traits = device_traits(device or tensors[0].device)
    problem = _problem(tensors, strides, tuple(traits))
    plan = (shared_plan(problem) if isinstance(N, int) else None) or plan_for(problem, card)
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


def plan_for(problem: Problem, card: Card) -> Plan:
    """The plan for a problem, among those that compilers can launch."""
    plan = _one_row_a_lane(problem, choose(problem, card))
    if plan.tier == "staged":
        return plan
    if plan.tier in ("tile", "loop") or (plan.tier == "rows" and plan.tiles * plan.vector_words * problem.reads <= MAX_WORDS):
        return replace(plan, registers=None)
    elements, base, vectors = row_layout(problem)
    for threads in BLOCK_THREADS:
        tiles = math.ceil(vectors / threads)
        if tiles * 4 * problem.reads <= MAX_WORDS:
            return Plan("rows", tiles, threads, 4, elements, base, threads // 32)
    return Plan("loop")


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


def shared_plan(problem: Problem) -> Plan | None:
    """The plan for rows of a static N that several programs share, of a package of AOTInductor; None for other rows.

    All programs of a split row must run at once. Those of two passes need not.
    """
    row = problem.N * problem.element_size * problem.reads
    if not problem.congruent or row <= LONG_ROW or (row <= PROGRAM_ROW[problem.element_size] and problem.M > problem.sms):
        return None
    if problem.N > MOST_COLUMNS:
        return None
    elements, base, vectors = row_layout(problem)
    threads = SHARED_THREADS
    ctas, tier = _split_programs(problem, vectors), "split"
    if problem.M * row <= PASS_BYTES or ctas > min(SPLIT_PROGRAMS * problem.sms, MOST_SPLIT):
        tier, tiles = "passes", 1
        while 2 * tiles * problem.reads <= PASS_TILES and problem.M * vectors > tiles * threads * PASS_PROGRAMS * problem.sms:
            tiles *= 2
        ctas = math.ceil(vectors / (tiles * threads))
    tiles = math.ceil(chunk_vectors(vectors, ctas) / threads)
    return Plan(tier, tiles, threads, 4, elements, base, threads // 32, split_ctas=ctas)


def _split_programs(problem: Problem, vectors: int) -> int:
    """How many programs share a split row of `vectors` vectors."""
    usual, unaligned, long = SPLIT_TILES[problem.backward]

    def programs(tiles: int) -> int:
        return max(2, math.ceil(vectors / (SHARED_THREADS * tiles)))

    if problem.alignment != VECTOR_BYTES:
        return programs(unaligned)
    at_once = SPLIT_PROGRAMS * problem.sms
    size = math.inf if problem.backward else problem.M * problem.N * problem.element_size  # only forwards have rules by size
    if size <= FEW_WAVES_BYTES and programs(usual // 2) <= min(LONG_SPLIT, at_once):
        return programs(usual // 2)
    keeps = min(USUAL_SPLIT if size <= USUAL_BYTES else LONG_SPLIT, at_once)
    return programs(usual if programs(usual) <= keeps else long)


def row_layout(problem: Problem) -> tuple[int, int, int]:
    """(elements of a vector, base alignment, the most vectors that a row touches) of rows that no table decides on."""
    elements = VECTOR_BYTES // problem.element_size
    base = 0 if problem.alignment == VECTOR_BYTES else VECTOR_BYTES * LINE_VECTORS
    return elements, base, vectors_in_row(problem, elements, base)


def split_stagger(problem: Problem, plan: Plan) -> tuple[int, int]:
    """(rows, cycles) of a split plan, as `stagger` returns. The registers that ptxas takes decide how many programs an SM holds.

    A forward with half the usual tiles waits the time in which memory reads a row, in launches of one wave too.
    """
    half = not problem.backward and not plan.base_alignment and plan.tiles <= SPLIT_TILES[False][0] // 2
    rows, cycles = stagger(problem, replace(plan, registers=split_registers(problem, plan)), 1 if half else None)
    return (rows, cycles) if rows >= STAGGERED_ROWS[problem.backward] else (0, 0)


def split_registers(problem: Problem, plan: Plan) -> int:
    """The most that ptxas takes for a thread of such a split row: as many programs of an SM as with what it takes."""
    if plan.base_alignment and problem.element_size == 2 and not problem.backward and plan.tiles in (15, 16):
        return MOST_REGISTERS
    needed = 4 * plan.tiles * problem.reads + OTHER_REGISTERS
    return next((most for most in REGISTERS if needed <= most), MOST_REGISTERS)


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
