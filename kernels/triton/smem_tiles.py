"""Tiles of a chunk that wait in shared memory, because registers are full. Asynchronous copies fill them.

Registers hold at most three quarters of an SM's 256 KiB, and shared memory has about as much again. Each thread's vector has a place that
only this thread uses. Triton has such copies only in its own pipelined loops, so this is inline assembly on (R, THREADS) tensors of
addresses. The shared memory is static: up to 44 KiB beside what Triton takes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packed_io import padding, unpack_high, unpack_low
from .softmax_ops import exp_fast, finite_or_zero, softmax_words


def _allocate(kib: int) -> tl.constexpr:
    return tl.constexpr(f"{{ .shared .align 16 .b8 smem_tiles[{kib * 1024}]; mov.u32 $0, smem_tiles; }}")


ALLOCATE_4, ALLOCATE_8, ALLOCATE_16, ALLOCATE_24, ALLOCATE_32, ALLOCATE_44 = (_allocate(kib) for kib in (4, 8, 16, 24, 32, 44))
COPY = tl.constexpr("cp.async.cg.shared.global [$1], [$2], 16, $3; mov.b32 $0, 0;")  # $3: bytes to read, 0 or 16
# For sm_90 only, as `Problem.keep_in_l2`. For sm_100, ptxas of CUDA 12.8 to 13.3 emits a copy with a policy that it never set.
COPY_KEEP_IN_L2 = tl.constexpr(
    "{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;"
    " cp.async.cg.shared.global.L2::cache_hint [$1], [$2], 16, $3, policy; mov.b32 $0, 0; }"
)
COMMIT = tl.constexpr("cp.async.commit_group; mov.b32 $0, $1;")
WAIT = tl.constexpr("cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
READ_SMEM = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")
STORE = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $6, 0; @p st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }")


@triton.jit
def copy_to_smem(words, first, end, start, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, KEEP_IN_L2: tl.constexpr):
    """Begins to copy SMEM_TILES tiles, from vector `start` on. Returns their address in shared memory."""
    COPY_ASM: tl.constexpr = COPY_KEEP_IN_L2 if KEEP_IN_L2 else COPY
    BYTES: tl.constexpr = SMEM_TILES * THREADS * 16
    UP_TO_16: tl.constexpr = ALLOCATE_4 if BYTES <= 4096 else (ALLOCATE_8 if BYTES <= 8192 else ALLOCATE_16)
    UP_TO_24: tl.constexpr = UP_TO_16 if BYTES <= 16384 else ALLOCATE_24
    ALLOCATE: tl.constexpr = UP_TO_24 if BYTES <= 24576 else (ALLOCATE_32 if BYTES <= 32768 else ALLOCATE_44)
    smem = tl.inline_asm_elementwise(ALLOCATE, "=r,r", [SMEM_TILES * THREADS], dtype=tl.int32, is_pure=False, pack=1)
    t = tl.arange(0, THREADS)[None, :]
    for h in tl.static_range(SMEM_TILES):
        v = start[:, None] + t + h * THREADS
        size = tl.where((v >= first[:, None]) & (v < end[:, None]), 16, 0)
        address = (words[:, None] + v * 4).to(tl.int64)
        at = smem + (t + h * THREADS) * 16
        tl.inline_asm_elementwise(COPY_ASM, "=r,r,l,r", [at, address, size], dtype=tl.int32, is_pure=False, pack=1)
    tl.inline_asm_elementwise(COMMIT, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
    return smem


@triton.jit
def read_tile(smem, first, end, start, h, THREADS: tl.constexpr, DTYPE: tl.constexpr):
    """Tile `h` as four (R, THREADS) tensors of words, then a mask of the vectors inside the row, and the vectors' numbers."""
    t = tl.arange(0, THREADS)[None, :]
    v = start[:, None] + t + h * THREADS
    inside = (v >= first[:, None]) & (v < end[:, None])
    at = smem + (t + h * THREADS) * 16 + v * 0
    a, b, c, d = tl.inline_asm_elementwise(
        READ_SMEM, "=r,=r,=r,=r,r", [at], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1
    )
    n = padding(DTYPE)
    return tl.where(inside, a, n), tl.where(inside, b, n), tl.where(inside, c, n), tl.where(inside, d, n), inside, v


@triton.jit
def word_max(words, DTYPE: tl.constexpr):
    """The larger element of each word."""
    if DTYPE == tl.float32:
        return unpack_low(words, DTYPE)
    else:
        return tl.maximum(unpack_low(words, DTYPE), unpack_high(words, DTYPE))


@triton.jit
def word_exp_sum(words, base, DTYPE: tl.constexpr):
    """The sum of exp(x - base) over the elements of each word."""
    e = exp_fast(unpack_low(words, DTYPE) - base)
    if DTYPE != tl.float32:
        e += exp_fast(unpack_high(words, DTYPE) - base)
    return e


@triton.jit
def accumulate_smem(maximum, total, smem, first, end, start, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, DTYPE: tl.constexpr):
    """Each thread's (max, sum), (R, THREADS), with the tiles in shared memory. Waits for their copies, and is a barrier of the CTA."""
    tl.inline_asm_elementwise(WAIT, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
    for h in tl.static_range(SMEM_TILES):
        w0, w1, w2, w3, _inside, _v = read_tile(smem, first, end, start, h, THREADS, DTYPE)
        m = tl.maximum(tl.maximum(word_max(w0, DTYPE), word_max(w1, DTYPE)), tl.maximum(word_max(w2, DTYPE), word_max(w3, DTYPE)))
        m = tl.maximum(maximum, m)
        b = finite_or_zero(m)
        s = (word_exp_sum(w0, b, DTYPE) + word_exp_sum(w1, b, DTYPE)) + (word_exp_sum(w2, b, DTYPE) + word_exp_sum(w3, b, DTYPE))
        total = total * exp_fast(maximum - b) + s
        maximum = m
    return maximum, total


@triton.jit
def write_smem(words, smem, maximum, scale, first, end, start, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, DTYPE: tl.constexpr):
    """Stores exp(x - maximum) * scale of the tiles in shared memory; `maximum` and `scale` are (R, THREADS)."""
    for h in tl.static_range(SMEM_TILES):
        w0, w1, w2, w3, inside, v = read_tile(smem, first, end, start, h, THREADS, DTYPE)
        address = (words[:, None] + v * 4).to(tl.int64)
        y0, y1 = softmax_words(w0, maximum, scale, DTYPE), softmax_words(w1, maximum, scale, DTYPE)
        y2, y3 = softmax_words(w2, maximum, scale, DTYPE), softmax_words(w3, maximum, scale, DTYPE)
        inputs = [address, y0, y1, y2, y3, inside.to(tl.int32)]
        tl.inline_asm_elementwise(STORE, "=r,l,r,r,r,r,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
