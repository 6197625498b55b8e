"""How the threads of a program come to one (max, sum): over a warp's lanes and over its warps, with one barrier.

Triton's own reduction of such pairs shuffles both at each of its steps and rescales both by exponentials, one step waiting for the other,
and has two barriers between warps. Few rows wait for all of that. Here a warp's maximum is one instruction (redux.sync, on integers in the
floats' order), each lane rescales once, and sums are added; a warp's part goes through shared memory, and each warp joins all of them for
itself. That is what the CUDA kernels do (`memory.cuh`), in inline assembly, which Triton passes on as it is (sm_80 and later).
"""

from __future__ import annotations

import triton
import triton.language as tl

from .words import INTERPRETED, base_of, exp_of

REGISTERS = ".reg .u32 thread, at, base, bits, sign; .reg .pred p; .reg .f32 m, s, t, b, top;"
MEASURED_FROM = "setp.eq.f32 p, top, 0fFF800000; selp.f32 b, 0f00000000, top, p;"  # as `base_of`
IN_ORDER = "shr.s32 sign, bits, 31; and.b32 sign, sign, 0x7fffffff; xor.b32 bits, bits, sign;"  # and back


def rescaled(m: str, s: str) -> str:
    """PTX: s * exp(m - b), in s."""
    return f"sub.f32 t, {m}, b; mul.f32 t, t, 0f3FB8AA3B; ex2.approx.ftz.f32 t, t; mul.f32 {s}, {s}, t;"


def over_lanes(lanes: int) -> list[str]:
    """PTX: the (m, s) of a warp as their join, in each lane. Of fewer `lanes`, each aligned group of so many has the same parts."""
    lines = [f"mov.b32 bits, m; {IN_ORDER} redux.sync.max.s32 bits, bits, 0xffffffff; {IN_ORDER} mov.b32 top, bits;"]
    lines += [MEASURED_FROM, rescaled("m", "s"), "mov.f32 m, top;"]
    while lanes > 1:
        lanes //= 2
        lines += [f"shfl.sync.bfly.b32 t, s, {lanes}, 0x1f, 0xffffffff; add.f32 s, s, t;"]
    return lines


def over_warps(warps: int, barrier: str = "bar.sync 0;") -> list[str]:
    """PTX: the (m, s) of a CTA's warps, each of whose lanes have its own, as their join, in each thread. Needs `thread`, its number."""
    return [
        f".shared .align 8 .b8 parts[{8 * warps}];",
        "mov.u32 base, parts; shr.u32 at, thread, 5; mad.lo.u32 at, at, 8, base;",
        "and.b32 bits, thread, 31; setp.eq.u32 p, bits, 0; @p st.shared.v2.f32 [at], {m, s};",
        barrier,
        f"and.b32 at, thread, {warps - 1}; mad.lo.u32 at, at, 8, base; ld.shared.v2.f32 {{m, s}}, [at];",
        *over_lanes(warps),
    ]


def _join(warps: int) -> tl.constexpr:
    lines = [REGISTERS, "mov.f32 m, $2; mov.f32 s, $3; mov.u32 thread, %tid.x;", *over_lanes(32), *over_warps(warps)]
    return tl.constexpr("{\n" + "\n".join([*lines, "mov.f32 $0, m; mov.f32 $1, s;"]) + "\n}")


JOIN_2, JOIN_4, JOIN_8, JOIN_16, JOIN_32 = (_join(warps) for warps in (2, 4, 8, 16, 32))


@triton.jit
def over_threads(top, total):
    """(max, sum) of a CTA's threads, one a thread, as each thread's copy of their join: (1, T), or (C, T) on a cluster's CTAs; T > 32."""
    if INTERPRETED:
        m = tl.max(top, 1)[:, None]
        return m + total * 0, tl.sum(total * exp_of(top - base_of(m)), 1)[:, None] + total * 0
    else:
        T: tl.constexpr = top.shape[1]
        FEW: tl.constexpr = JOIN_2 if T == 64 else (JOIN_4 if T == 128 else JOIN_8)
        ASM: tl.constexpr = FEW if T <= 256 else (JOIN_16 if T == 512 else JOIN_32)
        return tl.inline_asm_elementwise(ASM, "=&f,=&f,f,f", [top, total], dtype=(tl.float32, tl.float32), is_pure=False, pack=1)
