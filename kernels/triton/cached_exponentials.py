"""Exponentials that a thread computes once and keeps in registers until it writes them, instead of computing them twice.

Used for rows on at most one warp, and for threads with one or two tiles. Longer rows have no registers left for them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packed_io import result_mask, store_tile, unpack_high, unpack_low
from .softmax_ops import exp_fast, finite_or_zero, tile_max


@triton.jit
def row_max(tiles, DTYPE: tl.constexpr):
    """Maxima (R) of rows on at most one warp."""
    m = tile_max(tiles[0], DTYPE)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, tile_max(tiles[p], DTYPE))
    return tl.max(m, 1)


@triton.jit
def exponentials(tiles, base, scale, DTYPE: tl.constexpr):
    """exp((x - base) * scale) of the tiles as two tuples of float32: of the words' lower and of their higher elements.

    With float32 inputs, both tuples are the same. `base` is (R, 1), or (R, THREADS) for a base of each thread.
    """
    b = base[:, :, None]
    lower = ()
    upper = ()
    for p in tl.static_range(len(tiles)):
        lower = lower + (exp_fast(unpack_low(tiles[p], DTYPE) - b, scale),)
        if DTYPE == tl.float32:
            upper = upper + (lower[p],)
        else:
            upper = upper + (exp_fast(unpack_high(tiles[p], DTYPE) - b, scale),)
    return lower, upper


@triton.jit
def exponential_sum(lower, upper, DTYPE: tl.constexpr):
    """Each thread's sum of exponentials, (R, THREADS)."""
    s = tl.sum(lower[0], 2) if DTYPE == tl.float32 else tl.sum(lower[0] + upper[0], 2)
    for p in tl.static_range(1, len(lower)):
        s += tl.sum(lower[p], 2) if DTYPE == tl.float32 else tl.sum(lower[p] + upper[p], 2)
    return s


@triton.jit
def init_partial_cached(tiles, scale, DTYPE: tl.constexpr):
    """Each thread's (max, sum), (R, THREADS), and its exponentials relative to its own maximum."""
    m = tile_max(tiles[0], DTYPE)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, tile_max(tiles[p], DTYPE))
    lower, upper = exponentials(tiles, finite_or_zero(m), scale, DTYPE)
    return m, exponential_sum(lower, upper, DTYPE), lower, upper


@triton.jit
def write_exponentials(
    out, lower, upper, norm, first, end, start,
    THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Stores exponentials times `norm` where `load_tiles` with the same bounds reads; `norm` is (R, 1) or (R, THREADS)."""
    c = norm[:, :, None]
    for p in tl.static_range(len(lower)):
        inside = result_mask(out, first, end, start, p, THREADS, WORDS, DTYPE, BASE_ALIGNMENT)
        store_tile(out, start, lower[p] * c, upper[p] * c, inside, p, DTYPE)
