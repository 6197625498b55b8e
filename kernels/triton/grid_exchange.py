"""How programs anywhere in the grid, which share a row, merge their partial results through global memory.

Each program publishes its partial result with the launch's tag in its slot, and polls the slots of the row's other programs. The tag is the
epoch, the high half of a counter in the workspace. The device steps it once a launch, so a CUDA graph may replay the launch.
Slots that share a cache line delay each other, so each slot has two lines for itself (SLOT_WORDS).

A program that has polled MAX_POLLS times in vain reduces the whole row itself: the other programs may not even run. So no cooperative
launch and no co-residency is needed, and no order of programs can hang the launch. But a kernel must not write its input, and never runs
in place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..common.allocation import persistent_zeros
from .packed_io import INTERPRETED
from .softmax_ops import (
    FINITE_OR_ZERO,
    LOG2E_BITS,
    MINUS_INFINITY,
    REGISTERS,
    exp_factor,
    exp_fast,
    finite_or_zero,
    merge_lanes,
    merge_warps,
    rescale,
)

MAX_POLLS = tl.constexpr(1 if INTERPRETED.value else 1 << 15)

SLOT_WORDS = tl.constexpr(32)
"""int64 words from one program's slot to the next. A forward writes two of them, a backward one."""

# A thread polls one slot until it has the tag, at most MAX_POLLS times. Inputs: address, tag, whether the slot exists.
POLL_SUM = tl.constexpr(
    "{ .reg .u32 a, ta, tries; .reg .pred p;"
    " mov.u32 tries, 0; mov.b32 $0, 0f00000000; mov.u32 $1, 0;"
    " setp.eq.s32 p, $4, 0; @p bra DONE;"
    " POLL: ld.relaxed.gpu.global.v2.u32 {a, ta}, [$2];"
    " setp.eq.u32 p, ta, $3; @p bra GOT;"
    f" add.u32 tries, tries, 1; setp.lt.u32 p, tries, {MAX_POLLS.value}; @p bra POLL; mov.u32 $1, 1; bra DONE;"
    " GOT: mov.b32 $0, a; DONE: }"
)
# The first thread writes the CTA's partial result.
PUBLISH = tl.constexpr(
    "{ .reg .u32 thread; .reg .pred p; mov.u32 thread, %tid.x; setp.eq.u32 p, thread, 0;"
    " @p st.relaxed.gpu.global.v4.b32 [$1], {$2, $3, $4, $3}; mov.u32 $0, 0; }"
)
# A thread selected by the second input reads the counter's high word; the others get 0.
EPOCH = tl.constexpr("{ .reg .pred p; setp.ne.s32 p, $2, 0; mov.u32 $0, 0; @p ld.relaxed.gpu.global.u32 $0, [$1+4]; }")


@triton.jit
def launch_tag(counter, THREADS: tl.constexpr):
    """The launch's tag, an int64 of 1 to 2^30. Read it before `count_program`, which steps the counter.

    One thread reads it for all: a thousand warps that read one line wait for each other.
    """
    if INTERPRETED:
        return ((tl.load(counter, volatile=True) >> 32) & 0x3FFFFFFF) + 1
    else:
        thread = tl.arange(0, THREADS)
        inputs = [(counter + thread * 0).to(tl.int64), (thread == 0).to(tl.int32)]
        epoch = tl.inline_asm_elementwise(EPOCH, "=&r,l,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
        return (tl.max(epoch & 0x3FFFFFFF, 0) + 1).to(tl.int64)


@triton.jit
def count_program(counter, tag, programs):
    """Counts this program. The last one to be counted steps the epoch. `tag` is an argument only to order its load before this."""
    first = tl.program_id(0) == 0
    step = tl.where(first, (1 << 32) - programs.to(tl.int64) + 1, 1)
    tl.atomic_add(counter, step + (tag >> 32), sem="relaxed")  # tag is below 2^31


@triton.jit
def slot_word(tag, value):
    """A float32 and the tag in one 64-bit word, so that a poll sees both or neither."""
    return (tag << 32) | (value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def slot_value(word):
    """The float32 of a slot's word."""
    return (word & 0xFFFFFFFF).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def prefetch_slot(slot):
    """Fetches this program's slot into L2 while other loads are in flight. Otherwise the first polls would wait for memory."""
    tl.load(slot + tl.arange(0, 1), volatile=True)


@triton.jit
def publish(slot, tag, maximum, total, THREADS: tl.constexpr):
    """Writes this program's (max, sum) to its slot, two words that both have the tag. Each thread has the pair, (1, THREADS)."""
    thread_zero = tl.arange(0, THREADS)[None, :] * 0
    if INTERPRETED:
        tl.store(slot, slot_word(tag, tl.max(maximum, 1)))
        tl.store(slot + 1, slot_word(tag, tl.max(total, 1)))
    else:
        inputs = [(slot[:, None] + thread_zero).to(tl.int64), maximum, tag.to(tl.int32) + thread_zero, total]
        tl.inline_asm_elementwise(PUBLISH, "=r,l,f,r,f", inputs, dtype=tl.int32, is_pure=False, pack=1)


def _gather(warps: int, factor: str = LOG2E_BITS) -> tl.constexpr:
    """Assembly: each thread polls its slots, then the CTA's threads merge what they have read.

    Inputs: the slots' address, the tag, the number of slots, and `factor` if it is $6. Outputs, the same in all threads: (max, sum), and
    whether any poll timed out.
    """
    poll = (
        f"setp.ge.u32 p, peer, $5; @p bra DONE; mul.wide.u32 place, peer, {8 * SLOT_WORDS.value};"
        " add.u64 place, place, $3; mov.u32 tries, 0;"
        " {0}: ld.relaxed.gpu.global.v4.u32 {{bits, tag, sign, other}}, [place];"
        " setp.eq.u32 p, tag, $4; setp.eq.and.u32 p, other, $4, p; @p bra GOT_{0};"
        f" add.u32 tries, tries, 1; setp.lt.u32 p, tries, {MAX_POLLS.value}; @p bra {{0}};"
        " setp.eq.u32 timed_out, thread, thread; bra DONE; GOT_{0}:"
    )
    lines = [
        f"{REGISTERS} .reg .u32 peer, tag, other, tries; .reg .u64 place; .reg .pred timed_out; .reg .f32 u, x;",
        "mov.u32 thread, %tid.x; mov.u32 peer, thread; setp.ne.u32 timed_out, thread, thread;"
        " mov.b32 m, 0fFF800000; mov.b32 s, 0f00000000;",
        poll.format("FIRST"),
        "mov.b32 m, bits; mov.b32 s, sign;",
        f"NEXT: add.u32 peer, peer, {32 * warps};",
        poll.format("AGAIN"),
        f"mov.b32 x, bits; mov.b32 u, sign; max.f32 top, m, x; {FINITE_OR_ZERO}",
        f"{rescale('m', 's', factor)} {rescale('x', 'u', factor)} add.f32 s, s, u; mov.f32 m, top; bra NEXT;",
        "DONE: bar.warp.sync 0xffffffff;",
        *merge_lanes(32, factor),
        *merge_warps(warps, "bar.red.or.pred timed_out, 0, timed_out;", factor),
        "mov.f32 $0, m; mov.f32 $1, s; selp.u32 $2, 1, 0, timed_out;",
    ]
    return tl.constexpr("{\n" + "\n".join(lines) + "\n}")


GATHER_2, GATHER_4, GATHER_8, GATHER_16, GATHER_32 = (_gather(warps) for warps in (2, 4, 8, 16, 32))
GRID_SCALED_2, GRID_SCALED_4, GRID_SCALED_8, GRID_SCALED_16, GRID_SCALED_32 = (_gather(warps, "$6") for warps in (2, 4, 8, 16, 32))


@triton.jit
def grid_exchange(slots, tag, ctas, scale, MAX_CTAS: tl.constexpr, THREADS: tl.constexpr):
    """(timed_out, max, sum), scalars: 0 and the row's merged result, or 1 if a poll timed out.

    `slots`: those of the row, `ctas` <= MAX_CTAS of them. Each thread polls its own slots. If all warps polled all slots, the
    lines that hold them would be busy. What a poll reads is what is merged.
    """
    if INTERPRETED:  # programs run one after the other: a single poll decides
        peer = tl.arange(0, MAX_CTAS)
        first = tl.load(slots + peer * SLOT_WORDS, mask=peer < ctas, other=0)
        second = tl.load(slots + peer * SLOT_WORDS + 1, mask=peer < ctas, other=0)
        missing = (peer < ctas) & (((first >> 32) != tag) | ((second >> 32) != tag))
        maximum = tl.where(peer < ctas, slot_value(first), MINUS_INFINITY)
        total = tl.where(peer < ctas, slot_value(second), 0.0)
        row_max = tl.max(maximum, 0)
        return tl.max(missing.to(tl.int32), 0), row_max, tl.sum(total * exp_fast(maximum - finite_or_zero(row_max), scale), 0)
    elif scale is None:
        UP_TO_8: tl.constexpr = GATHER_2 if THREADS == 64 else (GATHER_4 if THREADS == 128 else GATHER_8)
        ASM: tl.constexpr = UP_TO_8 if THREADS <= 256 else (GATHER_16 if THREADS == 512 else GATHER_32)
        inputs = [slots.to(tl.int64), tag.to(tl.int32), ctas]
        maximum, total, timed_out = tl.inline_asm_elementwise(
            ASM, "=&f,=&f,=&r,l,r,r", inputs, dtype=(tl.float32, tl.float32, tl.int32), is_pure=False, pack=1
        )
        return timed_out, maximum, total
    else:
        WITH_8: tl.constexpr = GRID_SCALED_2 if THREADS == 64 else (GRID_SCALED_4 if THREADS == 128 else GRID_SCALED_8)
        WITH_SCALE: tl.constexpr = WITH_8 if THREADS <= 256 else (GRID_SCALED_16 if THREADS == 512 else GRID_SCALED_32)
        operands = [slots.to(tl.int64), tag.to(tl.int32), ctas, exp_factor(scale)]
        row_max, row_sum, missed = tl.inline_asm_elementwise(
            WITH_SCALE, "=&f,=&f,=&r,l,r,r,f", operands, dtype=(tl.float32, tl.float32, tl.int32), is_pure=False, pack=1
        )
        return missed, row_max, row_sum


@triton.jit
def grid_exchange_sum(slots, tag, ctas, MAX_CTAS: tl.constexpr, THREADS: tl.constexpr):
    """(timed_out, sum), as `grid_exchange`, of one word a slot."""
    s = tl.zeros((THREADS,), tl.float32)
    timed_out = tl.zeros((THREADS,), tl.int32)
    for u in tl.static_range((MAX_CTAS + THREADS - 1) // THREADS):
        peer = tl.arange(0, THREADS) + u * THREADS
        place = slots + peer * SLOT_WORDS
        if INTERPRETED:
            word = tl.load(place, mask=peer < ctas, other=0)
            timed_out = timed_out | ((peer < ctas) & ((word >> 32) != tag)).to(tl.int32)
            s += tl.where(peer < ctas, slot_value(word), 0.0)
        else:
            inputs = [place.to(tl.int64), tag.to(tl.int32) + peer * 0, (peer < ctas).to(tl.int32)]
            part, missed = tl.inline_asm_elementwise(POLL_SUM, "=&f,=&r,l,r,r", inputs, dtype=(tl.float32, tl.int32), is_pure=False, pack=1)
            timed_out = timed_out | missed
            s += part
    if INTERPRETED:
        return tl.max(timed_out, 0), tl.sum(s, 0)
    else:
        return tl.reduce((timed_out, s), 0, or_and_add)


@triton.jit
def or_and_add(a_timed_out, a_sum, b_timed_out, b_sum):
    """Reduces `timed_out` together with the sums, because all threads must take the same branch."""
    return a_timed_out | b_timed_out, a_sum + b_sum


_workspaces: dict[tuple[int, int, str], tuple[int, torch.Tensor, torch.Tensor]] = {}
"""By device, stream and purpose: the number of words, and the two views of them. Slicing again would cost each launch some microseconds."""
COUNTER_WORDS = SLOT_WORDS.value  # the counter has cache lines for itself, as each slot
MIN_WORDS = 1 << 17


def workspace(device: torch.device, words: int, purpose: str = "") -> tuple[torch.Tensor, torch.Tensor]:
    """(counter, slots) of `words` int64 slots, zero at first and never cleared, for launches on the current stream.

    Launches with one `purpose` leave the same kind of values in the slots.

    Launches on one stream follow each other, so they can share the workspace. A launch captured into a CUDA graph may be replayed beside
    others. It gets its own workspace from the graph's pool, which the graph zeroes.
    """
    size = COUNTER_WORDS + words
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        fresh = torch.zeros(size, dtype=torch.int64, device=device)
        return fresh[:1], fresh[COUNTER_WORDS:]
    index = torch.cuda.current_device() if device.index is None else device.index
    key = index, torch._C._cuda_getCurrentRawStream(index), purpose  # as in Triton's launcher, without a Stream object
    found = _workspaces.get(key)
    if found is None or found[0] < size:
        fresh = persistent_zeros(index, max(size, MIN_WORDS), torch.int64)
        found = _workspaces[key] = fresh.numel(), fresh[:1], fresh[COUNTER_WORDS:]
    return found[1:]
