"""A plugin's Triton kernels without a GPU: autotuned, launched in `torch.cuda.device`, sized by the driver, and rounded as a GPU rounds."""

import os

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU no plugin is interpreted")

PLUGIN = """import torch, triton, triton.language as tl

driver = triton.runtime.driver
SMS = driver.active.utils.get_device_properties(driver.active.get_active_torch_device().index)["multiprocessor_count"]

@triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4)], key=["N"])
@triton.jit
def rows(x, y, M, N, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        at = tl.arange(0, BLOCK)
        v = tl.load(x + row * N + at, mask=at < N, other=float("-inf")).to(tl.float32)
        v = tl.exp(v - tl.max(v, 0))
        tl.store(y + row * N + at, SCALE * v / tl.sum(v, 0), mask=at < N)

def solution(x):
    y = torch.empty_like(x)
    with torch.cuda.device(x.device):
        rows[(min(SMS, x.shape[0]),)](x, y, *x.shape, triton.next_power_of_2(x.shape[1]))
    return y
"""
PROBLEM = """import torch

def inputs(M=32, N=33, dtype=torch.float32):
    return torch.randn(M, N, dtype=dtype)

def reference(x):
    return x.softmax(-1)
"""
ROUND = """
import numpy, pathlib, torch
from softbench.plugins.source import origins
from softbench.worker import triton_on_cpu
assert triton_on_cpu.prepare(origins(["rows.py"])[-1]) == (triton_on_cpu.REASON, triton_on_cpu.ROWS)
import triton, triton.language as tl

@triton.jit
def convert(x, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(tl.bfloat16))

bits = torch.randint(-(2**31), 2**31, (8192,), generator=torch.Generator().manual_seed(1)).to(torch.int32)
bits[:4] = torch.tensor([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00008001], dtype=torch.int32)  # ties, overflow, a denormal
x = bits.view(torch.float32)
x[4:7] = torch.tensor([float("nan"), float("inf"), -float("inf")])
y = torch.empty(8192, dtype=torch.bfloat16)
convert[(1,)](x, y, 8192)
assert torch.equal(y.nan_to_num(3e38), x.to(torch.bfloat16).nan_to_num(3e38))

@triton.jit
def compute(x, w, c, d, y, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b, c = tl.load(x + at), tl.load(w + at), tl.load(c + at)
    tl.store(y + at, a * b)
    tl.store(y + BLOCK + at, tl.where(a > b, -a, a - b))
    tl.store(y + 2 * BLOCK + at, tl.abs(tl.clamp(a, -0.5, 0.5)))
    tl.store(y + 3 * BLOCK + at, tl.fma(a, b, b))
    tl.store(y + 4 * BLOCK + at, tl.max(a) + a.to(tl.int32).to(tl.bfloat16))
    tl.store(y + 5 * BLOCK + at, tl.cumsum(b))
    square = at[:, None] * BLOCK + at
    tl.store(y + 6 * BLOCK + at, tl.sum(tl.dot(tl.load(d + square), tl.load(d + square)), 0).to(tl.bfloat16))
    tl.store(y + 7 * BLOCK, tl.sum(c))

a, b = torch.randn(2, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
c = torch.tensor([256.0, *[1.0] * 63]).bfloat16()
d = torch.eye(64).bfloat16() * 3
y = torch.empty(8, 64, dtype=torch.bfloat16)
compute[(1,)](a, b, c, d, y, 64)
fma = (a.double() * b.double() + b.double()).float().bfloat16()
whole = a.max() + a.int().bfloat16()
right = (a * b, torch.where(a > b, -a, a - b), a.clamp(-0.5, 0.5).abs(), fma, whole)
assert all(map(torch.equal, y, right))
assert torch.allclose(y[5], b.cumsum(0), rtol=0.02, atol=0.1)
assert (y[6] == 9).all()
steps = c
while len(steps) > 1:  # a GPU rounds each sum, too
    steps = steps[: len(steps) // 2] + steps[len(steps) // 2 :]
assert y[7, 0] == steps[0] != c.float().sum().bfloat16(), (y[7, 0], steps)
"""


def test_right_kernels_are_checked_and_wrong_ones_found(cli):
    for name, scale in (("right", "1"), ("double", "2")):
        (cli.folder / f"{name}.py").write_text(PLUGIN.replace("SCALE", scale))
    both = ("--plugin", "right.py", "--plugin", "double.py", "--backends", "right,double")
    (cli.folder / "problem.py").write_text(PROBLEM)
    assert cli("run", *both, "--problem", "problem.py", "--dtype", "fp32,bf16").returncode == 1
    found = [row for row in cli.rows() if row["backend"] != "copy"]
    assert {(row["backend"], row["status"]) for row in found} == {("right", "checked"), ("double", "wrong")}
    reasons = {row["reason"] for row in found if row["status"] == "checked"}
    assert reasons == {"on 32 rows under Triton's interpreter, as there is no GPU, not timed"}


def test_a_plugin_that_only_asks_for_triton_is_timed(cli):
    asks = "try:\n    import triton\nexcept ImportError:\n    triton = None\n"
    (cli.folder / "asks.py").write_text(f"import torch\n{asks}\ndef softmax(x):\n    return torch.softmax(x, -1)\n")
    cli("run", "--plugin", "asks.py", "--backends", "asks", "--M", "40", "--N", "33", "--quick")
    assert {row["status"] for row in cli.rows()} == {"ok"}


def test_bfloat16_is_computed_and_rounded_as_by_torch(tmp_path, forks, monkeypatch):
    (tmp_path / "rows.py").write_text("import triton\n\n@triton.jit\ndef nothing(x):\n    pass\n")
    (tmp_path / "convert.py").write_text(ROUND)  # Triton reads a kernel's source in its file
    monkeypatch.chdir(tmp_path)
    done = forks().run_code("import sys\nsys.path.insert(0, '')\nimport convert", dict(os.environ), 120)
    assert done.returncode == 0, done.stderr
