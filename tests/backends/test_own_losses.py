"""The functions of a module of losses as passes of a backend."""

import sys
from types import ModuleType

import pytest
import torch

from softbench.backends import losses, own_kernels, own_losses
from softbench.core.case import Case, Direction
from softbench.ops.registry import operation


def module_of(calls):
    module = ModuleType("softbench.kernels.losses_of_a_test")
    for name, call in calls.items():
        setattr(module, name, call)
    return module


@pytest.fixture
def backend(monkeypatch):
    """A backend whose losses are those of `naive`, with lse behind the results of logprob's forward."""

    class Own(own_kernels.Kernels):
        name, losses = "own", "losses_of_a_test"
        operations = own_losses.OPERATIONS

    def cross_entropy(direction):
        def call(*tensors, **options):
            given = ",".join(f"{name}={value}" for name, value in options.items())
            case = Case(*tensors[0].shape, "fp32", direction, "cpu", f"cross_entropy({given})")
            return losses.naive_cross_entropy(case)(*tensors)

        return call

    def logprob_forward(x, target):
        return *losses.naive_logprob(Case(*x.shape, "fp32", Direction.FORWARD, "cpu", "logprob"))(x, target), torch.logsumexp(x, 1)

    calls = {f"cross_entropy_{direction.value}": cross_entropy(direction) for direction in operation("cross_entropy").directions}
    monkeypatch.setitem(sys.modules, "softbench.kernels.losses_of_a_test", module_of(calls | {"logprob_forward": logprob_forward}))
    return Own()


@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy(label_smoothing=0.1,z_loss=0.01)"])
def test_a_pass_gets_tensors_and_all_parameters(backend, op):
    torch.manual_seed(0)
    x, target = torch.randn(4, 9), torch.tensor([0, 8, -100, 3])
    for direction in (Direction.FORWARD, Direction.FUSED):
        case = Case(4, 9, "fp32", direction, "cpu", op)
        got, expected = backend.prepare(case)(x, target), losses.naive_cross_entropy(case)(x, target)
        assert len(got) == 2 and all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


def test_results_beyond_the_pass_are_left_out(backend):
    x, target = torch.randn(4, 9), torch.tensor([0, 8, 1, 3])
    assert len(backend.prepare(Case(4, 9, "fp32", Direction.FORWARD, "cpu", "logprob"))(x, target)) == 2
