"""Arithmetic of softmax, log-softmax and their gradients on tiles (`packed_io.py`): maxima, sums of exponentials, dot products, results.

A partial result is (max, sum): the maximum m of some elements, and the sum of exp(x - m) over them. Two of them merge into one (the online
normaliser of Milakov and Gimelshein, arXiv:1805.02867).

Two parameters choose the operation, and cost nothing where they have their defaults:

- LOG: the result is x - m - log(sum) instead of exp(x - m) / sum. The gradient is dy - exp(y) * sum(dy) instead of y * (dy - sum(dy * y)).
- `scale` multiplies x. It is positive, so m is the maximum of x itself, and an exponential is that of (x - m) * scale. None, a number, or
  (R, 1) numbers, one a row.

- exp(x - m) is exp2((x - m) * log2 e), with the subtraction first. Fused, m * log2 e would overflow, and its error would grow with |m|.
- Most threads compute each exponential twice: for the sum and for the result. `rematerialize` makes the compiler do so. Otherwise it keeps
  the float32 values in registers while the threads exchange their partial results.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .generic import dot_terms
from .packed_io import INTERPRETED, result_mask, store_tile, unpack_high, unpack_low

MINUS_INFINITY = tl.constexpr(-float("inf"))
LOG2E = tl.constexpr(1.4426950408889634)
LARGEST = tl.constexpr(3.4028234663852886e38)

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
def late_zero(value):
    """A zero that the compiler does not know before `value`, a float: value - value is 0 or NaN, and so never negative."""
    return tl.where(value - value < 0, -1, 0)


@triton.jit
def scaled(value, scale):
    """value * scale. `value` is (R, ...) of any rank, and `scale` as in the module's header."""
    if scale is None:
        return value
    elif len(scale.shape) == 2 and len(value.shape) == 3:
        return value * scale[:, :, None]
    else:
        return value * scale


@triton.jit
def exp_factor(scale):
    """What x is multiplied by for exp2(x) to be exp(x * scale). It is finite, since 0 * infinity is NaN, or the NaN of `scale`."""
    return tl.minimum(scale * LOG2E, LARGEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def exp_fast(x, scale=None):
    """exp(x * scale) by exp2."""
    if scale is None:
        return tl.exp2(x * LOG2E)
    else:
        return tl.exp2(scaled(x, exp_factor(scale)))


@triton.jit
def norm_of(total, LOG: tl.constexpr):
    """What all elements of a row share, from the row's sum of exponentials: 1 / sum or log(sum)."""
    if LOG:
        return tl.log(total)
    else:
        return 1.0 / total


@triton.jit
def normalized(x, maximum, norm, scale, LOG: tl.constexpr):
    """An element's result in float32; `norm` is from `norm_of`."""
    if LOG:
        return scaled(x - maximum, scale) - norm
    else:
        return exp_fast(x - maximum, scale) * norm


@triton.jit
def gradient(y, dy, dot, scale, LOG: tl.constexpr):
    """An element of dx; `dot` is its row's `thread_dot` over all elements."""
    if LOG:
        return scaled(dy - exp_fast(y) * dot, scale)
    else:
        return scaled(y * (dy - dot), scale)


@triton.jit
def finite_or_zero(maximum):
    """What exponentials subtract: the maximum, or 0 if it is -inf, because -inf - -inf is NaN."""
    return tl.where(maximum == -float("inf"), 0.0, maximum)


@triton.jit
def merge(a_max, a_sum, b_max, b_sum, scale):
    """One (max, sum) of two."""
    m = tl.maximum(a_max, b_max)
    base = finite_or_zero(m)
    return m, a_sum * exp_fast(a_max - base, scale) + b_sum * exp_fast(b_max - base, scale)


@triton.jit
def tile_max(tile, DTYPE: tl.constexpr):
    """Each thread's maximum, (R, THREADS)."""
    if DTYPE == tl.float32:
        return tl.max(unpack_low(tile, DTYPE), 2)
    else:
        return tl.max(tl.maximum(unpack_low(tile, DTYPE), unpack_high(tile, DTYPE)), 2)


@triton.jit
def tile_exp_sum(tile, base, scale, DTYPE: tl.constexpr):
    """Each thread's sum of exp(x - base), (R, THREADS)."""
    e = exp_fast(unpack_low(tile, DTYPE) - base, scale)
    if DTYPE != tl.float32:
        e += exp_fast(unpack_high(tile, DTYPE) - base, scale)
    return tl.sum(e, 2)


@triton.jit
def init_partial(tiles, scale, DTYPE: tl.constexpr):
    """Each thread's (max, sum), (R, THREADS): first the maximum of all tiles, then the sum."""
    m = tile_max(tiles[0], DTYPE)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, tile_max(tiles[p], DTYPE))
    base = finite_or_zero(m)
    again = rematerialize(tiles, tl.where(base != base, -1, 0)[:, :, None])
    s = tile_exp_sum(again[0], base[:, :, None], scale, DTYPE)
    for p in tl.static_range(1, len(tiles)):
        s += tile_exp_sum(again[p], base[:, :, None], scale, DTYPE)
    return m, s


@triton.jit
def init_partial_online(tiles, scale, DTYPE: tl.constexpr):
    """Each thread's (max, sum), (R, THREADS), tile by tile in the order in which the tiles arrive."""
    m = tile_max(tiles[0], DTYPE)
    s = tile_exp_sum(tiles[0], finite_or_zero(m)[:, :, None], scale, DTYPE)
    return accumulate_online(m, s, tiles[1:], scale, DTYPE)


@triton.jit
def accumulate_online(m, s, tiles, scale, DTYPE: tl.constexpr):
    """Each thread's (max, sum) together with the elements of the tiles, tile by tile."""
    for p in tl.static_range(len(tiles)):
        n = tl.maximum(m, tile_max(tiles[p], DTYPE))
        base = finite_or_zero(n)
        s = s * exp_fast(m - base, scale) + tile_exp_sum(tiles[p], base[:, :, None], scale, DTYPE)
        m = n
    return m, s


@triton.jit
def write_normalized(
    out, tiles, maximum, norm, scale, first, end, start,
    THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Stores the results of the tiles where `load_tiles` with the same bounds reads. `out` is from `output_pointers`.

    `maximum` and `norm` are (R, THREADS) or (R, 1).
    """
    b = maximum[:, :, None]
    c = norm[:, :, None]
    for p in tl.static_range(len(tiles)):
        inside = result_mask(out, first, end, start, p, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
        lower = normalized(unpack_low(tiles[p], DTYPE), b, c, scale, LOG)
        upper = lower if DTYPE == tl.float32 else normalized(unpack_high(tiles[p], DTYPE), b, c, scale, LOG)
        store_tile(out, start, lower, upper, inside, p, DTYPE)


@triton.jit
def write_gradient(
    out, dy, y, dot, scale, first, end, start,
    THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Stores dx of the tiles where `load_tiles` with the same bounds reads; `dot` is (R)."""
    d = dot[:, None, None]
    for p in tl.static_range(len(y)):
        inside = result_mask(out, first, end, start, p, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
        lower = gradient(unpack_low(y[p], DTYPE), unpack_low(dy[p], DTYPE), d, scale, LOG)
        if DTYPE == tl.float32:
            upper = lower
        else:
            upper = gradient(unpack_high(y[p], DTYPE), unpack_high(dy[p], DTYPE), d, scale, LOG)
        store_tile(out, start, lower, upper, inside, p, DTYPE)


@triton.jit
def dot_product(dy, y, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """The sum of `dot_terms` over all tiles, (R)."""
    return tl.sum(thread_dots(dy, y, DTYPE, LOG), 1)


@triton.jit
def thread_dots(dy, y, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """Each thread's sum of `dot_terms` over all tiles, (R, THREADS)."""
    s = thread_dot(dy[0], y[0], DTYPE, LOG)
    for p in tl.static_range(1, len(y)):
        s += thread_dot(dy[p], y[p], DTYPE, LOG)
    return s


@triton.jit
def thread_dot(dy, y, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """Each thread's sum of `dot_terms` over one tile, (R, THREADS)."""
    s = dot_terms(unpack_low(dy, DTYPE), unpack_low(y, DTYPE), LOG)
    if DTYPE != tl.float32:
        s += dot_terms(unpack_high(dy, DTYPE), unpack_high(y, DTYPE), LOG)
    return tl.sum(s, 2)
