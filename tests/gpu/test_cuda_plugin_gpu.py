"""A plugin in CUDA C++ that `softbench.build` compiles: run, checked, judged wrong, and its accesses out of bounds found."""

import csv
import shutil

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

KERNEL = """#include <cuda_runtime.h>
#include <cstdint>
__global__ void rows(const float* x, float* y, int64_t N) {  // a thread for each row
    x += blockIdx.x * N; y += blockIdx.x * N;
    float m = -INFINITY, s = 0;
    for (int64_t i = 0; i < ROUNDED(N); i++) m = fmaxf(m, i < N ? x[i] : x[i] * 0 - INFINITY);
    for (int64_t i = 0; i < N; i++) s += expf(x[i] - m);
    for (int64_t i = 0; i < N; i++) y[i] = SCALE * expf(x[i] - m) / s;
}
extern "C" void launch(const float* x, float* y, int64_t M, int64_t N, cudaStream_t stream) { rows<<<M, 1, 0, stream>>>(x, y, N); }
extern "C" void too_large(const float* x, float* y, int64_t M, int64_t N, cudaStream_t stream) { rows<<<M, 4096, 0, stream>>>(x, y, N); }
"""
PLUGIN = """import softbench
import torch

library = softbench.build("rows.cu", flags=["-O3", "-lineinfo", *{flags}])

def softmax(x):
    y = torch.empty_like(x)
    library.{function}(x, y, *x.shape, torch.cuda.current_stream())
    return y
"""


def plugin(cli, name, *, rounded="(N)", scale="1", function="launch"):
    (cli.folder / "rows.cu").write_text(KERNEL)
    flags = [f"-DROUNDED(N)={rounded}", f"-DSCALE={scale}"]
    (cli.folder / f"{name}.py").write_text(PLUGIN.format(flags=flags, function=function))
    return ("--plugin", f"{name}.py", "--backends", name, "--dtype", "fp32")


def test_a_right_and_a_wrong_kernel_are_run(cli):
    plugins = [*plugin(cli, "right"), *plugin(cli, "double", scale="2"), *plugin(cli, "launches", function="too_large")]
    plugins += [*plugin(cli, "spelt", function="lunch"), *plugin(cli, "unknown", scale="nothing")]
    cli("run", *plugins, "--M", "64", "--N", "33", "--quick", timeout=250)
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {row["backend"]: (row["status"], row["reason"]) for row in csv.DictReader(file)}
    assert found["right"][0] == "ok"
    assert found["double"][0] == "wrong"
    assert found["launches"][0] == "failed" and "too_large: invalid" in found["launches"][1]
    assert 'rows.cu has no function lunch; declare it as extern "C"' in found["spelt"][1]
    assert 'rows.cu(8): error: identifier "nothing" is undefined' in found["unknown"][1]


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer on PATH; it comes with the CUDA toolkit")
def test_accesses_out_of_bounds_are_found(cli):
    cases = ("--case", "shape 5x4095", "--direction", "forward", "--sanitize")
    right = cli("check", *plugin(cli, "right"), *cases, timeout=250)
    assert right.returncode == 0, right.stdout + right.stderr
    read = cli("check", *plugin(cli, "reads", rounded="(((N)+3)/4*4)"), *cases, timeout=250)
    assert read.returncode == 1
    assert "reads 4 bytes of global memory out of bounds, 1 byte after an allocation of" in read.stderr
    assert "in kernel rows at rows.cu:6; compute-sanitizer found it" in read.stderr
    assert "softbench check --sanitize --backends reads" in read.stderr
