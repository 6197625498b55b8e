"""The tier staged under the interpreter: every plan is right, for each number of rows of the last program."""

STAGED = """
import torch
from dataclasses import replace
from softbench.kernels.triton import dispatch
from softbench.kernels.triton.staged_candidates import staged_plans
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
