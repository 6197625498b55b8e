"""The generic kernels and those of the tier staged, under the interpreter: every dtype, and each number of rows of the last program."""

import pytest
import torch
from softbench.kernels.triton import generic, tutorial

STAGED = """
import torch
from dataclasses import replace
from softbench.kernels.triton import dispatch
from softbench.kernels.triton.candidates import staged_plans
torch.manual_seed(0)
UNIT = {torch.float32: 1e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}

def close(got, expected, terms, unit):
    got = got.double()
    return bool(((got == expected) | ((got - expected).abs() <= unit * 1.01 * expected.abs() + 3e-6 * terms + 1e-7)).all())

def check(M, N, dtype, log, scale):
    x, dy = torch.randn(2, M, N).to(dtype).unbind()
    x, dy = x.clone(), dy.clone()
    x[0, : N // 2] = -float("inf")
    y, dx = torch.empty_like(x), torch.empty_like(x)
    factor = 1.0 if scale is None else scale.double()[:, None] if isinstance(scale, torch.Tensor) else scale
    expected = (torch.log_softmax if log else torch.softmax)(x.double() * factor, -1)
    problem = dispatch.problem_of((x, y))
    assert problem.contiguous
    (plan, *_) = staged_plans(replace(problem, M=1 << 24))
    dispatch.run(problem, plan, (x, y), log, scale)
    assert close(y, expected, 1 + expected.abs() if log else expected, UNIT[dtype]), ("forward", plan, M, N, dtype)
    y.copy_(expected)
    a, b = y.double(), dy.double()
    size = a.exp() if log else a
    expected = factor * (b - size * b.sum(-1, keepdim=True) if log else a * (b - (a * b).sum(-1, keepdim=True)))
    problem = dispatch.problem_of((dy, y, dx))
    (plan, *_) = staged_plans(replace(problem, M=1 << 24))
    dispatch.run(problem, plan, (dy, y, dx), log, scale)
    assert close(dx, expected, factor * (b.abs() + size * b.abs().sum(-1, keepdim=True)), UNIT[dtype]), ("backward", plan, M, N, dtype)
    assert not dispatch.problem_of((x[:, : N - 1], y[:, : N - 1])).contiguous

COLUMNS = {torch.float32: (1, 5, 77), torch.float16: (130,), torch.bfloat16: (2, 17, 50, 197)}
for dtype, columns in COLUMNS.items():
    for N in columns:
        check(41, N, dtype, N == 17, None)
check(41, 33, torch.float32, False, 0.7)
check(41, 33, torch.bfloat16, False, torch.rand(41) + 0.5)
print("fine")
"""


def test_staged_rows_are_right(run_interpreted):
    run_interpreted(STAGED, timeout=270)


PROBE = """
import torch, triton, triton.language as tl
from softbench.kernels.triton.staged import rows_of_pass

@triton.jit
def probe(out_ptr, distance, ROWS: tl.constexpr, PASSES: tl.constexpr, LANES: tl.constexpr):
    for number in range(PASSES):
        tl.store(out_ptr + number * ROWS + tl.arange(0, ROWS), rows_of_pass(number, distance, ROWS, LANES))

def check(distance, ROWS, PASSES, LANES):
    out = torch.full((PASSES * ROWS,), -1, dtype=torch.int32)
    probe[(1,)](out, distance, ROWS, PASSES, LANES)
    assert sorted(out.tolist()) == list(range(PASSES * ROWS)), out
    of_warp = out.view(-1, 32 // LANES)
    assert (of_warp[:, 1:] - of_warp[:, :-1] == distance).all(), of_warp
"""


def test_rows_of_a_warp_are_apart_and_each_comes_once(run_interpreted, tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    calls = "check(1, 8, 3, 16), check(16, 8, 4, 16), check(4, 8, 1, 16), check(2, 128, 2, 1), check(8, 32, 2, 4), check(1, 4, 2, 32)"
    run_interpreted(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from probe import check; {calls}; print('fine')")


LOOPS = """
import torch
from softbench.kernels.triton.generic import backward_loop, forward_loop, gradient_loop, loop_over_row
torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
    x, dy = torch.randn(2, 3, 100, dtype=dtype).unbind()
    x[0, :20] = -float("inf")  # a lane sees only -inf at first
    y, dx = torch.empty_like(x), torch.empty_like(x)
    forward_loop[(3,)](x, y, 100, 100, 3, 100, 16)
    backward_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16)
    assert torch.allclose(y, torch.softmax(x, -1), atol=tolerance)
    assert torch.allclose(dx, y * (dy - (dy * y).sum(-1, keepdim=True)), atol=tolerance)
    loop_over_row[(3,)](x, y, 100, 100, 3, 100, 16, True, None)
    gradient_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16, True, None)
    assert torch.allclose(y, torch.log_softmax(x, -1), atol=20 * tolerance)
    assert torch.allclose(dx, dy - y.exp() * dy.sum(-1, keepdim=True), atol=20 * tolerance)
    scale = torch.tensor([0.5, 2.0, 1.5])
    loop_over_row[(3,)](x, y, 100, 100, 3, 100, 16, False, scale)
    gradient_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16, False, scale)
    assert torch.allclose(y, torch.softmax(x * scale[:, None], -1), atol=tolerance)
    assert torch.allclose(dx, scale[:, None] * y * (dy - (dy * y).sum(-1, keepdim=True)), atol=2 * tolerance)
print("fine")
"""


def test_loops_are_right_in_float32_and_float64(run_interpreted):
    run_interpreted(LOOPS)


@pytest.mark.parametrize("N", [1, 3, 128, 129, 4097, generic.TILE_COLUMNS])
def test_a_tile_holds_a_row_and_short_rows_share_one(N):
    assert generic.block_n(N) // 2 < N <= generic.block_n(N)
    assert generic.block_m(N) * generic.block_n(N) == max(generic.TILE_ELEMENTS, generic.block_n(N))


def test_programs_of_amds_gpus_have_1024_threads(monkeypatch):
    """A warp of their data-center GPUs has 64 threads."""
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    assert [generic.warps(elements) for elements in (512, 8192, 16384, 1 << 20)] == [1, 16, 16, 16]
    assert tutorial.warps_of_block(1 << 17) == 16
