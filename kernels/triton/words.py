"""What the fast tiers are made of: rows as 4-byte words in vectors of up to 16 bytes, one reduction over what a thread holds.

A tile is (R, T, W): R rows (or the chunks of one row that the CTAs of a cluster hold), T threads' vectors of W words. A chunk is a
tuple of P such tiles, so that P may be any number, not only a power of two: a row just above one pays no more than its own length.

- Words, not elements: two 16-bit elements stay packed in a register until they are used, and `after` keeps the compiler from holding
  their float32 values through the exchange: half the registers, twice the rows in flight.
- Vectors, whatever the alignment: a row that starts anywhere is counted from a boundary of ALIGN bytes below it. Whole vectors inside the
  row move as such; up to V - 1 elements before and after them (its edges) move one by one. No address outside the row is touched.
- exp2((x - m) * log2(e)) with the subtraction first: fused, m * log2(e) would overflow, and its error grow with |m|.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .plain import INTERPRETED as _INTERPRETED

INTERPRETED = tl.constexpr(_INTERPRETED)
MINUS_INFINITY = tl.constexpr(-float("inf"))
LOG2E = tl.constexpr(1.4426950408889634)

LOW_HALF = tl.constexpr("{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 $0, low; }")
HIGH_HALF = tl.constexpr("{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 $0, high; }")
# Zero, but known to nobody before all threads came: loads stay before it, what is computed with it after.
NOW = tl.constexpr(
    "{ .reg .pred any, never; .reg .u32 thread; mov.u32 thread, %tid.x; setp.gt.u32 never, thread, 4095;"
    " bar.red.or.pred any, 0, never; selp.b32 $0, -1, 0, any; }"
)


@triton.jit
def low(words, D: tl.constexpr):
    """The elements of dtype `D` at the lower addresses, as float32."""
    if D == tl.float32:
        return words.to(tl.float32, bitcast=True)
    elif D == tl.bfloat16:
        return (words << 16).to(tl.float32, bitcast=True)
    elif INTERPRETED:
        return (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(LOW_HALF, "=f,r", [words], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def high(words, D: tl.constexpr):
    """The elements at the higher addresses; of 16-bit dtypes only."""
    if D == tl.bfloat16:
        return (words & -65536).to(tl.float32, bitcast=True)
    elif INTERPRETED:
        return ((words >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(HIGH_HALF, "=f,r", [words], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def packed(lower, upper, D: tl.constexpr):
    """Words of two float32 values each, rounded to nearest."""
    if INTERPRETED:
        if D == tl.bfloat16:  # the interpreter's own conversion truncates
            a = lower.to(tl.int32, bitcast=True)
            b = upper.to(tl.int32, bitcast=True)
            a = tl.where(lower != lower, 0x7FC0, ((a + 0x7FFF + ((a >> 16) & 1)) >> 16) & 0xFFFF)
            b = tl.where(upper != upper, 0x7FC0, ((b + 0x7FFF + ((b >> 16) & 1)) >> 16) & 0xFFFF)
        else:
            a = lower.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            b = upper.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return a | (b << 16)
    elif D == tl.bfloat16:
        return tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [upper, lower], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [upper, lower], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def element(value, D: tl.constexpr):
    """A float32 value to be stored as a `D`, rounded to nearest."""
    if INTERPRETED and D == tl.bfloat16:  # the interpreter's own conversion truncates
        return (packed(value, value, D) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return value


@triton.jit
def nothing(D: tl.constexpr):
    """The word of elements that are not there: -inf."""
    if D == tl.float32:
        return -8388608
    elif D == tl.bfloat16:
        return -8323200
    else:
        return -67044352


@triton.jit
def after(tiles, zero):
    """The same tiles, as `zero` is 0. The compiler does not know that it is: nothing computed from them earlier can be kept."""
    out = ()
    for p in tl.static_range(len(tiles)):
        out = out + (tiles[p] | zero,)
    return out


@triton.jit
def now(anything):
    """A zero that is known only when all loads before it are under way; a barrier of the CTA."""
    if INTERPRETED:
        return 0
    else:
        return tl.inline_asm_elementwise(NOW, "=r,r", [anything], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def exp_of(x):
    return tl.exp2(x * LOG2E)


@triton.jit
def base_of(top):
    """What a part's exponentials are measured from: its maximum, or 0 where it has seen only -inf, as -inf - -inf would be NaN."""
    return tl.where(top == MINUS_INFINITY, 0.0, top)


@triton.jit
def join(top, total, other_top, other_total):
    """Two parts' (max, sum) as one."""
    m = tl.maximum(top, other_top)
    b = base_of(m)
    return m, total * exp_of(top - b) + other_total * exp_of(other_top - b)


@triton.jit
def vectors_of(row, N, V: tl.constexpr, ALIGN: tl.constexpr):
    """(shift, first, end) of the rows at pointers `row` (R): they start `shift` elements above a boundary of ALIGN bytes; the whole
    vectors inside them are first..end-1, counted from there. ALIGN = 0: rows start at a vector, and N counts vectors."""
    if ALIGN > 0:
        size: tl.constexpr = row.dtype.element_ty.primitive_bitwidth // 8
        shift = ((row.to(tl.int64) & (ALIGN - 1)) // size).to(tl.int32)
        return shift, (shift + V - 1) // V, (shift + N) // V
    else:
        zero = (row.to(tl.int64) & 0).to(tl.int32)
        return zero, zero, zero + N


@triton.jit
def words_at(row, shift, W: tl.constexpr):
    """Pointers to the words at the boundary below the rows."""
    return tl.multiple_of((row - shift).to(tl.pointer_type(tl.int32)), 4 * W)


@triton.jit
def edges_of(N, shift, first, end, V: tl.constexpr, T: tl.constexpr):
    """(columns, mask), (R, T): the elements before the first whole vector and behind the last, to the first 2V of T threads."""
    e = tl.arange(0, T)[None, :]
    head = tl.minimum(first * V - shift, N)[:, None]  # all of a row that ends within its first vector
    tail = (tl.maximum(end, first) * V - shift)[:, None]
    columns = tl.where(e < V, e, tail + e - V)
    return columns, tl.where(e < V, e < head, columns < N)


@triton.jit
def inside_of(first, end, start, p: tl.constexpr, T: tl.constexpr, W: tl.constexpr, ALIGN: tl.constexpr):
    """(R, T, W): which vectors of tile p from `start` on are first..end-1. Only rows that begin anywhere have any before `first`, and
    those are less than ALIGN bytes from the boundary: later tiles are spared the comparison. `end`: (R), or (R, T) where each thread is
    to compare anew what it has compared before, and not to keep a predicate a tile meanwhile."""
    t = tl.arange(0, T)[None, :, None] + tl.zeros((1, 1, W), tl.int32)
    if len(end.shape) == 1:
        inside = (end - start)[:, None, None] - t > p * T
    else:
        inside = (end - start[:, None])[:, :, None] - t > p * T
    if p * T * W * 4 < ALIGN:
        inside = inside & (start[:, None, None] + t + p * T >= first[:, None, None])
    return inside


@triton.jit
def load(words, first, end, start, other, P: tl.constexpr, T: tl.constexpr, W: tl.constexpr, ALIGN: tl.constexpr, STAYS: tl.constexpr):
    """P tiles of the vectors from `start` on; those outside first..end-1 read as `other`. STAYS: of `plans.Shape.stays`."""
    KEPT: tl.constexpr = "evict_last" if STAYS else ""
    o = start[:, None, None] * W + tl.arange(0, T)[None, :, None] * W + tl.arange(0, W)[None, None, :]
    out = ()
    for p in tl.static_range(P):
        inside = inside_of(first, end, start, p, T, W, ALIGN)
        out = out + (tl.load(words[:, None, None] + o + p * T * W, mask=inside, other=other, eviction_policy=KEPT),)
    return out


@triton.jit
def top_of(tile, D: tl.constexpr):
    """(R, T): each thread's maximum."""
    if D == tl.float32:
        return tl.max(low(tile, D), 2)
    else:
        return tl.max(tl.maximum(low(tile, D), high(tile, D)), 2)


@triton.jit
def total_of(tile, base, D: tl.constexpr):
    """(R, T): each thread's sum of exp(x - base)."""
    e = exp_of(low(tile, D) - base)
    if D != tl.float32:
        e += exp_of(high(tile, D) - base)
    return tl.sum(e, 2)


@triton.jit
def measure(tiles, D: tl.constexpr):
    """(max, sum) of each thread, (R, T): first its maximum, then its sum."""
    m = top_of(tiles[0], D)
    for p in tl.static_range(1, len(tiles)):
        m = tl.maximum(m, top_of(tiles[p], D))
    b = base_of(m)
    again = after(tiles, tl.where(b != b, -1, 0)[:, :, None])
    s = total_of(again[0], b[:, :, None], D)
    for p in tl.static_range(1, len(tiles)):
        s += total_of(again[p], b[:, :, None], D)
    return m, s


@triton.jit
def measure_lanes(tiles, D: tl.constexpr):
    """(max, sum) of each thread, (R, T), tile by tile in the order in which they arrive, once all loads are under way."""
    m = top_of(tiles[0], D)
    s = total_of(tiles[0], base_of(m)[:, :, None], D)
    for p in tl.static_range(1, len(tiles)):
        n = tl.maximum(m, top_of(tiles[p], D))
        b = base_of(n)
        s = s * exp_of(m - b) + total_of(tiles[p], b[:, :, None], D)
        m = n
    return m, s


@triton.jit
def softmax_words(words, top, scale, D: tl.constexpr):
    e = exp_of(low(words, D) - top) * scale
    if D == tl.float32:
        return e.to(tl.int32, bitcast=True)
    else:
        return packed(e, exp_of(high(words, D) - top) * scale, D)


@triton.jit
def store_softmax(words, tiles, top, scale, first, end, start, T: tl.constexpr, W: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr):
    """exp(x - top) * scale of the tiles, to where `load` with the same bounds would read them; top and scale are (R, T)."""
    o = start[:, None, None] * W + tl.arange(0, T)[None, :, None] * W + tl.arange(0, W)[None, None, :]
    for p in tl.static_range(len(tiles)):
        inside = inside_of(first, end, start, p, T, W, ALIGN)
        y = softmax_words(tiles[p], top[:, :, None], scale[:, :, None], D)
        tl.store(words[:, None, None] + o + p * T * W, y, mask=inside)


@triton.jit
def store_slopes(words, dy, y, dot, first, end, start, T: tl.constexpr, W: tl.constexpr, D: tl.constexpr, ALIGN: tl.constexpr):
    """y * (dy - dot) of the tiles, likewise."""
    o = start[:, None, None] * W + tl.arange(0, T)[None, :, None] * W + tl.arange(0, W)[None, None, :]
    d = dot[:, None, None]
    for p in tl.static_range(len(y)):
        inside = inside_of(first, end, start, p, T, W, ALIGN)
        dx = low(y[p], D) * (low(dy[p], D) - d)
        if D == tl.float32:
            out = dx.to(tl.int32, bitcast=True)
        else:
            out = packed(dx, high(y[p], D) * (high(dy[p], D) - d), D)
        tl.store(words[:, None, None] + o + p * T * W, out, mask=inside)


@triton.jit
def dot_of(dy, y, D: tl.constexpr):
    """(R): the sum of dy * y over the tiles."""
    s = dot_lanes(dy[0], y[0], D)
    for p in tl.static_range(1, len(y)):
        s += dot_lanes(dy[p], y[p], D)
    return tl.sum(s, 1)


@triton.jit
def dot_lanes(dy, y, D: tl.constexpr):
    s = low(dy, D) * low(y, D)
    if D != tl.float32:
        s += high(dy, D) * high(y, D)
    return tl.sum(s, 2)
