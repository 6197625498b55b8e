"""Compiles the sources of CUDA kernels for the CPU, where `tests/kernels/cuda/simulated_gpu.h` has the GPU."""

import re
import subprocess
from pathlib import Path

import pytest
from softbench.kernels.common.cuda_toolkit import cuobjdump
from softbench.kernels.cuda import build

needs_nvcc = pytest.mark.skipif(build.nvcc() is None, reason="no nvcc on this machine")
needs_cuobjdump = pytest.mark.skipif(cuobjdump() is None, reason="no cuobjdump, which reads machine code")

HERE = Path(__file__).parents[1] / "kernels" / "cuda"
ASSEMBLER = {
    '" : "+r"': ";",
    "ex2.approx.ftz.f32": "y = exp2f(x);",
    "rcp.approx.ftz.f32": "y = 1.0f / x;",
    "min.NaN.f32": "y = simulated::min_or_nan(a, b);",
    "max.NaN.f32": "y = simulated::max_or_nan(a, b);",
    "lg2.approx.ftz.f32": "log2_m = log2f(sum * __int_as_float(0x3f800000 - exponent));",
    "st.global.v4.b32 [%0]": "simulated::store(target, {a, b, c, d});",
    "{\\n.reg .pred p;\\nsetp.ne.u32 p, %0, 0;\\n@p st.global.v4.b32": "if (condition) simulated::store(target, {a, b, c, d});",
    "st.global.v2.b32 [%0]": "simulated::store(target, {a, b});",
    "ld.global.b32": "low = int(*from);",
    "ld.global.b64": "word = *from;",
    "ld.global.f32": "number = *from;",
    "ld.global.u16": "std::memcpy(&bits, from, 2), bits &= 0xffffu;",
    "{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n@p ld.global.v4.u32": "simulated::load_if(inside, packed, from);",
    "{\\n.reg .pred p;\\nsetp.ne.u32 p, %4, 0;\\n@p ld.global.L2::cache_hint.v4.u32": "simulated::load_if(inside, packed, from);",
    "{\\n.reg .pred p;\\nsetp.ne.u32 p, %1, 0;\\n@p ld.global.b32": "{ if (inside) std::memcpy(&bits, from, 4); }",
    "{\\n.reg .pred p;\\nsetp.ne.u32 p, %1, 0;\\n@p ld.global.u16": "{ if (inside) bits = 0, std::memcpy(&bits, from, 2); }",
    "createpolicy": "policy = 0;",
    "mov.u32 %0, %%cluster_ctarank": "r = simulated::cluster - 1 - blockIdx.x % simulated::cluster;",
    "mov.u32 %0, %%clusterid.x": "i = blockIdx.x / simulated::cluster;",
    "mov.u32 %0, %%cluster_nctarank": "n = simulated::cluster;",
    "mbarrier.init": ";",
    "fence.mbarrier_init": ";",
    "mbarrier.arrive.expect_tx": "simulated::expected = bytes;",
    "barrier.cluster.arrive": ";",
    "barrier.cluster.wait": ";",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32": (
        "mailbox.messages[rank * warps + warp] = sums, simulated::received += sizeof(Sums);"
    ),
    '{\\n.reg .pred p;\\n"\n': "if (simulated::received == simulated::expected) done = 1; else simulated::yield();",
    "atom.acq_rel.gpu.global.add.u32": "before = (*counter)++;",
}
"""What a statement of assembler does, by its beginning. Others are not simulated."""


def simulated(source):
    """The source of a header for the host's compiler."""

    def statement(match):
        known = (text for start, text in ASSEMBLER.items() if match[1].startswith(start) and "row.vector" not in match[1])
        return next(known, "std::abort();")

    source = re.sub(r'asm(?: volatile)?\(\s*"(.*?)\);(?=\s*(?:\}|//|\n|$))', statement, source, flags=re.DOTALL)
    source = re.sub(r"extern __shared__ Partial (\w+)\[\];", r"static Partial \1[1 << 16];", source)
    source = re.sub(r"extern __shared__ .*?;", "__shared__ unsigned char dynamic[1];", source)  # of kernels that are not launched
    return re.sub(r"(\brow_\w+<[^;{}]*?>)<<<([^;]*?)>>>\(((?:[^()]|\(\w*\))*)\)", r"simulated::launch(\2, [&] { \1(\3); })", source)


def compiled(folder, source, out, *options):
    """Compiles a file of `tests/kernels/cuda`, or a source of the kernels, with the simulated headers; returns the path of `out`."""
    for path in (*build.SOURCE.parent.glob("*.cuh"), *build.SOURCE.parent.glob("*.cu")):
        (folder / path.name).write_text(simulated(path.read_text()))
    for name in ("cuda_bf16.h", "cuda_fp16.h"):
        (folder / name).touch()  # simulated_gpu.h has their types
    file = HERE / source if (HERE / source).is_file() else folder / source
    command = [build.nvcc(), "-std=c++17", "-O0", "-x", "c++", "-I", str(folder), "-I", str(HERE), "-o", str(folder / out), *options]
    made = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return folder / out
