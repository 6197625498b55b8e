"""Tiles of a chunk that wait in shared memory, because registers are full. Asynchronous copies fill them.

Registers hold at most three quarters of an SM's 256 KiB, and shared memory has about as much again. Each thread copies 16-byte vectors to
places of its own. It also reads those, unless the results are wider than the inputs: then it reads vectors of 8 bytes. Triton has such
copies only in its own pipelined loops, so this is inline assembly on (R, THREADS) tensors of addresses. The shared memory is static: up to
44 KiB beside what Triton takes. A gradient has as many tiles of dy as of y there.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .generic import dot_terms
from .packed_io import pack, padding, unpack_high, unpack_low
from .softmax_ops import barrier_zero, exp_fast, finite_or_zero, gradient, normalized


def _allocate(kib: int) -> tl.constexpr:
    return tl.constexpr(f"{{ .shared .align 16 .b8 smem_tiles[{kib * 1024}]; mov.u32 $0, smem_tiles; }}")


ALLOCATE_4, ALLOCATE_8, ALLOCATE_16, ALLOCATE_24, ALLOCATE_32, ALLOCATE_44 = (_allocate(kib) for kib in (4, 8, 16, 24, 32, 44))
COPY = tl.constexpr("cp.async.cg.shared.global [$1], [$2], 16, $3; mov.b32 $0, 0;")  # $3: bytes to read, 0 or 16
# With a policy for L2, for sm_90 only. For sm_100, ptxas of CUDA 12.8 to 13.3 emits a copy with a policy that it never set.
COPY_KEEP = tl.constexpr(
    "{ .reg .b64 policy; createpolicy.fractional.L2::evict_last.b64 policy, 1.0;"
    " cp.async.cg.shared.global.L2::cache_hint [$1], [$2], 16, $3, policy; mov.b32 $0, 0; }"
)
COPY_LEAVE_FIRST = tl.constexpr(COPY_KEEP.value.replace("evict_last", "evict_first"))
# A thread's own value, by way of the warp's shuffle. ptxas then keeps it in a register of the thread. If an address is partly in a uniform
# register, ptxas 12.8 to 13.0 makes a copy with a policy an illegal instruction.
OWN_VALUE = tl.constexpr("{ .reg .u32 lane; mov.u32 lane, %laneid; shfl.sync.idx.b32 $0, $1, lane, 31, 0xffffffff; }")
# Two vectors of 8 bytes, or the last one. A copy of 16 bytes with a size of 8 also reads the others, which may lie behind the tensor.
COPY_8 = tl.constexpr(
    "{ .reg .pred p, q; setp.eq.u32 p, $3, 16; setp.eq.u32 q, $3, 8; @p cp.async.cg.shared.global [$1], [$2], 16;"
    " @q cp.async.ca.shared.global [$1], [$2], 8; mov.b32 $0, 0; }"
)
COPY_8_KEEP = tl.constexpr(
    "{ .reg .pred p, q; .reg .b64 policy; setp.eq.u32 p, $3, 16; setp.eq.u32 q, $3, 8;"
    " createpolicy.fractional.L2::evict_last.b64 policy, 1.0; @p cp.async.cg.shared.global.L2::cache_hint [$1], [$2], 16, policy;"
    " @q cp.async.ca.shared.global.L2::cache_hint [$1], [$2], 8, policy; mov.b32 $0, 0; }"
)
COMMIT = tl.constexpr("cp.async.commit_group; mov.b32 $0, $1;")
COPIED = tl.constexpr("cp.async.wait_all; mov.b32 $0, $1;")
WAIT = tl.constexpr("cp.async.wait_all; bar.sync 0; mov.b32 $0, $1;")
READ_SMEM = tl.constexpr("ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];")
READ_SMEM_8 = tl.constexpr("ld.shared.v2.b32 {$0, $1}, [$2];")
STORE = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $6, 0; @p st.global.v4.b32 [$1], {$2, $3, $4, $5}; mov.b32 $0, 0; }")
STORE_8 = tl.constexpr("{ .reg .pred p; setp.ne.u32 p, $4, 0; @p st.global.v2.b32 [$1], {$2, $3}; mov.b32 $0, 0; }")


@triton.jit
def copy_to_smem(words, end, start, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, L2_POLICY: tl.constexpr):
    """Begins to copy SMEM_TILES tiles, from `start` on. Each thread copies 16 bytes of each. Returns their address in shared memory.

    `end` and `start` count vectors of WORDS words, and `start` is not below the row's first vector. With two words it is even.
    """
    smem = allocate_smem(SMEM_TILES * THREADS * 16)
    begin_copy(smem, words, end, start, SMEM_TILES, THREADS, WORDS, L2_POLICY, True)
    return smem


@triton.jit
def copy_pair_to_smem(
    dy_words, y_words, end, start, SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, L2_POLICY: tl.constexpr
):  # fmt: skip
    """As `copy_to_smem`, of two tensors with vectors of four words. The tiles of y are behind those of dy."""
    smem = allocate_smem(2 * SMEM_TILES * THREADS * 16)
    begin_copy(smem, dy_words, end, start, SMEM_TILES, THREADS, 4, L2_POLICY, False)
    begin_copy(smem + SMEM_TILES * THREADS * 16, y_words, end, start, SMEM_TILES, THREADS, 4, L2_POLICY, False)
    tl.inline_asm_elementwise(COMMIT, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
    return smem


@triton.jit
def allocate_smem(BYTES: tl.constexpr):
    """The address of so many bytes of shared memory, up to 44 KiB."""
    UP_TO_16: tl.constexpr = ALLOCATE_4 if BYTES <= 4096 else (ALLOCATE_8 if BYTES <= 8192 else ALLOCATE_16)
    UP_TO_24: tl.constexpr = UP_TO_16 if BYTES <= 16384 else ALLOCATE_24
    ALLOCATE: tl.constexpr = UP_TO_24 if BYTES <= 24576 else (ALLOCATE_32 if BYTES <= 32768 else ALLOCATE_44)
    return tl.inline_asm_elementwise(ALLOCATE, "=r,r", [BYTES // 16], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def begin_copy(
    smem, words, end, start,
    SMEM_TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, L2_POLICY: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    """Issues the copies of `copy_to_smem` to the address `smem`. What lies behind `end` becomes zeros. GROUPS: each tile is a group."""
    COPY_16: tl.constexpr = COPY_LEAVE_FIRST if L2_POLICY == 2 else (COPY_KEEP if L2_POLICY else COPY)
    COPY_ASM: tl.constexpr = COPY_16 if WORDS == 4 else (COPY_8_KEEP if L2_POLICY else COPY_8)  # a gradient has four words
    t = tl.arange(0, THREADS)[None, :]
    VECTORS: tl.constexpr = 4 // WORDS  # of 16 bytes
    left = (end - start)[:, None] - t * VECTORS
    address = (words[:, None] + (start[:, None] + t * VECTORS) * WORDS).to(tl.int64)
    at = smem + t * 16
    if L2_POLICY:
        at = tl.inline_asm_elementwise(OWN_VALUE, "=r,r", [at], dtype=tl.int32, is_pure=False, pack=1)
    for h in tl.static_range(SMEM_TILES):
        if WORDS == 4:
            size = tl.where(left > h * THREADS, 16, 0)
        else:
            size = tl.minimum(tl.maximum(left - h * THREADS * 2, 0), 2) * 8
        inputs = [at + h * THREADS * 16, address + h * THREADS * 16, size]
        tl.inline_asm_elementwise(COPY_ASM, "=r,r,l,r", inputs, dtype=tl.int32, is_pure=False, pack=1)
        if GROUPS:
            tl.inline_asm_elementwise(COMMIT, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def wait_for_copies(smem, LATER: tl.constexpr):
    """Waits until all but the last LATER groups of the thread's own copies are in shared memory. It does not wait for other threads.

    `smem` only gives the assembly an operand. The reads stay behind it, because assembly with side effects keeps its order.
    """
    tl.inline_asm_elementwise(f"cp.async.wait_group {LATER}; mov.b32 $0, $1;", "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def read_tile(smem, left, h, THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr):
    """Tile `h` as a tuple of WORDS tensors (R, THREADS) of words, then a mask of the vectors inside the chunk.

    `left`: how many vectors of the chunk there are from the thread's vector of tile 0 on.
    """
    at = smem + tl.arange(0, THREADS)[None, :] * (4 * WORDS) + left * 0
    inside = left > h * THREADS
    n = padding(DTYPE)
    if WORDS == 4:
        a, b, c, d = tl.inline_asm_elementwise(
            READ_SMEM, "=r,=r,=r,=r,r", [at + h * THREADS * 16], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1
        )
        return (tl.where(inside, a, n), tl.where(inside, b, n), tl.where(inside, c, n), tl.where(inside, d, n)), inside
    else:
        a, b = tl.inline_asm_elementwise(READ_SMEM_8, "=r,=r,r", [at + h * THREADS * 8], dtype=(tl.int32, tl.int32), is_pure=False, pack=1)
        return (tl.where(inside, a, n), tl.where(inside, b, n)), inside


@triton.jit
def word_max(words, DTYPE: tl.constexpr):
    """The larger element of each word."""
    if DTYPE == tl.float32:
        return unpack_low(words, DTYPE)
    else:
        return tl.maximum(unpack_low(words, DTYPE), unpack_high(words, DTYPE))


@triton.jit
def word_exp_sum(words, base, scale, DTYPE: tl.constexpr):
    """The sum of exp(x - base) over the elements of each word."""
    e = exp_fast(unpack_low(words, DTYPE) - base, scale)
    if DTYPE != tl.float32:
        e += exp_fast(unpack_high(words, DTYPE) - base, scale)
    return e


@triton.jit
def accumulate_smem(
    smem, end, start, zero, scale,
    TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Each thread's (max, sum), (1, THREADS), of the TILES tiles in shared memory, whose vectors have WORDS words.

    With four words it waits for the copies of one tile at a time. With two words a thread reads what another thread has copied, so it waits
    for all copies and for the CTA. `zero` is from `barrier_zero`, called behind the copies. With it, the compiler computes addresses and
    predicates again, so that no registers hold them meanwhile.
    """
    if WORDS == 2:
        tl.inline_asm_elementwise(COPIED, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
        zero = barrier_zero(smem)
    left = ((end | zero) - start)[:, None] - tl.arange(0, THREADS)[None, :]
    maximum = tl.full((1, THREADS), -float("inf"), tl.float32)
    total = tl.zeros((1, THREADS), tl.float32)
    for h in tl.static_range(TILES):
        if WORDS == 4:
            wait_for_copies(smem, TILES - 1 - h)
        w, _inside = read_tile(smem, left, h, THREADS, WORDS, DTYPE)
        m = tl.maximum(word_max(w[0], DTYPE), word_max(w[1], DTYPE))
        if WORDS == 4:
            m = tl.maximum(m, tl.maximum(word_max(w[2], DTYPE), word_max(w[3], DTYPE)))
        m = tl.maximum(maximum, m)
        b = finite_or_zero(m)
        s = word_exp_sum(w[0], b, scale, DTYPE) + word_exp_sum(w[1], b, scale, DTYPE)
        if WORDS == 4:
            s += word_exp_sum(w[2], b, scale, DTYPE) + word_exp_sum(w[3], b, scale, DTYPE)
        if h > 0:
            s += total * exp_fast(maximum - b, scale)
        maximum, total = m, s
    return maximum, total


@triton.jit
def word_results(words, maximum, norm, scale, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """The results of each word's lower and higher element, which are the same with float32 inputs."""
    lower = normalized(unpack_low(words, DTYPE), maximum, norm, scale, LOG)
    if DTYPE == tl.float32:
        return lower, lower
    else:
        return lower, normalized(unpack_high(words, DTYPE), maximum, norm, scale, LOG)


@triton.jit
def packed_results(words, maximum, norm, scale, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """The results of packed words, packed."""
    lower, upper = word_results(words, maximum, norm, scale, DTYPE, LOG)
    if DTYPE == tl.float32:
        return lower.to(tl.int32, bitcast=True)
    else:
        return pack(lower, upper, DTYPE)


@triton.jit
def write_smem(
    out, smem, maximum, norm, scale, end, start,
    TILES: tl.constexpr, THREADS: tl.constexpr, WORDS: tl.constexpr, DTYPE: tl.constexpr, LOG: tl.constexpr,
):  # fmt: skip
    """Stores the results of the tiles in shared memory, 16 bytes a vector. `out` is from `output_pointers`.

    `maximum`, `norm` and `end` are (R, THREADS): each thread compares again (`vectors_inside`).
    """
    t = tl.arange(0, THREADS)[None, :]
    left = end - start[:, None] - t
    place = (out[:, None] + (start[:, None] + t) * 4).to(tl.int64)
    for h in tl.static_range(TILES):
        w, inside = read_tile(smem, left, h, THREADS, WORDS, DTYPE)
        if WORDS == 4:
            y0 = packed_results(w[0], maximum, norm, scale, DTYPE, LOG)
            y1 = packed_results(w[1], maximum, norm, scale, DTYPE, LOG)
            y2 = packed_results(w[2], maximum, norm, scale, DTYPE, LOG)
            y3 = packed_results(w[3], maximum, norm, scale, DTYPE, LOG)
        else:  # float32 results of 16-bit inputs
            e0, e1 = word_results(w[0], maximum, norm, scale, DTYPE, LOG)
            e2, e3 = word_results(w[1], maximum, norm, scale, DTYPE, LOG)
            y0, y1 = e0.to(tl.int32, bitcast=True), e1.to(tl.int32, bitcast=True)
            y2, y3 = e2.to(tl.int32, bitcast=True), e3.to(tl.int32, bitcast=True)
        inputs = [place + h * THREADS * 16, y0, y1, y2, y3, inside.to(tl.int32)]
        tl.inline_asm_elementwise(STORE, "=r,l,r,r,r,r,r", inputs, dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def read_vector(at):
    """The four words of each thread's vector at this address in shared memory."""
    return tl.inline_asm_elementwise(
        READ_SMEM, "=r,=r,=r,=r,r", [at], dtype=(tl.int32, tl.int32, tl.int32, tl.int32), is_pure=False, pack=1
    )


@triton.jit
def word_dot(dy, y, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """The sum of `dot_terms` over the elements of each word."""
    s = dot_terms(unpack_low(dy, DTYPE), unpack_low(y, DTYPE), LOG)
    if DTYPE != tl.float32:
        s += dot_terms(unpack_high(dy, DTYPE), unpack_high(y, DTYPE), LOG)
    return s


@triton.jit
def smem_dots(smem, TILES: tl.constexpr, THREADS: tl.constexpr, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """Each thread's sum of `dot_terms`, (1, THREADS), over the TILES tiles of both tensors in shared memory (`copy_pair_to_smem`).

    Waits for all copies. It is a barrier of the CTA, so that the compiler computes addresses again, as in `accumulate_smem`.
    """
    tl.inline_asm_elementwise(COPIED, "=r,r", [smem], dtype=tl.int32, is_pure=False, pack=1)
    at = (smem | barrier_zero(smem)) + tl.arange(0, THREADS)[None, :] * 16
    s = tl.zeros((1, THREADS), tl.float32)
    for h in tl.static_range(TILES):
        dy0, dy1, dy2, dy3 = read_vector(at + h * THREADS * 16)
        y0, y1, y2, y3 = read_vector(at + (TILES + h) * THREADS * 16)
        s += word_dot(dy0, y0, DTYPE, LOG) + word_dot(dy1, y1, DTYPE, LOG)
        s += word_dot(dy2, y2, DTYPE, LOG) + word_dot(dy3, y3, DTYPE, LOG)
    return s


@triton.jit
def word_gradients(dy, y, dot, scale, DTYPE: tl.constexpr, LOG: tl.constexpr):
    """dx of packed words, packed."""
    lower = gradient(unpack_low(y, DTYPE), unpack_low(dy, DTYPE), dot, scale, LOG)
    if DTYPE == tl.float32:
        return lower.to(tl.int32, bitcast=True)
    else:
        return pack(lower, gradient(unpack_high(y, DTYPE), unpack_high(dy, DTYPE), dot, scale, LOG), DTYPE)


@triton.jit
def write_smem_gradient(
    out, smem, dot, scale, end, start, TILES: tl.constexpr, THREADS: tl.constexpr, DTYPE: tl.constexpr, LOG: tl.constexpr
):  # fmt: skip
    """Stores dx of the tiles in shared memory. `out` is from `output_pointers`, `dot` and `end` are (1)."""
    OUT: tl.constexpr = out.dtype.element_ty
    WORDS: tl.constexpr = 4 if OUT == tl.int32 else 2
    t = tl.arange(0, THREADS)[None, :]
    left = (end - start)[:, None] - t
    place = (out[:, None] + (start[:, None] + t) * 4).to(tl.int64)
    at = smem + t * 16 + left * 0
    dot = dot[:, None]
    for h in tl.static_range(TILES):
        dy0, dy1, dy2, dy3 = read_vector(at + h * THREADS * 16)
        y0, y1, y2, y3 = read_vector(at + (TILES + h) * THREADS * 16)
        a = word_gradients(dy0, y0, dot, scale, DTYPE, LOG)
        b = word_gradients(dy1, y1, dot, scale, DTYPE, LOG)
        c = word_gradients(dy2, y2, dot, scale, DTYPE, LOG)
        d = word_gradients(dy3, y3, dot, scale, DTYPE, LOG)
        here = place + h * THREADS * 4 * WORDS
        inside = (left > h * THREADS).to(tl.int32)
        if WORDS == 4:
            tl.inline_asm_elementwise(STORE, "=r,l,r,r,r,r,r", [here, a, b, c, d, inside], dtype=tl.int32, is_pure=False, pack=1)
        else:  # results of 16 bits of float32 inputs
            low = pack(a.to(tl.float32, bitcast=True), b.to(tl.float32, bitcast=True), OUT)
            high = pack(c.to(tl.float32, bitcast=True), d.to(tl.float32, bitcast=True), OUT)
            tl.inline_asm_elementwise(STORE_8, "=r,l,r,r,r", [here, low, high, inside], dtype=tl.int32, is_pure=False, pack=1)
