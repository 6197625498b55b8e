"""Filters of rows."""

import itertools
from dataclasses import replace

import pytest

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.results.select import relative_to, select


@pytest.fixture
def rows(make_row):
    axes = itertools.product((Direction.FORWARD, Direction.BACKWARD), (256, 512), ("copy", "torch", "triton", "triton-row"))
    return [make_row(name, N=N, direction=direction) for direction, N, name in axes]


def test_every_filter_selects_and_the_yardstick_stays(rows):
    assert select(rows) == rows
    assert {row.backend for row in select(rows, ["triton*"])} == {"copy", "triton", "triton-row"}
    assert {row.backend for row in select(rows, ["torch", "triton"])} == {"copy", "torch", "triton"}
    for some in (["!triton*"], ["all", "!triton*"], ["!triton-row", "*", "!triton"]):
        assert {row.backend for row in select(rows, some)} == {"copy", "torch"}
    assert {row.N for row in select(rows, N=(512, 1024))} == {512}
    assert {row.direction for row in select(rows, directions=("backward",))} == {"backward"}
    assert select(rows, dtypes=("fp32",), M=(4096,)) == rows


def test_a_filter_without_a_match_is_an_error(rows):
    with pytest.raises(UsageError, match=r"--backends: unknown backend 'trton'; did you mean 'triton'\?"):
        select(rows, ["trton"])
    with pytest.raises(UsageError, match=r"^--dtype: no cell has bf16, fp16; the file has fp32$"):
        select(rows, dtypes=("bf16", "fp16"))
    with pytest.raises(UsageError, match=r"^--N: no cell has 77; the file has 256, 512$"):
        select(rows, N=(77,), directions=("forward",))


def test_filters_that_match_only_apart_are_an_error(rows):
    kept = [row for row in rows if row.N == 256 or row.direction == "forward"]
    with pytest.raises(UsageError, match=r"^no cell matches all of --direction, --N; without them, softbench show FILE --long"):
        select(kept, directions=("backward",), N=(512,))
    with pytest.raises(UsageError, match=r"^no cell matches all of --backends, --N; without"):
        select([row for row in rows if (row.backend == "torch") == (row.N == 256) and row.backend != "copy"], ["torch"], N=(512,))


def test_a_shape_selects_its_rows(rows):
    shaped = [replace(row, shape="64x64x256") for row in rows]
    assert select([*rows, *shaped], shapes=("64x64x256",)) == shaped
    assert select([*rows, *shaped], shapes=("4096x256",)) == [row for row in rows if row.N == 256]
    with pytest.raises(UsageError, match=r"^--shape: no cell has 2x3x4; the file has 4096x256, 4096x512, 64x64x256$"):
        select([*rows, *shaped], shapes=("2x3x4",))


def test_speedups_are_over_the_backend_that_is_asked_for(rows):
    timed = [replace(row, median_us=us, no_grad_ratio=1.5) for row, us in zip(rows, itertools.cycle((5.0, 8.0, 4.0, 2.0)), strict=False)]
    timed[2] = replace(timed[2], labels="implausible")
    found = relative_to(timed, "triton")
    assert [row.speedup for row in found] == [None, None, None, None, *[0.8, 0.5, 1.0, 2.0] * 3]
    assert {(row.relative_to, row.no_grad_ratio) for row in found} == {("triton", None)}
    assert relative_to(found, "triton") == found
    assert {row.relative_to for row in relative_to(timed[:3] + timed[4:], "triton-row") if row.case == timed[0].case} == {""}
    with pytest.raises(UsageError, match=r"^--relative-to: unknown backend 'tritn'; did you mean 'triton'"):
        relative_to(timed, "tritn")
