"""The worker's checks of operations that are not softmax: integer inputs, a weight that all rows share, outputs of one value per row."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry
from softbench.plugins.traits import unsupported
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import RotatingInputs

CASE = Case(64, 32, "bf16", Direction.FORWARD, "cpu", "logprob")
NORM = replace(CASE, op="rms_norm", dtype="fp32")


def test_a_backend_is_asked_about_its_own_operations_only():
    asked = []
    backend = SimpleNamespace(name="user", supports=asked.append)
    assert unsupported(backend, CASE) == "it has no logprob, only softmax"
    assert not asked
    backend.operations = ("softmax", "logprob")
    assert unsupported(backend, CASE) == ""
    assert asked == [CASE]
    taking = SimpleNamespace(name="user", supports=lambda case: None, operations=("logprob", "softmax(scale, out_dtype)"))
    assert unsupported(taking, replace(CASE, op="softmax(scale=2,out_dtype=fp32)")) == ""
    taking.operations = ("logprob", "softmax(out_dtype)")
    assert unsupported(taking, replace(CASE, op="softmax(out_dtype=fp32)")) == ""
    assert unsupported(taking, replace(CASE, op="softmax(scale=2,out_dtype=fp32)")) == "its softmax has no parameter scale"
    assert unsupported(taking, replace(CASE, op="log_softmax")) == "it has no log_softmax, only logprob, softmax(out_dtype)"
    backend.operations = "logprob"
    with pytest.raises(TypeError, match="must be a list of names"):
        unsupported(backend, CASE)


def right(x, target):
    y = torch.log_softmax(x.float(), -1)
    return y.gather(1, target[:, None])[:, 0], torch.special.entr(torch.exp(y)).sum(-1)


def cached(x, target, kept=[]):  # noqa: B006 - the results of the first call
    kept[:] = kept or right(x, target)
    return tuple(one.clone() for one in kept)


def changes_target(x, target):
    found = right(x, target)
    target[0] = (target[0] + 1) % x.shape[1]
    return found


WRONG = {
    "another shape": (lambda x, target: (right(x, target)[0][:, None], right(x, target)[1]), "returned shape (64, 1), not (64,)"),
    "another dtype": (lambda x, target: (right(x, target)[0].bfloat16(), right(x, target)[1]), "returned dtype torch.bfloat16, not torch"),
    "one output": (lambda x, target: right(x, target)[0], "must return"),
    "its target": (lambda x, target: (target, right(x, target)[1]), "returned dtype torch.int64, not torch.float32"),
    "changed target": (changes_target, "changed its input"),
    "not written": (lambda x, target: (torch.empty(len(x)), torch.empty(len(x))), "should be"),
}


def pre_checked(call):
    given = registry.numerics(CASE.op).make(CASE, 0, torch.device("cpu"))
    return PreCheck(CASE, call, given, SimpleNamespace(name="user"), None).run(1)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_found_before_timing(name):
    call, reason = WRONG[name]
    found = pre_checked(call)
    assert found.grade is Grade.WRONG
    assert reason in found.detail


def timed(call, case=CASE, batches=3):
    """The verdict on some batches of forty calls."""
    rotation = RotatingInputs(case, registry.numerics(case.op).make(case, 0, torch.device("cpu")), call, overwrites=False)
    rotation.widen()
    for _ in range(batches):
        body = rotation.renew()
        rotation.stir()
        for _ in range(40):
            body()
        rotation.collect()
        found = rotation.verify(partial(verify_outputs, None))
        if found.grade is Grade.WRONG:
            break
    return found


def test_a_right_call_passes_the_check_and_the_timed_batches():
    assert pre_checked(right).grade is Grade.PASS
    assert timed(right, batches=20).grade is Grade.PASS


@pytest.mark.parametrize("wrong", [cached, changes_target])
def test_wrong_calls_are_found_in_timed_batches(wrong):
    assert timed(wrong).grade is Grade.WRONG


def test_a_weight_changes_between_batches():
    weights = []

    def call(x, weight):
        weights.append(weight.clone())
        return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)

    assert timed(call, NORM, batches=4).grade is Grade.PASS
    assert any(not torch.equal(weights[0], later) for later in weights)
