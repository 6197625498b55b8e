"""Rotating inputs: sets alternate and change without a version count, and the kept calls are random."""

import itertools
import math
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import pytest
import torch

from softbench.backends import naive
from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.registry import numerics, operation
from softbench.ops.softmax import NUMERICS
from softbench.ops.structured_rows import Places
from softbench.plugins.traits import interpreted, is_yardstick, why_not
from softbench.worker.checking import output_checks, probes
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import CHECKED_ELEMENTS, RotatingInputs

CPU = torch.device("cpu")
FORWARD = Case(64, 256, "fp32", Direction.FORWARD, "cpu")
ON_GPU = replace(FORWARD, device="cuda")
"""Its tensors lie on the CPU here, but few of its calls are probes, and outputs are kept."""
verdict = partial(verify_outputs, object())


def softmax(x):
    return torch.softmax(x, dim=-1)


def gradient(dy, y):
    dy32, y32 = dy.float(), y.float()
    return (y32 * (dy32 - (y32 * dy32).sum(-1, keepdim=True))).to(y.dtype)


def both(x, dy):
    y = softmax(x)
    return y.detach(), torch.autograd.grad(y, x, dy)[0]


HONEST = {Direction.FORWARD: softmax, Direction.BACKWARD: gradient, Direction.BOTH: both}


@pytest.fixture(autouse=True)
def probed(monkeypatch):
    monkeypatch.setattr(probes, "possible", lambda device: True)


def rotation(case=FORWARD, call=softmax, *, overwrites=False, wide=True):
    made = RotatingInputs(case, NUMERICS.make(case, 0, CPU), call, overwrites=overwrites)
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


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize(("M", "N"), [(1, 1), (1, 300), (3, 1), (2, 70_000), (9_000, 2)])
def test_any_shape_and_direction_is_renewed_and_verified(M, N, direction):
    for dtype in ("fp32", "bf16"):
        made = rotation(Case(M, N, dtype, direction, "cpu"), HONEST[direction])
        for _ in range(3):
            assert verified(made, 5).grade in (Grade.PASS, Grade.LOW_PRECISION)


@pytest.mark.parametrize("calls", [1, 2, 7, 50, 1000])
def test_outputs_are_kept_of_neighbouring_calls_late_in_the_batch(calls):
    made, count = rotation(ON_GPU, lambda x: count.append(0) or len(count) - 1), []
    body = made.renew()
    made.probes.at = math.inf  # outputs of probes are not kept
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
    for calls in range(1, 20):  # the last one may be a probe, after which its input is as before
        assert (verified(rotation(ON_GPU, made.function, overwrites=True), calls) or Accuracy(Grade.PASS, 0, "")).grade is Grade.PASS
    undeclared = rotation(call=lambda x: buffer.copy_(softmax(x)))
    assert verified(undeclared, 7).detail == f"in a timed call: {output_checks.SHARED}"


@pytest.mark.parametrize("number", [0, 1])
def test_outputs_of_each_set_are_compared(number):
    made = rotation(ON_GPU, lambda x: softmax(x) * (1 + (x.data_ptr() == made.sets[number][0].data_ptr())))
    made.probes = None
    assert verified(made, 7).grade is Grade.WRONG


def test_an_input_that_one_call_changes_is_noticed_on_a_cpu():
    def call(x):
        if next(calls) == 0:
            x.data[5, 7] += 1
        return softmax(x)

    calls = itertools.count()
    assert verified(rotation(call=call), 7).detail == f"in a timed call: {output_checks.CHANGED}"


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


@pytest.mark.parametrize(("by", "M"), [*product(LOOKED_UP, (3, 700)), ("a few elements", 1), ("a few elements", 2)])
@pytest.mark.parametrize("looked_at", [2**10, 2**20])  # some rows, and all of them, as of most cases on a GPU
def test_outputs_cached_by_a_property_of_inputs_are_wrong(by, M, looked_at, monkeypatch):
    monkeypatch.setitem(CHECKED_ELEMENTS, "cuda", looked_at)
    kept = {}
    made = rotation(replace(ON_GPU, M=M), lambda x: kept.setdefault(LOOKED_UP[by](x), softmax(x)).clone())
    assert any(verified(made, 3).grade is Grade.WRONG for _ in range(300))  # of a single batch the chance is a tenth and more


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


@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_structured_rows_keep_normal_inputs_and_hold_every_kind(direction):
    for dtype in ("fp32", "fp16", "bf16"):
        long = Case(32, 70_000, dtype, Direction.FORWARD, "cpu")  # beyond float16's largest number
        names = NUMERICS.make_structured(rows := NUMERICS.make(long, 0, CPU), long, 3)
        finite = {name for name, row in zip(names, rows[0], strict=False) if row.isfinite().all()}
        assert set(names) - finite == {
            *("with -inf first", "with -inf last", "with -inf scattered", "of -inf", "with one NaN", "with one +inf"),
            "with a large element or a step, and -inf",
        }
        case = Case(64, 255, dtype, direction, "cpu")
        given = NUMERICS.make(case, 0, CPU)
        before = [tensor.detach().clone() for tensor in given]
        assert len(set(NUMERICS.make_structured(given, case, 3))) >= 13
        changed = [(tensor != old).any(1) for tensor, old in zip(given, before, strict=True)]
        assert torch.stack(changed).any(0).all()
        check = PreCheck(case, HONEST[direction], given, object(), None)
        assert check.run(5).grade is Grade.PASS
        assert given[0].float().std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("M", [1, 3, 20])
@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_a_case_of_few_rows_meets_every_kind(direction, M):
    case = Case(M, 255, "fp32", direction, "cpu")
    kinds = NUMERICS.structured_rows(case)
    rows = []

    def call(*given):
        rows.extend(given[0].detach().clone())
        return HONEST[direction](*given)

    assert PreCheck(case, call, NUMERICS.make(case, 0, CPU), object(), None).run(5).grade is Grade.PASS
    assert len(rows) >= 2 * len(kinds) + M
    if direction is Direction.FORWARD:
        assert {int(row.isnan().sum()) for row in rows} == {0, 1}
        assert sum(bool((row == -math.inf).all()) for row in rows) >= 2


def test_columns_are_random_and_include_the_last_two():
    places = Places(torch.Generator().manual_seed(0), 4096, CPU)
    columns = places.columns(400).tolist()
    assert set(columns[0::4]) == {4094, 4095}
    assert set(columns[1::4]) <= set(places.edges())
    assert {0, 255, 256, 1023, 1024} <= set(places.edges())
    assert len(set(columns)) > 200


def test_of_structured_rows_it_is_said_which_kinds_are_wrong():
    def told(call, M=64, direction=Direction.FORWARD):
        case = Case(M, 255, "fp32", direction, "cpu")
        found = PreCheck(case, call, NUMERICS.make(case, 0, CPU), object(), None).run(5)
        assert found.grade is Grade.WRONG
        return found.detail.partition(" (")[2]

    assert told(lambda x: torch.where(x.abs() > 7e6, 0, softmax(x))).startswith("wrong structured rows: those ")
    assert "shifted by 1e+07" in told(lambda x: torch.where((x > 7e6) & x.isfinite(), 0, softmax(x)))
    for M, calls in ((64, ""), (3, "; rows of 13 calls, 3 in each"), (1, "; rows of 38 calls, 1 in each")):
        assert told(torch.zeros_like, M=M) == f"wrong structured rows: all 19 kinds){calls}"

    def bad_in(*rows):
        return lambda x: softmax(x).index_fill_(0, torch.tensor(rows), 0.5)

    assert told(bad_in(5)).startswith("wrong structured rows: 1 of 64, row 5; kinds: ")
    assert told(bad_in(*range(20))) == "wrong structured rows: 20 of 64, rows 0, 1, 2 and 17 others)"

    def bad_for_ones(dy, y):
        return torch.where((dy == 1).all(1, keepdim=True), y, y * (dy - (y * dy).sum(1, keepdim=True)))

    assert told(bad_for_ones, direction=Direction.BACKWARD) == "wrong structured rows: those with a dy of ones; the others are right)"


def test_a_reason_that_is_not_text_is_refused():
    assert why_not(None, "supports") == why_not("", "supports") == ""
    assert why_not("no\nGPU", "available") == "no GPU"
    for answer in (True, False, 5, ["no"]):
        with pytest.raises(TypeError, match=r"supports\(\) returned .*; it must return None for yes, or a text that says why not"):
            why_not(answer, "supports")


def test_only_softbenchs_own_copy_is_a_yardstick():
    from softbench.backends import copy

    own = copy.Copy()
    assert is_yardstick(own)

    class Derived(copy.Copy):
        pass

    declared = SimpleNamespace(name="fast", computes="copy")
    renamed, patched = copy.Copy(), copy.Copy()
    renamed.name, patched.prepare = "fast", lambda case: torch.empty_like
    assert not any(map(is_yardstick, (Derived(), declared, renamed, patched)))


def test_interpreted_is_asked_once_and_its_answer_checked():
    answers = iter([("an interpreter", 1), None])
    stateful = SimpleNamespace(interpreted=lambda: next(answers))
    assert interpreted(stateful) == interpreted(stateful) == ("an interpreter", 1)
    for wrong in (("x", 0), ("x", True), "x", ("x",), (1, 1), []):
        with pytest.raises(TypeError, match="interpreted"):
            interpreted(SimpleNamespace(interpreted=lambda wrong=wrong: wrong))


def test_malformed_outputs_are_reported_with_the_reason():
    x = torch.randn(4, 8)
    assert "lazy" in output_checks.misformed((x,), (torch._neg_view(softmax(x)),), output_checks.like(x))
    assert math.isinf(PreCheck(FORWARD, lambda x: None, NUMERICS.make(FORWARD, 0, CPU), object(), None).run(0).worst)
    for odd, part in ((lambda x: softmax(x).to_sparse(), "layout torch.sparse_coo"), (lambda x: softmax(x).to("meta"), "device meta")):
        assert part in PreCheck(FORWARD, odd, NUMERICS.make(FORWARD, 0, CPU), object(), None).run(0).detail


@pytest.mark.parametrize("first", [0, 1])
def test_where_the_reference_takes_long_batches_compare_one_output_in_turn(first, monkeypatch):
    case = Case(16, 32, "fp32", Direction.FORWARD, "cuda", "linear_cross_entropy(hidden=8)")

    def counted(*given):
        compared.append(given)
        return Accuracy(Grade.PASS, 0.0, "")

    def batch(made):
        compared.clear()
        body = made.renew()
        made.stir()
        for _ in range(20):
            body()
        made.collect()
        assert made.verify(counted).grade is Grade.PASS
        return [id(given[1]) == id(made._truth[made.latest]) for given in compared]  # the kept output, or a probe

    compared = []
    make = partial(RotatingInputs, case, numerics(case.op).make(case, 0, CPU), naive.backend.prepare(case), overwrites=False)
    assert batch(make(turns=first)) == [True, False]
    monkeypatch.setattr(output_checks, "LONG_REFERENCE", 0)
    made = make(turns=first)
    found = [batch(made) for _ in range(60)]
    assert found[0] != found[1] and all(len(one) == 1 for one in found[:2])
    assert 2 < sum(map(len, found[3:])) < 40  # a quarter of 57, by chance
