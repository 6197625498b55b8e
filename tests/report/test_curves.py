"""Lines over N or M and points over other shapes: names, signs, axes, and what is shown apart."""

from dataclasses import replace
from itertools import pairwise

import pytest

from softbench.report import axes, curves, style
from softbench.report.figure_data import bandwidth, by_slice, fraction, slices, speedup


@pytest.fixture
def rows(make_row):
    def cell(name, N, gbps):
        us = 10 * N / gbps
        ends = {"low_us": 0.99 * us, "high_us": 1.01 * us}
        of_copy = None if name == "copy" else gbps / N
        return make_row(name, us, N=N, gbps=gbps, labels="", of_copy=of_copy, relative_to="torch", **ends)

    return [cell(name, N, speed * N) for N in (256, 512, 1024, 2048) for name, speed in (("copy", 1), ("ours", 0.9), ("torch", 0.5))]


def draw(*runs, quantities=lambda some: [fraction(some), bandwidth(some)], panels=None):
    every = [row for run in runs for row in run]
    panels = panels or slices(every)
    sources = {i: f", run {i}" if len(runs) > 1 else "" for i in range(len(runs))}
    return curves.figure(curves.Runs([by_slice(panels, run) for run in runs], style.styles(every), sources), panels, quantities)


def of_colour(panel, name):
    """The points and lines of a backend."""
    return [line for line in panel.lines if line.get_color() == style.own(name).colour and line.get_transform() != panel.transAxes]


def points(panel, name, *, hollow):
    found = [line for line in of_colour(panel, name) if line.get_linestyle() == "None"]
    return {x for line in found if (line.get_markerfacecolor() == style.PAPER) == hollow for x in line.get_xdata()}


def texts(figure):
    parts = (figure, *figure.axes)
    return [text.get_text() for part in parts for text in part.texts] + [text.get_text() for text in keys(figure)]


def keys(figure):
    return [text for legend in figure.legends for text in legend.get_texts()]


def test_the_first_panel_is_the_fraction_of_copy_and_the_second_the_bandwidth(rows):
    first, second = draw(rows).axes
    assert (first.get_ylabel(), second.get_ylabel()) == ("fraction of copy", "bandwidth (GB/s), median")
    assert len(first.collections) == 2  # the intervals of both backends; copy is the line at 1
    without = [replace(row, of_copy=None) for row in rows]
    (only,) = draw(without, quantities=lambda some: [bandwidth(some)]).axes
    assert only.get_ylabel() == "bandwidth (GB/s), median"


def test_the_axis_reaches_the_points_of_the_second_panel(rows):
    """Where `copy` is doubtful a case has no fraction, and still a bandwidth."""
    first, second = draw([replace(row, of_copy=None) if row.N in (256, 1024) else row for row in rows]).axes
    assert points(first, "ours", hollow=False) == {512, 2048} and points(second, "ours", hollow=False) == {256, 512, 1024, 2048}
    assert second.get_xlim()[0] < 256 and list(second.get_xticks()) == [256, 512, 1024, 2048]


def test_doubtful_points_are_hollow(rows):
    noisy = [replace(row, labels="noisy") if (row.backend, row.N) == ("ours", 512) else row for row in rows]
    figure = draw(noisy)
    assert points(figure.axes[0], "ours", hollow=True) == {512}
    assert points(figure.axes[0], "ours", hollow=False) == {256, 1024, 2048}
    assert "doubtful: see its labels" in texts(figure)
    assert points(draw(rows).axes[0], "ours", hollow=True) == set()


def test_a_missing_result_is_a_gap_and_is_counted_below(rows):
    lost = {"p20_us": None, "median_us": None, "p80_us": None, "gbps": None, "of_copy": None}
    failed = [replace(row, status="failed", **lost) if (row.backend, row.N) == ("ours", 512) else row for row in rows]
    figure = draw(failed)
    (line,) = [line for line in of_colour(figure.axes[0], "ours") if line.get_linestyle() == "-"]
    assert [y == y for y in line.get_ydata()] == [True, False, True, True]
    assert "No result: ours (1 failed)" in texts(figure)
    unavailable = [replace(row, status="unavailable", **lost) if row.backend == "ours" else row for row in rows]
    assert not [text for text in texts(draw(unavailable)) if "No result" in text]


def test_each_line_has_its_name_and_median_beside_it(rows):
    assert {"ours", "90%", "torch", "50%"} <= set(texts(draw(rows)))
    other = [replace(row, run="other") for row in rows]
    overlaid = draw(rows, other)
    assert {"ours, run 0", "ours, run 1"} <= set(texts(overlaid))
    lines = [line for line in of_colour(overlaid.axes[0], "ours") if line.get_linestyle() != "None"]
    assert {line.get_linestyle() for line in lines} == {"-", "--"}
    assert not [text for text in texts(overlaid) if text.startswith("fastest")]  # cells of two runs are no rivals


def test_the_figure_says_who_is_fastest(rows):
    assert "fastest: ours in all 4 cases" in "\n".join(texts(draw(rows)))


def test_lines_near_copy_are_shown_apart_and_others_are_named_below(rows):
    near = [replace(row, backend="near", of_copy=0.91, median_us=row.median_us / 1.01) for row in rows if row.backend == "ours"]
    figure = draw([*rows, *near])
    low, high = figure.axes[0].get_ylim()
    assert 0.5 < low < 0.9 < 1 < high
    assert not [line for line in of_colour(figure.axes[0], "torch") if line.get_linestyle() != "None"]
    assert {"torch", "50%", "lines below this axis: see the bandwidth"} <= set(texts(figure))
    assert of_colour(figure.axes[1], "torch")
    assert draw(rows).axes[0].get_ylim()[0] == 0


def test_tensors_in_l2_have_no_bandwidth_and_a_shade(rows):
    resident = [replace(row, labels="L2-resident") if row.N <= 512 else row for row in rows]
    figure = draw(resident)
    assert points(figure.axes[0], "ours", hollow=False) == {256, 512, 1024, 2048}
    assert points(figure.axes[1], "ours", hollow=False) == {1024, 2048}
    assert "shaded: the tensors fit L2" in texts(figure)
    small = [replace(row, labels="L2-resident") for row in rows]
    assert draw(small).axes[1].get_ylabel() == "time (us), median"


def test_of_many_backends_the_others_are_grey_and_counted(rows):
    ours = [row for row in rows if row.backend == "ours"]
    figure = draw(
        rows + [replace(row, backend=f"b{i:02}", gbps=row.gbps / (3 + i), of_copy=0.9 / (3 + i)) for i in range(40) for row in ours]
    )
    assert "32 other backends" in texts(figure)
    named = [text for text in texts(figure) if text.startswith("b")]
    assert sorted(named) == [f"b{i:02}" for i in range(8)]


def test_fourteen_names_do_not_overlap(rows):
    ours = [row for row in rows if row.backend == "ours"]
    figure = draw([row for row in rows if row.backend == "copy"] + [replace(row, backend=f"b{i:02}") for i in range(14) for row in ours])
    figure.savefig("/dev/null", format="png")
    names = [text for text in figure.axes[0].texts if text.get_text().startswith("b")]
    boxes = sorted((text.get_window_extent() for text in names), key=lambda box: box.y0)
    assert len(names) == 14
    assert all(one.y1 <= other.y0 + 1 for one, other in pairwise(boxes))


def test_a_backend_has_a_line_for_each_kind_of_length(rows):
    every = [*rows, *(replace(row, N=row.N + 1) for row in rows), *(replace(row, N=row.N * 2 + 8) for row in rows)]
    figure = draw(every)
    lines = [line for line in of_colour(figure.axes[0], "ours") if line.get_linestyle() != "None"]
    assert {(line.get_linewidth(), line.get_linestyle()) for line in lines} == {(1.8, "-"), (0.8, "-"), (0.8, ":")}
    assert {"N: powers of two", "N: other multiples of 16 bytes", "N: other lengths"} <= set(texts(figure))


def test_several_panels_have_one_key_and_no_names_beside_them(rows):
    both = [*rows, *(replace(row, dtype="bf16") for row in rows)]
    figure = draw(both)
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["forward fp32, M = 4096", "forward bf16, M = 4096"]
    assert [text.get_text() for text in keys(figure)][:2] == ["ours", "torch"]
    assert "softmax: fraction of copy, H200" in texts(figure)
    assert [text.get_text() for panel in figure.axes for text in panel.texts] == ["ours leads in 4 of 4 cases"] * 2


def test_shapes_of_no_line_are_points_side_by_side(rows):
    shapes = [replace(row, shape=f"4x4x{row.N}") for row in rows]
    figure = draw(shapes)
    assert [text.get_text() for text in figure.axes[1].get_xticklabels()] == ["4x4x256", "4x4x512", "4x4x1024", "4x4x2048"]
    assert not [line for line in of_colour(figure.axes[0], "ours") if line.get_linestyle() != "None"]
    assert points(figure.axes[0], "ours", hollow=False).isdisjoint(points(figure.axes[0], "torch", hollow=False))


def test_a_speedup_is_logarithmic_and_leaves_its_reference_out(rows):
    figure = draw(rows, quantities=lambda some: [speedup(rows)])
    (panel,) = figure.axes
    assert panel.get_yscale() == "log"
    assert {"ours", "1.80x", "copy (yardstick)"} <= set(texts(figure))
    assert not of_colour(panel, "torch")


def test_a_short_sweep_has_a_tick_at_each_value(rows):
    assert list(draw(rows).axes[-1].get_xticks()) == [256, 512, 1024, 2048]
    turned = draw([replace(row, M=row.N, N=64) for row in rows])
    assert turned.axes[-1].get_xlabel() == "M, rows"


def test_names_without_room_are_in_the_key(rows):
    runs = [[replace(row, run=str(i)) for row in rows] for i in range(15)]
    figure = draw(*runs)
    beside = [text for text in (text.get_text() for text in figure.axes[0].texts) if ", run " in text]
    assert len(beside) == int(curves.HIGH / axes.LABEL) + 1
    assert len(beside) + len([text for text in keys(figure) if ", run " in text.get_text()]) == 30


def test_cells_without_a_fraction_are_counted_below_a_sheet(rows, recwarn):
    """A panel with one place has an axis too."""
    some = [replace(row, of_copy=None) if row.N != 512 else row for row in rows]
    figure = draw([*some, *(replace(row, direction="backward") for row in rows)])
    assert "Without a fraction of copy: 6 cells, where copy is doubtful or slower." in "\n".join(text.get_text() for text in figure.texts)
    low, high = figure.axes[0].get_xlim()
    assert low < 512 < high and not recwarn.list
