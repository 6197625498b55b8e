"""Arithmetic of losses over rows with a target, on tiles (`packed_io.py`): running partial results, the results of a row, gradients.

A row of logits z has the target t. z is x, or x * inverse, or softcap * tanh(x * inverse). A partial result of some elements is
(m, s, d, count):

- m is their maximum, and s the sum of exp(z - m), as in `softmax_ops.py`.
- THIRD = "entropy": d is the sum of y exp2(y), with y = (z - m) * log2 e. No term of it is positive.
- THIRD = "mean": d is the sum of m - z, and count the number of elements. No term of d is negative.
- THIRD = "": d and count have no meaning.

So nothing cancels in a row that is shifted. An element of -inf has exp2(y) = 0 and adds nothing to an entropy.

Parameters that are None cost nothing: `softcap`, `inverse` (the scale of the logits, over the softcap if there is one), `share` (label
smoothing's part of a column) and `z_loss`.
"""

from __future__ import annotations

import struct

import triton
import triton.language as tl

from .packed_io import INTERPRETED, larger, packed_max, rounded, store_tile, unpack_high, unpack_low, vectors_inside
from .softmax_ops import LOG2E, MINUS_INFINITY, exp_fast, finite_or_zero, tile_max

LOWEST = tl.constexpr(-10000.0)  # of y: exp2 is 0 there, and the product is finite
LN2 = tl.constexpr(0.6931471805599453)


POLYNOMIAL = (
    -0.0003952544939238578, 0.0024280415382236242, -0.008116433396935463, 0.021599162369966507, -0.053917296230793, 0.13332916796207428,
    -0.33333325386047363,
)  # fmt: skip
"""(tanh(a) / a - 1) / a^2 up to a = 1, in powers of a^2 from the highest: a least-squares fit at Chebyshev points."""


def _bits(value: float) -> str:
    """A float32 in PTX."""
    return f"0f{struct.unpack('<I', struct.pack('<f', value))[0]:08X}"


def _tanh_assembly() -> tl.constexpr:
    first, second, *rest = (_bits(value) for value in POLYNOMIAL)
    lines = [
        "{ .reg .f32 a, q, r, t; .reg .pred p;",
        f"abs.f32 a, $1; mul.f32 q, a, a; mov.f32 r, {first}; fma.rn.f32 r, r, q, {second};",
        *[f"fma.rn.f32 r, r, q, {value};" for value in rest],
        "mul.f32 r, r, q; fma.rn.f32 r, r, a, a;",
        f"mul.f32 t, a, {_bits(2 * 1.4426950408889634)}; ex2.approx.ftz.f32 t, t; add.f32 t, t, {_bits(1)};",
        f"rcp.approx.ftz.f32 t, t; fma.rn.f32 t, t, {_bits(-2)}, {_bits(1)};",
        f"setp.lt.f32 p, a, {_bits(1)}; selp.f32 r, r, t, p; copysign.f32 $0, $1, r; }}",
    ]
    return tl.constexpr("\n".join(lines))


TANH = _tanh_assembly()
C0, C1, C2, C3, C4, C5, C6 = (tl.constexpr(value) for value in POLYNOMIAL)


@triton.jit
def tanh(v):
    """tanh to about three roundings: a polynomial up to 1, and exp above it.

    It is one operation for Triton, whose planner of clusters gives up at a number of operations.
    """
    if INTERPRETED:
        a = tl.abs(v)
        q = a * a
        r = (((((C0 * q + C1) * q + C2) * q + C3) * q + C4) * q + C5) * q + C6
        found = tl.where(a < 1.0, a + a * (r * q), 1.0 - 2.0 / (exp_fast(2.0 * a) + 1.0))
        return tl.where(v < 0, -found, found)
    else:
        return tl.inline_asm_elementwise(TANH, "=f,f", [v], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def capped(x, softcap, inverse):
    """z of x."""
    if inverse is None:
        return x
    elif softcap is None:
        return x * inverse
    else:
        return softcap * tanh(x * inverse)


@triton.jit
def logits(x, inside, softcap, inverse):
    """z of elements that are padded with -inf. The cap of -inf is finite, so padding needs `inside`."""
    if softcap is None:
        return capped(x, None, inverse)
    else:
        return tl.where(inside, capped(x, softcap, inverse), MINUS_INFINITY)


@triton.jit
def rebased(m, s, d, count, base, THIRD: tl.constexpr):
    """s and d of a partial result relative to `base`, which is finite and at least m."""
    if THIRD == "entropy":
        shift = tl.maximum((m - base) * LOG2E, LOWEST)
        factor = tl.exp2(shift)
        return s * factor, (d + s * shift) * factor
    elif THIRD == "mean":
        return s * exp_fast(m - base), d + tl.where(count > 0, count * (base - m), 0.0)
    else:
        return s * exp_fast(m - base), d


@triton.jit
def terms(z, inside, base, THIRD: tl.constexpr):
    """What elements add to s and d relative to `base`."""
    if THIRD == "entropy":
        y = (z - base) * LOG2E
        e = tl.exp2(y)
        return e, e * tl.maximum(y, LOWEST)
    elif THIRD == "mean":
        return exp_fast(z - base), tl.where(inside, base - z, 0.0)
    else:
        e = exp_fast(z - base)
        return e, e


@triton.jit
def accumulate(
    m, s, d, count, tiles, first, end, start, softcap, inverse,
    THREADS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, THIRD: tl.constexpr,
):  # fmt: skip
    """Each thread's partial result, (R, THREADS), with the tiles that `load_tiles` read with the same bounds."""
    if DTYPE == tl.float32:
        top = tile_max(tiles[0], DTYPE)
        for p in tl.static_range(1, len(tiles)):
            top = tl.maximum(top, tile_max(tiles[p], DTYPE))
    else:
        words = tiles[0]
        for p in tl.static_range(1, len(tiles)):
            words = larger(words, tiles[p], DTYPE)
        top = packed_max(words, DTYPE)
    n = tl.maximum(m, capped(top, softcap, inverse))  # with a softcap, of a thread without elements too: it stays below the row's
    base = finite_or_zero(n)
    s, d = rebased(m, s, d, count, base, THIRD)
    b = base[:, :, None]
    total = 0.0
    third = 0.0
    for p in tl.static_range(len(tiles)):
        inside = vectors_inside(first, end, start, p, THREADS, 4, BASE_ALIGNMENT)
        e, more = terms(logits(unpack_low(tiles[p], DTYPE), inside, softcap, inverse), inside, b, THIRD)
        if DTYPE != tl.float32:
            e_high, more_high = terms(logits(unpack_high(tiles[p], DTYPE), inside, softcap, inverse), inside, b, THIRD)
        if THIRD == "mean":  # summed at once: two more sums of words would take registers
            if DTYPE != tl.float32:
                e += e_high
                more += more_high
            s += tl.sum(e, 2)
            d += tl.sum(more, 2)
            count += tl.sum(tl.where(inside, 1.0, 0.0), 2) * (1 if DTYPE == tl.float32 else 2)
        else:
            total += e
            third += more
            if DTYPE != tl.float32:
                total += e_high
                third += more_high
    if THIRD != "mean":
        s += tl.sum(total, 2)
    if THIRD == "entropy":
        d += tl.sum(third, 2)
    return n, s, d, count


@triton.jit
def add_edges(m, s, d, count, edge, inside, softcap, inverse, THIRD: tl.constexpr):
    """Each thread's partial result with one element of the row's edges, (R, THREADS), padded with -inf."""
    z = logits(edge, inside, softcap, inverse)
    n = tl.maximum(m, z)
    base = finite_or_zero(n)
    s, d = rebased(m, s, d, count, base, THIRD)
    e, more = terms(z, inside, base, THIRD)
    return n, s + e, d + more, count + tl.where(inside, 1.0, 0.0)


@triton.jit
def row_loss(m, s, d, z_target, N, target, ignore_index, hot, share, z_loss):
    """(loss, lse) of a row with these sums. `hot` is 1 - label_smoothing. A target out of range makes the loss NaN."""
    log = tl.log(s)
    loss = hot * ((m - z_target) + log)
    if share is not None:
        loss += share * (d + N * log)
    if z_loss is not None:
        loss += z_loss * (m + log) * (m + log)
    loss = tl.where((target >= 0) & (target < N), loss, float("nan"))
    return tl.where(target == ignore_index, 0.0, loss), m + log


@triton.jit
def row_logprob(m, s, d, z_target, N, target, ignore_index):
    """(logprob, entropy, lse) of a row with these sums. A target out of range makes logprob NaN, or 0 if it is ignored."""
    log = tl.log(s)
    logprob = tl.where((target >= 0) & (target < N), (z_target - m) - log, float("nan"))
    logprob = tl.where(target == ignore_index, 0.0, logprob)
    return logprob, log - d / s * LN2, m + log


@triton.jit
def row_norm(m, s, N, target, z_loss):
    """What exp(z - m) is multiplied by in dx: (1 + 2 z_loss lse) / s, or NaN for a target out of range."""
    norm = 1.0 / s
    if z_loss is not None:
        norm *= 1.0 + 2.0 * z_loss * (m + tl.log(s))
    return tl.where((target >= 0) & (target < N), norm, float("nan"))


@triton.jit
def gradient_of_losses(dloss_ptr):
    """The gradient of all losses: the number at `dloss_ptr`, or 1 if that is None."""
    if dloss_ptr is None:
        return 1.0
    else:
        return tl.load(dloss_ptr)


@triton.jit
def column_of(target, N):
    """A column to read or write for any target: the target, or 0 where it is ignored or out of range."""
    return tl.where((target >= 0) & (target < N), target, 0).to(tl.int32)


@triton.jit
def slope(x, base, norm, share, hot, softcap, inverse):
    """dx of elements: (exp(z - base) * norm - share - hot) * dz/dx, where the scale of the logits is in the other factors."""
    if softcap is None:
        v = exp_fast(capped(x, None, inverse) - base) * norm
    else:
        u = tanh(x * inverse)
        v = exp_fast(softcap * u - base) * norm
    if share is not None:
        v -= share
    if hot is not None:
        v -= hot
    if softcap is not None:
        v *= 1.0 - u * u
    return v


@triton.jit
def logprob_slope(z, lse, weight, dentropy):
    """dx of elements that are no target: -p (dlogprob + dentropy (y + entropy)). `weight` is dlogprob + dentropy * entropy."""
    y = z - lse
    return exp_fast(y) * (-weight - dentropy * tl.maximum(y, LOWEST))


@triton.jit
def write_slopes(
    out, tiles, base, norm, share, softcap, inverse, kept, first, end, start,
    THREADS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Stores `slope` without `hot` of the tiles where `load_tiles` with the same bounds reads, or zeros if not `kept`.

    `base` and `norm` are (R, THREADS), and `kept` is (R, 1). Returns each thread's sum of base - z, (R, THREADS), if `share` is not None.
    """
    b = base[:, :, None]
    c = norm[:, :, None]
    keep = kept[:, :, None]
    below = tl.zeros_like(base)
    for p in tl.static_range(len(tiles)):
        inside = vectors_inside(first, end, start, p, THREADS, 4, BASE_ALIGNMENT)
        x = unpack_low(tiles[p], DTYPE)
        lower = tl.where(keep, slope(x, b, c, share, None, softcap, inverse), 0.0)
        upper = lower
        if share is not None:
            below += tl.sum(tl.where(inside, b - capped(x, softcap, inverse), 0.0), 2)
        if DTYPE != tl.float32:
            high = unpack_high(tiles[p], DTYPE)
            upper = tl.where(keep, slope(high, b, c, share, None, softcap, inverse), 0.0)
            if share is not None:
                below += tl.sum(tl.where(inside, b - capped(high, softcap, inverse), 0.0), 2)
        store_tile(out, start, lower, upper, inside, p, DTYPE)
    return below


@triton.jit
def store_first(pointer, value, mask):
    """Stores a value for each row, from its first thread: all of the row's threads, (R, THREADS), have it."""
    thread = tl.arange(0, value.shape[1])[None, :]
    tl.store(pointer + thread * 0, rounded(value, pointer.dtype.element_ty), mask=mask & (thread == 0))
