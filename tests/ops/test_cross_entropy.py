"""The bounds of cross entropy beside `test_ways.py`: parameters, masks, what is said, references, and inputs."""

import math

import pytest
import torch
from cross_entropies import ALL, FUSED, OF_PARAMETERS, RIGHT, UNGUARDED, WRONG, B, F, float64, of, of_torch
from sampled import with_dtypes
from ways import CaseWay

from softbench.core.case import Case
from softbench.core.outcome import Grade
from softbench.ops import yardstick
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
OP = "cross_entropy"
ALL_SET = f"{OP}(ignore_index=7,label_smoothing=0.3,z_loss=0.001,softcap=30)"


def case_of(M, N, dtype, direction, op=OP):
    return Case(M, N, dtype, direction, "cpu", op)


def graded(make, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, make(case), numerics(case.op).make(case, seed, CPU), object(), None).run(seed)


@with_dtypes("name direction", [(name, way) for name, made in OF_PARAMETERS.items() for way in made[-1]])
def test_wrong_ways_with_parameters_are_rejected(name, direction, dtype):
    given, make, _ = OF_PARAMETERS[name]
    assert graded(make, case_of(64, 48, dtype, direction, f"{OP}({given})")).grade is Grade.WRONG


MEAN = f"{OP}(reduction=mean)"
OF_MEAN = {
    "right": (1.0, lambda target: (target != -100).sum(), Grade.PASS),
    "the sum": (1.0, lambda target: 1, Grade.WRONG),
    "by all rows": (1.0, len, Grade.WRONG),
    "without the last row": (0.0, lambda target: (target != -100).sum(), Grade.WRONG),
}


@pytest.mark.parametrize("name", OF_MEAN)
def test_a_mean_is_compared_as_a_whole(name):
    last, rows, grade = OF_MEAN[name]

    def of_rows(x, target):
        kept = torch.ones(len(x)).index_fill(0, torch.tensor([len(x) - 1]), last)
        return (torch.nn.functional.cross_entropy(x.float(), target, reduction="none") * kept).sum() / rows(target)

    def fused(x, target):
        leaf = x.detach().requires_grad_()
        loss = of_rows(leaf, target)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0]

    makers = {F: lambda case: lambda x, target: (of_rows(x, target), x.float().logsumexp(1)), FUSED: lambda case: fused}
    fused(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))  # a first autograd imports modules, and these change filters of warnings
    for direction, make in makers.items():
        case = case_of(40, 65, "fp32", direction, MEAN)
        given = numerics(MEAN).make(case, 3, CPU)
        given[1][-1] = 1
        assert PreCheck(case, make(case), given, object(), None).run(2).grade is grade


def test_the_gradient_of_a_mean_is_that_of_autograd():
    x, target = torch.randn(20, 33, dtype=torch.float64, requires_grad=True), torch.arange(20)
    target[3] = -100
    (expected,) = torch.autograd.grad(torch.nn.functional.cross_entropy(x, target), x, torch.tensor(0.7))
    given = x.detach(), target, x.detach().logsumexp(1), torch.tensor(0.7, dtype=torch.float64)
    (found,) = numerics(MEAN).reference(case_of(20, 33, "fp32", B, MEAN), *given)
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-12)


def test_zeros_are_named_with_their_result():
    found = graded(WRONG["zeros second"][0], case_of(64, 257, "bf16", F))
    assert found.detail.startswith("lse[")
    assert "structured rows" in found.detail


@pytest.mark.parametrize("direction", [F, FUSED])
def test_nan_beside_masks_is_finite_only_and_wrong_in_check(direction):
    found = graded(UNGUARDED, case_of(64, 1024, "fp32", direction))
    assert found.grade is Grade.FINITE_ONLY, found
    assert checked(UNGUARDED, "structured 64x781", "fp32", direction).grade is Grade.WRONG


def test_low_precision_says_what_is_rounded():
    found = graded(RIGHT["lse first"][0], case_of(64, 257, "fp32", F))
    assert found.detail.startswith("computes loss from an lse that is rounded at the maximum of the row: loss[")


def checked(make, name, dtype, direction):
    return CheckCaseRunner(CaseWay("user", OP, {direction: make}), "cpu", operation=OP).run(name, direction, dtype, 0)


@pytest.mark.parametrize("direction", ALL)
def test_check_finds_wrong_ways(direction):
    for name, item in {"target one too high": "shape 37x33", "ignore_index ignored": "twice the same"}.items():
        assert checked(WRONG[name][0], item, "bf16", direction).grade is Grade.WRONG
    assert checked(zeros_after_the_first, "many calls", "fp32", direction).grade is Grade.WRONG


def zeros_after_the_first(case):
    right, calls = float64(case), []

    def call(*given):
        calls.append(0)
        found = right(*given)
        if len(calls) < 4:
            return found
        return torch.zeros_like(found) if isinstance(found, torch.Tensor) else tuple(map(torch.zeros_like, found))

    return call


def test_the_reference_is_that_of_torch():
    for op in (OP, f"{OP}(label_smoothing=0.3,ignore_index=7)"):
        case = case_of(40, 33, "fp32", FUSED, op)
        x, target = numerics(op).make(case, 0, CPU)
        x[0], x[1, :20] = -math.inf, -math.inf
        target[:2] = 3
        loss, dx = numerics(op).reference(case, x.double(), target)
        expected_loss, expected_dx = of_torch(case, wide=False)(x.double(), target)
        torch.testing.assert_close(loss.float(), expected_loss, equal_nan=True)
        torch.testing.assert_close(dx, expected_dx, equal_nan=True)
        assert loss[0].isnan()
        assert bool(loss[1].isinf()) == bool(dx[1].isfinite().all())


def test_the_gradient_is_that_of_autograd():
    case = case_of(12, 17, "fp32", B, f"{OP}(label_smoothing=0.3,z_loss=0.1,softcap=2,ignore_index=-1)")
    x, target, lse, dloss = (t.double() if t.is_floating_point() else t for t in numerics(case.op).make(case, 0, CPU))
    forward = case_of(12, 17, "fp32", F, case.op)
    leaf = x.clone().requires_grad_()
    loss, of_rows = numerics(case.op).reference(forward, leaf, target)
    (expected,) = torch.autograd.grad((loss * dloss).sum(), leaf)
    torch.testing.assert_close(numerics(case.op).reference(case, x, target, of_rows.detach(), dloss)[0], expected)
    torch.testing.assert_close(lse, of_rows.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", [OP, ALL_SET])
@pytest.mark.parametrize("direction", ALL)
def test_reference_and_bounds_are_computed_where_the_inputs_are(direction, op):
    case = case_of(6, 10, "bf16", direction, op)  # torch refuses to mix tensors of the device "meta" with those of the CPU, as on a GPU
    given = [(t.double() if t.is_floating_point() else t).to("meta") for t in numerics(op).make(case, 0, CPU)]
    for computed in (numerics(op).reference, numerics(op).bound, numerics(op).low_precision):
        assert {tensor.device.type for tensor in computed(case, *given)} == {"meta"}


@pytest.mark.parametrize("direction", ALL)
def test_estimates_and_the_yardstick_are_accepted(direction):
    case = case_of(6, 100, "fp32", direction)
    given = numerics(OP).make(case, 0, CPU)
    assert numerics(OP).check(case, given, numerics(OP).estimate(case, given)).grade is Grade.PASS
    outputs = [torch.zeros(spec.shape(case)) for spec in operation(OP).outputs(case).values()]
    if direction is F:
        assert yardstick.check(case, given, outputs).grade is Grade.YARDSTICK


def test_bytes_are_one_read_and_one_write_of_the_logits():
    moved = {way: operation(OP).bytes_moved(case_of(8, 1000, "bf16", way)) for way in ALL}
    assert moved == {F: 16000 + 8 * 8 + 2 * 8 * 4, B: 32000 + 8 * 8 + 2 * 8 * 4, FUSED: 32000 + 8 * 8 + 8 * 4}


@pytest.mark.parametrize("direction", ALL)
def test_targets_are_drawn_at_both_ends_and_ignored(direction):
    case = case_of(4096, 5, "fp32", direction)
    target = numerics(OP).make(case, 0, CPU)[1]
    assert set(target.tolist()) == {-100, 0, 1, 2, 3, 4}
    kinds = numerics(OP).kinds(case)
    assert {"with target 0", "with the last column as target", "ignored", "with a tile of -inf first"} <= set(kinds)
    assert ("of -inf" in kinds) == (direction is F)
    assert ("with a dloss of 0" in kinds) == (direction is B)


def test_changed_logits_have_their_lse():
    case = case_of(60, 50, "fp32", B)
    given = numerics(OP).make(case, 0, CPU)
    numerics(OP).make_structured(given, case, 1)
    torch.testing.assert_close(given[2], torch.logsumexp(given[0], -1), rtol=1e-6, atol=1e-6)
    assert of(case)(*given).isfinite().all()
