"""Vectors of a chunk that wait in shared memory, when registers are full: asynchronous copies, each thread's vector in a place of its own.

Registers hold at most three quarters of an SM's 256 KiB; shared memory has as much again. Triton has no call for it outside its own
pipelined loops, so this is inline assembly on (R, T) tensors of addresses. The room is static: 44 KiB beside what Triton takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .words import base_of, exp_of, high, low, nothing, softmax_words


def _room(kib: int) -> tl.constexpr:
    return tl.constexpr(f"{{ .shared .align 16 .b8 held[{kib * 1024}]; mov.u32 $0, held; }}")


ROOM_4, ROOM_8, ROOM_16, ROOM_24, ROOM_32, ROOM_44 = (_room(kib) for kib in (4, 8, 16, 24, 32, 44))
COPY = tl.constexpr("cp.async.cg.shared.global [$1], [$2], 16, $3; mov.b32 $0, 0;")  # of $3 = 0 bytes it reads nothing
# For sm_90 only, as `stays` is: for sm_100, ptxas of CUDA 12.8 to 13.3 makes of it a copy with a policy that it never set.
COPY_KEPT = tl.constexpr(
    "{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;"
    " cp.async.cg.shared.global.L2::cache_hint [$1], [$2], 16, $3, policy; mov.b32 $0, 0; }"
)
COMMIT = tl.constexpr("cp.async.commit_group; mov.b32 $0, $1;")
WAIT = tl.constexpr("cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
FETCH = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")
PUT = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $6, 0; @p st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }")


@triton.jit
def hold(words, first, end, start, H: tl.constexpr, T: tl.constexpr, STAY: tl.constexpr):
    """Begin to copy H tiles of T vectors, from `start` on; returns their place. STAY: in L2."""
    ASM: tl.constexpr = COPY_KEPT if STAY else COPY
    BYTES: tl.constexpr = H * T * 16
    S: tl.constexpr = ROOM_4 if BYTES <= 4096 else (ROOM_8 if BYTES <= 8192 else (ROOM_16 if BYTES <= 16384 else ROOM_24))
    L: tl.constexpr = S if BYTES <= 24576 else (ROOM_32 if BYTES <= 32768 else ROOM_44)
    place = tl.inline_asm_elementwise(L, "=r,r", [H * T], dtype=tl.int32, is_pure=False, pack=1)
    t = tl.arange(0, T)[None, :]
    for h in tl.static_range(H):
        v = start[:, None] + t + h * T
        size = tl.where((v >= first[:, None]) & (v < end[:, None]), 16, 0)
        address = (words[:, None] + v * 4).to(tl.int64)
        at = place + (t + h * T) * 16
        tl.inline_asm_elementwise(ASM, "=r,r,l,r", [at, address, size], dtype=tl.int32, is_pure=False, pack=1)
    tl.inline_asm_elementwise(COMMIT, "=r,r", [place], dtype=tl.int32, is_pure=False, pack=1)
    return place


@triton.jit
def fetch(place, first, end, start, h, T: tl.constexpr, D: tl.constexpr):
    """Tile `h` as four (R, T) tensors of words; and which vectors are there, and their numbers."""
    t = tl.arange(0, T)[None, :]
    v = start[:, None] + t + h * T
    there = (v >= first[:, None]) & (v < end[:, None])
    at = place + (t + h * T) * 16 + v * 0
    a, b, c, d = tl.inline_asm_elementwise(
        FETCH, "=r,=r,=r,=r,r", [at], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1
    )
    n = nothing(D)
    return tl.where(there, a, n), tl.where(there, b, n), tl.where(there, c, n), tl.where(there, d, n), there, v


@triton.jit
def word_top(words, D: tl.constexpr):
    if D == tl.float32:
        return low(words, D)
    else:
        return tl.maximum(low(words, D), high(words, D))


@triton.jit
def word_total(words, base, D: tl.constexpr):
    e = exp_of(low(words, D) - base)
    if D != tl.float32:
        e += exp_of(high(words, D) - base)
    return e


@triton.jit
def measure_held(top, total, place, first, end, start, H: tl.constexpr, T: tl.constexpr, D: tl.constexpr):
    """Threads' (max, sum), (R, T), joined by what is held; waits for its copies, and is a barrier of the CTA."""
    tl.inline_asm_elementwise(WAIT, "=r,r", [place], dtype=tl.int32, is_pure=False, pack=1)
    for h in tl.static_range(H):
        w0, w1, w2, w3, _there, _v = fetch(place, first, end, start, h, T, D)
        m = tl.maximum(tl.maximum(word_top(w0, D), word_top(w1, D)), tl.maximum(word_top(w2, D), word_top(w3, D)))
        m = tl.maximum(top, m)
        b = base_of(m)
        s = (word_total(w0, b, D) + word_total(w1, b, D)) + (word_total(w2, b, D) + word_total(w3, b, D))
        total = total * exp_of(top - b) + s
        top = m
    return top, total


@triton.jit
def store_held(words, place, top, scale, first, end, start, H: tl.constexpr, T: tl.constexpr, D: tl.constexpr):
    """exp(x - top) * scale of what is held; top and scale are (R, T)."""
    for h in tl.static_range(H):
        w0, w1, w2, w3, there, v = fetch(place, first, end, start, h, T, D)
        address = (words[:, None] + v * 4).to(tl.int64)
        y0, y1 = softmax_words(w0, top, scale, D), softmax_words(w1, top, scale, D)
        y2, y3 = softmax_words(w2, top, scale, D), softmax_words(w3, top, scale, D)
        put = [address, y0, y1, y2, y3, there.to(tl.int32)]
        tl.inline_asm_elementwise(PUT, "=r,l,r,r,r,r,r", put, dtype=tl.int32, is_pure=False, pack=1)
