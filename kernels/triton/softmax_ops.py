"""Arithmetic of softmax and its gradient on tiles (`packed_io.py`): maxima, sums of exponentials, dot products, results.

A partial result is (max, sum): the maximum m of some elements, and the sum of exp(x - m) over them. Two of them merge into one (the online
normaliser of Milakov and Gimelshein, arXiv:1805.02867).

- exp(x - m) is exp2((x - m) * log2 e), with the subtraction first. Fused, m * log2 e would overflow, and its error would grow with |m|.
- Most threads compute each exponential twice: for the sum and for the result. `rematerialize` makes the compiler do so. Otherwise it keeps
  the float32 values in registers while the threads exchange their partial results.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packed_io import INTERPRETED, pack, unpack_high, unpack_low, vectors_inside

MINUS_INFINITY = tl.constexpr(-float("inf"))
LOG2E = tl.constexpr(1.4426950408889634)

# A zero the compiler cannot fold until a CTA barrier; orders all loads before its first use.
BARRIER_ZERO = tl.constexpr(
    "{ .reg .pred any, never; .reg .u32 thread; mov.u32 thread, %tid.x; setp.gt.u32 never, thread, 4095;"
    " bar.red.or.pred any, 0, never; selp.b32 $0, -1, 0, any; }"
)


@triton.jit
def rematerialize(tiles, zero):
    """The same tiles. `zero` is 0, but the compiler does not know it, so it cannot reuse values computed from `tiles` before."""
    out = ()
    for p in tl.static_range(len(tiles)):
        out = out + (tiles[p] | zero,)
    return out


@triton.jit
def barrier_zero(anything):
    """A zero whose value is known only after a barrier of the CTA, and so after all loads before it have been issued."""
    if INTERPRETED:
        return 0
    else:
        return tl.inline_asm_elementwise(BARRIER_ZERO, "=r,r", [anything], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def exp_fast(x):
    """exp(x) by exp2."""
    return tl.exp2(x * LOG2E)


@triton.jit
def finite_or_zero(maximum):
    """What exponentials subtract: the maximum, or 0 if it is -inf, because -inf - -inf is NaN."""
    return tl.where(maximum == MINUS_INFINITY, 0.0, maximum)


@triton.jit
def merge(a_max, a_sum, b_max, b_sum):
    """One (max, sum) of two."""
    m = tl.maximum(a_max, b_max)
    base = finite_or_zero(m)
    return m, a_sum * exp_fast(a_max - base) + b_sum * exp_fast(b_max - base)


@triton.jit
def tile_max(tile, DTYPE: tl.constexpr):
    """Each thread's maximum, (R, THREADS)."""
    if DTYPE == tl.float32:
        return tl.max(unpack_low(tile, DTYPE), 2)
    else:
        return tl.max(tl.maximum(unpack_low(tile, DTYPE), unpack_high(tile, DTYPE)), 2)


@triton.jit
def tile_exp_sum(tile, base, DTYPE: tl.constexpr):
    """Each thread's sum of exp(x - base), (R, THREADS)."""
    e = exp_fast(unpack_low(tile, DTYPE) - base)
    if DTYPE != tl.float32:
        e += exp_fast(unpack_high(tile, DTYPE) - base)
    return tl.sum(e, 2)


@triton.jit
def init_partial(tiles, DTYPE: tl.constexpr):
    """Each thread's (max, sum), (R, THREADS): first the maximum of all tiles, then the sum."""
    m = tile_max(tiles[0], DTYPE)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, tile_max(tiles[p], DTYPE))
    base = finite_or_zero(m)
    again = rematerialize(tiles, tl.where(base != base, -1, 0)[:, :, None])
    s = tile_exp_sum(again[0], base[:, :, None], DTYPE)
    for p in tl.static_range(1, len(tiles)):
        s += tile_exp_sum(again[p], base[:, :, None], DTYPE)
    return m, s


@triton.jit
def init_partial_online(tiles, DTYPE: tl.constexpr):
    """Each thread's (max, sum), (R, THREADS), tile by tile in the order in which the tiles arrive."""
    m = tile_max(tiles[0], DTYPE)
    s = tile_exp_sum(tiles[0], finite_or_zero(m)[:, :, None], DTYPE)
    for p in tl.static_range(1, len(tiles)):
        n = tl.maximum(m, tile_max(tiles[p], DTYPE))
        base = finite_or_zero(n)
        s = s * exp_fast(m - base) + tile_exp_sum(tiles[p], base[:, :, None], DTYPE)
        m = n
    return m, s


@triton.jit
def softmax_words(words, maximum, scale, DTYPE: tl.constexpr):
    """exp(x - maximum) * scale of packed words, packed."""
    e = exp_fast(unpack_low(words, DTYPE) - maximum) * scale
    if DTYPE == tl.float32:
        return e.to(tl.int32, bitcast=True)
    else:
        return pack(e, exp_fast(unpack_high(words, DTYPE) - maximum) * scale, DTYPE)


@triton.jit
def write_softmax(
    words, tiles, maximum, scale, first, end, start,
    THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Stores exp(x - maximum) * scale of the tiles where `load_tiles` with the same bounds reads.

    `maximum` and `scale` are (R, THREADS).
    """
    o = start[:, None, None] * WORDS + tl.arange(0, THREADS)[None, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]
    for p in tl.static_range(len(tiles)):
        inside = vectors_inside(first, end, start, p, THREADS, WORDS, BASE_ALIGNMENT)
        y = softmax_words(tiles[p], maximum[:, :, None], scale[:, :, None], DTYPE)
        tl.store(words[:, None, None] + o + p * THREADS * WORDS, y, mask=inside)


@triton.jit
def write_gradient(
    words, dy, y, dot, first, end, start, THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr
):
    """Stores y * (dy - dot) of the tiles where `load_tiles` with the same bounds reads; `dot` is (R)."""
    o = start[:, None, None] * WORDS + tl.arange(0, THREADS)[None, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]
    d = dot[:, None, None]
    for p in tl.static_range(len(y)):
        inside = vectors_inside(first, end, start, p, THREADS, WORDS, BASE_ALIGNMENT)
        dx = unpack_low(y[p], DTYPE) * (unpack_low(dy[p], DTYPE) - d)
        if DTYPE == tl.float32:
            out = dx.to(tl.int32, bitcast=True)
        else:
            out = pack(dx, unpack_high(y[p], DTYPE) * (unpack_high(dy[p], DTYPE) - d), DTYPE)
        tl.store(words[:, None, None] + o + p * THREADS * WORDS, out, mask=inside)


@triton.jit
def dot_product(dy, y, DTYPE: tl.constexpr):
    """The sum of dy * y over all tiles, (R)."""
    s = thread_dot(dy[0], y[0], DTYPE)
    for p in tl.static_range(1, len(y)):
        s += thread_dot(dy[p], y[p], DTYPE)
    return tl.sum(s, 1)


@triton.jit
def thread_dot(dy, y, DTYPE: tl.constexpr):
    """Each thread's sum of dy * y over one tile, (R, THREADS)."""
    s = unpack_low(dy, DTYPE) * unpack_low(y, DTYPE)
    if DTYPE != tl.float32:
        s += unpack_high(dy, DTYPE) * unpack_high(y, DTYPE)
    return tl.sum(s, 2)
