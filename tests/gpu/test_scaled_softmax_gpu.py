"""Softmax with a scale and a float32 result on a GPU: right kernels are accepted, wrong ones are not, and the backends are right."""

import importlib

import pytest
import torch
from scaled import HONEST, graded, wrong_ones
from softbench.kernels.cuda import launch

from softbench.backends import flashinfer, naive, torch_compile, torch_eager
from softbench.core.case import Case
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.plugins.traits import unsupported

pytestmark = pytest.mark.gpu

CASES = (
    ("softmax(scale=0.7)", "fp32"),
    ("softmax(scale=30)", "fp16"),
    ("softmax(scale=row)", "bf16"),
    ("softmax(scale=row,out_dtype=fp32)", "bf16"),
)


@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_right_kernels_are_accepted_and_wrong_ones_found(op, dtype, direction):
    for name, make in HONEST.items():
        found = graded(make, op, dtype, direction, device="cuda")
        assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), (name, found.detail)
        assert found.grade is Grade.PASS or name == "folded", (name, found.detail)
    for name, make in wrong_ones(op, direction).items():
        assert graded(make, op, dtype, direction, device="cuda").grade is Grade.WRONG, name


@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize(
    "backend", [torch_eager.backend, naive.backend, torch_compile.backend, flashinfer.backend], ids=lambda one: one.name
)
def test_backends_with_parameters_are_right(backend, op, dtype):
    if reason := backend.available():
        pytest.skip(reason)
    for direction in operation("softmax").directions:
        if not unsupported(backend, Case(66, 257, dtype, direction, "cuda", op)):
            found = graded(backend.prepare, op, dtype, direction, device="cuda")
            assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), (direction, found.detail)
    torch.cuda.synchronize()


@pytest.mark.parametrize("module", ["cuda.launch", "triton.dispatch"])
def test_huge_and_nan_scales_are_those_of_their_rows(module):
    softmax = importlib.import_module(f"softbench.kernels.{module}").softmax
    scale = torch.tensor([3.4e38, torch.nan, 1e-37, 3.4e38], device="cuda")
    for N in (7, 40, 300, 1024, 3003, 16384, 100001, 600000):
        x = torch.randn(4, N, device="cuda")
        x[:, 5] = x[:, N - 1] = 9.0
        for dtype in (torch.float32, torch.bfloat16):
            y = softmax(x.to(dtype), scale=scale, dtype=torch.float32)
            assert (y[::3, [5, N - 1]] == 0.5).all() and (y[::3].sum(1) == 1).all(), (N, dtype)
            assert y[1].isnan().all(), (N, dtype)
            torch.testing.assert_close(y[2], torch.full_like(y[2], 1 / N), rtol=1e-5, atol=0)


def test_a_tile_has_the_scales_of_its_rows():
    """Tier staged of the CUDA kernels keeps them behind the rows in shared memory."""
    for M, N in ((70001, 3), (150001, 17), (40003, 51)):
        x, dy, scale = torch.randn(M, N, device="cuda"), torch.randn(M, N, device="cuda"), torch.rand(M, device="cuda") * 8 + 1e-3
        for dtype, rtol in ((torch.float32, 3e-5), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
            given, plans = x.to(dtype), (launch.Plan(-1), launch.Plan(-1))
            y, dx = torch.empty_like(given), torch.empty_like(given)
            launch.launch_forward(given, y, scale, plan=plans[0])
            factor = scale.double()[:, None]
            torch.testing.assert_close(y.double(), torch.softmax(given.double() * factor, -1), rtol=rtol, atol=1e-6)
            launch.launch_backward(dy.to(dtype), y, dx, scale, plan=plans[1])
            a, b = y.double(), dy.to(dtype).double()
            torch.testing.assert_close(dx.double(), factor * a * (b - (a * b).sum(-1, keepdim=True)), rtol=2 * rtol, atol=1e-5)
            assert {launch.TIERS[plan.tier] for plan in plans} == {"staged"}, (M, N, dtype)
