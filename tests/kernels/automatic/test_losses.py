"""`softbench.kernels.cross_entropy` and `logprob` on the CPU, where torch computes: gradients, options, compilers and errors."""

import itertools
import math

import pytest
import torch
from sampled import sampled
from softbench.kernels.automatic import loss_operators as operators, losses
from torch.library import opcheck
from torch.nn import functional

from softbench import kernels
from softbench.kernels import cross_entropy, logprob

OPTIONS = [{}, {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0}]
CPU = torch.device("cpu")


@pytest.fixture
def logits():
    torch.manual_seed(0)
    return torch.randn(2, 3, 11, dtype=torch.float64, requires_grad=True)


TARGET = torch.tensor([[0, -100, 10], [3, 3, 7]])
COUNTED = TARGET.clamp(min=0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_in_float64_are_those_of_finite_differences(logits, options):
    for reduction in losses.REDUCTIONS:
        assert torch.autograd.gradcheck(lambda x, how=reduction: cross_entropy(x, TARGET, reduction=how, dim=-1, **options), (logits,))
    assert torch.autograd.gradcheck(lambda x: logprob(x, COUNTED), (logits,))


@pytest.mark.parametrize("reduction", losses.REDUCTIONS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(logits, reduction, smoothing):
    given = {"reduction": reduction, "label_smoothing": smoothing}
    x = logits.detach().float().requires_grad_()
    got = cross_entropy(x, TARGET, dim=-1, **given)
    expected = functional.cross_entropy(x.flatten(0, 1), TARGET.flatten(), **given)
    assert torch.allclose(got.flatten(), expected.flatten(), atol=1e-6)
    pair = [torch.autograd.grad(loss.sum(), x)[0] for loss in (got, expected)]
    assert torch.allclose(*pair, atol=1e-6)


@pytest.mark.parametrize(("shape", "dim"), [((2, 5, 3, 4), 1), ((5, 7), 0)])
def test_classes_in_another_dimension_take_the_operators(shape, dim, monkeypatch):
    monkeypatch.setattr(losses, "LEAST_OVER_COLUMNS", 0)
    monkeypatch.setattr(losses, "_has_kernels", lambda *given: True)
    called, operator = [], losses._cross_entropy
    monkeypatch.setattr(losses, "_cross_entropy", lambda x, *given: called.append(x.dim()) or operator(x, *given))
    x = torch.randn(shape, requires_grad=True)
    target = torch.randint(5, [size for axis, size in enumerate(shape) if axis != dim])
    target.view(-1)[::3] = -100
    for given in ({}, {"reduction": "none"}, {"reduction": "sum", "weight": torch.rand(5)}):
        ours, theirs = cross_entropy(x, target, dim=dim, **given), functional.cross_entropy(x.movedim(dim, 1), target, **given)
        assert torch.allclose(ours, theirs, atol=1e-6) and ours.shape == theirs.shape
        ours, theirs = (torch.autograd.grad(loss.sum(), x, create_graph=True)[0] for loss in (ours, theirs))
        assert torch.allclose(ours, theirs, atol=1e-6)
        twice = [torch.autograd.grad((one * target.sum()).square().sum(), x)[0] for one in (ours, theirs)]
        assert torch.allclose(*twice, rtol=1e-4, atol=1e-2)
    assert called == [3, 3, 3]
    assert cross_entropy(x, target, dim=dim, return_lse=True)[1].shape == target.shape


def test_means_of_no_rows_are_nan_as_torchs():
    assert cross_entropy(torch.randn(2, 5), torch.tensor([-100, -100])).isnan()
    assert cross_entropy(torch.randn(0, 5), torch.zeros(0, dtype=torch.int64)).isnan()
    assert logprob(torch.randn(0, 0), torch.zeros(0, dtype=torch.int64))[0].shape == (0,)


def test_logprob_and_entropy_are_those_of_a_categorical(logits):
    found, entropy = logprob(logits, COUNTED)
    expected = torch.distributions.Categorical(logits=logits)
    assert torch.allclose(found, expected.log_prob(COUNTED)) and torch.allclose(entropy, expected.entropy())


def test_losses_of_16_bits_have_the_dtype_that_torchs_have_or_another(logits):
    x = logits.detach().bfloat16().requires_grad_()
    assert cross_entropy(x, TARGET, dim=-1).dtype is cross_entropy(x, TARGET, dim=-1, z_loss=0.1).dtype is torch.bfloat16
    loss = cross_entropy(x, TARGET, dim=-1, dtype=torch.float32)
    assert loss.dtype is torch.float32 and torch.autograd.grad(loss, x)[0].dtype is torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        wide = torch.randn(4, 8) @ torch.randn(8, 11)
        classes = torch.tensor([1, 2, 3, 4])
        ours, theirs = cross_entropy(wide, classes), functional.cross_entropy(wide, classes)
        assert cross_entropy(wide, classes, softcap=9.0).dtype is torch.float32
    assert wide.dtype is torch.bfloat16 and ours.dtype is theirs.dtype is torch.float32 and torch.allclose(ours, theirs)


def test_torch_compile_takes_both_whole(logits):
    def step(x):
        found, entropy = logprob(x, COUNTED)
        return cross_entropy(x, TARGET, dim=-1) + found.sum() + entropy.sum()

    (expected,) = torch.autograd.grad(step(logits), logits)
    torch._dynamo.reset()
    (got,) = torch.autograd.grad(torch.compile(step, fullgraph=True, backend="aot_eager")(logits), logits)
    assert torch.allclose(got, expected)


@pytest.mark.parametrize("requires_grad", sampled([False, True], lambda requires_grad: requires_grad))
def test_operators_are_registered_whole(logits, requires_grad):
    x = logits.detach().float().view(-1, 11).requires_grad_(requires_grad)
    for reduction in operators.REDUCTIONS.values():
        opcheck(operators._cross_entropy, (x, TARGET.view(-1), -100, 0.1, 0.01, 3.0, reduction, 0.5))
    opcheck(operators._cross_entropy, (torch.randn(2, 11, 3, requires_grad=requires_grad), TARGET.view(-1), -100, 0.1, 0.01, 3.0, 1, 0.5))
    opcheck(operators._logprob, (x, TARGET.view(-1), -100, 0.5))
    rows, statistics = torch.rand(6), torch.rand(6, 2)
    opcheck(operators._cross_entropy_backward, (x.detach(), TARGET.view(-1), statistics, rows, rows[:1], -100, 0.1, 0.01, 3.0, 1, 0.5))
    opcheck(operators._logprob_backward, (x.detach(), COUNTED.view(-1), statistics, rows, rows, rows))


def test_training_steps_are_those_with_torchs_loss():
    def trained(loss):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(17, 8), torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 17))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        tokens = torch.randint(17, (4, 9))
        tokens[0, -1] = -100
        for _ in range(5):
            optimizer.zero_grad()
            logits = model(tokens[:, :-1])
            loss(logits, tokens[:, 1:]).backward()
            optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    ours = trained(lambda x, target: cross_entropy(x, target, dim=-1))
    assert torch.allclose(ours, trained(lambda x, target: functional.cross_entropy(x.flatten(0, 1), target.flatten())), atol=1e-6)


def test_targets_out_of_range_raise_as_torch_does():
    x, target = torch.randn(2, 5), torch.tensor([0, 5])
    with pytest.raises(IndexError, match="Target 5 is out of bounds"):
        cross_entropy(x, target)
    with pytest.raises(RuntimeError, match="out of bounds"):
        logprob(x, target)


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda x, t: cross_entropy(x, t, reduction="max"), ValueError, "max is not a valid value for reduction"),
        (lambda x, t: cross_entropy(x, t, reduction=[]), ValueError, "not a valid value for reduction"),
        (
            lambda x, t: cross_entropy(x, t.to("meta")),
            RuntimeError,
            "on the same device, but the logits are on cpu and the target is on meta",
        ),
        (lambda x, t: cross_entropy(x, t, label_smoothing=1.5), RuntimeError, "label_smoothing must be between 0.0 and 1.0"),
        (lambda x, t: cross_entropy(x, t[:1]), ValueError, r"Expected input batch_size \(2\) to match target batch_size \(1\)"),
        (lambda x, t: cross_entropy([1.0], t), TypeError, "must be Tensor, not list"),
        (lambda x, t: cross_entropy(x, t, ignore_index="no"), TypeError, "must be int, not str"),
        (lambda x, t: cross_entropy(x, t, logit_scale=0.0), ValueError, "logit_scale 0.0: must be finite and positive"),
        (lambda x, t: cross_entropy(x, t, softcap="no"), TypeError, "softcap 'no': must be a number"),
        (lambda x, t: cross_entropy(x, t, lse=t), ValueError, r"lse is \(2,\) torch.int64 on cpu; it must be \(2,\) float32"),
        (lambda x, t: logprob(x, t, temperature=-1.0), ValueError, "temperature -1.0: must be finite and positive"),
        (lambda x, t: logprob(x, t.int()), TypeError, "it must be int64"),
    ],
)
def test_wrong_arguments_are_named(call, error, said):
    with pytest.raises(error, match=said):
        call(torch.randn(2, 5), torch.tensor([0, 1]))


def test_infinities_are_those_of_torch():
    x = torch.tensor([[0.0, -math.inf, 1.0], [-math.inf, 2.0, -math.inf]], requires_grad=True)
    target = torch.tensor([1, 1])
    loss = cross_entropy(x, target, reduction="none")
    assert loss[0] == math.inf and loss[1] == 0
    _, entropy = logprob(x, target)
    assert torch.isfinite(entropy).all() and entropy[1] == 0


def test_functions_may_replace_those_of_torch(monkeypatch, logits):
    x, target = logits.detach()[0], TARGET[0]
    expected = functional.cross_entropy(x, target), torch.softmax(x, -1), torch.log_softmax(x, -1)
    for where, name in itertools.product((torch, functional), ("cross_entropy", "softmax", "log_softmax")):
        monkeypatch.setattr(where, name, getattr(kernels, name), raising=False)
    found = functional.cross_entropy(x, target), torch.softmax(x, -1), torch.log_softmax(x, -1)
    logprob(x, target.clamp(min=0))
    kernels.masked_softmax(x[None, None], causal=True)
    assert all(map(torch.allclose, found, expected))
