"""How the CTAs of a cluster, which share a row, merge their partial results. It needs Hopper or later.

The row is a tile (CTAS, THREADS, WORDS) whose first axis Triton spreads over the CTAs (num_ctas = CTAS). Triton 3.6 does not reduce
across the CTAs, so inline assembly does. Each CTA sends its partial result to a mailbox in the shared memory of every CTA. An mbarrier
there counts what has arrived. A second barrier of the cluster would order all memory of all its CTAs, and so is avoided.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .softmax_ops import LOG2E_BITS, REGISTERS, exp_factor, merge_lanes


def _arrive(ctas: int, pairs: bool) -> tl.constexpr:
    """Assembly that prepares this CTA's mailbox and arrives at the cluster's barrier. `_exchange` uses the names of the shared variables.

    The arrival is relaxed. The default is a release, which waits for the whole device's memory before anything is loaded.
    """
    lines = [
        f".shared .align 8 .b8 softbench_mailbox[{ctas * (8 if pairs else 4)}];",
        ".shared .align 8 .b64 softbench_received;",
        "{ .reg .u32 received, thread; .reg .pred p;",
        "mov.u32 thread, %tid.x; setp.eq.u32 p, thread, 0; mov.u32 received, softbench_received;",
        "@p mbarrier.init.shared::cta.b64 [received], 1;",
        "@p fence.mbarrier_init.release.cluster;",
        f"@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [received], {ctas * (8 if pairs else 4)};",
        "barrier.cluster.arrive.relaxed.aligned; mov.b32 $0, $1; }",
    ]
    return tl.constexpr("\n".join(lines))


def _exchange(ctas: int, pairs: bool, factor: str = LOG2E_BITS) -> tl.constexpr:
    """Assembly that merges one (max, sum) pair of each CTA, or adds one value of each.

    It waits twice: until all mailboxes are ready, and until all partial results have arrived. No CTA writes to another one's memory after
    that, so a CTA may exit.
    """
    size, slot, mine = (8, "v2.f32", "{$2, $3}") if pairs else (4, "f32", "$1")
    lines = [
        f"{REGISTERS} .reg .u32 received, to, to_received, rank; .reg .f32 sum, s<{ctas}>;",
        "mov.u32 base, softbench_mailbox; mov.u32 received, softbench_received; mov.u32 rank, %cluster_ctarank; mov.u32 thread, %tid.x;",
        "barrier.cluster.wait.acquire.aligned;",
        f"setp.lt.u32 p, thread, {ctas};",
        f"mad.lo.u32 to, rank, {size}, base;",
        "@p mapa.shared::cluster.u32 to, to, thread;",
        "@p mapa.shared::cluster.u32 to_received, received, thread;",
        f"@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{slot} [to], {mine}, [to_received];",
        "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [received], 0; @!p bra WAIT;",
    ]
    if pairs:
        lines += [
            f"and.b32 at, thread, {ctas - 1}; mad.lo.u32 at, at, 8, base; ld.shared.v2.f32 {{m, s}}, [at];",
            *merge_lanes(ctas, factor),
        ]
        lines += ["mov.f32 $0, m; mov.f32 $1, s;"]
    else:
        lines += [f"ld.shared.f32 s{i}, [base + {4 * i}];" for i in range(ctas)]
        lines += ["mov.f32 sum, s0;", *[f"add.f32 sum, sum, s{i};" for i in range(1, ctas)], "mov.f32 $0, sum;"]
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


PAIRS_2, PAIRS_4, PAIRS_8, PAIRS_16 = (_exchange(ctas, True) for ctas in (2, 4, 8, 16))
CLUSTER_SCALED_2, CLUSTER_SCALED_4, CLUSTER_SCALED_8, CLUSTER_SCALED_16 = (_exchange(ctas, True, "$4") for ctas in (2, 4, 8, 16))
SUMS_2, SUMS_4, SUMS_8, SUMS_16 = (_exchange(ctas, False) for ctas in (2, 4, 8, 16))
ARRIVE_2, ARRIVE_4, ARRIVE_8, ARRIVE_16 = (_arrive(ctas, True) for ctas in (2, 4, 8, 16))
ARRIVE_SUM_2, ARRIVE_SUM_4, ARRIVE_SUM_8, ARRIVE_SUM_16 = (_arrive(ctas, False) for ctas in (2, 4, 8, 16))


@triton.jit
def cluster_arrive(rank, CTAS: tl.constexpr):
    """Declares this CTA ready for `cluster_exchange`. Call it once in a kernel, before the loads, so that they overlap the wait."""
    ASM: tl.constexpr = ARRIVE_2 if CTAS == 2 else (ARRIVE_4 if CTAS == 4 else (ARRIVE_8 if CTAS == 8 else ARRIVE_16))
    tl.inline_asm_elementwise(ASM, "=r,r", [rank], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def cluster_arrive_sum(rank, CTAS: tl.constexpr):
    """Declares this CTA ready for `cluster_exchange_sum`."""
    ASM: tl.constexpr = ARRIVE_SUM_2 if CTAS == 2 else (ARRIVE_SUM_4 if CTAS == 4 else (ARRIVE_SUM_8 if CTAS == 8 else ARRIVE_SUM_16))
    tl.inline_asm_elementwise(ASM, "=r,r", [rank], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def cluster_exchange(maximum, total, scale, CTAS: tl.constexpr):
    """Merges the CTAs' (max, sum), each (CTAS, THREADS). Each thread has its CTA's pair, and gets the cluster's.

    `scale` is None or a number.
    """
    if scale is None:
        ASM: tl.constexpr = PAIRS_2 if CTAS == 2 else (PAIRS_4 if CTAS == 4 else (PAIRS_8 if CTAS == 8 else PAIRS_16))
        return tl.inline_asm_elementwise(ASM, "=&f,=&f,f,f", [maximum, total], dtype=(tl.float32, tl.float32), is_pure=False, pack=1)
    else:
        WITH_SCALE: tl.constexpr = (
            CLUSTER_SCALED_2 if CTAS == 2 else (CLUSTER_SCALED_4 if CTAS == 4 else (CLUSTER_SCALED_8 if CTAS == 8 else CLUSTER_SCALED_16))
        )
        inputs = [maximum, total, tl.broadcast_to(exp_factor(scale), maximum.shape)]
        return tl.inline_asm_elementwise(WITH_SCALE, "=&f,=&f,f,f,f", inputs, dtype=(tl.float32, tl.float32), is_pure=False, pack=1)


@triton.jit
def cluster_exchange_sum(dot, CTAS: tl.constexpr):
    """Adds (CTAS) values, one a CTA. Each CTA gets the sum."""
    ASM: tl.constexpr = SUMS_2 if CTAS == 2 else (SUMS_4 if CTAS == 4 else (SUMS_8 if CTAS == 8 else SUMS_16))
    return tl.inline_asm_elementwise(ASM, "=&f,f", [dot], dtype=tl.float32, is_pure=False, pack=1)
