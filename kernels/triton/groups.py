"""How programs that share a row come to one (max, sum) or one dot product: clusters of CTAs, and groups that meet in global memory.

- Cluster (Hopper and later): the row is a (C, T, W) tile whose first axis Triton spreads over the CTAs (num_ctas = C). Triton 3.6 does not
  reduce across them, so the last step is inline assembly: each CTA sends its part into every other's shared memory.
- Group: any number of CTAs of a launch, found by program id. Each publishes its part with the launch's tag and polls the others' slots.
  The tag is the epoch, the high half of a counter in the workspace that steps once a launch, on the device: a CUDA graph may replay it.
  A program that has polled in vain POLLS times (its peers may not even run) measures the whole row itself: no co-residency is needed,
  no cooperative launch, and no order of programs can hang it. (Hence x must not be written while it runs: never in place.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from .joins import MEASURED_FROM, REGISTERS, over_lanes, over_warps, rescaled
from .words import INTERPRETED, MINUS_INFINITY, base_of, exp_of

POLLS = tl.constexpr(1 if INTERPRETED.value else 1 << 15)
# One thread, one slot: polls it until it has the tag, at most so many times. In: address, tag, whether there is such a slot.
POLL_SUM = tl.constexpr(
    "{ .reg .u32 a, ta, tries; .reg .pred p;"
    " mov.u32 tries, 0; mov.b32 $0, 0f00000000; mov.u32 $1, 0;"
    " setp.eq.s32 p, $4, 0; @p bra DONE;"
    " POLL: ld.relaxed.gpu.global.v2.u32 {a, ta}, [$2];"
    " setp.eq.u32 p, ta, $3; @p bra GOT;"
    f" add.u32 tries, tries, 1; setp.lt.u32 p, tries, {POLLS.value}; @p bra POLL; mov.u32 $1, 1; bra DONE;"
    " GOT: mov.b32 $0, a; DONE: }"
)
# The CTA's part, by its first thread.
PUBLISH = tl.constexpr(
    "{ .reg .u32 thread; .reg .pred p; mov.u32 thread, %tid.x; setp.eq.u32 p, thread, 0;"
    " @p st.relaxed.gpu.global.v4.b32 [$1], {$2, $3, $4, $3}; mov.u32 $0, 0; }"
)
# The counter's high word, by the thread that is to read it; 0 by the others.
EPOCH = tl.constexpr("{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.u32 $0, 0; @p ld.relaxed.gpu.global.u32 $0, [$1+4]; }")

# Until so many cycles are over.
TURN = tl.constexpr(
    "{ .reg .u64 begin, since; .reg .pred p; mov.u64 begin, %clock64;"
    " AGAIN: mov.u64 since, %clock64; sub.u64 since, since, begin; setp.lt.u64 p, since, $1; @p bra AGAIN;"
    " mov.u32 $0, 0; }"
)


def _arrive(C: int, pairs: bool) -> tl.constexpr:
    """Assembly that readies this CTA's mailbox and says so. Its names are the function's: `exchange` uses them.

    Relaxed: as a release, which is the default, it waits for the whole card's memory before anything is loaded.
    """
    lines = [
        f".shared .align 8 .b8 softbench_box[{C * (8 if pairs else 4)}];",
        ".shared .align 8 .b64 softbench_news;",
        "{ .reg .u32 news, thread; .reg .pred p;",
        "mov.u32 thread, %tid.x; setp.eq.u32 p, thread, 0; mov.u32 news, softbench_news;",
        "@p mbarrier.init.shared::cta.b64 [news], 1;",
        "@p fence.mbarrier_init.release.cluster;",
        f"@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [news], {C * (8 if pairs else 4)};",
        "barrier.cluster.arrive.relaxed.aligned; mov.b32 $0, $1; }",
    ]
    return tl.constexpr("\n".join(lines))


def _exchange(C: int, pairs: bool) -> tl.constexpr:
    """Assembly for one value (R = C of them, one a CTA) or a (max, sum) pair: in, what each CTA has; out, what they have together.

    The first wait is for the peers' mailboxes to be ready, the second for their parts, which say themselves that they have come (a second
    barrier of the cluster would order all memory of all its CTAs). Nobody writes to a CTA after that: it may exit.
    """
    size, slot, mine = (8, "v2.f32", "{$2, $3}") if pairs else (4, "f32", "$1")
    lines = [
        f"{REGISTERS} .reg .u32 news, there, bell, rank; .reg .f32 sum, s<{C}>;",
        "mov.u32 base, softbench_box; mov.u32 news, softbench_news; mov.u32 rank, %cluster_ctarank; mov.u32 thread, %tid.x;",
        "barrier.cluster.wait.acquire.aligned;",
        f"setp.lt.u32 p, thread, {C};",
        f"mad.lo.u32 there, rank, {size}, base;",
        "@p mapa.shared::cluster.u32 there, there, thread;",
        "@p mapa.shared::cluster.u32 bell, news, thread;",
        f"@p st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{slot} [there], {mine}, [bell];",
        "WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [news], 0; @!p bra WAIT;",
    ]
    if pairs:
        lines += [f"and.b32 at, thread, {C - 1}; mad.lo.u32 at, at, 8, base; ld.shared.v2.f32 {{m, s}}, [at];", *over_lanes(C)]
        lines += ["mov.f32 $0, m; mov.f32 $1, s;"]
    else:
        lines += [f"ld.shared.f32 s{i}, [base + {4 * i}];" for i in range(C)]
        lines += ["mov.f32 sum, s0;", *[f"add.f32 sum, sum, s{i};" for i in range(1, C)], "mov.f32 $0, sum;"]
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


PAIRS_2, PAIRS_4, PAIRS_8, PAIRS_16 = (_exchange(C, True) for C in (2, 4, 8, 16))
SUMS_2, SUMS_4, SUMS_8, SUMS_16 = (_exchange(C, False) for C in (2, 4, 8, 16))
READY_2, READY_4, READY_8, READY_16 = (_arrive(C, True) for C in (2, 4, 8, 16))
READY_SUM_2, READY_SUM_4, READY_SUM_8, READY_SUM_16 = (_arrive(C, False) for C in (2, 4, 8, 16))


@triton.jit
def arrive(rank, C: tl.constexpr):
    """Tell the cluster that this CTA is ready for `exchange`, which waits for it, with loads under way meanwhile. Once a kernel."""
    ASM: tl.constexpr = READY_2 if C == 2 else (READY_4 if C == 4 else (READY_8 if C == 8 else READY_16))
    tl.inline_asm_elementwise(ASM, "=r,r", [rank], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def arrive_for_sum(rank, C: tl.constexpr):
    """The same for `exchange_sum`."""
    ASM: tl.constexpr = READY_SUM_2 if C == 2 else (READY_SUM_4 if C == 4 else (READY_SUM_8 if C == 8 else READY_SUM_16))
    tl.inline_asm_elementwise(ASM, "=r,r", [rank], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def exchange(top, total, C: tl.constexpr):
    """CTAs' parts, (C, T), of which each thread has its own CTA's, as each thread's copy of their join."""
    ASM: tl.constexpr = PAIRS_2 if C == 2 else (PAIRS_4 if C == 4 else (PAIRS_8 if C == 8 else PAIRS_16))
    return tl.inline_asm_elementwise(ASM, "=&f,=&f,f,f", [top, total], dtype=(tl.float32, tl.float32), is_pure=False, pack=1)


@triton.jit
def exchange_sum(dot, C: tl.constexpr):
    """(C) sums, one a CTA, as each CTA's (C) copies of their sum."""
    ASM: tl.constexpr = SUMS_2 if C == 2 else (SUMS_4 if C == 4 else (SUMS_8 if C == 8 else SUMS_16))
    return tl.inline_asm_elementwise(ASM, "=&f,f", [dot], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def in_turn(number, FIRST, CYCLES):
    """`number`, the program's row, once it is that row's turn: CYCLES after the row before it, of the FIRST ones."""
    if INTERPRETED:
        return number
    else:
        wait = tl.where(number < FIRST, number.to(tl.int64) * CYCLES, 0)
        return number + tl.inline_asm_elementwise(TURN, "=r,l", [wait], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def tag_of(counter, T: tl.constexpr):
    """The launch's tag, 1 to 2^30, of int64; read it before `leave`, which steps the counter. T: threads.

    One thread reads it for all: a thousand warps that read one line wait for each other.
    """
    if INTERPRETED:
        return ((tl.load(counter, volatile=True) >> 32) & 0x3FFFFFFF) + 1
    else:
        thread = tl.arange(0, T)
        given = [(counter + thread * 0).to(tl.int64), (thread == 0).to(tl.int32)]
        seen = tl.inline_asm_elementwise(EPOCH, "=&r,l,r", given, dtype=tl.int32, is_pure=False, pack=1)
        return (tl.max(seen & 0x3FFFFFFF, 0) + 1).to(tl.int64)


@triton.jit
def leave(counter, tag, programs):
    """Count this program; when all have, the epoch steps by one. `tag` is only there to come first."""
    first = tl.program_id(0) == 0
    step = tl.where(first, (1 << 32) - programs.to(tl.int64) + 1, 1)
    tl.atomic_add(counter, step + (tag >> 32), sem="relaxed")  # tag is below 2^31


@triton.jit
def slot(tag, value):
    """A float32 and the tag in one 64-bit word: it is seen whole or not at all."""
    return (tag << 32) | (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def value_of(word):
    return (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def warm(slots, G, PEERS: tl.constexpr, PAIRS: tl.constexpr, T: tl.constexpr):
    """Fetch the row's slots into L2 while other loads are under way: the first poll would else wait for memory."""
    EACH: tl.constexpr = 2 if PAIRS else 1
    for u in tl.static_range((PEERS + T - 1) // T):
        peer = tl.arange(0, T) + u * T
        tl.load(slots + peer * EACH, mask=peer < G, other=0, volatile=True)


@triton.jit
def publish(slots, tag, top, total, T: tl.constexpr):
    """(max, sum) of this program, (1, T), of which each thread has a copy, to its slot, a pair of words that each have the tag."""
    first = tl.arange(0, T)[None, :] * 0
    if INTERPRETED:
        tl.store(slots, slot(tag, tl.max(top, 1)))
        tl.store(slots + 1, slot(tag, tl.max(total, 1)))
    else:
        given = [(slots[:, None] + first).to(tl.int64), top, tag.to(tl.int32) + first, total]
        tl.inline_asm_elementwise(PUBLISH, "=r,l,f,r,f", given, dtype=tl.int32, is_pure=False, pack=1)


def _meeting(warps: int) -> tl.constexpr:
    """Assembly: each thread polls its slots, then the CTA's threads join what they have seen. In: the slots' address, tag, how many.

    Out: (max, sum), and whether anyone polled in vain, the same in all threads.
    """
    poll = (
        "setp.ge.u32 p, peer, $5; @p bra DONE; mul.wide.u32 place, peer, 16; add.u64 place, place, $3; mov.u32 tries, 0;"
        " {0}: ld.relaxed.gpu.global.v4.u32 {{bits, tag, sign, other}}, [place];"
        " setp.eq.u32 p, tag, $4; setp.eq.and.u32 p, other, $4, p; @p bra GOT_{0};"
        f" add.u32 tries, tries, 1; setp.lt.u32 p, tries, {POLLS.value}; @p bra {{0}};"
        " setp.eq.u32 late, thread, thread; bra DONE; GOT_{0}:"
    )
    lines = [
        f"{REGISTERS} .reg .u32 peer, tag, other, tries; .reg .u64 place; .reg .pred late; .reg .f32 u, x;",
        "mov.u32 thread, %tid.x; mov.u32 peer, thread; setp.ne.u32 late, thread, thread; mov.b32 m, 0fFF800000; mov.b32 s, 0f00000000;",
        poll.format("FIRST"),
        "mov.b32 m, bits; mov.b32 s, sign;",
        f"NEXT: add.u32 peer, peer, {32 * warps};",
        poll.format("AGAIN"),
        f"mov.b32 x, bits; mov.b32 u, sign; max.f32 top, m, x; {MEASURED_FROM}",
        f"{rescaled('m', 's')} {rescaled('x', 'u')} add.f32 s, s, u; mov.f32 m, top; bra NEXT;",
        "DONE: bar.warp.sync 0xffffffff;",
        *over_lanes(32),
        *over_warps(warps, "bar.red.or.pred late, 0, late;"),
        "mov.f32 $0, m; mov.f32 $1, s; selp.u32 $2, 1, 0, late;",
    ]
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


MEETING_2, MEETING_4, MEETING_8, MEETING_16, MEETING_32 = (_meeting(warps) for warps in (2, 4, 8, 16, 32))


@triton.jit
def meet(slots, tag, G, PEERS: tl.constexpr, T: tl.constexpr):
    """(late, top, total): 1 when polling was in vain, else 0 and the (max, sum) of all that met, scalars.

    `slots`: the row's pairs of words, G <= PEERS of them; T: threads. Each thread polls slots of its own: where all warps polled all of
    them, many programs of one row kept the few lines that hold them busy. What a poll has read is what is joined.
    """
    if INTERPRETED:  # programs run one after the other there: one look tells
        peer = tl.arange(0, PEERS)
        first = tl.load(slots + peer * 2, mask=peer < G, other=0)
        second = tl.load(slots + peer * 2 + 1, mask=peer < G, other=0)
        missing = (peer < G) & (((first >> 32) != tag) | ((second >> 32) != tag))
        top = tl.where(peer < G, value_of(first), MINUS_INFINITY)
        total = tl.where(peer < G, value_of(second), 0.0)
        top_all = tl.max(top, 0)
        return tl.max(missing.to(tl.int32), 0), top_all, tl.sum(total * exp_of(top - base_of(top_all)), 0)
    else:
        FEW: tl.constexpr = MEETING_2 if T == 64 else (MEETING_4 if T == 128 else MEETING_8)
        ASM: tl.constexpr = FEW if T <= 256 else (MEETING_16 if T == 512 else MEETING_32)
        given = [slots.to(tl.int64), tag.to(tl.int32), G]
        top, total, late = tl.inline_asm_elementwise(
            ASM, "=&f,=&f,=&r,l,r,r", given, dtype=(tl.float32, tl.float32, tl.int32), is_pure=False, pack=1
        )
        return late, top, total


@triton.jit
def meet_sum(slots, tag, G, PEERS: tl.constexpr, T: tl.constexpr):
    """(late, sum), likewise; one word a peer."""
    s = tl.zeros((T,), tl.float32)
    late = tl.zeros((T,), tl.int32)
    for u in tl.static_range((PEERS + T - 1) // T):
        peer = tl.arange(0, T) + u * T
        place = slots + peer
        if INTERPRETED:
            word = tl.load(place, mask=peer < G, other=0)
            late = late | ((peer < G) & ((word >> 32) != tag)).to(tl.int32)
            s += tl.where(peer < G, value_of(word), 0.0)
        else:
            given = [place.to(tl.int64), tag.to(tl.int32) + peer * 0, (peer < G).to(tl.int32)]
            part, missed = tl.inline_asm_elementwise(POLL_SUM, "=&f,=&r,l,r,r", given, dtype=(tl.float32, tl.int32), is_pure=False, pack=1)
            late = late | missed
            s += part
    if INTERPRETED:
        return tl.max(late, 0), tl.sum(s, 0)
    else:
        return tl.reduce((late, s), 0, add_met)


@triton.jit
def add_met(late, total, other_late, other_total):
    """`late` goes along with the sums, as all threads must go on alike."""
    return late | other_late, total + other_total
