"""Arithmetic of softmax, log-softmax and their gradients on tiles (`packed_io.py`): maxima, sums of exponentials, dot products, results.

A partial result is (max, sum): the maximum m of some elements, and the sum of exp(x - m) over them. Two of them merge into one (the online
normaliser of Milakov and Gimelshein, arXiv:1805.02867).

Two parameters choose the operation, and cost nothing where they have their defaults:

- LOG: the result is x - m - log(sum) instead of exp(x - m) / sum. The gradient is dy - exp(y) * sum(dy) instead of y * (dy - sum(dy * y)).
- `scale` multiplies x. It is positive, so m is the maximum of x itself, and an exponential is that of (x - m) * scale. None, a number, or
  (R, 1) numbers, one a row.

- exp(x - m) is exp2((x - m) * log2 e), with the subtraction first. Fused, m * log2 e would overflow, and its error would grow with |m|.
- Most threads compute each exponential twice: for the sum and for the result. `rematerialize` makes the compiler do so. Otherwise it keeps
  the float32 values in registers while the threads exchange their partial results. Rows on at most one warp, and threads with one or two
  tiles, have registers left: they compute each exponential once (`exponentials`).
- `block_reduce` merges the (max, sum) of a program's threads: over the lanes of a warp, then over the warps, with one barrier. Triton's own
  reduction of such pairs shuffles both values at each step, rescales both by exponentials, and has two barriers between warps. Launches of
  few rows wait for all of it. Here one instruction finds a warp's maximum (redux.sync, on integers in the order of the floats). Each lane
  rescales once, and then the sums are added. The warps' results go through shared memory, and each warp merges them for itself. The CUDA
  kernels do the same. Triton passes inline assembly on unchanged. It needs sm_80 or later.
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


@triton.jit
def row_max(tiles, DTYPE: tl.constexpr):
    """Maxima (R) of whole rows."""
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


REGISTERS = ".reg .u32 thread, at, base, bits, sign; .reg .pred p; .reg .f32 m, s, t, b, top;"
FINITE_OR_ZERO = "setp.eq.f32 p, top, 0fFF800000; selp.f32 b, 0f00000000, top, p;"  # b: as `finite_or_zero` of top
# To integers in the order of the floats, and back.
FLOAT_ORDER = "shr.s32 sign, bits, 31; and.b32 sign, sign, 0x7fffffff; xor.b32 bits, bits, sign;"


LOG2E_BITS = "0f3FB8AA3B"


def rescale(m: str, s: str, factor: str = LOG2E_BITS) -> str:
    """PTX: s * exp2((m - b) * factor), in s."""
    return f"sub.f32 t, {m}, b; mul.f32 t, t, {factor}; ex2.approx.ftz.f32 t, t; mul.f32 {s}, {s}, t;"


def merge_lanes(lanes: int, factor: str = LOG2E_BITS) -> list[str]:
    """PTX: merges the (m, s) of a warp's lanes; each lane gets the result.

    With fewer than 32 `lanes`, each aligned group of that many lanes must have the same partial results.
    """
    lines = [f"mov.b32 bits, m; {FLOAT_ORDER} redux.sync.max.s32 bits, bits, 0xffffffff; {FLOAT_ORDER} mov.b32 top, bits;"]
    lines += [FINITE_OR_ZERO, rescale("m", "s", factor), "mov.f32 m, top;"]
    while lanes > 1:
        lanes //= 2
        lines += [f"shfl.sync.bfly.b32 t, s, {lanes}, 0x1f, 0xffffffff; add.f32 s, s, t;"]
    return lines


def merge_warps(warps: int, barrier: str = "bar.sync 0;", factor: str = LOG2E_BITS) -> list[str]:
    """PTX: merges the (m, s) of a CTA's warps; each thread gets the result.

    All lanes of a warp must have the warp's (m, s), and the register `thread` the thread's number.
    """
    return [
        f".shared .align 8 .b8 warp_partials[{8 * warps}];",
        "mov.u32 base, warp_partials; shr.u32 at, thread, 5; mad.lo.u32 at, at, 8, base;",
        "and.b32 bits, thread, 31; setp.eq.u32 p, bits, 0; @p st.shared.v2.f32 [at], {m, s};",
        barrier,
        f"and.b32 at, thread, {warps - 1}; mad.lo.u32 at, at, 8, base; ld.shared.v2.f32 {{m, s}}, [at];",
        *merge_lanes(warps, factor),
    ]


def _merge_threads(warps: int, factor: str = LOG2E_BITS) -> tl.constexpr:
    lanes, of_warps = merge_lanes(32, factor), merge_warps(warps, factor=factor)
    lines = [REGISTERS, "mov.f32 m, $2; mov.f32 s, $3; mov.u32 thread, %tid.x;", *lanes, *of_warps]
    return tl.constexpr("{\n" + "\n".join([*lines, "mov.f32 $0, m; mov.f32 $1, s;"]) + "\n}")


MERGE_2, MERGE_4, MERGE_8, MERGE_16, MERGE_32 = (_merge_threads(warps) for warps in (2, 4, 8, 16, 32))
SCALED_2, SCALED_4, SCALED_8, SCALED_16, SCALED_32 = (_merge_threads(warps, "$4") for warps in (2, 4, 8, 16, 32))


@triton.jit
def block_reduce(maximum, total, scale):
    """Merges each thread's (max, sum), one pair a thread; each thread gets the result. `scale` is None or a number.

    Both are (1, THREADS), or (CTAS, THREADS) on a cluster, whose CTAs each merge their own. THREADS > 32.
    """
    THREADS: tl.constexpr = maximum.shape[1]
    if INTERPRETED:
        m = tl.max(maximum, 1)[:, None]
        return m + total * 0, tl.sum(total * exp_fast(maximum - finite_or_zero(m), scale), 1)[:, None] + total * 0
    elif scale is None:
        UP_TO_8: tl.constexpr = MERGE_2 if THREADS == 64 else (MERGE_4 if THREADS == 128 else MERGE_8)
        ASM: tl.constexpr = UP_TO_8 if THREADS <= 256 else (MERGE_16 if THREADS == 512 else MERGE_32)
        return tl.inline_asm_elementwise(ASM, "=&f,=&f,f,f", [maximum, total], dtype=(tl.float32, tl.float32), is_pure=False, pack=1)
    else:
        WITH_8: tl.constexpr = SCALED_2 if THREADS == 64 else (SCALED_4 if THREADS == 128 else SCALED_8)
        WITH_SCALE: tl.constexpr = WITH_8 if THREADS <= 256 else (SCALED_16 if THREADS == 512 else SCALED_32)
        inputs = [maximum, total, tl.broadcast_to(exp_factor(scale), maximum.shape)]
        return tl.inline_asm_elementwise(WITH_SCALE, "=&f,=&f,f,f,f", inputs, dtype=(tl.float32, tl.float32), is_pure=False, pack=1)
