"""Rotating inputs: sets alternate and change without a version count, and the kept calls are random."""

import math
from functools import partial

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.softmax import inputs
from softbench.plugins.traits import why_not
from softbench.worker import output_checks, tamper_guard
from softbench.worker.pre_check import PreCheck, verify_outputs
from softbench.worker.rotating_inputs import CHECKED_ELEMENTS, RotatingInputs

CPU = torch.device("cpu")
FORWARD = Case(64, 256, "fp32", Direction.FORWARD, "cpu")
verdict = partial(verify_outputs, object())


def softmax(x):
    return torch.softmax(x, dim=-1)


def rotation(case=FORWARD, call=softmax, *, overwrites=False, wide=True):
    made = RotatingInputs(case, inputs.make(case, 0, CPU), call, overwrites=overwrites)
    if wide:
        made.widen()
    return made


def verified(made, calls):
    """The verdict on a batch of so many calls."""
    body = made.renew()
    made.stir()
    for _ in range(calls):
        body()
    made.collect()
    return made.verify(verdict)


def test_calls_take_two_sets_or_one_with_warm_l2():
    seen = []
    for wide, addresses in ((True, 2), (False, 1)):
        seen.clear()
        body = rotation(call=lambda x: seen.append(x.data_ptr()), wide=wide).renew()
        for _ in range(6):
            body()
        assert len(set(seen)) == addresses
        assert seen[0] == seen[2] == seen[4]
        assert seen[0] != seen[1] or not wide


def test_batches_get_other_values_at_the_same_address_and_version():
    made = rotation()
    for _ in range(4):
        before = [(x.data_ptr(), x._version, x.clone()) for (x,) in made.sets]
        made.renew()
        sums_kept = []
        for (x,), (address, version, values) in zip(made.sets, before, strict=True):
            assert (x.data_ptr(), x._version) == (address, version)
            changed = (x != values).any(1)
            assert changed.any()
            sums_kept.append(torch.equal(x.flatten().sort().values, values.flatten().sort().values))
        assert sorted(sums_kept) == [False, True]  # one refilled, in the other rows or columns have changed places


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(("M", "N"), [(1, 1), (1, 300), (3, 1), (2, 70_000), (9_000, 2)])
def test_any_shape_and_direction_is_renewed_and_verified(M, N, direction):
    def call(*given):
        if direction is Direction.FORWARD:
            return softmax(*given)
        if direction is Direction.BACKWARD:
            dy, y = given
            return y * (dy - (dy * y).sum(-1, keepdim=True))
        x, dy = given
        y = softmax(x)
        return y.detach(), torch.autograd.grad(y, x, dy)[0]

    for dtype in ("fp32", "bf16"):
        made = rotation(Case(M, N, dtype, direction, "cpu"), call)
        for _ in range(3):
            assert verified(made, 5).grade in (Grade.PASS, Grade.LOW_PRECISION)


@pytest.mark.parametrize("calls", [1, 2, 7, 50, 1000])
def test_outputs_are_kept_of_neighbouring_calls_late_in_the_batch(calls):
    made, count = rotation(call=lambda x: count.append(0) or len(count) - 1), []
    body = made.renew()
    for _ in range(calls):
        body()
    kept = sorted(made.kept.values())
    assert len(kept) == min(2, calls)
    assert kept[-1] - kept[0] <= 1 or kept[-1] == calls - 1 or calls < 5  # the batch may end between the two
    assert kept[-1] >= 0.6 * (calls - 1) - 1


def test_the_last_call_is_verified_if_outputs_are_reused():
    buffer = torch.empty(64, 256)
    made = rotation(call=lambda x: buffer.copy_(softmax(x)), overwrites=True)
    assert verified(made, 7).grade is Grade.PASS
    undeclared = rotation(call=lambda x: buffer.copy_(softmax(x)))
    assert verified(undeclared, 7).detail == output_checks.SHARED


def test_a_batch_without_a_call_has_no_verdict():
    assert verified(rotation(), 0) is None


def test_a_second_set_is_used_from_the_next_renewal():
    made = rotation(wide=False)
    body = made.renew()
    made.widen()
    made.stir()
    body()
    made.collect()
    assert made.verify(verdict).grade is Grade.PASS
    assert verified(made, 5).grade is Grade.PASS


LOOKED_UP = {
    "a few elements": lambda x: (x.data_ptr(), x[0, 0].item(), x[-1, -1].item(), x[0, 128].item()),
    "a column": lambda x: tuple(x[:, 0].tolist()),
    "sums over rows": lambda x: tuple((x.double().sum(1) * 1e3).round().tolist()),
    "sums over columns": lambda x: tuple((x.double().sum(0) * 1e3).round().tolist()),
    "sorted elements": lambda x: x.flatten().sort().values.numpy().tobytes(),
}


@pytest.mark.parametrize("by", LOOKED_UP)
@pytest.mark.parametrize("M", [3, 5, 64, 700])
@pytest.mark.parametrize("looked_at", [2**10, 2**20])  # some rows, and all of them, as of most cases on a GPU
def test_outputs_cached_by_a_property_of_inputs_are_wrong(by, M, looked_at, monkeypatch):
    monkeypatch.setitem(CHECKED_ELEMENTS, "cpu", looked_at)
    kept = {}
    made = rotation(Case(M, 256, "fp32", Direction.FORWARD, "cpu"), lambda x: kept.setdefault(LOOKED_UP[by](x), softmax(x)).clone())
    assert any(verified(made, 3).grade is Grade.WRONG for _ in range(300))  # of a single batch the chance is a tenth and more


@pytest.mark.parametrize("M", [1, 2])
def test_outputs_cached_by_a_few_elements_are_wrong(M):
    kept, key = {}, LOOKED_UP["a few elements"]
    made = rotation(Case(M, 256, "fp32", Direction.FORWARD, "cpu"), lambda x: kept.setdefault(key(x), softmax(x)).clone())
    assert any(verified(made, 3).grade is Grade.WRONG for _ in range(300))


@pytest.mark.parametrize(("M", "N", "looked_at"), [(1, 256, 2**14), (3, 256, 2**14), (64, 256, 2**14), (64, 256, 2**20), (64, 300, 2**8)])
def test_rows_changed_before_a_batch_are_among_the_checked(M, N, looked_at, monkeypatch):
    monkeypatch.setitem(CHECKED_ELEMENTS, "cpu", looked_at)
    made = rotation(Case(M, N, "fp32", Direction.FORWARD, "cpu"))
    for step in [made.renew, made.stir] * 20:
        before = [x.clone() for (x,) in made.sets]
        step()
        for (x,), values, rows in zip(made.sets, before, made._rows, strict=True):
            changed = set((x != values).any(1).nonzero().flatten().tolist())
            assert changed & set(rows.tolist())
            if step == made.stir:
                assert changed <= set(rows.tolist())
                assert len(changed) <= max(2, len(rows) // 8)
                assert torch.equal(x.flatten().sort().values, values.flatten().sort().values)


def test_adversarial_rows_are_finite_and_timed_inputs_are_normal():
    for dtype in ("fp32", "fp16", "bf16"):
        long = Case(8, 70_000, dtype, Direction.FORWARD, "cpu")  # beyond float16's largest number
        inputs.make_adversarial(rows := inputs.make(long, 0, CPU), long, 3)
        assert rows[0].isfinite().all()
        case = Case(64, 255, dtype, Direction.FORWARD, "cpu")
        (x,) = given = inputs.make(case, 0, CPU)
        inputs.make_adversarial(given, case, 3)
        assert x.isfinite().all()
        spread = (x.float().amax(1) - x.float().amin(1)).tolist()
        assert {0.0, 100.0} <= set(spread)
        assert PreCheck(case, softmax, given, object(), None).run(5).grade is Grade.PASS
        assert x.float().std().item() == pytest.approx(1, abs=0.1)


def test_the_seed_selects_the_adversarial_row_of_one_row():
    case, kinds = Case(1, 64, "fp32", Direction.FORWARD, "cpu"), set()
    for seed in range(8):
        given = inputs.make(case, 0, CPU)
        inputs.make_adversarial(given, case, seed)
        kinds.add(round((given[0] * torch.arange(64)).sum().item(), 3))
    assert len(kinds) == 8


def test_of_structured_rows_it_is_said_which_kinds_are_wrong():
    def told(call, M=64, direction=Direction.FORWARD):
        case = Case(M, 255, "fp32", direction, "cpu")
        found = PreCheck(case, call, inputs.make(case, 0, CPU), object(), None).run(5)
        assert found.grade is Grade.WRONG
        return found.detail.partition(" (")[2]

    assert told(lambda x: torch.where(x.abs() > 1e6, 0, softmax(x))) == "structured rows: those shifted by 1e+07; the others are right)"
    assert told(torch.zeros_like) == "structured rows: all 8 kinds)"
    assert told(torch.zeros_like, M=3) == "structured rows: all 3 kinds)"
    assert told(torch.zeros_like, M=1) == "structured rows: those one-hot)"

    def bad_for_ones(dy, y):
        return torch.where((dy == 1).all(1, keepdim=True), y, y * (dy - (y * dy).sum(1, keepdim=True)))

    assert told(bad_for_ones, direction=Direction.BACKWARD) == "structured rows: those with a dy of ones; the others are right)"


def test_the_tamper_guard_names_replaced_functions_and_code(monkeypatch):
    bound = tamper_guard.bind("cpu")
    assert bound.replaced() == ""
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "Event", object)
        assert bound.replaced() == "replaced torch.cuda.Event, which measures or judges it"
    with monkeypatch.context() as patched:
        patched.setattr(output_checks.breach, "__code__", (lambda *_, **__: "").__code__)
        assert bound.replaced() == "replaced softbench.worker.output_checks.breach, which measures or judges it"
    assert bound.replaced() == ""


def test_a_reason_that_is_not_text_is_refused():
    assert why_not(None, "supports") == why_not("", "supports") == ""
    assert why_not("no\nGPU", "available") == "no GPU"
    for answer in (True, False, 5, ["no"]):
        with pytest.raises(TypeError, match=r"supports\(\) returned .*; it must return None for yes, or a text that says why not"):
            why_not(answer, "supports")


def test_malformed_outputs_are_reported_with_the_reason():
    x = torch.randn(4, 8)
    y = softmax(x)
    assert output_checks.misformed((x,), (y,)) == ""
    assert "expanded" in output_checks.misformed((x,), (y[:1, :1].clone().expand(4, 8),))
    assert "lazy" in output_checks.misformed((x,), (torch._neg_view(y),))
    assert output_checks.misformed((x, x), (y, y), expected=2) == "returned outputs that share their memory"
    assert math.isinf(PreCheck(FORWARD, lambda x: None, inputs.make(FORWARD, 0, CPU), object(), None).run(0).worst)
    for odd, part in ((lambda x: softmax(x).to_sparse(), "layout torch.sparse_coo"), (lambda x: softmax(x).to("meta"), "device meta")):
        assert part in PreCheck(FORWARD, odd, inputs.make(FORWARD, 0, CPU), object(), None).run(0).detail
