"""Softmax with a scale, a float32 result and as log_softmax on a GPU: right kernels pass, and each tier has each function."""

import importlib

import pytest
import torch
from sampled import sampled
from scaled import HONEST, graded, wrong_ones
from softbench.kernels.cuda import launch
from softbench.kernels.triton import dispatch, planner
from softbench.kernels.triton.devices import device_traits
from softbench.kernels.tuning.shapes import FAMILIES

from softbench.backends import naive, torch_compile, torch_eager
from softbench.backends.peers import flashinfer
from softbench.core.case import Case
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.plugins.traits import unsupported

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

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
@pytest.mark.parametrize("backend", [torch_eager.backend, naive.backend, torch_compile.backend, flashinfer], ids=lambda one: one.name)
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
    staged = launch.TIERS.index("staged")
    for M, N, lanes in ((70001, 5, 1), (150001, 17, 2), (40003, 51, 8)):
        x, dy, scale = torch.randn(M, N, device="cuda"), torch.randn(M, N, device="cuda"), torch.rand(M, device="cuda") * 8 + 1e-3
        for dtype, rtol in ((torch.float32, 3e-5), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
            given, plan = x.to(dtype), launch.Plan(staged, -(-N // lanes), 128, lanes, 64, 16)
            y, dx = torch.empty_like(given), torch.empty_like(given)
            launch.launch_forward(given, y, scale, plan=plan)
            factor = scale.double()[:, None]
            torch.testing.assert_close(y.double(), torch.softmax(given.double() * factor, -1), rtol=rtol, atol=1e-6)
            launch.launch_backward(dy.to(dtype), y, dx, scale, plan=plan)
            a, b = y.double(), dy.to(dtype).double()
            torch.testing.assert_close(dx.double(), factor * a * (b - (a * b).sum(-1, keepdim=True)), rtol=2 * rtol, atol=1e-5)


F, B, H = torch.float32, torch.bfloat16, torch.float16
UNIT = {F: 0.0, H: 2.0**-11, B: 2.0**-8}
SMALLEST = {F: 1e-37, H: 2.0**-24, B: 1e-37}
# dtype of x, dtype of y, whether log_softmax, scale
FUNCTIONS = [
    (B, B, False, None), (F, F, False, None), (B, B, True, None), (H, H, True, None), (F, F, True, None), (B, B, False, 0.7),
    (F, F, False, "row"), (B, F, False, None), (H, F, False, "row"), (B, F, True, 1.5),
]  # fmt: skip
LIKE_OTHERS = {(F, F, True, None), (B, B, False, 0.7), (B, F, False, None), (H, F, False, "row")}
"""Their dtypes, functions and scales are those of others, so they run with `--slow`."""
# M, N, elements between rows, elements before the first row. The short rows of 32 MiB and more keep their reads in L2.
SHAPES = [
    (37, 7, 0, 0), (100, 64, 0, 0), (501, 197, 0, 1), (40, 1000, 8, 0), (300, 4096, 0, 0), (150, 5003, 5, 1),
    (60_001, 77, 0, 0), (90_001, 50, 0, 0), (300_001, 60, 0, 0), (300_001, 77, 0, 0), (140, 16384, 0, 0), (140, 50257, 0, 0),
    (140, 131072, 0, 0), (2, 300001, 0, 1), (20, 262144, 0, 0), (64, 524288, 0, 0),
]  # fmt: skip
OUTSIDE = -7.0


def strided(M, N, pad, offset, dtype):
    memory = torch.full((offset + M * (N + pad) + 64,), OUTSIDE, device="cuda", dtype=dtype)
    return memory, memory[offset : offset + M * (N + pad)].view(M, N + pad)[:, :N]


def random(*layout, dtype):
    _, rows = strided(*layout, dtype)
    return rows.copy_(torch.randn(rows.shape, device="cuda"))


def plans_of(problem):
    """The chosen plan, the first plan of each tier, and one with rows in shared memory."""
    kinds = {}
    chosen = planner.choose(problem, device_traits(torch.device("cuda", torch.cuda.current_device()))[0])
    congruent = problem.congruent and problem.element_size != 8
    made = (planner.make_plan(problem, family) for family in FAMILIES["triton"]) if congruent else ()
    for plan in (chosen, *filter(None, made)):
        kinds.setdefault((plan.tier, plan.smem_tiles > 0), plan)
    return kinds.values()


def assert_right(tensors, memory, expected, terms, log, scale):
    """Each plan's result is within some float32 roundings of its terms, and nothing is written outside the rows."""
    out, problem = tensors[-1], dispatch.problem_of(tensors)
    bound = UNIT[out.dtype] * 1.01 * expected.abs() + 200 * 2.0**-24 * terms + SMALLEST[out.dtype]
    for plan in plans_of(problem):
        memory.fill_(OUTSIDE)
        dispatch.run(problem, plan, tensors, log, scale)
        got = out.double()
        same = (got == expected) | (got.isnan() & expected.isnan())
        assert bool((same | ((got - expected).abs() <= bound)).all()), plan
        out.fill_(OUTSIDE)
        assert bool((memory == OUTSIDE).all()), ("wrote outside its rows", plan)


@pytest.mark.parametrize("function", sampled([(one,) for one in FUNCTIONS], lambda one: one not in LIKE_OTHERS), ids=str)
def test_every_tier_has_every_function(function):
    torch.manual_seed(0)
    dtype, result, log, kind = function
    for layout in SHAPES:
        M, N, *_ = layout
        scale = torch.rand(M, device="cuda") + 0.5 if kind == "row" else kind
        factor = 1.0 if kind is None else scale.double()[:, None] if kind == "row" else scale
        x = random(*layout, dtype=dtype)
        x[0, : N // 2] = -torch.inf
        if M > 8:
            x[1], x[2, N // 2], x[3, 3], x[4, : N - 1] = -torch.inf, torch.nan, torch.inf, -torch.inf
        memory, y = strided(*layout, result)
        expected = (torch.log_softmax if log else torch.softmax)(x.double() * factor, -1)
        finite = expected.abs().nan_to_num(0, 0, 0)
        assert_right((x, y), memory, expected, 1 + finite if log else finite, log, scale)
        y = random(*layout, dtype=result)
        y.copy_((torch.log_softmax if log else torch.softmax)(y.double(), -1))
        dy = random(*layout, dtype=result)
        a, b = y.double(), dy.double()
        if log:
            expected = factor * (b - a.exp() * b.sum(-1, keepdim=True))
            terms = factor * (b.abs() + a.exp() * b.abs().sum(-1, keepdim=True))
        else:
            expected = factor * a * (b - (a * b).sum(-1, keepdim=True))
            terms = factor * a * (b.abs() + (a * b).abs().sum(-1, keepdim=True))
        memory, dx = strided(*layout, dtype)
        assert_right((dy, y, dx), memory, expected, terms, log, scale)


def test_functions_differentiate_and_share_no_launch():
    x = torch.randn(3, 5, 70, device="cuda", dtype=B, requires_grad=True)
    for _ in range(2):  # the second launches are cached
        for name in ("softmax", "log_softmax"):
            for dim, scale, dtype in ((-1, None, F), (1, 0.5, F), (1, 2, B), (-1, torch.rand(15, device="cuda") + 0.5, F)):
                y = getattr(dispatch, name)(x, dim, dtype=dtype, scale=scale)
                dy = torch.randn_like(y)
                (dx,) = torch.autograd.grad(y, x, dy)
                wide = x.detach().double().requires_grad_()
                factor = scale.double().view(3, 5, 1) if isinstance(scale, torch.Tensor) else scale or 1.0
                expected = getattr(torch, name)(wide * factor, dim)
                (slope,) = torch.autograd.grad(expected, wide, dy.double())
                assert (y.dtype, dx.dtype) == (dtype, B)
                torch.testing.assert_close(y.double(), expected, rtol=1e-2 if dtype is B else 1e-5, atol=1e-5)
                torch.testing.assert_close(dx.double(), slope, rtol=2e-2, atol=5e-2 if dtype is B else 1e-2)
