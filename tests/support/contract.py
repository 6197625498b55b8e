"""What tests hold the functions of `softbench.kernels` to: torch's OpInfo, and samples for functions that torch lacks."""

import math
import re
import warnings

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

from softbench import kernels

GENERATOR = torch.Generator().manual_seed(7)


def opinfo(name):
    """The first of torch's OpInfo of this name. Importing them takes seconds."""
    pytest.importorskip("expecttest", reason="torch's own tests import it")
    from torch.testing._internal.common_methods_invocations import op_db

    return next(info for info in op_db if info.name == name)


def tensor(*shape):
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


def logprob_of_torch(x, target, ignore_index=-100, temperature=1.0):
    y = torch.log_softmax(x / temperature, -1)
    ignored = target == ignore_index
    found = y.gather(-1, torch.where(ignored, 0, target)[..., None])[..., 0]
    return torch.where(ignored, 0.0, found), -(y.exp() * y).sum(-1)


def masked_softmax_of_torch(x, scale=1.0, mask=None, causal=False, sink=None, without_keys="nan"):
    z = x * scale
    if mask is not None:
        z = z + mask if mask.is_floating_point() else z.masked_fill(mask == 0, -math.inf)
    if causal:
        S, N = x.shape[-2:]
        z = z.masked_fill(torch.ones(S, N, dtype=torch.bool, device=x.device).triu(1 + max(0, N - S)), -math.inf)
    if sink is not None:
        z = torch.cat([z, sink[:, None, None].expand(*z.shape[:-1], 1)], -1)
    if without_keys == "zero":
        empty = z.isneginf().all(-1, keepdim=True)
        return torch.softmax(z.masked_fill(empty, 0.0), -1).masked_fill(empty, 0.0)
    return torch.softmax(z, -1)[..., : x.shape[-1]]


def with_options_of_torch(x, target, z_loss=0.0, softcap=None, logit_scale=1.0, weight=None, lse=None, **given):
    z = x * logit_scale
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    counts = (target != -100) & (target >= 0)
    loss = torch.nn.functional.cross_entropy(z, target, weight, **given)
    own = torch.logsumexp(z, 1)
    more = z_loss * own.square() if lse is None else z_loss * lse.square() + lse - own
    more = torch.where(counts, more, 0.0)
    reduction = given.get("reduction", "mean")
    return loss + (more if reduction == "none" else more.sum() if reduction == "sum" else more.sum() / counts.sum())


TARGET = torch.tensor([1, -100, 4])
SEEN = torch.tensor([[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 0, 0]])
NOTHING_SEEN = SEEN * torch.tensor([[1], [0], [1]])
CASES = {
    "softmax": (kernels.softmax, torch.softmax, [(tensor(3, 5), (-1,), {}), (tensor(2, 3, 2), (1,), {}), (tensor(4), (0,), {})]),
    "log_softmax": (kernels.log_softmax, torch.log_softmax, [(tensor(3, 5), (-1,), {}), (tensor(2, 3), (0,), {})]),
    "cross_entropy": (
        kernels.cross_entropy,
        with_options_of_torch,
        [
            (tensor(3, 5), (TARGET,), {}),
            (tensor(3, 5), (TARGET,), {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0, "logit_scale": 0.5}),
            (tensor(3, 5), (TARGET,), {"weight": tensor(5).abs(), "reduction": "sum"}),
            (tensor(3, 5), (TARGET,), {"weight": tensor(5).abs(), "label_smoothing": 0.2, "z_loss": 0.1}),
            (tensor(3, 5, 2), (torch.tensor([[1, 0], [2, 4], [3, -100]]),), {"reduction": "none", "logit_scale": 2.0}),
        ],
    ),
    "logprob": (
        kernels.logprob,
        logprob_of_torch,
        [(tensor(3, 5), (TARGET,), {"temperature": 0.7}), (tensor(2, 3, 4), (torch.tensor([[1, 0, 3], [2, 2, 1]]),), {"ignore_index": 2})],
    ),
    "masked_softmax": (
        kernels.masked_softmax,
        masked_softmax_of_torch,
        [
            (tensor(2, 2, 3, 4), (), {"scale": 0.3, "mask": SEEN, "causal": True}),
            (tensor(2, 3, 4), (), {"mask": tensor(1, 3, 4).requires_grad_(), "sink": tensor(2).requires_grad_()}),
            (tensor(2, 1, 2, 3, 4), (), {"mask": tensor(2, 1, 1, 1, 4).requires_grad_(), "causal": True}),
            (tensor(3, 4), (), {"mask": NOTHING_SEEN, "without_keys": "zero"}),
            (tensor(3, 4), (), {"mask": torch.where(NOTHING_SEEN == 0, -math.inf, 0.5), "without_keys": "zero"}),
        ],
    ),
}
"""For each function: ours, one of torch's operators, and samples of input, arguments and keywords."""
EACH = pytest.mark.parametrize(("name", "number"), [(name, number) for name in CASES for number in range(len(CASES[name][2]))])


def of_leaves(function, sample, device="cpu", dtype=torch.float64):
    """The function of what in a sample is differentiable, and that."""
    x, args, given = sample
    move = lambda one: one.to(device) if isinstance(one, torch.Tensor) and not one.is_floating_point() else one  # noqa: E731
    every = tree_map(move, (x.detach().requires_grad_(), args, given))
    where = [one for one in tree_leaves(every) if isinstance(one, torch.Tensor) and one.is_floating_point()]
    leaves = [one.detach().to(device, dtype).requires_grad_(one.requires_grad) for one in where]

    def call(*inputs):
        found = dict(zip(map(id, where), inputs, strict=True))
        first, more, named = tree_map(lambda one: found.get(id(one), one), every)
        return function(first, *more, **named)

    return call, leaves


def check_results(name, number, device="cpu", dtype=torch.float64):
    """Results, gradients and gradients of those, as torch's operators have them."""
    ours, theirs, samples = CASES[name]
    found = []
    for function in (ours, theirs):
        call, leaves = of_leaves(function, samples[number], device, dtype)
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        results = _tuple(call(*leaves))
        first = torch.autograd.grad(results, wanted, [_weights(one) for one in results], create_graph=True)
        second = torch.autograd.grad(first, wanted, [_weights(one) for one in first])
        found.append([*results, *first, *second])
    tolerance = {} if dtype is torch.float64 else {"atol": 1e-3, "rtol": 1e-3, "check_dtype": False}
    assert_close(*found, equal_nan=True, **tolerance)


def _weights(x):
    return torch.linspace(0.5, 1.5, x.numel(), device=x.device, dtype=x.dtype).view(x.shape)


def check_gradients(name, number):
    """Second gradients, forward mode, and forward mode over gradients, by finite differences."""
    ours, _, samples = CASES[name]
    call, leaves = of_leaves(ours, samples[number])
    assert gradgradcheck(call, leaves, check_undefined_grad=False)
    every = {"check_forward_ad": True, "check_batched_forward_grad": True, "check_batched_grad": True}
    assert gradcheck(call, leaves, check_undefined_grad=False, **every)
    assert gradgradcheck(call, leaves, check_undefined_grad=False, check_fwd_over_rev=True, check_rev_over_rev=False)


def check_transforms(name, number, device="cpu", dtype=torch.float64):
    """vmap without a warning, gradients of torch.func and their tangents, as torch's operators have them."""
    ours, theirs, samples = CASES[name]
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # that of vmap
        for function in (ours, theirs):
            call, leaves = of_leaves(function, samples[number], device, dtype)
            inputs = [leaf.detach() for leaf in leaves]
            total = lambda *given, call=call: sum(one.square().sum() for one in _tuple(call(*given)))  # noqa: E731
            batches = [torch.stack([one, 2 * one]) for one in inputs]
            axes = tuple(0 if leaf.requires_grad else None for leaf in leaves)
            batches = [batch if axis == 0 else one for batch, axis, one in zip(batches, axes, inputs, strict=True)]
            gradient = torch.func.grad(total)
            tangents = torch.func.jvp(gradient, tuple(inputs), tuple(map(torch.ones_like, inputs)))
            found.append((*tangents, torch.vmap(call, axes)(*batches), torch.vmap(gradient, axes)(*batches)))
    assert_close(*found, equal_nan=True, atol=1e-5, rtol=1e-4)


def check_opinfo(name, device):
    """Every sample and error input of torch's OpInfo; in float64 also second gradients, forward mode and vmap of both."""
    info = opinfo(name if name != "cross_entropy" else "nn.functional.cross_entropy")
    ours = CASES[name][0]
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        narrow, u = dtype.itemsize == 2 and device != "cpu", torch.finfo(dtype).eps
        near = {"rtol": 8 * u, "atol": 8 * u, "check_dtype": False} if narrow else {}  # torch's kernels round what ours keep in float32
        for sample in info.sample_inputs(device, dtype, requires_grad=True):
            given = sample.input, sample.args, sample.kwargs
            found = []
            for function, every in ((ours, given), (info.op, tree_map(_wide, given) if narrow else given)):
                result = function(every[0], *every[1], **every[2])
                inputs = [one for one in tree_leaves(every) if isinstance(one, torch.Tensor) and one.requires_grad]
                found.append([result, *torch.autograd.grad(result, inputs, torch.ones_like(result))])
            assert_close(*found, equal_nan=True, **near)
            assert {one.dtype for one in found[0]} == {dtype}
            if dtype is torch.float64:
                call, leaves = of_leaves(ours, given, device)
                fast = {"fast_mode": True, "check_undefined_grad": False, "nondet_tol": 1e-10}
                batched = {"check_batched_grad": True, "check_batched_forward_grad": True}
                assert gradcheck(call, leaves, check_forward_ad=True, **fast, **batched)
                assert gradgradcheck(call, leaves, check_fwd_over_rev=True, **fast)
    if info.error_inputs_func is not None:
        for wrong in info.error_inputs(device):
            sample = wrong.sample_input
            with pytest.raises(wrong.error_type) as raised:
                ours(sample.input, *sample.args, **sample.kwargs)
            assert re.search(wrong.error_regex, str(raised.value))


def check_other_results(device, dtype):
    """lse, z-loss, accuracy and predictions beside the loss of cross entropy."""
    x, target = tensor(3, 5).to(device, dtype), torch.tensor([0, -100, 4], device=device)
    near = {"check_dtype": False} if dtype is torch.float64 else {"atol": 1e-5, "rtol": 1e-5}
    for reduction in ("none", "mean"):
        loss, lse, z_loss, accuracy, predictions = kernels.cross_entropy(
            x, target, reduction=reduction, z_loss=0.1, return_lse=True, return_z_loss=True, return_accuracy=True, return_predictions=True
        )
        assert_close(lse, torch.logsumexp(x, 1), **near)
        assert torch.equal(predictions, x.argmax(1))
        of_rows = torch.where(target == -100, 0.0, 0.1 * lse.square())
        right = ((predictions == target) & (target != -100)).float()
        assert_close(z_loss, of_rows if reduction == "none" else of_rows.sum() / 2, **near)
        assert_close(accuracy, right if reduction == "none" else right.sum() / 2)
        assert_close(loss, torch.nn.functional.cross_entropy(x, target, reduction=reduction) + z_loss, **near)


def check_given_lse(device, dtype):
    """Two parts of the vocabulary, with the lse of both, have the loss and the gradient of the whole."""
    x, target = tensor(3, 5).to(device, dtype).requires_grad_(), torch.tensor([0, 1, 1], device=device)
    near = {} if dtype is torch.float64 else {"atol": 1e-5, "rtol": 1e-5}
    whole = torch.nn.functional.cross_entropy(x, target, reduction="sum")
    _, *each = zip(*(kernels.cross_entropy(part, target, return_lse=True, reduction="none") for part in (x[:, :2], x[:, 2:])), strict=True)
    lse = torch.logaddexp(*each[0])
    first = kernels.cross_entropy(x[:, :2], target, lse=lse, reduction="sum")
    second = kernels.cross_entropy(x[:, 2:], torch.full_like(target, 0), lse=lse, reduction="sum")  # no row's target is there
    assert_close(first, whole, **near)
    (of_first,), (of_second,), (of_whole,) = (torch.autograd.grad(one, x) for one in (first, second, whole))
    assert_close(of_first[:, :2], of_whole[:, :2], **near)
    assert_close(of_second[:, 3:], of_whole[:, 3:], **near)


def _wide(one):
    if not isinstance(one, torch.Tensor) or not one.is_floating_point():
        return one
    return one.detach().double().requires_grad_(one.requires_grad)


def _tuple(results):
    return results if isinstance(results, tuple) else (results,)
