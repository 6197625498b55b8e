"""`softbench.kernels.masked_softmax` on a GPU: values, gradients, graphs, compilers and autocast."""

import itertools
import math

import masked_softmaxes
import pytest
import torch
from softbench.kernels.automatic import masked_softmax as scores
from torch.library import opcheck

from softbench.kernels import masked_softmax, which

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

SHAPES = ((2, 4, 128, 128), (1, 3, 100, 257), (3, 2, 65, 1000), (1, 2, 33, 16384))
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def mask_of(kind, shape, dtype):
    B, H, S, N = shape
    if kind == "boolean":
        keep = torch.rand(B, 1, S, N, device="cuda") < 0.8
        keep[..., 0] = True
        keep[-1, :, -1] = False  # a row without a key
        return keep
    return torch.randn(H, S, N, device="cuda").to(dtype) if kind == "additive" else None


def plain(x, *given):
    """The formula in torch's functions, in float64."""
    return masked_softmaxes.plain(x.double(), *given)


def assert_near(found, expected, near):
    """Within this part of the element, and half of it of the largest element."""
    most = expected.abs().nan_to_num().max().item()
    torch.testing.assert_close(found.double(), expected.double(), rtol=near, atol=near / 2 * most, equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("kind", ["none", "boolean", "additive"])
def test_values_and_gradients_are_those_of_torch(kind, dtype):
    torch.manual_seed(0)
    for shape, causal, sinks in itertools.product(SHAPES, (False, True), (False, True)):
        x = torch.randn(shape, device="cuda", dtype=dtype).requires_grad_()
        sink = torch.randn(shape[1], device="cuda").requires_grad_() if sinks else None
        mask, dy = mask_of(kind, shape, dtype), (1 + torch.randn(shape, device="cuda")).to(dtype)  # a mean keeps dsink from cancelling
        y = masked_softmax(x, scale=0.3, mask=mask, causal=causal, sink=sink)
        expected = plain(x, 0.3, mask, causal, sink)
        leaves, near = (x, sink) if sinks else (x,), TOLERANCE[dtype]
        assert y.dtype is dtype and y.is_contiguous()
        assert_near(y, expected, near)
        dx, *dsink = torch.autograd.grad(y, leaves, dy)
        wanted, *of_sink = torch.autograd.grad(expected, leaves, dy.double())
        with_key = ~expected.isnan().any(-1)  # the gradient of a row of NaN is NaN
        assert with_key.all() == (sinks or kind != "boolean")
        assert_near(dx[with_key], wanted[with_key], near)
        for one, other in zip(dsink, of_sink, strict=True):
            assert_near(one, other, near)


def test_calls_that_kernels_do_not_take_are_those_of_torch():
    x = torch.randn(1, 2, 3, 17000, device="cuda")
    keep = torch.rand(17000, device="cuda") < 0.5
    for given in (
        (x, 0.3, keep, True, None),
        (x[..., :100].double(), 0.3, None, True, None),
        (x[..., :100], -1.0, keep[:100], False, None),
    ):
        y = masked_softmax(given[0], **dict(zip(("scale", "mask", "causal", "sink"), given[1:], strict=True)))
        torch.testing.assert_close(y.double(), plain(*given), rtol=1e-5, atol=1e-7)
    narrow, bias = x[..., :100].bfloat16(), 1 + torch.randn(100, device="cuda") / 1000  # in bf16 most of it would be 1
    y = masked_softmax(8 * narrow, mask=bias)
    torch.testing.assert_close(y.double(), plain(8 * narrow, 1.0, bias, False, None), rtol=2**-8, atol=1e-9)
    assert scores._kernels(narrow, 1.0, True, torch.float32).__class__.__name__ == "MaskedSoftmax"
    assert which(narrow, function="masked_softmax").kernels == "triton"


def training_step(x, sink, keep):
    y = masked_softmax(x, scale=0.125, mask=keep, causal=True, sink=sink)
    return y, *torch.autograd.grad(y.float().square().sum(), (x, sink))


@pytest.fixture
def step():
    """A training step's arguments: scores, sinks, and a mask."""
    torch.manual_seed(0)
    x = torch.randn(2, 4, 128, 256, device="cuda", dtype=torch.bfloat16).requires_grad_()
    keep = torch.rand(2, 1, 1, 256, device="cuda") < 0.8
    return x, torch.randn(4, device="cuda").requires_grad_(), keep


def test_a_captured_step_replays_on_new_scores(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            training_step(*step)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = training_step(*step)
    for _ in range(3):
        with torch.no_grad():
            step[0].normal_()
            step[2].copy_(torch.rand(step[2].shape, device="cuda") < 0.8)
        graph.replay()
        for found, expected in zip(captured, training_step(*step), strict=True):
            assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))


def test_torch_compile_takes_it_whole(step):
    x, sink, keep = step
    v = torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16)

    def attention(x, sink, keep, v):
        return (masked_softmax(x + 1, scale=0.125, mask=keep, causal=True, sink=sink) @ v).float().square().sum()

    expected = torch.autograd.grad(attention(x, sink, keep, v), (x, sink))
    for options in ({}, {"dynamic": True}, {"mode": "reduce-overhead"}):
        torch._dynamo.reset()
        compiled = torch.compile(attention, fullgraph=True, **options)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            found = [gradient.clone() for gradient in torch.autograd.grad(compiled(x, sink, keep, v), (x, sink))]
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, 1e-2)


def test_autocast_is_that_of_torchs_softmax(step):
    x, sink, keep = step
    with torch.autocast("cuda", torch.bfloat16):
        y = masked_softmax(x, mask=keep, sink=sink)
        assert y.dtype is torch.softmax(x, -1).dtype is torch.float32
        assert masked_softmax(x, mask=keep, dtype=torch.bfloat16).dtype is torch.bfloat16
        torch._dynamo.reset()
        compiled = torch.compile(lambda x, keep, sink: masked_softmax(x, mask=keep, sink=sink), fullgraph=True)
        torch.testing.assert_close(compiled(x, keep, sink), y)
    torch.testing.assert_close(y.double(), plain(x, 1.0, keep, False, sink), rtol=1e-5, atol=1e-7)
    assert torch.autograd.grad(y.square().sum(), x)[0].dtype is torch.bfloat16


def test_operators_are_registered_whole(step):
    x, sink, keep = step
    small, bias = x.detach()[:, :, :9, :40].float().requires_grad_(), torch.randn(9, 40, device="cuda")
    for given in ((keep[..., :40], None, 0.3, False), (bias, sink, 0.3, True), (None, sink), (None, None, 2.0, True)):
        opcheck(scores._masked_softmax, (small, *given))
    y = torch.softmax(small.detach(), -1)
    for given in ((), (torch.rand(y.shape[:3], device="cuda"), 0.3, True)):
        opcheck(scores._masked_softmax_backward, (y, y, *given))


def test_training_keeps_the_result_only():
    x = torch.randn(1, 8, 1024, 1024, device="cuda", dtype=torch.bfloat16)
    keep = torch.rand(1, 1, 1024, 1024, device="cuda") < 0.8
    masked_softmax(x, mask=keep, causal=True)  # Triton compiles
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    leaf = x.detach().requires_grad_()
    y = masked_softmax(leaf, scale=0.5, mask=keep, causal=True)
    assert (torch.cuda.max_memory_allocated() - before) / x.nbytes < 1.1
    y.backward(torch.ones_like(y))
    assert (torch.cuda.max_memory_allocated() - before) / x.nbytes < 3.2  # y, dy and dx


def test_another_device_than_the_current_is_used():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    x = torch.randn(2, 3, 40, 65, device="cuda:1")
    y = masked_softmax(x, causal=True)
    assert y.device == x.device
    torch.testing.assert_close(
        y, torch.softmax(x.masked_fill(torch.ones(40, 65, dtype=torch.bool, device=x.device).triu(26), -math.inf), -1)
    )
