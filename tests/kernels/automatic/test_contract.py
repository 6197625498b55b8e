"""The functions of `softbench.kernels` behave as torch's: results, gradients, forward mode, torch.func, modules."""

import contract
import pytest
import torch
from contract import TARGET, tensor
from softbench.kernels.automatic import loss_operators as operators, losses, masked_softmax as scores, softmax as rows
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from softbench import kernels


@contract.EACH
def test_results_and_gradients_are_those_of_torchs_operators(name, number):
    contract.check_results(name, number, "cpu", torch.float64)


@pytest.mark.slow
@contract.EACH
def test_gradients_of_all_samples_have_gradients_and_tangents(name, number):
    contract.check_gradients(name, number)


@contract.EACH
def test_transforms_are_those_of_torchs_operators_without_warnings(name, number):
    contract.check_transforms(name, number)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "cross_entropy"])
def test_samples_and_errors_of_torchs_opinfo(name):
    contract.check_opinfo(name, "cpu")


ROWS = tensor(3, 5)
OPERATORS = {
    "cross_entropy": (lambda x: operators._cross_entropy(x, TARGET, -100, 0.1, 0.01, 3.0, 1, 0.5)[0]),
    "logprob": (lambda x: operators._logprob(x, TARGET, -100, 0.5)[:2]),
    "masked_softmax": (lambda x: scores._masked_softmax(x[None, None], None, x[:1, 0], 0.5, True)[0]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_have_second_gradients_vmap_and_flops(name):
    """What our kernels run through. On the CPU torch computes it."""
    call, x = OPERATORS[name], ROWS.clone().requires_grad_()
    assert torch.autograd.gradgradcheck(call, x, check_undefined_grad=False, fast_mode=True)
    assert torch.autograd.gradcheck(call, x, check_batched_grad=True, fast_mode=True)
    batch = torch.stack([ROWS, -ROWS])
    assert_close(torch.vmap(call)(batch), torch.utils._pytree.tree_map(lambda *each: torch.stack(each), *(call(one) for one in batch)))
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(call(x), torch.utils._pytree.tree_map(torch.ones_like, call(x)))
    assert counter.get_total_flops() > 0


def test_other_results_of_cross_entropy():
    contract.check_other_results("cpu", torch.float64)


def test_a_given_lse_may_count_classes_elsewhere():
    contract.check_given_lse("cpu", torch.float64)


class OnTheCpu:
    """Stands for our kernels: it records whether the gradient went over the logits."""

    def __init__(self):
        self.over = []

    def cross_entropy_statistics(self, x, target, *, logit_scale, ignore_index, **options):
        return operators._formula_of_loss(x, target, ignore_index, *options.values(), operators.NONE, logit_scale)[:2]

    def cross_entropy_backward(self, x, target, statistics, dloss, *, logit_scale, ignore_index, classes=0, out=None, **options):
        self.over.append(out is not None)
        given = ignore_index, *options.values(), operators.NONE, logit_scale, classes
        dx = operators._gradient_of_loss(x, target, statistics, dloss, dloss[:0], *given)
        return dx if out is None else out.copy_(dx)


@pytest.fixture
def chosen(monkeypatch):
    """Our kernels, on the CPU."""
    made = OnTheCpu()
    for module in (losses, operators):
        monkeypatch.setattr(module, "_kernels", lambda *given: made)
    monkeypatch.setattr(losses, "_has_kernels", lambda *given: True)
    return made


@pytest.mark.parametrize("number", range(len(contract.CASES["cross_entropy"][2])))
def test_calls_of_our_kernels_are_those_of_torchs_operators(chosen, number):
    contract.check_results("cross_entropy", number, "cpu", torch.float32)


def test_a_gradient_may_overwrite_the_logits(chosen):
    x = ROWS.float().requires_grad_()
    logits = x * 1.0
    loss = kernels.cross_entropy(logits, TARGET, inplace_backward=True, z_loss=0.1, weight=torch.arange(5.0) + 1, label_smoothing=0.0)
    assert not chosen.over and loss.requires_grad  # a weight with a z-loss is torch's
    logits = x * 1.0
    expected = torch.autograd.grad(functional.cross_entropy(x, TARGET), x)[0]
    loss = kernels.cross_entropy(logits, TARGET, inplace_backward=True)
    loss.backward(retain_graph=True)
    assert chosen.over == [True]
    assert_close(x.grad, expected)
    assert_close(logits.detach(), expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_weight_that_is_no_tensor_is_a_type_error(chosen):
    with pytest.raises(TypeError, match="weight"):
        kernels.cross_entropy(ROWS.float(), TARGET, [1.0])


def test_logits_whose_rows_share_memory_are_not_overwritten(chosen):
    """Nor are rows without adjacent elements, which the kernels copy."""
    for x in (ROWS.float()[:1].expand(3, 5), ROWS.float().t().contiguous().t()):
        logits = x.detach().requires_grad_()
        kernels.cross_entropy(logits, TARGET, inplace_backward=True).backward()
        given = x.clone().requires_grad_()
        functional.cross_entropy(given, TARGET).backward()
        assert_close(logits.grad, given.grad)
    assert chosen.over == [False, False]


def test_logits_of_classes_in_any_dimension_are_read_in_place(chosen):
    x, target = torch.randn(2, 7, 5), torch.randint(5, (2, 7))
    expected = functional.cross_entropy(x.transpose(1, 2), target)
    for found in (kernels.cross_entropy(x.transpose(1, 2), target), kernels.cross_entropy(x, target, dim=-1)):
        assert_close(found, expected)
    assert losses._rows_for_kernels(x.transpose(1, 2), target, None, 1, (-100, 0.0, 0.0, 0.0))[0].data_ptr() == x.data_ptr()
    assert losses._rows_for_kernels(x.transpose(1, 2).contiguous(), target, None, 1, (-100, 0.0, 0.0, 0.0)) is None


def test_modules_are_torchs_with_our_functions():
    x, target = torch.randn(3, 5), torch.tensor([0, -100, 4])
    weight = torch.rand(5)
    assert_close(kernels.Softmax(dim=0)(x), torch.nn.Softmax(dim=0)(x))
    assert_close(kernels.LogSoftmax(dim=-1)(x), torch.nn.LogSoftmax(dim=-1)(x))
    given = {"weight": weight, "label_smoothing": 0.1, "reduction": "sum"}
    loss = kernels.CrossEntropyLoss(**given)
    assert_close(loss(x, target), torch.nn.CrossEntropyLoss(**given)(x, target))
    assert "weight" in loss.state_dict()
    assert_close(kernels.CrossEntropyLoss(z_loss=0.1)(x, target), kernels.cross_entropy(x, target, z_loss=0.1))
    assert repr(kernels.CrossEntropyLoss(reduction="sum", z_loss=0.1)) == "CrossEntropyLoss(reduction='sum', z_loss=0.1)"
    with pytest.raises(TypeError, match="'zloss'"):
        kernels.CrossEntropyLoss(zloss=0.1)


def test_arguments_of_torchs_functions_are_taken():
    x = torch.randn(3, 5)
    out = torch.empty(0)
    assert kernels.softmax(input=x, dim=1, out=out) is out and torch.equal(out, torch.softmax(x, 1))
    with pytest.warns(UserWarning, match="Implicit dimension choice"):
        assert torch.equal(kernels.log_softmax(x, None), torch.log_softmax(x, 1))
    assert torch.equal(kernels.softmax(x, 1, _stacklevel=5), torch.softmax(x, 1))
    for wrong in ((x, 1, 5), ([1.0], 0), (x, "1")):
        with pytest.raises(TypeError, match="softmax"):
            kernels.softmax(*wrong)
    target = torch.tensor([0, 1, 2])
    for call, part in (
        (lambda: kernels.cross_entropy(x, target, dtype=torch.int64), "dtype torch.int64"),
        (lambda: kernels.cross_entropy(x, target, lse=3), "lse is a int"),
        (lambda: kernels.logprob(x, [0]), "target is a list"),
        (lambda: kernels.masked_softmax(None), "scores is a NoneType"),
        (lambda: kernels.masked_softmax(x, mask=[1]), "mask is a list"),
        (lambda: kernels.masked_softmax(x, scale="1"), "scale is '1'"),
        (lambda: kernels.masked_softmax(x, scale=torch.ones(2)), "scale is a tensor"),
    ):
        with pytest.raises(TypeError, match=part):
            call()
    assert kernels.cross_entropy(x, target, None, False) == functional.cross_entropy(x, target, reduction="sum")


def test_softmax_of_nested_tensors_is_torchs(monkeypatch):
    monkeypatch.setattr(rows._SOFTMAX, "call", lambda *given: pytest.fail("our kernels take no nested tensors"))
    nested = torch.nested.as_nested_tensor([ROWS, ROWS[:2]], layout=torch.jagged)
    assert torch.equal(kernels.softmax(nested).values(), torch.softmax(nested, -1).values())


def test_tensors_of_inference_mode_are_taken():
    with torch.inference_mode():
        x, target = torch.randn(1, 1, 3, 5), torch.tensor([0, 1, 2])
        found = [kernels.softmax(x), kernels.log_softmax(x), kernels.masked_softmax(x, causal=True)]
        found += [kernels.cross_entropy(x[0, 0], target), *kernels.logprob(x[0, 0], target)]
        assert all(one.is_inference() for one in found)
    rows, target = x[0, 0], torch.tensor([0, 1, 2])
    assert_close(kernels.cross_entropy(rows, target), -kernels.logprob(rows, target)[0].mean())
    assert_close(kernels.softmax(x), kernels.masked_softmax(x))
