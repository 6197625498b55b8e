"""The kernels of attention scores: right within the bounds under the interpreter, vectors and no spills in machine code for sm_90."""

import pytest
from sampled import sampled
from softbench.kernels.triton import causal_rows, masked_softmax as scores

CHECKED = """
import torch
from masked_softmaxes import case_of
from softbench.backends.triton import own
from softbench.core.case import Direction
from softbench.worker.checking import any_dim
from softbench.worker.checking.pre_check import PreCheck
for direction in Direction.FORWARD, Direction.BACKWARD:
    for dtype, sizes in {shapes}:
        case = case_of({text!r}, dtype, direction, sizes)
        given = any_dim.make(case, 0, torch.device("cpu"))
        found = PreCheck(case, own.prepare(case), given, own, None).run(3)
        assert found.grade.value == "pass", (case.key, found)
print("fine")
"""
SHAPES = [("fp32", (2, 2, 9, 65)), ("fp16", (1, 2, 9, 4)), ("bf16", (2, 3, 3, 1025)), ("bf16", (1, 2, 5, 1026))]


OPERATIONS = (
    "scale=0.125",
    "mask=boolean,mask_axes=BN,causal=true",
    "scale=0.3,mask=additive,mask_axes=HSN,causal=true,sink=true",
    "scale=5,mask=boolean,mask_axes=SN,sink=true",
    "mask=additive,causal=true",
    "mask=additive,mask_axes=BHSN",
)


@pytest.mark.parametrize("text", sampled(OPERATIONS, lambda text: "axes=H" in text))
def test_results_are_within_the_bounds(text, run_interpreted):
    run_interpreted(CHECKED.format(text=text, shapes=SHAPES))


GRADIENTS = """
import torch
from masked_softmaxes import plain
from softbench.kernels.automatic import masked_softmax as automatic
from softbench.kernels.automatic.masked_softmax import masked_softmax
from softbench.kernels.triton.masked_softmax import masked_softmax as ours
automatic._kernels = lambda *_: ours
torch.manual_seed(0)
keep = torch.rand(2, 1, 1, 13) < 0.7
keep[..., 0] = True
bias = torch.randn(3, 1, 5).movedim(2, 0)[:, :, None].expand(5, 3, 7, 1)[:1]
for mask, causal in ((None, False), (keep, True), (torch.randn(3, 7, 13), True), (torch.randn(13, 7).t(), False), (bias, True)):
    for sink in (None, torch.randn(3, requires_grad=True)):
        x = torch.randn(2, 7, 3, 13).transpose(1, 2).requires_grad_()
        p = plain(x.double(), 0.3, mask, causal, sink)
        dy = torch.randn(2, 3, 7, 13)
        expected = torch.autograd.grad(p, [x] if sink is None else [x, sink], dy.double())
        y = masked_softmax(x, scale=0.3, mask=mask, causal=causal, sink=sink)
        found = torch.autograd.grad(y, [x] if sink is None else [x, sink], dy)
        assert torch.allclose(y.double(), p, atol=1e-6)
        assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(found, expected, strict=True))
x, dys = torch.randn(2, 3, 4, 5, requires_grad=True), torch.randn(6, 2, 3, 4, 5)
y = masked_softmax(x, causal=True)
(together,) = torch.autograd.grad(y, x, dys, is_grads_batched=True, retain_graph=True)
assert torch.equal(together, torch.stack([torch.autograd.grad(y, x, dy, retain_graph=True)[0] for dy in dys]))
keys = torch.ones(2, dtype=torch.bool)
assert ours.forward(torch.tensor([[[[2.0, 1.0]]]]), scale=3e38, mask=keys)[0].tolist() == [[[[1.0, 0.0]]]]
assert ours.forward(torch.zeros(0, 2, 3, 4))[0].shape == (0, 2, 3, 4)
x = torch.zeros(1, 2, 3, 4)
for call in (
    lambda: ours.forward(x, sink=torch.zeros(3)),
    lambda: ours.forward(x, mask=torch.zeros(3)),
    lambda: ours.backward(x, x, torch.zeros(1, 2, 4)),
    lambda: ours.backward(x, x.half()),
):
    try:
        call()
    except (RuntimeError, TypeError):
        continue
    raise AssertionError
print("fine")
"""


def test_results_and_gradients_are_those_of_torch(run_interpreted):
    run_interpreted(GRADIENTS)


CAUSAL = """
import math, torch
from softbench.kernels.triton import causal_rows, masked_softmax as scores
from softbench.kernels.triton.causal_rows import backward_causal, causal_plan, forward_causal
from softbench.kernels.triton.masked_softmax import masked_softmax
torch.manual_seed(0)
launched, run = [], scores.run
scores.run = lambda launch, *more: launched.append(launch.kernel.fn.__name__) or run(launch, *more)
for dtype, (B, H, S, N) in ((torch.bfloat16, (2, 1, 3, 8200)), (torch.float16, (1, 2, 3, 16384))):
    x, dy = torch.randn(2, B, H, S, N).to(dtype)
    x[..., -1] = math.nan  # no query sees it
    for first in 1, 7, 1024, 4097, N - S - 1:
        y, dx = torch.full_like(x, math.nan), torch.full_like(x, math.nan)
        unseen = torch.arange(N)[None] >= torch.arange(S)[:, None] + first
        for kernel, tensors in ((forward_causal, (x, y)), (backward_causal, (dy, y, dx))):
            plan = causal_plan(N, kernel is backward_causal)
            run(scores.causal_launch(kernel, plan, range(len(tensors)), tensors, first), tensors, 0.3)
        p = torch.softmax((0.3 * x.double()).masked_fill(unseen, -math.inf), -1)
        assert torch.allclose(y.double(), p, rtol=2**-8, atol=1e-6) and not y[unseen.expand_as(y)].any()
        expected = 0.3 * y.double() * (dy.double() - (dy.double() * y.double()).sum(-1, keepdim=True))
        assert torch.allclose(dx.double(), expected, rtol=2**-7, atol=1e-6) and not dx[unseen.expand_as(dx)].any()
launched.clear()
masked_softmax.forward(torch.randn(1, 1, 2, 4104).bfloat16(), causal=True)
assert launched == ["forward_scores"], launched  # few rows
launched.clear()
scores.LEAST_CAUSAL_ROWS = 2
for N in 4104, 4100, 8192:
    y, _ = masked_softmax.forward(torch.randn(1, 1, 2, N).bfloat16(), causal=True)
    masked_softmax.backward(torch.ones_like(y), y, causal=True)
assert launched == ["forward_causal", "backward_scores", "forward_scores", "backward_scores", "forward_causal", "backward_scores"], launched
print("fine")
"""


@pytest.mark.slow
def test_long_causal_rows_are_right_and_have_zeros_behind(run_interpreted):
    run_interpreted(CAUSAL)


def test_causal_plans_hold_whole_rows():
    for N in range(4104, causal_rows.MOST_COLUMNS + 1, 8):
        for backward in (False, True):
            if (plan := causal_rows.causal_plan(N, backward)) is not None:
                held = plan.tiles * plan.threads * 8
                assert held - plan.threads * 8 < N <= held
                assert 65536 // (plan.registers * plan.threads) >= 3
    assert causal_rows.causal_plan(4096, False) is None and causal_rows.causal_plan(8192, True) is None
    assert causal_rows.causal_plan(8193, False) is None and causal_rows.causal_plan(16392, False) is None


@pytest.mark.parametrize("reads", [1, 2])
def test_a_thread_has_at_most_32_elements_of_a_tensor(reads):
    for N in (1, 31, 512, 1025, 5000, scores.MAX_COLUMNS):
        shape = scores.shape_of(N, reads)
        assert shape.block // 2 < N <= shape.block
        assert shape.rows * shape.block <= 32 * 32 * shape.warps
