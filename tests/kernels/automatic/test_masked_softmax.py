"""`softbench.kernels.masked_softmax` on the CPU, where torch computes: gradients, masks, compilers, and errors."""

import itertools
import math

import pytest
import torch
from masked_softmaxes import plain
from sampled import sampled
from softbench.kernels.automatic import masked_softmax as scores
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

from softbench.kernels import masked_softmax

SHAPE = (2, 3, 4, 6)
KEEP = torch.rand(2, 1, 4, 6, generator=torch.Generator().manual_seed(3)) < 0.7
KEEP[..., 0] = True
BIAS = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(4))
MASKS = {"none": None, "boolean": KEEP, "additive": BIAS, "of keys": KEEP[:, :, :1], "scalar": torch.tensor(0.5)}
SETTINGS = list(itertools.product(MASKS, (False, True), (False, True)))
"""The mask, the causal order, and whether there is a sink."""


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(SHAPE, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def sink():
    return torch.tensor([0.5, -1.0, 3.0], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize(("name", "causal", "sinks"), SETTINGS)
def test_results_and_gradients_are_those_of_torch(x, sink, name, causal, sinks):
    given = {"scale": 0.3, "mask": MASKS[name], "causal": causal, "sink": sink if sinks else None}
    leaves = (x, sink) if sinks else (x,)
    found, expected = masked_softmax(x, **given), plain(x, **given)
    dy = torch.randn(SHAPE, dtype=torch.float64)
    assert found.dtype is torch.float64 and torch.allclose(found, expected, atol=1e-12)
    for one, other in zip(torch.autograd.grad(found, leaves, dy), torch.autograd.grad(expected, leaves, dy), strict=True):
        assert one.shape == other.shape and torch.allclose(one, other, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "causal", "sinks"),
    sampled(SETTINGS, lambda name, causal, sinks: (causal, sinks) == ([*MASKS].index(name) % 2 == 0, [*MASKS].index(name) // 2 == 0)),
)
def test_gradients_in_float64_are_those_of_finite_differences(x, sink, name, causal, sinks):
    given = {"scale": -1.7, "mask": MASKS[name], "causal": causal}
    leaves = (x, sink) if sinks else (x,)
    assert torch.autograd.gradcheck(lambda x, sink=None: masked_softmax(x, sink=sink, **given), leaves)


def test_rows_without_a_key_are_those_of_torch(x, sink):
    keep = KEEP.clone()
    keep[1, 0, 2] = False
    lowest = torch.zeros(4, 6).index_fill(0, torch.tensor([1]), -math.inf)
    for mask in (keep, lowest):
        found = masked_softmax(x, mask=mask)
        assert found.isnan().any()
        assert torch.allclose(found, plain(x, mask=mask), equal_nan=True)
        assert torch.equal(torch.autograd.grad(found, x, torch.ones_like(found))[0].isnan(), found.isnan())
        with_sink = masked_softmax(x, mask=mask, sink=sink)
        assert with_sink.isfinite().all() and torch.allclose(with_sink, plain(x, mask=mask, sink=sink))
        for gradient in torch.autograd.grad(with_sink.square().sum(), (x, sink)):
            assert gradient.isfinite().all()


def test_what_takes_no_part_is_not_read(x):
    spoiled = torch.where(KEEP, x.detach(), math.nan)
    assert torch.equal(masked_softmax(spoiled, mask=KEEP), masked_softmax(x.detach(), mask=KEEP))
    spoiled = x.detach().clone()
    spoiled[:, :, 0, 3:] = math.inf  # query 0 sees three of six keys
    assert torch.equal(masked_softmax(spoiled, causal=True), masked_softmax(x.detach(), causal=True))
    y = masked_softmax(x, causal=True)
    dy = torch.full(SHAPE, math.nan, dtype=torch.float64).triu(3) + 1  # NaN beyond what a query sees
    assert torch.equal(torch.autograd.grad(y, x, dy)[0].triu(3), torch.zeros(SHAPE, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_arithmetic_is_in_float32_and_results_have_the_dtype(x, sink, dtype):
    narrow, leaf = x.detach().to(dtype).requires_grad_(), sink.detach().float().requires_grad_()
    found = masked_softmax(narrow, scale=0.3, mask=BIAS, sink=leaf)
    expected = plain(narrow.double(), 0.3, BIAS, sink=leaf.double())
    assert found.dtype is dtype and torch.allclose(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
    dx, dsink = torch.autograd.grad(found.float().square().sum(), (narrow, leaf))
    assert dx.dtype is dtype and dsink.dtype is torch.float32
    numbers = torch.arange(144, dtype=torch.int32).view(SHAPE)
    assert torch.allclose(masked_softmax(numbers, dtype=dtype), torch.softmax(numbers, -1, dtype=dtype))
    wide = masked_softmax(narrow, mask=KEEP, dtype=torch.float32)
    assert wide.dtype is torch.float32 and torch.allclose(wide, torch.softmax(narrow.float().masked_fill(~KEEP, -math.inf), -1))


def test_a_bias_of_float64_is_not_rounded():
    x, bias = torch.zeros(1, 1, 1, 2), torch.tensor([0.0, 1e-9], dtype=torch.float64) + 100
    expected = torch.softmax(bias, -1).float()
    assert torch.equal(masked_softmax(x, mask=bias)[0, 0, 0], expected)


def test_strides_do_not_matter_and_results_are_contiguous(x, sink):
    there = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
    there.requires_grad_()
    for given in ({}, {"causal": True}, {"mask": KEEP.expand(SHAPE), "sink": sink}):
        y = masked_softmax(there, **given)
        assert y.is_contiguous() and torch.allclose(y, masked_softmax(x, **given))
        dx = torch.autograd.grad(y.sum(), there)[0]  # its gradient has strides of 0
        assert dx.shape == SHAPE and torch.allclose(dx, torch.zeros(SHAPE, dtype=torch.float64) if "sink" not in given else dx)
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 4, 0), (2, 2, 1, 1)):
        assert masked_softmax(torch.randn(shape), causal=True, sink=torch.zeros(shape[1])).shape == shape


def test_autocast_is_that_of_torchs_softmax(x):
    with torch.autocast("cpu", torch.bfloat16):
        narrow = x.detach().bfloat16()
        assert masked_softmax(narrow).dtype is torch.softmax(narrow, -1).dtype is torch.bfloat16
    torch.set_autocast_enabled("cuda", True)
    try:
        with FakeTensorMode():
            for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
                narrow = torch.empty(SHAPE, dtype=dtype, device="cuda:0")
                expected = torch.float64 if dtype is torch.float64 else torch.float32
                assert masked_softmax(narrow).dtype is expected
                assert masked_softmax(narrow, dtype=torch.bfloat16).dtype is torch.bfloat16
    finally:
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_torch_compile_takes_it_whole(x, sink, backend):
    def step(x, sink, mask, scale):
        weights = masked_softmax(2 * x, scale=scale, mask=mask, causal=True, sink=sink)
        return (weights @ x.transpose(2, 3)).square().sum()

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=True)
    for scale in (0.3, 0.7, 1.0):
        pair = (torch.autograd.grad(each(x, sink, KEEP, scale), (x, sink)) for each in (compiled, step))
        for one, other in zip(*pair, strict=True):
            assert torch.allclose(one, other)
    more = torch.randn(1, 3, 7, 9, dtype=torch.float64)
    assert torch.allclose(compiled(more, sink, None, 0.3), step(more, sink, None, 0.3))


@pytest.mark.parametrize("requires_grad", sampled([False, True], lambda requires_grad: requires_grad))
def test_operators_are_registered_whole(x, sink, requires_grad):
    dtypes = (torch.float64, torch.bfloat16)
    wide, narrow = ([tensor.detach().to(dtype).requires_grad_(requires_grad) for tensor in (x, sink)] for dtype in dtypes)
    opcheck(scores._masked_softmax, wide[:1])
    for logits, logit in (wide, narrow):
        opcheck(scores._masked_softmax, (logits, BIAS, logit, 0.3, True))
    opcheck(scores._masked_softmax, (narrow[0], KEEP, None, 0.3, False))
    opcheck(scores._masked_softmax, (wide[0], None, wide[1], 1.0, False))
    opcheck(scores._masked_softmax, (narrow[0], None, None, 2.0, True))
    share = torch.rand(SHAPE[:3])
    y = x.detach().float()
    for given in ((), (None, 0.3, True), (share, 0.3, True), (share,)):
        opcheck(scores._masked_softmax_backward, (y, y, *given))
    assert torch.equal(torch.ops.softbench.masked_softmax(y, KEEP)[0], masked_softmax(y, mask=KEEP))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"scores": torch.zeros(())}, ValueError, r"the scores are one number; they must be \(..., S, N\)"),
        ({"scores": torch.zeros(SHAPE, dtype=torch.int32)}, TypeError, "the scores are torch.int32"),
        ({"dtype": torch.int32}, TypeError, "the scores are torch.int32; they must be of a floating-point dtype"),
        ({"dtype": torch.complex64}, TypeError, "the scores are torch.complex64"),
        ({"mask": torch.zeros(6, dtype=torch.complex64)}, TypeError, "mask is torch.complex64 on cpu; give bools"),
        ({"mask": torch.zeros(6, device="meta")}, TypeError, "mask is torch.float32 on meta; give bools, .* on cpu"),
        ({"without_keys": "zeros"}, ValueError, "without_keys 'zeros': must be nan or zero"),
        ({"mask": KEEP[:, :, :3]}, ValueError, r"mask is \(2, 1, 3, 6\); it must broadcast to .* \(2, 3, 4, 6\)"),
        ({"mask": torch.zeros(1, 1, 1, 1, 6)}, ValueError, "it must broadcast"),
        ({"sink": torch.zeros(4)}, ValueError, r"sink is \(4,\); it must have a number for each of 3 heads"),
        ({"sink": torch.zeros(3, dtype=torch.int64)}, TypeError, "sink is torch.int64 on cpu"),
    ],
)
def test_wrong_arguments_are_named(given, error, said):
    with pytest.raises(error, match=said):
        masked_softmax(given.pop("scores", torch.zeros(SHAPE)), **given)


def test_kernels_get_what_a_call_has(monkeypatch):
    got = []

    class Kernels:
        def forward(self, x, **given):
            got.append(given)
            return x.clone(), None if given["sink"] is None else torch.ones(x.shape[:3])

        def backward(self, dy, y, share=None, **given):
            got.append({"share": share, **given})
            return dy.clone(), None if share is None else share * 2

    monkeypatch.setattr(scores, "_kernels", lambda *given: Kernels())
    x, sink = torch.zeros(SHAPE, requires_grad=True), torch.zeros(3, dtype=torch.float64, requires_grad=True)
    dx, dsink = torch.autograd.grad(masked_softmax(x, scale=0.3, mask=BIAS.bfloat16(), causal=True, sink=sink).sum(), (x, sink))
    forward, backward = got
    assert forward["mask"].dtype is torch.bfloat16 and forward["mask"].shape == BIAS.shape and forward["shares"]
    assert (forward["scale"], forward["causal"], backward["scale"], backward["causal"]) == (0.3, True, 0.3, True)
    assert torch.equal(backward["share"], torch.ones(SHAPE[:3]))
    assert torch.equal(dx, torch.ones(SHAPE)) and torch.equal(dsink, torch.full((3,), 16.0, dtype=torch.float64))
    got.clear()
    torch.autograd.grad(masked_softmax(x, mask=KEEP).sum(), x)
    assert got[0]["mask"].dtype is torch.bool and got[1]["share"] is None


def test_a_call_is_an_operators_unless_autograd_alone_looks_at_it(monkeypatch):
    seen = []
    for name in ("_masked_softmax", "_masked_softmax_backward"):
        operator = getattr(scores, name)
        monkeypatch.setattr(scores, name, lambda *given, name=name, operator=operator: seen.append(name) or operator(*given))
    x = torch.randn(SHAPE, requires_grad=True)

    def step(x, graph=False):
        return torch.autograd.grad(masked_softmax(x, causal=True).square().sum(), x, create_graph=graph)[0]

    expected = step(x)
    assert not seen
    with FlopCounterMode(display=False) as count:
        assert torch.equal(step(x), expected)
    assert seen == ["_masked_softmax", "_masked_softmax_backward"] and "softbench.masked_softmax" in str(count.get_flop_counts()["Global"])
    seen.clear()
    with torch.device("cpu"):  # a mode of torch functions
        masked_softmax(x)
    masked_softmax(x.as_subclass(type("Other", (torch.Tensor,), {})))
    assert torch.equal(step(x, graph=True), expected)
    assert seen == ["_masked_softmax"] * 2 + ["_masked_softmax_backward"]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.shape) or one, lambda one: one):
        step(x)
    assert kept[0] == SHAPE


INTERPRETED = """
import math, torch
from softbench.kernels.automatic import masked_softmax as scores
from softbench.kernels.automatic.choice import Choice
from softbench.kernels.automatic.masked_softmax import masked_softmax
from torch.library import opcheck
fallback = scores.choice
torch.manual_seed(0)
keep = torch.rand(2, 1, 5, 37) < 0.7
keep[1, 0, 2] = False
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
    for mask, causal, sinks in ((None, True, False), (keep, True, True), (torch.randn(3, 1, 37), False, False), (None, False, False)):
        x = torch.randn(2, 5, 3, 37).transpose(1, 2).to(dtype).requires_grad_()
        sink = torch.tensor([0.5, -9.0, 3.0], requires_grad=True) if sinks else None
        leaves = (x, sink) if sinks else (x,)
        dy = torch.randn(2, 3, 5, 37).to(dtype)
        found = []
        for scores.choice in (lambda *given: Choice("triton", ""), fallback):
            y = masked_softmax(x, scale=0.3, mask=mask, causal=causal, sink=sink)
            assert y.is_contiguous() and y.dtype is dtype
            found.append((y, *torch.autograd.grad(y, leaves, dy)))
        for one, other in zip(*found, strict=True):
            assert one.dtype is other.dtype and one.shape == other.shape
            assert torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True), (dtype, causal, sinks)
scores.choice = lambda *given: Choice("triton", "")
x = torch.randn(2, 3, 5, 37, requires_grad=True)
opcheck(scores._masked_softmax, (x, keep[:1], torch.zeros(3, requires_grad=True), 0.3, True))
opcheck(scores._masked_softmax_backward, (x.detach(), x.detach(), torch.rand(2, 3, 5), 0.3, True))
print("fine")
"""


def test_tritons_kernels_give_what_torch_gives(run_interpreted):
    run_interpreted(INTERPRETED)
