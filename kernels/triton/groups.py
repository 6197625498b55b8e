"""How programs that share a row come to one (max, sum) or one dot product: clusters of CTAs, and groups that meet in global memory.

- Cluster (Hopper and later): the row is a (C, T, W) tile whose first axis Triton spreads over the CTAs (num_ctas = C). Triton 3.6 does not
  reduce across them, so the last step is inline assembly: each CTA writes its part into every other's shared memory. One barrier.
- Group: any number of CTAs of a launch, found by program id. Each publishes its part with the launch's tag and polls the others' slots.
  The tag is the epoch, the high half of a counter in the workspace that steps once a launch, on the device: a CUDA graph may replay it.
  A program that has polled in vain POLLS times (its peers may not even run) measures the whole row itself: no co-residency is needed,
  no cooperative launch, and no order of programs can hang it. (Hence x must not be written while it runs: never in place.)
"""

from __future__ import annotations

import triton
import triton.language as tl

from .words import INTERPRETED, MINUS_INFINITY, base_of, exp_of, join

POLLS = tl.constexpr(1 if INTERPRETED.value else 1 << 15)
LANES = tl.constexpr(32)

ANY = tl.constexpr("{ .reg .pred p, q; setp.ne.s32 q, $1, 0; bar.red.or.pred p, 0, q; selp.b32 $0, 1, 0, p; }")
ARRIVE = tl.constexpr("barrier.cluster.arrive.relaxed.aligned; mov.b32 $0, $1;")


def _exchange(C: int, pairs: bool) -> tl.constexpr:
    """Assembly for one value (R = C of them, one a CTA) or a (max, sum) pair: in, what each CTA has; out, what they have together.

    The first wait is for the peers to have started, as nobody may write into a CTA that has not; the second for their parts.
    """
    size, slot, mine = (8, "v2.f32", "{$2, $3}") if pairs else (4, "f32", "$1")
    lines = [
        f".shared .align 8 .b8 slots[{C * size}];",
        ".reg .u32 base, there, rank, thread; .reg .pred p; .reg .f32 b, t, sum;",
        f".reg .f32 m<{C}>, s<{C}>;",
        "mov.u32 base, slots; mov.u32 rank, %cluster_ctarank; mov.u32 thread, %tid.x;",
        "barrier.cluster.wait.acquire.aligned;",
        f"setp.lt.u32 p, thread, {C};",
        f"mad.lo.u32 there, rank, {size}, base;",
        "@p mapa.shared::cluster.u32 there, there, thread;",
        f"@p st.shared::cluster.{slot} [there], {mine};",
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;",
    ]
    if pairs:
        lines += [f"ld.shared.v2.f32 {{m{i}, s{i}}}, [base + {8 * i}];" for i in range(C)]
        lines += ["mov.f32 t, m0;", *[f"max.f32 t, t, m{i};" for i in range(1, C)], "mov.f32 $0, t;"]
        lines += ["setp.eq.f32 p, t, 0fFF800000; selp.f32 b, 0f00000000, t, p; mov.f32 sum, 0f00000000;"]
        for i in range(C):
            lines += [f"sub.f32 t, m{i}, b; mul.f32 t, t, 0f3FB8AA3B; ex2.approx.ftz.f32 t, t; fma.rn.f32 sum, s{i}, t, sum;"]
        lines += ["mov.f32 $1, sum;"]
    else:
        lines += [f"ld.shared.f32 s{i}, [base + {4 * i}];" for i in range(C)]
        lines += ["mov.f32 sum, s0;", *[f"add.f32 sum, sum, s{i};" for i in range(1, C)], "mov.f32 $0, sum;"]
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


PAIRS_2, PAIRS_4, PAIRS_8, PAIRS_16 = (_exchange(C, True) for C in (2, 4, 8, 16))
SUMS_2, SUMS_4, SUMS_8, SUMS_16 = (_exchange(C, False) for C in (2, 4, 8, 16))


@triton.jit
def arrive(rank):
    """Tell the cluster that this CTA has started; `exchange` waits for it, with loads under way meanwhile."""
    tl.inline_asm_elementwise(ARRIVE, "=r,r", [rank], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def exchange(top, total, C: tl.constexpr):
    """(C) parts, one a CTA, as each CTA's (C) copies of their join."""
    ASM: tl.constexpr = PAIRS_2 if C == 2 else (PAIRS_4 if C == 4 else (PAIRS_8 if C == 8 else PAIRS_16))
    return tl.inline_asm_elementwise(ASM, "=&f,=&f,f,f", [top, total], dtype=(tl.float32, tl.float32), is_pure=False, pack=1)


@triton.jit
def exchange_sum(dot, C: tl.constexpr):
    """(C) sums, one a CTA, as each CTA's (C) copies of their sum."""
    ASM: tl.constexpr = SUMS_2 if C == 2 else (SUMS_4 if C == 4 else (SUMS_8 if C == 8 else SUMS_16))
    return tl.inline_asm_elementwise(ASM, "=&f,f", [dot], dtype=tl.float32, is_pure=False, pack=1)


@triton.jit
def tag_of(counter):
    """The launch's tag, 1 to 2^30; read it before `leave`, which steps the counter."""
    return ((tl.load(counter, volatile=True) >> 32) & 0x3FFFFFFF) + 1


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
def warm(slots, G, PEERS: tl.constexpr, PAIRS: tl.constexpr):
    """Fetch the row's slots into L2 while other loads are under way: the first poll would else wait for memory."""
    L: tl.constexpr = PEERS if PEERS < LANES else LANES
    EACH: tl.constexpr = 2 if PAIRS else 1
    lane = tl.arange(0, L)
    for u in tl.static_range(PEERS // L):
        tl.load(slots + (lane + u * L) * EACH, mask=lane + u * L < G, other=0, volatile=True)


@triton.jit
def meet(slots, tag, G, PEERS: tl.constexpr):
    """(late, top, total): 1 when polling was in vain, else 0 and the (max, sum) of all that met, scalars.

    `slots`: the row's PEERS pairs of words, PEERS >= G a power of two. What a poll has read is what is joined: another look at the slots
    would cost as much as a poll.
    """
    L: tl.constexpr = PEERS if PEERS < LANES else LANES
    lane = tl.arange(0, L)
    half = tl.arange(0, 2)
    late = 1
    tries = 0
    m = tl.full((L,), MINUS_INFINITY, tl.float32)
    s = tl.zeros((L,), tl.float32)
    while (late != 0) & (tries < POLLS):
        m = tl.full((L,), MINUS_INFINITY, tl.float32)
        s = tl.zeros((L,), tl.float32)
        missing = tl.zeros((L,), tl.int32)
        for u in tl.static_range(PEERS // L):
            peer = lane + u * L
            there = peer < G
            pairs = tl.load(slots + peer[:, None] * 2 + half[None, :], mask=there[:, None], other=0, volatile=True)
            top, total = tl.split(pairs)
            missing = missing | (there & (((top >> 32) != tag) | ((total >> 32) != tag))).to(tl.int32)
            m, s = join(m, s, tl.where(there, value_of(top), MINUS_INFINITY), tl.where(there, value_of(total), 0.0))
        late = tl.max(missing, 0)
        tries += 1
    if INTERPRETED:
        top_all = tl.max(m, 0)
        return late, top_all, tl.sum(s * exp_of(m - base_of(top_all)), 0)
    else:
        top_all, total_all = tl.reduce((m, s), 0, join)
        return agreed(late), top_all, total_all


@triton.jit
def meet_sum(slots, tag, G, PEERS: tl.constexpr):
    """(late, sum), likewise; one word a peer."""
    L: tl.constexpr = PEERS if PEERS < LANES else LANES
    lane = tl.arange(0, L)
    late = 1
    tries = 0
    s = tl.zeros((L,), tl.float32)
    while (late != 0) & (tries < POLLS):
        s = tl.zeros((L,), tl.float32)
        missing = tl.zeros((L,), tl.int32)
        for u in tl.static_range(PEERS // L):
            peer = lane + u * L
            word = tl.load(slots + peer, mask=peer < G, other=0, volatile=True)
            missing = missing | ((peer < G) & ((word >> 32) != tag)).to(tl.int32)
            s += tl.where(peer < G, value_of(word), 0.0)
        late = tl.max(missing, 0)
        tries += 1
    if INTERPRETED:
        return late, tl.sum(s, 0)
    else:
        return agreed(late), tl.sum(s, 0)


@triton.jit
def agreed(late):
    """1 when any warp's `late` is: each polls for itself, one may have seen what another has not, and all must go on alike."""
    return tl.inline_asm_elementwise(ANY, "=r,r", [late], dtype=tl.int32, is_pure=False, pack=1)
