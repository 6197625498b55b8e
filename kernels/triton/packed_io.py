"""Loads and stores of rows as packed 4-byte words, in vectors of up to 16 bytes.

A tile is a tensor (R, THREADS, WORDS): R rows, or the chunks of one row that the CTAs of a cluster have. Each of THREADS threads has one
vector of WORDS words. A thread's part of a row is a tuple of tiles, so the number of tiles need not be a power of two. A row just above a
power of two costs no more than its own length.

- Words: two 16-bit elements stay packed in a register until they are used. That halves the registers, and doubles the rows in flight.
- Vectors: a row may start anywhere. Its vectors are counted from a base, the boundary of BASE_ALIGNMENT bytes at or below the row. Vectors
  that are whole inside the row move as such. Up to VECTOR - 1 elements before and after them, the edges, move one by one. No address
  outside the row is accessed.

- Results of another dtype: a thread's vector has as many elements in the results as in the inputs. So 16-bit inputs come in vectors of
  8 bytes where results are float32, and each warp writes whole lines. Each row's results must start as many elements above a vector's
  boundary as its inputs.

Parameters of most functions: DTYPE of an input's element, TILES, THREADS, WORDS a vector, VECTOR (the elements of a vector), BASE_ALIGNMENT
in bytes of the inputs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .interpreter import INTERPRETED as _INTERPRETED

INTERPRETED = tl.constexpr(_INTERPRETED)

MAX_OF_BFLOAT16 = tl.constexpr("max.bf16x2 $0, $1, $2;")
MAX_OF_FLOAT16 = tl.constexpr("max.f16x2 $0, $1, $2;")
LOW_HALF = tl.constexpr("{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 $0, low; }")
HIGH_HALF = tl.constexpr("{ .reg .b16 low, high; mov.b32 {low, high}, $1; cvt.f32.f16 $0, high; }")

# Inputs: address, results of the lower element, of the higher one, and a mask; each of one word, or of two.
STORE_WIDE_8 = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $4, 0; @p st.global.v2.b32 [$1], {$2, $3}; mov.b32 $0, 0; }")
STORE_WIDE_16 = tl.constexpr(
    "{ .reg .pred p; setp.ne.u32 p, $8, 0; @p st.global.v4.b32 [$2], {$4, $6, $5, $7}; mov.b32 $0, 0; mov.b32 $1, 0; }"
)


@triton.jit
def unpack_low(words, DTYPE: tl.constexpr):
    """The elements at the lower addresses of the words, as float32."""
    if DTYPE == tl.float32:
        return words.to(tl.float32, bitcast=True)
    elif DTYPE == tl.bfloat16:
        return (words << 16).to(tl.float32, bitcast=True)
    elif INTERPRETED:
        return (words & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(LOW_HALF, "=f,r", [words], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def unpack_high(words, DTYPE: tl.constexpr):
    """The elements at the higher addresses, as float32; only for 16-bit dtypes."""
    if DTYPE == tl.bfloat16:
        return (words & -65536).to(tl.float32, bitcast=True)
    elif INTERPRETED:
        return ((words >> 16) & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        return tl.inline_asm_elementwise(HIGH_HALF, "=f,r", [words], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _max_of_bfloat16(a, b):
    return tl.inline_asm_elementwise(MAX_OF_BFLOAT16, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _max_of_float16(a, b):
    return tl.inline_asm_elementwise(MAX_OF_FLOAT16, "=r,r,r", [a, b], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def larger(a, b, DTYPE: tl.constexpr):
    """Words of the larger elements, of 16 bits; of a number and NaN, the number. One instruction compares both elements of a word."""
    if INTERPRETED:
        low = tl.maximum(unpack_low(a, DTYPE), unpack_low(b, DTYPE))
        return pack(low, tl.maximum(unpack_high(a, DTYPE), unpack_high(b, DTYPE)), DTYPE)
    elif DTYPE == tl.bfloat16:
        return _max_of_bfloat16(a, b)
    else:
        return _max_of_float16(a, b)


@triton.jit
def packed_max(tile, DTYPE: tl.constexpr):
    """Each thread's maximum of 16-bit elements, (R, THREADS) in float32. NaN counts only if all elements are NaN."""
    if INTERPRETED:
        return tl.max(tl.maximum(unpack_low(tile, DTYPE), unpack_high(tile, DTYPE)), 2)
    elif DTYPE == tl.bfloat16:
        word = tl.reduce(tile, 2, _max_of_bfloat16)
    else:
        word = tl.reduce(tile, 2, _max_of_float16)
    return tl.maximum(unpack_low(word, DTYPE), unpack_high(word, DTYPE))


@triton.jit
def pack(lower, upper, DTYPE: tl.constexpr):
    """Words of two float32 values each, rounded to nearest."""
    if INTERPRETED:
        if DTYPE == tl.bfloat16:  # the interpreter's conversion truncates
            a = lower.to(tl.int32, bitcast=True)
            b = upper.to(tl.int32, bitcast=True)
            a = tl.where(lower != lower, 0x7FC0, ((a + 0x7FFF + ((a >> 16) & 1)) >> 16) & 0xFFFF)
            b = tl.where(upper != upper, 0x7FC0, ((b + 0x7FFF + ((b >> 16) & 1)) >> 16) & 0xFFFF)
        else:
            a = lower.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
            b = upper.to(tl.float16).to(tl.int16, bitcast=True).to(tl.int32) & 0xFFFF
        return a | (b << 16)
    elif DTYPE == tl.bfloat16:
        return tl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $1, $2;", "=r,f,f", [upper, lower], dtype=tl.int32, is_pure=True, pack=1)
    else:
        return tl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $1, $2;", "=r,f,f", [upper, lower], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def rounded(value, DTYPE: tl.constexpr):
    """A float32 value in a form that `tl.store` rounds to the nearest DTYPE."""
    if INTERPRETED and DTYPE == tl.bfloat16:  # the interpreter's conversion truncates
        return (pack(value, value, DTYPE) & 0xFFFF).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return value


@triton.jit
def padding(DTYPE: tl.constexpr):
    """A word of -inf, for elements outside the row."""
    if DTYPE == tl.float32:
        return -8388608
    elif DTYPE == tl.bfloat16:
        return -8323200
    else:
        return -67044352


@triton.jit
def row_vectors(row, N, VECTOR: tl.constexpr, BASE_ALIGNMENT: tl.constexpr):
    """(offset, first, end) of the rows at pointers `row` (R).

    The rows start `offset` elements above their base. Whole vectors inside the rows have the numbers first..end-1, counted from the base.
    BASE_ALIGNMENT = 0: rows start at a vector, and N counts vectors.
    """
    if BASE_ALIGNMENT > 0:
        size: tl.constexpr = row.dtype.element_ty.primitive_bitwidth // 8
        offset = ((row.to(tl.int64) & (BASE_ALIGNMENT - 1)) // size).to(tl.int32)
        return offset, (offset + VECTOR - 1) // VECTOR, (offset + N) // VECTOR
    else:
        zero = (row.to(tl.int64) & 0).to(tl.int32)
        return zero, zero, zero + N


@triton.jit
def word_pointers(row, offset, WORDS: tl.constexpr):
    """Pointers to the words at the base of the rows."""
    return tl.multiple_of((row - offset).to(tl.pointer_type(tl.int32)), 4 * WORDS)


@triton.jit
def edge_columns(N, offset, first, end, VECTOR: tl.constexpr, THREADS: tl.constexpr):
    """(columns, mask), both (R, THREADS), of the elements before the first whole vector and behind the last.

    The first 2 * VECTOR of the THREADS threads have them.
    """
    e = tl.arange(0, THREADS)[None, :]
    head = tl.minimum(first * VECTOR - offset, N)[:, None]  # all of a row that ends within its first vector
    tail = (tl.maximum(end, first) * VECTOR - offset)[:, None]
    columns = tl.where(e < VECTOR, e, tail + e - VECTOR)
    return columns, tl.where(e < VECTOR, e < head, columns < N)


@triton.jit
def vectors_inside(first, end, start, p: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, BASE_ALIGNMENT: tl.constexpr):
    """Mask (R, THREADS, WORDS) of the vectors of tile `p` that are among first..end-1. Tile 0 begins at vector `start`.

    Only the first tiles compare with `first`: a row starts less than BASE_ALIGNMENT bytes above its base.
    `end` is (R), or (R, THREADS) if each thread shall compare again instead of keeping a predicate for each tile.
    """
    t = tl.arange(0, THREADS)[None, :, None] + tl.zeros((1, 1, WORDS), tl.int32)
    if len(end.shape) == 1:
        inside = (end - start)[:, None, None] - t > p * THREADS
    else:
        inside = (end - start[:, None])[:, :, None] - t > p * THREADS
    if p * THREADS * WORDS * 4 < BASE_ALIGNMENT:
        inside = inside & (start[:, None, None] + t + p * THREADS >= first[:, None, None])
    return inside


@triton.jit
def load_tiles(
    words, first, end, start, other,
    TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, BASE_ALIGNMENT: tl.constexpr, L2_POLICY: tl.constexpr,
):  # fmt: skip
    """A tuple of TILES tiles, of the vectors from `start` on. Vectors outside first..end-1 are `other`.

    L2_POLICY: NO_POLICY (or False), KEEP (or True) or LEAVE_FIRST, which is 2, of `softbench.kernels.triton.launch_plan`.
    """
    POLICY: tl.constexpr = "evict_first" if L2_POLICY == 2 else ("evict_last" if L2_POLICY else "")
    o = start[:, None, None] * WORDS + tl.arange(0, THREADS)[None, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]
    out = ()
    for p in tl.static_range(TILES):
        inside = vectors_inside(first, end, start, p, THREADS, WORDS, BASE_ALIGNMENT)
        out = out + (tl.load(words[:, None, None] + o + p * THREADS * WORDS, mask=inside, other=other, eviction_policy=POLICY),)
    return out


@triton.jit
def output_pointers(row, offset, WORDS: tl.constexpr, DTYPE: tl.constexpr):
    """Pointers to the results' base, for `store_tile`: to words, or to elements of another dtype than DTYPE, the inputs'."""
    OUT: tl.constexpr = row.dtype.element_ty
    if OUT == DTYPE:
        return word_pointers(row, offset, WORDS)
    elif OUT == tl.float32:
        return tl.multiple_of(row - offset, 8 * WORDS)
    else:
        return tl.multiple_of(row - offset, 2 * WORDS)


@triton.jit
def result_mask(
    out, first, end, start, p: tl.constexpr,
    THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, BASE_ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """`vectors_inside` for `store_tile`; for float32 results of 16-bit inputs one element a vector."""
    if out.dtype.element_ty == tl.float32 and DTYPE != tl.float32:
        return vectors_inside(first, end, start, p, THREADS, 1, BASE_ALIGNMENT // WORDS)
    else:
        return vectors_inside(first, end, start, p, THREADS, WORDS, BASE_ALIGNMENT)


@triton.jit
def store_tile(out, start, lower, upper, inside, p: tl.constexpr, DTYPE: tl.constexpr):
    """Stores tile `p`: the float32 results of the words' lower and higher elements; with float32 inputs, both are the same."""
    OUT: tl.constexpr = out.dtype.element_ty
    THREADS: tl.constexpr = lower.shape[1]
    WORDS: tl.constexpr = lower.shape[2]
    if OUT == tl.float32:
        store_wide(out, start + p * THREADS, lower, upper, inside)
    else:
        o = start[:, None, None] * WORDS + tl.arange(0, THREADS)[None, :, None] * WORDS + tl.arange(0, WORDS)[None, None, :]
        if OUT != tl.int32:
            value = rounded(lower, OUT)
        elif DTYPE == tl.float32:
            value = lower.to(tl.int32, bitcast=True)
        else:
            value = pack(lower, upper, DTYPE)
        tl.store(out[:, None, None] + o + p * THREADS * WORDS, value, mask=inside)


@triton.jit
def store_wide(out, start, lower, upper, inside):
    """Stores float32 results of 16-bit words, from vector `start` on. `inside` has one element a vector.

    Each thread has one or two adjacent words, whose results are 8 or 16 adjacent bytes. Triton 3.6 cannot interleave tensors on a cluster.
    """
    THREADS: tl.constexpr = lower.shape[1]
    WORDS: tl.constexpr = lower.shape[2]
    place = out[:, None, None] + (start[:, None, None] + tl.arange(0, THREADS)[None, :, None]) * (2 * WORDS)
    if INTERPRETED:
        tl.store(place + tl.arange(0, 2 * WORDS)[None, None, :], tl.interleave(lower, upper), mask=inside)
    else:
        inputs = [place.to(tl.int64), lower, upper, inside.to(tl.int32)]
        if WORDS == 2:
            tl.inline_asm_elementwise(STORE_WIDE_16, "=r,=r,l,l,f,f,f,f,r,r", inputs, dtype=tl.int32, is_pure=False, pack=2)
        else:
            tl.inline_asm_elementwise(STORE_WIDE_8, "=r,l,f,f,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
