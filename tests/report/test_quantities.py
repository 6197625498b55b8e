"""Bandwidth, fraction and speed-up of a row, with their ends."""

from dataclasses import replace

import pytest

from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.report import quantities
from softbench.results import rows as results


@pytest.fixture
def rows(make_record):
    def cell(name, us):
        made = results.row(make_record(name, [us] * 3), None, None, device="H200", run="r")
        return replace(made, low_us=0.9 * us, high_us=1.1 * us, p20_us=0.8 * us, p80_us=1.25 * us, gbps=1000 / us, relative_to="torch")

    return [cell("torch", 20.0), cell("ours", 10.0)]


def test_the_ends_of_a_bandwidth_are_percentiles(rows):
    shown = quantities.bandwidth(rows)
    assert shown.value(rows[1]) == 100
    assert shown.ends(rows[1]) == pytest.approx((80, 125))
    assert shown.ends(replace(rows[1], gbps=None)) is None


def test_a_yardstick_has_no_fraction(rows):
    row = replace(rows[1], of_copy=0.5)
    assert quantities.FRACTION.value(row) == 0.5
    assert quantities.FRACTION.value(replace(row, grade=Grade.YARDSTICK)) is None


def test_a_speedup_over_the_reference_is_that_of_the_rounds(rows):
    paired = replace(rows[1], speedup=2.1)
    shown = quantities.speedup([rows[0], paired])
    assert (shown.over, shown.value(paired)) == ("torch", 2.1)
    assert shown.ends(paired) == pytest.approx((18 / 11, 22 / 9))
    assert quantities.text(shown, paired) == "2.10x"


def test_a_speedup_over_another_backend_is_a_ratio_of_medians(rows):
    shown = quantities.speedup(rows, "ours")
    assert shown.value(rows[0]) == pytest.approx(0.5)
    assert shown.value(replace(rows[0], N=7)) is None
    assert shown.ends(replace(rows[0], low_us=None)) is None


def test_an_unknown_reference_is_a_usage_error(rows):
    with pytest.raises(UsageError, match=r"--over: unknown backend 'troch'; did you mean 'torch'\?"):
        quantities.speedup(rows, "troch")
    with pytest.raises(UsageError, match=r"no reference backend; name one of them with --over: ours"):
        quantities.speedup([replace(rows[1], relative_to="")])
