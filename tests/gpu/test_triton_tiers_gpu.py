"""Every tier of the Triton kernels has every function, on a GPU: softmax and log_softmax, scaled, and with wider results."""

import pytest
import torch
from softbench.kernels.triton import dispatch, heuristics

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

F, B, H = torch.float32, torch.bfloat16, torch.float16
UNIT = {F: 0.0, H: 2.0**-11, B: 2.0**-8}
SMALLEST = {F: 1e-37, H: 2.0**-24, B: 1e-37}
# dtype of x, dtype of y, whether log_softmax, scale
FUNCTIONS = [
    (B, B, False, None), (F, F, False, None), (B, B, True, None), (H, H, True, None), (F, F, True, None), (B, B, False, 0.7),
    (F, F, False, "row"), (B, F, False, None), (H, F, False, "row"), (B, F, True, 1.5),
]  # fmt: skip
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
    for plan in (heuristics.choose(problem, torch.cuda.get_device_name()), *heuristics.candidates(problem)):
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


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
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
