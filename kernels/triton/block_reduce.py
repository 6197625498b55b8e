"""Merges the (max, sum) of a program's threads: over the lanes of a warp, then over the warps, with one barrier.

Triton's own reduction of such pairs shuffles both values at each step, rescales both by exponentials, and has two barriers between warps.
Launches of few rows wait for all of it. Here one instruction finds a warp's maximum (redux.sync, on integers in the order of the floats).
Each lane rescales once, and then the sums are added. The warps' results go through shared memory, and each warp merges them for itself.

The CUDA kernels do the same (`block_reduce.cuh`). Triton passes inline assembly on unchanged. It needs sm_80 or later.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .packed_io import INTERPRETED
from .softmax_ops import exp_factor, exp_fast, finite_or_zero

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
