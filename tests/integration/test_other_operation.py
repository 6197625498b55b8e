"""The worker's checks on an operation that is not softmax: integer inputs, a weight that all rows share, an output of one value per row."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops import registry
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.plugins.traits import unsupported
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import RotatingInputs

PICK = Operation(
    name="pick",
    tensors={
        "x": TensorSpec(("M", "N")),
        "target": TensorSpec(("M",), "int64"),
        "weight": TensorSpec(("N",), "fp32"),
        "value": TensorSpec(("M",), "fp32"),
    },
    passes={Direction.FORWARD: Pass(inputs=("x", "target", "weight"), outputs=("value",), reads=("x", "target", "weight"))},
)
CASE = Case(64, 32, "bf16", Direction.FORWARD, "cpu", "pick")


def pick(x, target, weight):
    """weight[t] x[t] minus the maximum of weight x, for the target t of each row."""
    wide = x.to(weight.dtype) * weight
    return wide.gather(1, target[:, None])[:, 0] - wide.amax(dim=-1)


class PickNumerics:
    def make(self, case, seed, device):
        generator = torch.Generator(device).manual_seed(seed % 2**31)
        x = torch.randn((case.M, case.N), generator=generator).to(torch.bfloat16)
        return x, torch.randint(case.N, (case.M,), generator=generator), 1 + torch.rand((case.N,), generator=generator)

    def refill(self, given, case, seed):
        for tensor, values in zip(given, self.make(case, seed, given[0].device), strict=True):
            tensor.copy_(values)

    def drawn(self, given):
        return True

    def kinds(self, case):
        return ["all equal", "falling"]

    def make_structured(self, given, case, seed):
        given[0][0::2] = 3
        given[0][1::2] = torch.linspace(60, 0, case.N).to(torch.bfloat16)
        return self.kinds(case)

    def estimate(self, case, given):
        return (pick(*given),)

    def check(self, case, inputs, outputs, see=None, kinds=(), numbers=None):
        x, target, weight = inputs
        expected = pick(x, target, weight.double())
        worst = ((outputs[0].double() - expected).abs() / (1e-5 * (1 + expected.abs()))).nan_to_num(nan=math.inf).amax().item()
        return Accuracy(Grade.PASS, worst, "") if worst <= 1 else Accuracy.wrong(f"{worst:.3g} x the bound")


@pytest.fixture(autouse=True)
def operation(monkeypatch):
    monkeypatch.setattr(registry, "_added", {})
    monkeypatch.setattr(registry, "_numerics", {})
    registry.add(PICK, "pick.py", PickNumerics())


def test_a_backend_is_asked_about_its_own_operations_only():
    asked = []
    backend = SimpleNamespace(name="user", supports=asked.append)
    assert unsupported(backend, CASE) == "it has no pick, only softmax"
    assert not asked
    backend.operations = ("softmax", "pick")
    assert unsupported(backend, CASE) == ""
    assert asked == [CASE]
    taking = SimpleNamespace(name="user", supports=lambda case: None, operations=("pick", "softmax(scale, out_dtype)"))
    assert unsupported(taking, replace(CASE, op="softmax(scale=2,out_dtype=fp32)")) == ""
    taking.operations = ("pick", "softmax(out_dtype)")
    assert unsupported(taking, replace(CASE, op="softmax(out_dtype=fp32)")) == ""
    assert unsupported(taking, replace(CASE, op="softmax(scale=2,out_dtype=fp32)")) == "its softmax has no parameter scale"
    assert unsupported(taking, replace(CASE, op="log_softmax")) == "it has no log_softmax, only pick, softmax(out_dtype)"
    backend.operations = "pick"
    with pytest.raises(TypeError, match="must be a list of names"):
        unsupported(backend, CASE)


def cached():
    last = []

    def call(x, target, weight):
        if not last:
            last.append(pick(x, target, weight))
        return last[0].clone()

    return call


def changed_target(x, target, weight):
    value = pick(x, target, weight)
    target[0] = (target[0] + 1) % x.shape[1]
    return value


PRE_CHECKED = {
    "another shape": (lambda x, target, weight: pick(x, target, weight)[:, None], "returned shape (64, 1), not (64,)"),
    "another dtype": (lambda x, target, weight: pick(x, target, weight).bfloat16(), "returned dtype torch.bfloat16, not torch.float32"),
    "two outputs": (lambda x, target, weight: (pick(x, target, weight), x.clone()), "returned tuple, not a torch.Tensor"),
    "its target": (lambda x, target, weight: target, "returned dtype torch.int64, not torch.float32"),
    "changed target": (changed_target, "changed its input"),
    "not written": (lambda x, target, weight: torch.empty(len(x)), "x the bound"),
    "zeros": (lambda x, target, weight: torch.zeros(len(x)), "x the bound"),
    "without weight": (lambda x, target, weight: pick(x, target, torch.ones_like(weight)), "x the bound"),
    "first target": (lambda x, target, weight: pick(x, torch.zeros_like(target), weight), "x the bound"),
    "first columns": (lambda x, target, weight: pick(x, target, weight).where(target < 16, 0.0), "x the bound"),
}


def pre_checked(call):
    numerics = registry.numerics("pick")
    return PreCheck(CASE, call, numerics.make(CASE, 0, torch.device("cpu")), SimpleNamespace(name="user"), None).run(1)


def test_a_right_call_passes_the_check_and_the_timed_batches():
    assert pre_checked(pick).grade is Grade.PASS
    for _ in range(20):
        assert timed(pick).grade is Grade.PASS


@pytest.mark.parametrize("name", PRE_CHECKED)
def test_wrong_calls_are_found_before_timing(name):
    call, reason = PRE_CHECKED[name]
    found = pre_checked(call)
    assert found.grade is Grade.WRONG
    assert reason in found.detail


def timed(call, batches=3):
    """The verdict on some batches of forty calls."""
    rotation = RotatingInputs(CASE, registry.numerics("pick").make(CASE, 0, torch.device("cpu")), call, overwrites=False)
    rotation.widen()
    for _ in range(batches):
        body = rotation.renew()
        rotation.stir()
        for _ in range(40):
            body()
        rotation.collect()
        found = rotation.verify(lambda case, given, outputs: verify_outputs(None, case, given, outputs))
        if found is None or found.grade is Grade.WRONG:
            return found
    return found


@pytest.mark.parametrize("wrong", [cached(), changed_target], ids=["cached", "changed target"])
def test_wrong_calls_are_found_in_timed_batches(wrong):
    found = timed(wrong)
    assert found is not None
    assert found.grade is Grade.WRONG


def test_a_weight_changes_between_batches():
    weights = []

    def call(x, target, weight):
        weights.append(weight.clone())
        return pick(x, target, weight)

    assert timed(call, batches=4).grade is Grade.PASS
    assert any(not torch.equal(weights[0], later) for later in weights)
