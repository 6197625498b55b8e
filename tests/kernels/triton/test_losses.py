"""Losses by the Triton kernels, under the interpreter: every pass, option, dtype and layout is within the derived bounds."""

import pytest

SETUP = """
import math
import torch
from softbench.backends.triton import own
from softbench.core.case import Case, Direction
from softbench.ops.registry import numerics, operation
from softbench.kernels.triton import loss_launch, loss_plans, losses
torch.manual_seed(0)
CPU = torch.device("cpu")
CE, ALL = "cross_entropy", "cross_entropy(label_smoothing=0.1,z_loss=0.001,softcap=30)"
NAMES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
launched = set()
prepare = loss_launch.prepare

def recorded(*given):
    ready = prepare(*given)
    launched.add(ready.kernel.fn.__name__ if ready else None)
    return ready

loss_launch.prepare = recorded

def strided(x, pad, offset):
    # the same values in rows further apart, behind other elements
    M, N = x.shape
    memory = torch.full((offset + M * (N + pad),), 3.0, dtype=x.dtype)
    rows = memory.view(-1)[offset:].view(M, N + pad)[:, :N]
    return rows.copy_(x)

def check(M, N, dtype, op, structured=False, pad=0, offset=0, in_place=False):
    for direction in operation(op).directions:
        case = Case(M, N, dtype, direction, "cpu", op)
        values = numerics(op)
        given = values.make(case, 0, CPU)
        if structured:
            values.make_structured(given, case, 1)
        call = own.prepare(case)
        x = strided(given[0], pad, offset)
        more = {}
        if in_place and direction is not Direction.FORWARD:
            function = getattr(losses, f"{case.operation}_{direction.value}")
            options = {} if case.operation == "logprob" else dict(operation(op).values)
            out = function(x, *given[1:], out=x, **options)
            dx = out[1] if isinstance(out, tuple) else out
            assert dx is x
        else:
            out = call(x, *given[1:])
            assert torch.equal(x.view(torch.uint8), given[0].contiguous().view(torch.uint8)) or not pad, "x changed"
        accuracy = values.check(case, given, out if isinstance(out, tuple) else (out,))
        assert accuracy.grade.value == "pass", (case, structured, pad, offset, in_place, accuracy.detail)
"""
PASSES = """
for dtype in NAMES:
    for op in {"fp32": (CE, ALL, "logprob"), "bf16": (ALL, "logprob"), "fp16": (CE,)}[dtype]:  # fp16 differs from bf16 by the conversion
        check(9, 7, dtype, op)
        check(30, 1000, dtype, op, structured=True)  # as many rows as kinds
        check(3, 301, dtype, op, pad=3, offset=1)
        check(2, 4099, dtype, op, offset=3)
    check(2, 5008, dtype, CE, in_place=True)
    check(3, 33, dtype, ALL, in_place=True)
    check(1, 1, dtype, CE)
assert launched == {"reduction_tile", "fused_tile", "gradient_tile", "reduce_row", "fused_rows", "gradient_of_row"}, launched
print("fine")
"""
LONG = """
check(30, 8192, "bf16", CE, structured=True)
check(28, 5003, "bf16", "logprob", structured=True)
check(28, 5003, "fp32", "cross_entropy(label_smoothing=0.9)", structured=True)
check(1, 40003, "fp32", CE)  # longer than a program holds: two passes
check(1, 40003, "fp32", ALL)
assert None in launched
print("fine")
"""
SPECIAL = """
for N in (9, 5003):
    x = torch.randn(5, N)
    x[1, 3] = x[2, 4] = math.nan
    target = torch.tensor([0, -100, N - 1, N, -1])
    loss, lse = losses.cross_entropy_forward(x, target)
    fused, dx = losses.cross_entropy_fused(x, target)
    back = losses.cross_entropy_backward(x, target, lse, torch.ones(5))
    # a target out of range makes its row NaN; an ignored row is 0 beside NaN
    for given in (loss, fused):
        assert given[1] == 0 and given[2:].isnan().all() and torch.allclose(given[0], torch.logsumexp(x[0], 0) - x[0, 0]), given
    for given in (dx, back):
        assert not given[1].any() and given[2:].isnan().all() and torch.isfinite(given[0]).all()
    logprob, entropy, _ = losses.logprob_forward(x, target)
    assert logprob[1:].isnan().all() and torch.isfinite(logprob[0]) and torch.isfinite(entropy[[0, 3, 4]]).all()
    # `out` of another layout is filled all the same
    wide = torch.empty(5, N + 1)[:, 1:]
    got = losses.cross_entropy_fused(x, target, out=wide)[1]
    assert got is wide and torch.equal(wide.nan_to_num(7), dx.nan_to_num(7))
empty, none = torch.empty(0, 5), torch.empty(0, dtype=torch.int64)
assert losses.cross_entropy_fused(empty, none)[1].shape == (0, 5) and losses.logprob_forward(empty, none)[0].shape == (0,)
x, target = torch.randn(2, 3), torch.tensor([0, 1])
for call in (
    lambda: losses.cross_entropy_forward(x.double(), target), lambda: losses.cross_entropy_forward(x, target.int()),
    lambda: losses.cross_entropy_backward(x, target, x[:, 0].half(), x[:, 0]), lambda: losses.cross_entropy_fused(x, target, out=x.half()),
):
    try:
        call()
    except TypeError:
        continue
    raise AssertionError("no error was raised")
# softcap near 0 keeps the relative precision of tanh, and is flat far away
x = torch.tensor([[1e-6, -1e-6, 1e-3, 0.5, -0.99, 1.01, -40.0, 9e9, 1e-30, 0.0]])
_, dx = losses.cross_entropy_fused(x, torch.tensor([0]), softcap=1.0)
z = x.double().requires_grad_()
(expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(torch.tanh(z), torch.tensor([0])), z)
assert torch.allclose(dx.double(), expected, atol=1e-8, rtol=1e-5)
print("fine")
"""


@pytest.mark.timeout(280)
def test_every_pass_is_within_the_bounds(run_interpreted):
    run_interpreted(SETUP + PASSES, timeout=270)


@pytest.mark.timeout(280)
@pytest.mark.slow
def test_structured_long_rows_are_within_the_bounds(run_interpreted):
    run_interpreted(SETUP + LONG, timeout=270)


def test_special_targets_layouts_and_errors(run_interpreted):
    run_interpreted(SETUP + SPECIAL)
