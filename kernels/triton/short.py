"""Exponentials computed once and kept, of rows that a warp's lanes hold and of threads that have few: tuples of tiles like `words.py`'s."""

from __future__ import annotations

import triton
import triton.language as tl

from .words import base_of, exp_of, high, inside_of, low, packed, top_of


@triton.jit
def top_of_tiles(tiles, D: tl.constexpr):
    """Maxima of rows (R) that a warp's lanes hold."""
    m = top_of(tiles[0], D)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, top_of(tiles[p], D))
    return tl.max(m, 1)


@triton.jit
def exponentials(tiles, base, D: tl.constexpr):
    """exp(x - base) of the tiles, float32, those of words' lower and of their higher elements (of float32 the same): short rows keep them,
    which is a quarter fewer instructions at N = 197 in bf16. base: (R, 1), or a thread's own, (R, T)."""
    b = base[:, :, None]
    lower = ()
    upper = ()
    for p in tl.static_range(len(tiles)):
        lower = lower + (exp_of(low(tiles[p], D) - b),)
        if D == tl.float32:
            upper = upper + (lower[p],)
        else:
            upper = upper + (exp_of(high(tiles[p], D) - b),)
    return lower, upper


@triton.jit
def total_of_exponentials(lower, upper, D: tl.constexpr):
    """Their sums by thread (R, T)."""
    s = tl.sum(lower[0], 2) if D == tl.float32 else tl.sum(lower[0] + upper[0], 2)
    for p in tl.static_range(1, len(lower)):
        s += tl.sum(lower[p], 2) if D == tl.float32 else tl.sum(lower[p] + upper[p], 2)
    return s


@triton.jit
def measure_keeping(tiles, D: tl.constexpr):
    """Each thread's (max, sum), (R, T), and its exponentials, measured from its own maximum."""
    m = top_of(tiles[0], D)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, top_of(tiles[p], D))
    lower, upper = exponentials(tiles, base_of(m), D)
    return m, total_of_exponentials(lower, upper, D), lower, upper


@triton.jit
def store_scaled(words, lower, upper, scale, first, end, start, T: tl.constexpr, W: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr):
    """Exponentials times scale, (R, 1) or (R, T), to where `load` with the same bounds would read them."""
    o = start[:, None, None] * W + tl.arange(0, T)[None, :, None] * W + tl.arange(0, W)[None, None, :]
    c = scale[:, :, None]
    for p in tl.static_range(len(lower)):
        inside = inside_of(first, end, start, p, T, W, ALIGN)
        if D == tl.float32:
            y = (lower[p] * c).to(tl.int32, bitcast=True)
        else:
            y = packed(lower[p] * c, upper[p] * c, D)
        tl.store(words[:, None, None] + o + p * T * W, y, mask=inside)
