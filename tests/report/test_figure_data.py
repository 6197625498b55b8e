"""Which figures show the shapes of a run, and the quantities of a row with their ends."""

from dataclasses import replace

import pytest

from softbench.core.errors import UsageError
from softbench.core.outcome import Grade
from softbench.report import figure_data
from softbench.report.figure_data import ANY, POWER, WHOLE, by_slice, kinds, pass_of, slices


@pytest.fixture
def shapes_of(make_row):
    return lambda *shapes: [replace(make_row("x"), M=M, N=N) for M, N in shapes]


def names(rows):
    return [(f"{what.dtype} {what.fixed if what.axis else ''}".strip(), what.axis, what.size) for what in slices(rows)]


def test_a_scan_over_columns_is_one_figure_per_row_count(shapes_of):
    grid = shapes_of(*((M, N) for M in (16, 64, 256) for N in (128, 256, 512, 1024)))
    assert names(grid) == [(f"fp32 M = {M}", "N", 4) for M in (16, 64, 256)]


def test_shapes_without_a_line_share_a_figure(shapes_of):
    cross = shapes_of(*((4096, N) for N in (128, 256, 512)), (8, 128256), (1024, 50257))
    assert names(cross) == [("fp32 M = 4096", "N", 3), ("fp32", "", 2)]
    assert slices(cross)[1].shapes == ((8, 128256, ""), (1024, 50257, ""))
    assert [what.size for what in slices(shapes_of(*((i, 300 + i) for i in range(1, 31))))] == [24, 6]


def test_both_scans_through_a_shape_are_drawn(shapes_of):
    cross = shapes_of(*((64, N) for N in (128, 256, 512, 1024)), *((M, 256) for M in (1, 8, 4096)))
    assert names(cross) == [("fp32 M = 64", "N", 4), ("fp32 N = 256", "M", 4)]


def test_shapes_without_a_bandwidth_are_left_out(shapes_of):
    assert slices([replace(row, gbps=None) for row in shapes_of((1, 2), (1, 3))]) == []


def test_each_operation_has_figures_of_its_own(shapes_of):
    line = shapes_of((8, 256), (8, 512), (8, 1024))
    both = [*line, *(replace(row, op="log_softmax") for row in line)]
    panels = slices(both)
    assert [pass_of(what) for what in panels] == ["forward", "log_softmax-forward"]
    assert {what.op: len(some) for what, some in by_slice(panels, both).items()} == {"softmax": 3, "log_softmax": 3}


def test_nd_shapes_are_panels_and_points_of_no_line(shapes_of):
    plain = shapes_of((16, 128), (16, 256), (16, 512))
    shaped = [replace(row, shape=f"4x4x{row.N}") for row in plain]
    assert names([*plain, *shaped]) == [("fp32 M = 16", "N", 3), ("fp32", "", 3)]
    assert list(by_slice(slices([*plain, *shaped]), [*shaped, *plain]).values()) == [plain, shaped]


def test_lengths_are_powers_whole_vectors_and_others():
    """1000 bf16 are 125 vectors of 16 bytes, and 12 are one and a half."""
    assert kinds([1024, 781, 4096, 1000, 2048, 12], "bf16", "N") == {POWER: [1024, 2048, 4096], WHOLE: [1000], ANY: [12, 781]}
    assert kinds([1024, 2048, 4096, 12], "fp32", "N") == {POWER: [1024, 2048, 4096], WHOLE: [12]}
    assert kinds([*range(256, 6273, 128)], "fp32", "N") == {"": [*range(256, 6273, 128)]}
    assert {*kinds([*range(1, 9)], "fp32", "N")} == {POWER, ANY}
    assert kinds([512, 640, 768, 781], "bf16", "N") == {WHOLE: [512, 640, 768], ANY: [781]}
    assert kinds([5, 33, 200], "bf16", "N") == {"": [5, 33, 200]}
    assert kinds([1, 3, 64], "bf16", "M") == {"": [1, 3, 64]}


@pytest.fixture
def rows(make_row):
    def cell(name, us):
        ends = {"low_us": 0.9 * us, "high_us": 1.1 * us, "p20_us": 0.8 * us, "p80_us": 1.25 * us}
        return make_row(name, us, **ends, gbps=1000 / us, relative_to="torch")

    return [cell("torch", 20.0), cell("ours", 10.0)]


def test_the_ends_of_a_bandwidth_are_percentiles(rows):
    shown = figure_data.bandwidth(rows)
    assert shown.value(rows[1]) == 100
    assert shown.ends(rows[1]) == pytest.approx((80, 125))
    assert shown.ends(replace(rows[1], gbps=None)) is None


def test_in_l2_there_is_a_bandwidth_of_no_cell_or_the_time(rows):
    inside = replace(rows[1], labels="L2-resident")
    assert figure_data.bandwidth([rows[0], inside]).value(inside) is None
    assert figure_data.bandwidth([inside]).value(inside) == 10


def test_a_fraction_of_copy_has_the_interval_of_the_ratio(rows):
    copy = replace(rows[0], backend="copy", grade=Grade.YARDSTICK)
    row = replace(rows[1], of_copy=2.0)
    shown = figure_data.fraction([copy, row])
    assert (shown.value(row), shown.value(copy), shown.text(0.98)) == (2.0, None, "98%")
    low, high = shown.ends(row)
    assert 18 / 11 < low < 2 < high < 22 / 9
    assert shown.ends(replace(row, run="other")) is None


def test_a_speedup_is_the_ratio_of_the_medians_over_every_backend(rows):
    shown = figure_data.speedup(rows)
    assert (shown.over, shown.value(rows[1])) == ("torch", pytest.approx(2))
    low, high = shown.ends(rows[1])
    assert 18 / 11 < low < 2 < high < 22 / 9
    assert shown.text(2) == "2.00x"
    assert shown.value(replace(rows[1], speedup=1.9)) == 1.9  # that of the tables
    shown = figure_data.speedup(rows, "ours")
    assert shown.value(rows[0]) == pytest.approx(0.5)
    assert shown.value(replace(rows[0], N=7)) is None
    assert shown.ends(replace(rows[0], low_us=None)) is None


def test_an_unknown_reference_is_a_usage_error(rows):
    with pytest.raises(UsageError, match=r"--relative-to: unknown backend 'troch'; did you mean 'torch'\?"):
        figure_data.speedup(rows, "troch")
    with pytest.raises(UsageError, match=r"no reference backend; name one of them with --relative-to: ours"):
        figure_data.speedup([replace(rows[1], relative_to="")])
