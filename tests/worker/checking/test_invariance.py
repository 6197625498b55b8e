"""What the bits of a row depend on: the comparison finds it in functions that depend on one thing, and the command tells it."""

import csv

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.core.messages import RowsCompared
from softbench.ops import registry
from softbench.run import invariance as told
from softbench.run.check import CheckReport, CheckRequest, Finding
from softbench.worker.checking.invariance import compare_rows, places_of, ulps


class Rows:
    """A backend whose forward is a function of the rows."""

    name = "rows"
    operations = registry.declarations()

    def __init__(self, forward):
        self.forward = forward

    def available(self):
        return None

    def supports(self, case):
        return None

    def prepare(self, case):
        return self.forward


def row_by_row(x):
    return torch.stack([torch.softmax(row, -1) for row in x])


def in_order(y):
    return torch.stack([row.sum() for row in y])[:, None]


def by_halves(y):
    return in_order(y[:, ::2]) + in_order(y[:, 1::2])


def by_number(x):
    """The order of the sum depends on M."""
    y = torch.exp(x)
    return y / (by_halves(y) if len(x) > 4 else in_order(y))


def by_place(x):
    """Every second row adds in another order."""
    y = torch.exp(x)
    return y / torch.where(torch.arange(len(x))[:, None] % 2 == 1, by_halves(y), in_order(y))


class ByRun:
    """Every second call adds in another order, as atomic additions may."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        y = torch.exp(x)
        return y / (by_halves(y) if self.calls % 2 else in_order(y))


@pytest.mark.parametrize(
    ("forward", "kinds", "example"),
    [(row_by_row, [], None), (by_number, ["M"], (7, 1)), (by_place, ["position"], (2, 1)), (ByRun(), ["run"], (1, 1))],
)
def test_what_the_bits_of_a_row_depend_on_is_found_with_the_smallest_example(forward, kinds, example):
    found = compare_rows(Rows(forward), Case(1, 1000, "fp32", Direction.FORWARD, "cpu"), (1, 64, 8, 2, 7), 60, 0)
    assert [kind for kind, *_ in found.differences] == kinds
    assert sorted(found.tried) == [1, 2, 7, 8, 64]
    for _, M, other, ulp in found.differences:
        assert (M, other) == example and 1 <= ulp < 20


@pytest.mark.parametrize(
    ("forward", "reason"),
    [(lambda x: "rows", "returned str"), (lambda x: x.new_zeros(len(x) + 1, x.shape[1]), "shape"), (lambda x: x > 0, "dtype")],
)
def test_outputs_of_another_form_are_not_called_invariant(forward, reason):
    with pytest.raises(TypeError, match=f"{reason}.*1 row"):
        compare_rows(Rows(forward), Case(1, 64, "fp32", Direction.FORWARD, "cpu"), (1, 2), 60, 0)


def test_one_number_of_rows_is_nothing_to_compare():
    class OneRow(Rows):
        def supports(self, case):
            return None if case.M in (1, 4) else "one row only"

    found = compare_rows(OneRow(row_by_row), Case(1, 64, "fp32", Direction.FORWARD, "cpu"), (1, 2, 8), 60, 0)
    assert found == "it takes 1 number of rows here, and the comparison needs two"


@pytest.mark.parametrize("op", ["softmax", "cross_entropy", "masked_softmax(causal=true,sink=true)", "matmul", "add_rms_norm"])
def test_rows_of_every_operation_are_compared(op):
    from softbench.backends.torch_eager import backend

    for direction in told.directions_of(op, None, tuple(Direction)):
        found = compare_rows(backend, Case(1, 64, "bf16", direction, "cpu", op), (1, 2, 8), 60, 0)
        assert not isinstance(found, str) and sorted(found.tried) == [1, 2, 8], (direction, found)


def test_functions_that_agree_to_the_bit_have_one_checksum():
    found = [
        compare_rows(Rows(one), Case(1, 64, "fp32", Direction.FORWARD, "cpu"), (1, 2), 60, 0).bits
        for one in (row_by_row, row_by_row, by_place)
    ]
    assert found[0] == found[1] != found[2]


def test_no_further_number_of_rows_is_tried_when_the_time_is_over():
    found = compare_rows(Rows(row_by_row), Case(1, 64, "fp32", Direction.FORWARD, "cpu"), (1, 64, 8), 0, 0)
    assert found.tried == (1, 64)


def test_the_distance_is_the_number_of_floats_between():
    bits = torch.tensor([1.0, -0.0, 1e-45]).view(torch.int32)
    others = torch.nextafter(torch.tensor([1.0, 0.0, -1e-45]), torch.tensor([2.0, 0.0, -1.0])).view(torch.int32)
    assert ulps(bits, others, torch.float32).tolist() == [1, 0, 3]


def test_eight_places_include_both_ends():
    assert places_of(1) == [0] and places_of(3) == [0, 1, 2]
    assert len(places_of(4096)) == 8 and {0, 4095} < set(places_of(4096))
    assert len(told.COUNTS) == 64 and set(told.COUNTS) <= set(range(1, 4097))


def test_patterns_choose_lengths_and_a_length_of_the_users_own():
    named = [name for name, *_ in told.cases(["N=10*", "N=5000", "!N=1024"], [Direction.FORWARD], quick=False)]
    assert named == ["N=1000", "N=5000"]
    with pytest.raises(UsageError, match="N= any length"):
        told.cases(["normal *"], [Direction.FORWARD], quick=False)
    with pytest.raises(UsageError, match=r"--case '!N=\*': no case is left"):
        told.cases(["!N=*"], [Direction.FORWARD], quick=False)
    with pytest.raises(UsageError, match="or a mean over them"):
        CheckRequest.of({"plugins": ()}, "linear_cross_entropy", invariance=True)
    with pytest.raises(UsageError, match="or a mean over them"):  # its gradient is divided by the number of rows
        told.directions_of("cross_entropy(reduction=mean)", None, (Direction.BACKWARD,))


def test_a_row_that_depends_on_its_batch_makes_the_exit_code_1():
    def report(*differences):
        verdict, reason, ulp = told.told(RowsCompared((1, 64), list(differences), ""))
        return CheckReport((Finding("a", "N=64", "forward", "fp32", verdict, None, reason, ulp=ulp),), (), (), "cpu", 0, invariance=True)

    same, differ = report(), report(("M", 64, 1, 2), ("position", 2, 1, 7))
    assert (same.exit_code, same.nothing, same.to_repeat()) == (0, "", [])
    assert (differ.exit_code, differ.nothing, differ.findings[0].verdict) == (1, "", "M, position")
    assert (differ.findings[0].reason, differ.findings[0].ulp) == ("M=64 and M=1: 2 ULP; rows 0 and 1 of 2: 7 ULP", 7)
    assert "check --invariance --backends a --case=N=64" in differ.to_repeat()[0][1]


@pytest.mark.slow
def test_the_command_says_what_a_plugin_depends_on(main, tmp_path):
    plugin = tmp_path / "halves.py"
    sums = "(y if len(x) < 5 else y + y * 1e-7).sum(-1, keepdim=True)"
    plugin.write_text(f"import torch\n\n\ndef softmax(x):\n    y = torch.exp(x)\n    return y / {sums}\n")
    given = ("--plugin", plugin, "--backends", "torch,halves", "--device", "cpu", "--dtype", "fp32", "--direction", "forward")
    code, out, err = main("check", "--invariance", *given, "--quick", "--case", "N=1000", "--csv", "found.csv")
    assert code == 1
    assert "torch" in out and "yes" in out and "no: M" in out
    assert "halves depends on M: M=7 and M=1" in err and "--case=N=1000" in err
    with (tmp_path / "found.csv").open() as file:
        found = {one["backend"]: one["verdict"] for one in csv.DictReader(file)}
    assert found == {"torch": "invariant", "halves": "M"}
