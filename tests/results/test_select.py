"""Filters of rows."""

import pytest

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.results import rows as results
from softbench.results.select import select


@pytest.fixture
def rows(make_record):
    def cell(name, N, direction):
        grade = Grade.YARDSTICK if name == "copy" else Grade.PASS
        return results.row(make_record(name, [10.0], N=N, grade=grade, direction=direction), None, None, device="d", run="r")

    names = ("copy", "torch", "triton", "triton-row")
    return [cell(name, N, direction) for direction in (Direction.FORWARD, Direction.BACKWARD) for N in (256, 512) for name in names]


def test_every_filter_selects_and_the_yardstick_stays(rows):
    assert select(rows) == rows
    assert {row.backend for row in select(rows, ["triton*"])} == {"copy", "triton", "triton-row"}
    assert {row.backend for row in select(rows, ["torch", "triton"])} == {"copy", "torch", "triton"}
    assert {row.N for row in select(rows, N=(512, 1024))} == {512}
    assert {row.direction for row in select(rows, directions=("backward",))} == {"backward"}
    assert select(rows, dtypes=("fp32",), M=(4096,)) == rows


def test_a_filter_without_a_match_is_an_error(rows):
    with pytest.raises(UsageError, match=r"--backends: unknown backend 'trton'; did you mean 'triton'\?"):
        select(rows, ["trton"])
    with pytest.raises(UsageError, match="no cell matches all of --backends"):
        select(rows, dtypes=("bf16",))
