"""Staggered start: the first rows of a launch, as many as the device holds at once, begin one after the other.

Rows that begin together wait for their exchanges together, and meanwhile no memory moves. Later rows begin as the first ones end, so they
stay apart. The CUDA kernels do the same.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch_plan import FEWEST_ROWS, GPC_SMS, LEAVE_FIRST, ONE_WAVE_BYTES, Plan, Problem, resident_programs
from .packed_io import INTERPRETED

MIN_BYTES = 4 << 20  # of all inputs: shorter launches, of a few microseconds, are not staggered.
LONGER_DELAY_BYTES = 16 << 20  # of the inputs: from here on, forwards of one wave have a third more.
MEDIUM_ROW = 3_000_000  # bytes of a row in all inputs, as SHORT_BYTES_OF_FEW_WAVES of the CUDA kernels
MAX_CYCLES = 100_000_000
WAIT_CYCLES = tl.constexpr(
    "{ .reg .u64 begin, now, since; .reg .pred p; mov.u64 begin, %clock64;"
    " AGAIN: mov.u64 now, %clock64; sub.u64 since, now, begin; setp.lt.u64 p, since, $1; @p bra AGAIN;"
    " mov.u32 $0, 0; }"
)
"""Waits until so many cycles have passed. The result is 0."""


def stagger(problem: Problem, plan: Plan) -> tuple[int, int]:
    """(rows, cycles): the first `rows` rows of a cluster or split plan begin `cycles` cycles after each other. (0, 0): no stagger.

    The delay is the time in which memory at its peak reads a row, and a third more for the split tier. There, gradients have no third more
    in two cases. On Hopper a row has at most MEDIUM_ROW bytes, or the device holds all rows at once. In the second case, launches of less
    than ONE_WAVE_BYTES have no delay, and forwards of less than LONGER_DELAY_BYTES have no third more. With fewer than FEWEST_ROWS,
    forwards then have no delay, and gradients a third of it. Forwards with the policy LEAVE_FIRST have a row's time. The CUDA kernels
    differ where other delays were faster.
    """
    row = problem.N * problem.element_size * problem.reads
    if problem.M == 1 or problem.M * row < MIN_BYTES or problem.bytes_per_cycle <= 0 or max(plan.cluster_ctas, plan.split_ctas) == 1:
        return 0, 0
    programs = max(1, resident_programs(plan.threads, plan.registers, plan.smem_tiles * problem.reads))
    cycles = row / problem.bytes_per_cycle
    if plan.tier == "cluster":
        rows = max(1, programs * GPC_SMS // plan.cluster_ctas) * (problem.sms // GPC_SMS)
    else:
        rows = programs * problem.sms // plan.split_ctas
        cycles *= _share(problem, plan, rows)
        if not cycles:
            return 0, 0
    return (rows, int(min(MAX_CYCLES, cycles))) if rows else (0, 0)


def _share(problem: Problem, plan: Plan, rows: int) -> float:
    """The delay between rows of a split plan as a share of a row's time, if the device holds `rows` rows at once."""
    if not problem.backward and problem.policy(plan) == LEAVE_FIRST:
        return 1
    if problem.M > rows:
        return 1 if problem.hopper and problem.backward and problem.input_bytes <= problem.M * MEDIUM_ROW else 4 / 3
    few = problem.M < FEWEST_ROWS
    if problem.input_bytes < ONE_WAVE_BYTES[problem.backward] or (few and not problem.backward):
        return 0
    if problem.backward:
        return 1 / 3 if few else 1
    return 4 / 3 if problem.input_bytes >= LONGER_DELAY_BYTES else 1


@triton.jit
def staggered_start(row, stagger_rows, stagger_cycles):
    """`row`, the program's row, after its delay: stagger_cycles after the row before it, for the first stagger_rows rows."""
    if INTERPRETED:
        return row
    else:
        wait = tl.where(row < stagger_rows, row.to(tl.int64) * stagger_cycles, 0)
        return row + tl.inline_asm_elementwise(WAIT_CYCLES, "=r,l", [wait], dtype=tl.int32, is_pure=False, pack=1)
