"""Kernels of the tier staged: short rows that lie back to back, of any length. A program moves a block of rows through shared memory.

The block begins at a 16-byte boundary, so it is copied in whole vectors, to shared memory and back. In between, a power of two of LANES
share a row: lane i has the units i, i + LANES, and so on. A unit is one element, or a word of two 16-bit elements where rows have whole
words. Each lane writes its results to the places that it has read, so one barrier before the copy back is enough.

Rows of an odd number of 16-bit elements start in the middle of a word, and no wider access than two bytes is aligned in all of them. The
CUDA kernels do the same (`staged.cuh`). Under the interpreter, which runs no assembly, units are read from and written to global memory.
LOG and `scale` are as in `forward.py`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .generic import dot_terms
from .packed_io import INTERPRETED, pack, rounded, unpack_high, unpack_low
from .smem_tiles import ALLOCATE_4, ALLOCATE_8, ALLOCATE_16, ALLOCATE_24, ALLOCATE_32, COMMIT, WAIT
from .softmax_ops import MINUS_INFINITY, exp_fast, finite_or_zero, gradient, norm_of, normalized

# A whole vector, where $3 is not 0. A copy of fewer bytes than 16 also reads the others, which may lie behind the tensor. It has no policy
# for L2. ptxas can add a uniform register to the shared address. A copy with both is an illegal instruction on an H200.
COPY = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $3, 0; @p cp.async.cg.shared.global [$1], [$2], 16; mov.b32 $0, 0; }")
COPY_WORD = tl.constexpr(
    "{ .reg .pred p; .reg .b32 word; setp.ne.u32 p, $3, 0; @p ld.global.b32 word, [$2]; @p st.shared.b32 [$1], word; mov.b32 $0, 0; }"
)
COPY_HALF = tl.constexpr(
    "{ .reg .pred p; .reg .b16 half; setp.ne.u32 p, $3, 0; @p ld.global.b16 half, [$2]; @p st.shared.b16 [$1], half; mov.b32 $0, 0; }"
)
READ_WORD = tl.constexpr("ld.shared.b32 $0, [$1];")
READ_HALF = tl.constexpr("ld.shared.u16 $0, [$1];")
# A lane without a last unit reads nothing: what lies there is another lane's, which may already have written its result.
READ_LAST_WORD = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.b32 $0, 0; @p ld.shared.b32 $0, [$1]; }")
READ_LAST_HALF = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $2, 0; mov.b32 $0, 0; @p ld.shared.u16 $0, [$1]; }")
WRITE_WORD = tl.constexpr("st.shared.b32 [$1], $2; mov.b32 $0, 0;")
WRITE_HALF = tl.constexpr("{ .reg .b16 half, other; mov.b32 {half, other}, $2; st.shared.b16 [$1], half; mov.b32 $0, 0; }")
WRITE_LAST_WORD = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $3, 0; @p st.shared.b32 [$1], $2; mov.b32 $0, 0; }")
WRITE_LAST_HALF = tl.constexpr(
    "{ .reg .pred p; .reg .b16 half, other; setp.ne.u32 p, $3, 0; mov.b32 {half, other}, $2; @p st.shared.b16 [$1], half; mov.b32 $0, 0; }"
)
BARRIER = tl.constexpr("bar.sync 0; mov.b32 $0, $1;")
# A vector from shared memory to global memory, and the units behind the last whole vector of the tensor.
STORE_VECTOR = tl.constexpr(
    "{ .reg .pred p; .reg .b32 a, b, c, d; setp.ne.u32 p, $3, 0; @p ld.shared.v4.b32 {a, b, c, d}, [$2];"
    " @p st.global.v4.b32 [$1], {a, b, c, d}; mov.b32 $0, 0; }"
)
STORE_WORD = tl.constexpr(
    "{ .reg .pred p; .reg .b32 word; setp.ne.u32 p, $3, 0; @p ld.shared.b32 word, [$2]; @p st.global.b32 [$1], word; mov.b32 $0, 0; }"
)
STORE_HALF = tl.constexpr(
    "{ .reg .pred p; .reg .b16 half; setp.ne.u32 p, $3, 0; @p ld.shared.b16 half, [$2]; @p st.global.b16 [$1], half; mov.b32 $0, 0; }"
)


@triton.jit
def allocate(anything, BYTES: tl.constexpr):
    """The address of this many bytes of shared memory, up to 32 KiB; call it once in a kernel."""
    if INTERPRETED:
        return 0
    else:
        UP_TO_16: tl.constexpr = ALLOCATE_4 if BYTES <= 4096 else (ALLOCATE_8 if BYTES <= 8192 else ALLOCATE_16)
        ALLOCATE: tl.constexpr = UP_TO_16 if BYTES <= 16384 else (ALLOCATE_24 if BYTES <= 24576 else ALLOCATE_32)
        return tl.inline_asm_elementwise(ALLOCATE, "=r,r", [anything], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def copy_in(smem, block, size, BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Begins to copy `size` bytes, at most BYTES, from pointer `block`. The bytes of shared memory behind them stay as they are."""
    if not INTERPRETED:
        WIDTH: tl.constexpr = block.dtype.element_ty.primitive_bitwidth // 8
        COPY_UNIT: tl.constexpr = COPY_WORD if WIDTH == 4 else COPY_HALF
        t = tl.arange(0, THREADS)
        from_block = block.to(tl.int64) + t * 16
        for begin in tl.static_range(0, BYTES, THREADS * 16):
            inputs = [smem + t * 16 + begin, from_block + begin, (size - t * 16 >= begin + 16).to(tl.int32)]
            tl.inline_asm_elementwise(COPY, "=r,r,l,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
        tl.inline_asm_elementwise(COMMIT, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
        rest = (size & -16) + t * WIDTH
        inputs = [smem + rest, block.to(tl.int64) + rest, (rest < size).to(tl.int32)]
        tl.inline_asm_elementwise(COPY_UNIT, "=r,r,l,r", inputs, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_for_copies(smem):
    if not INTERPRETED:
        tl.inline_asm_elementwise(WAIT, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def copy_out(smem, block, size, BYTES: tl.constexpr, THREADS: tl.constexpr):
    """Copies `size` bytes, at most BYTES, to pointer `block`, after a barrier of the CTA."""
    if not INTERPRETED:
        WIDTH: tl.constexpr = block.dtype.element_ty.primitive_bitwidth // 8
        STORE: tl.constexpr = STORE_WORD if WIDTH == 4 else STORE_HALF
        tl.inline_asm_elementwise(BARRIER, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
        t = tl.arange(0, THREADS)
        to_block = block.to(tl.int64) + t * 16
        for begin in tl.static_range(0, BYTES, THREADS * 16):
            inputs = [to_block + begin, smem + t * 16 + begin, (size - t * 16 >= begin + 16).to(tl.int32)]
            tl.inline_asm_elementwise(STORE_VECTOR, "=r,l,r,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
        rest = (size & -16) + t * WIDTH
        inputs = [block.to(tl.int64) + rest, smem + rest, (rest < size).to(tl.int32)]
        tl.inline_asm_elementwise(STORE, "=r,l,r,r", inputs, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def rows_of_pass(number, distance, ROWS: tl.constexpr, LANES: tl.constexpr):
    """The rows (ROWS) of a pass. Those of a warp are `distance` rows apart, a power of two: see `launch_plan.row_distance`."""
    OF_WARP: tl.constexpr = 32 // LANES
    r = number * ROWS + tl.arange(0, ROWS)
    within = r & (OF_WARP * distance - 1)
    return r - within + (within & (OF_WARP - 1)) * distance + within // OF_WARP


@triton.jit
def read_units(
    smem, block, rows, exists, N, outside,
    EACH: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """A lane's units of the rows (R) of a block, as two tuples of float32 (R, LANES): of the lower and of the higher elements.

    Without PAIRS both tuples are the same. Behind a row's end, all elements are `outside`. Rows that do not exist have any elements:
    there is shared memory for them, and `copy_out` leaves them out.
    """
    DTYPE: tl.constexpr = block.dtype.element_ty
    WIDTH: tl.constexpr = DTYPE.primitive_bitwidth // 8
    UNIT: tl.constexpr = 2 if PAIRS else 1
    READ: tl.constexpr = READ_HALF if WIDTH * UNIT == 2 else READ_WORD
    LAST: tl.constexpr = READ_LAST_HALF if WIDTH * UNIT == 2 else READ_LAST_WORD
    lower = ()
    upper = ()
    for e in tl.static_range(EACH):
        column = tl.arange(0, LANES)[None, :] + e * LANES
        inside = column * UNIT < N  # only the last unit of a lane may not be
        place = rows[:, None] * N + tl.arange(0, LANES)[None, :] * UNIT + e * LANES * UNIT  # a constant from the unit before
        if INTERPRETED:
            mask = inside & exists[:, None]
            low = tl.load(block + place, mask=mask, other=outside).to(tl.float32)
            high = tl.load(block + place + UNIT - 1, mask=mask, other=outside).to(tl.float32)
        else:
            if e < EACH - 1:
                word = tl.inline_asm_elementwise(READ, "=r,r", [smem + place * WIDTH], dtype=tl.int32, is_pure=False, pack=1)
            else:
                inputs = [smem + place * WIDTH, (place * 0 + column * UNIT < N).to(tl.int32)]
                word = tl.inline_asm_elementwise(LAST, "=&r,r,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
            low = unpack_low(word, DTYPE)
            high = unpack_high(word, DTYPE) if PAIRS else low
            if e == EACH - 1:
                low = tl.where(inside, low, outside)
                high = tl.where(inside, high, outside)
        lower = lower + (low,)
        upper = upper + (high if PAIRS else low,)
    return lower, upper


@triton.jit
def write_unit(
    smem, block, rows, exists, N, low, high,
    e: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Writes a lane's results of unit `e` in place of what `read_units` has read. `block` is of the results."""
    DTYPE: tl.constexpr = block.dtype.element_ty
    WIDTH: tl.constexpr = DTYPE.primitive_bitwidth // 8
    UNIT: tl.constexpr = 2 if PAIRS else 1
    HALF: tl.constexpr = WIDTH * UNIT == 2
    column = tl.arange(0, LANES)[None, :] + e * LANES
    place = rows[:, None] * N + tl.arange(0, LANES)[None, :] * UNIT + e * LANES * UNIT
    if INTERPRETED:
        mask = (column * UNIT < N) & exists[:, None]
        tl.store(block + place, rounded(low, DTYPE), mask=mask)
        if PAIRS:
            tl.store(block + place + 1, rounded(high, DTYPE), mask=mask)
    else:
        word = low.to(tl.int32, bitcast=True) if WIDTH == 4 else pack(low, high, DTYPE)
        if e < EACH - 1:
            WRITE: tl.constexpr = WRITE_HALF if HALF else WRITE_WORD
            tl.inline_asm_elementwise(WRITE, "=r,r,r", [smem + place * WIDTH, word], dtype=tl.int32, is_pure=False, pack=1)
        else:
            LAST: tl.constexpr = WRITE_LAST_HALF if HALF else WRITE_LAST_WORD
            inputs = [smem + place * WIDTH, word, (place * 0 + column * UNIT < N).to(tl.int32)]
            tl.inline_asm_elementwise(LAST, "=r,r,r,r", inputs, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def added(lower, upper, PAIRS: tl.constexpr):
    """The sums over a lane's elements, (R, LANES)."""
    s = lower[0] + upper[0] if PAIRS else lower[0]
    for e in tl.static_range(1, len(lower)):
        s += lower[e] + upper[e] if PAIRS else lower[e]
    return s


@triton.jit
def row_statistics(lower, upper, factor, EACH: tl.constexpr, PAIRS: tl.constexpr, LOG: tl.constexpr):
    """Of a lane's units: the exponentials of lower and of higher elements, as tuples; then base and norm of each row, (R, 1)."""
    m = tl.maximum(lower[0], upper[0])
    for e in tl.static_range(1, EACH):
        m = tl.maximum(m, tl.maximum(lower[e], upper[e]) if PAIRS else lower[e])
    m = tl.max(m, 1)[:, None]
    base = finite_or_zero(m)
    low = ()
    high = ()
    for e in tl.static_range(EACH):
        low = low + (exp_fast(lower[e] - base, factor),)
        high = high + (exp_fast(upper[e] - base, factor) if PAIRS else low[e],)
    return low, high, base, norm_of(tl.sum(added(low, high, PAIRS), 1)[:, None], LOG)


@triton.jit
def unit_results(lower, upper, low, high, base, norm, factor, e: tl.constexpr, PAIRS: tl.constexpr, LOG: tl.constexpr):
    """The results of unit `e`: of its lower and of its higher elements."""
    if LOG:
        a = normalized(lower[e], base, norm, factor, LOG)
        b = normalized(upper[e], base, norm, factor, LOG) if PAIRS else a
    else:
        a = low[e] * norm
        b = high[e] * norm if PAIRS else a
    return a, b


@triton.jit
def row_dot(dy_low, dy_high, y_low, y_high, EACH: tl.constexpr, PAIRS: tl.constexpr, LOG: tl.constexpr):
    """The sum of each row that a gradient needs, (R, 1)."""
    low = ()
    high = ()
    for e in tl.static_range(EACH):
        low = low + (dot_terms(dy_low[e], y_low[e], LOG),)
        high = high + (dot_terms(dy_high[e], y_high[e], LOG) if PAIRS else low[e],)
    return tl.sum(added(low, high, PAIRS), 1)[:, None]


@triton.jit(do_not_specialize=["M", "N", "distance", "scale"])
def forward_staged(
    x_ptr, y_ptr, M, N, distance,
    ROWS: tl.constexpr, PASSES: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr,
    LOG: tl.constexpr, scale,
):  # fmt: skip
    """PASSES * ROWS rows a program, whose bytes 16 divides and BYTES holds. LANES lanes share a row, with EACH units each."""
    THREADS: tl.constexpr = ROWS * LANES
    WIDTH: tl.constexpr = x_ptr.dtype.element_ty.primitive_bitwidth // 8
    first = tl.program_id(0).to(tl.int64) * (ROWS * PASSES)
    count = tl.minimum(M - first, ROWS * PASSES).to(tl.int32)
    x_block = x_ptr + first * N
    y_block = y_ptr + first * N
    smem = allocate(count, BYTES)
    copy_in(smem, x_block, count * N * WIDTH, BYTES, THREADS)
    wait_for_copies(smem)
    for number in range(PASSES):
        rows = rows_of_pass(number, distance, ROWS, LANES)
        exists = rows < count
        if scale is not None and scale.dtype.is_ptr():
            factor = tl.load(scale + first + rows, mask=exists, other=1.0)[:, None]
        else:
            factor = scale
        lower, upper = read_units(smem, x_block, rows, exists, N, MINUS_INFINITY, EACH, LANES, PAIRS)
        low, high, base, norm = row_statistics(lower, upper, factor, EACH, PAIRS, LOG)
        for e in tl.static_range(EACH):
            a, b = unit_results(lower, upper, low, high, base, norm, factor, e, PAIRS, LOG)
            write_unit(smem, y_block, rows, exists, N, a, b, e, EACH, LANES, PAIRS)
    copy_out(smem, y_block, count * N * WIDTH, BYTES, THREADS)


@triton.jit(do_not_specialize=["M", "N", "distance", "scale"])
def backward_staged(
    dy_ptr, y_ptr, dx_ptr, M, N, distance,
    ROWS: tl.constexpr, PASSES: tl.constexpr, EACH: tl.constexpr, LANES: tl.constexpr, PAIRS: tl.constexpr, BYTES: tl.constexpr,
    LOG: tl.constexpr, scale,
):  # fmt: skip
    """As `forward_staged`, with BYTES for each of dy and y. The results take the place of dy."""
    THREADS: tl.constexpr = ROWS * LANES
    WIDTH: tl.constexpr = y_ptr.dtype.element_ty.primitive_bitwidth // 8
    first = tl.program_id(0).to(tl.int64) * (ROWS * PASSES)
    count = tl.minimum(M - first, ROWS * PASSES).to(tl.int32)
    dy_block = dy_ptr + first * N
    y_block = y_ptr + first * N
    dx_block = dx_ptr + first * N
    smem = allocate(count, 2 * BYTES)
    copy_in(smem, dy_block, count * N * WIDTH, BYTES, THREADS)
    copy_in(smem + BYTES, y_block, count * N * WIDTH, BYTES, THREADS)
    wait_for_copies(smem)
    for number in range(PASSES):
        rows = rows_of_pass(number, distance, ROWS, LANES)
        exists = rows < count
        if scale is not None and scale.dtype.is_ptr():
            factor = tl.load(scale + first + rows, mask=exists, other=1.0)[:, None]
        else:
            factor = scale
        dy_low, dy_high = read_units(smem, dy_block, rows, exists, N, 0.0, EACH, LANES, PAIRS)
        y_low, y_high = read_units(smem + BYTES, y_block, rows, exists, N, 0.0, EACH, LANES, PAIRS)
        dot = row_dot(dy_low, dy_high, y_low, y_high, EACH, PAIRS, LOG)
        for e in tl.static_range(EACH):
            a = gradient(y_low[e], dy_low[e], dot, factor, LOG)
            b = gradient(y_high[e], dy_high[e], dot, factor, LOG) if PAIRS else a
            write_unit(smem, dx_block, rows, exists, N, a, b, e, EACH, LANES, PAIRS)
    copy_out(smem, dx_block, count * N * WIDTH, BYTES, THREADS)
