"""`invariant=True`: the functions call invariant kernels in both directions, or say why they cannot; so does `use`."""

import overridden
import pytest
import torch
from softbench.kernels.automatic import override

import softbench
from softbench.kernels import cross_entropy, log_softmax, logprob, masked_softmax, softmax

X, TARGET = torch.randn(3, 5), torch.tensor([0, 4, 2])

FUNCTIONS = """
import warnings
import torch
from torch.testing import assert_close
from torch.nn.functional import cross_entropy as loss_of
from softbench import kernels
from softbench.kernels.automatic import choice, losses, masked_softmax
from softbench.kernels.triton import invariant as by_triton
torch.manual_seed(0)
choice.invariant_kernels = lambda function, x: by_triton
masked_softmax._kernels = lambda *given: by_triton.masked_softmax if given[-1] is True else None
losses._has_kernels = lambda function, x: True
x, dy, target = torch.randn(3, 40, requires_grad=True), torch.randn(3, 40), torch.tensor([0, 39, 7])

def agrees(mine, its, dy):
    assert_close(mine, its)
    assert_close(torch.autograd.grad(mine, x, dy)[0], torch.autograd.grad(its, x, dy)[0])

for dim in (-1, 0):
    agrees(kernels.softmax(x, dim, invariant=True), torch.softmax(x, dim), dy)
agrees(kernels.log_softmax(x, invariant=True), torch.log_softmax(x, -1), dy)
for reduction in ("mean", "none"):
    mine = kernels.cross_entropy(x, target, reduction=reduction, label_smoothing=0.1, invariant=True)
    agrees(mine, loss_of(x, target, reduction=reduction, label_smoothing=0.1), torch.ones_like(mine))
agrees(kernels.logprob(x, target, invariant=True)[0], torch.log_softmax(x, -1)[range(3), target], torch.ones(3))
agrees(kernels.masked_softmax(x, scale=0.5, causal=True, invariant=True), kernels.masked_softmax(x, scale=0.5, causal=True), dy)
half, bias = x.detach().half(), 1000 + torch.randn(3, 40)  # the bias has digits that half precision lacks
assert_close(kernels.masked_softmax(half, mask=bias, invariant=True), kernels.masked_softmax(half, mask=bias), rtol=1e-3, atol=1e-6)
with warnings.catch_warnings(record=True):  # about the implicit dimension, which is the first
    assert_close(kernels.softmax(x[None], None, invariant=True), torch.nn.functional.softmax(x[None]))
assert kernels.cross_entropy(x[:0], target[:0], reduction="none", invariant=True).shape == (0,)
print("fine")
"""


def test_results_and_gradients_are_those_of_torch(run_interpreted):
    run_interpreted(FUNCTIONS)


@pytest.mark.parametrize(
    "call",
    [
        lambda: softmax(X, invariant=True),
        lambda: log_softmax(X, invariant=True),
        lambda: cross_entropy(X, TARGET, invariant=True),
        lambda: logprob(X, TARGET, invariant=True),
        lambda: masked_softmax(X, invariant=True),
    ],
)
def test_where_torch_alone_computes_the_reason_is_told(call):
    with pytest.raises(ValueError, match=r"^invariant=True of \w+: \w+( \w+)? (is|are) on cpu, and our kernels run on CUDA GPUs$"):
        call()


@pytest.mark.parametrize(
    ("given", "excluded"), [({"out": X}, "out"), ({"inplace_backward": True}, "lse, inplace_backward and process_group")]
)
def test_what_invariant_results_exclude_is_told(given, excluded):
    with pytest.raises(ValueError, match=f"invariant=True excludes {excluded}"):
        softmax(X, invariant=True, **given) if "out" in given else cross_entropy(X, TARGET, invariant=True, **given)


def test_torchs_functions_run_invariant_kernels_of_any_size(monkeypatch):
    with overridden.undone():
        calls, asked = overridden.on_the_cpu(monkeypatch, "filter"), []
        for one in override.OVERRIDES:
            monkeypatch.setattr(one, "launchers", lambda kernels, own=one.launchers: asked.append(kernels) or own(kernels))
        with softbench.use(invariant=True):
            for dim in (-1, 0):
                x = X.clone().requires_grad_()
                y = torch.softmax(x, dim)
                y.backward(X)
                torch.testing.assert_close(y, torch.softmax(X.double(), dim).float())
            with pytest.raises(RuntimeError, match="a block with invariant=True is active"), softbench.use():
                pass
    assert calls == ["_softmax", "_softmax_backward_data"] * 2
    assert {name.partition(".")[2] for name in asked} == {"invariant"}
    torch.softmax(X, -1)
    assert len(calls) == 4
