"""Lines over N or M: their labels, signs and axes."""

from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex

from softbench.core.outcome import Grade
from softbench.report import curves, style
from softbench.report.slices import slices
from softbench.results import rows as results


@pytest.fixture
def rows(make_record):
    def cell(name, N, gbps):
        grade = Grade.YARDSTICK if name == "copy" else Grade.PASS
        made = results.row(make_record(name, [10.0] * 3, N=N, grade=grade), None, None, device="H200", run="r")
        return replace(made, gbps=gbps, labels="", of_copy=None if name == "copy" else 0.5)

    return [cell(name, N, speed * N) for N in (256, 512, 1024, 2048) for name, speed in (("copy", 1), ("ours", 0.9), ("torch", 0.5))]


@pytest.fixture
def draw():
    def drawn(*runs):
        every = [row for run in runs for row in run]
        (what,) = slices(every)
        sources = {i: f", run {i}" if len(runs) > 1 else "" for i in range(len(runs))}
        return curves.figure(runs, what, style.styles(every), sources)

    yield drawn
    pyplot.close("all")


def points(figure, face):
    panel = figure.axes[0]
    lines = [line for line in panel.lines if line.get_transform() == panel.transData and line.get_marker() not in ("None", "", "x")]
    return {x for line in lines if (line.get_markerfacecolor() == "white") == (face == "white") for x, y in line.get_xydata() if y == y}


def test_doubtful_points_are_hollow(rows, draw):
    noisy = [replace(row, labels="noisy") if (row.backend, row.N) == ("ours", 512) else row for row in rows]
    figure = draw([row for row in noisy if row.backend != "torch"])
    assert points(figure, "white") == {512}
    assert points(figure, "full") == {256, 1024, 2048}
    assert "doubtful: see the labels" in [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert points(draw(rows), "white") == set()


def test_a_missing_point_is_a_cross_and_a_gap(rows, draw):
    failed = [replace(row, status="failed", gbps=None) if (row.backend, row.N) == ("ours", 512) else row for row in rows]
    panel = draw(failed).axes[0]
    assert [line.get_xdata() for line in panel.lines if line.get_marker() == "x"] == [[512]]
    thick = next(line for line in panel.lines if line.get_linewidth() == 1.5)
    assert [y == y for y in thick.get_ydata()] == [True, False, True, True]
    assert [list(line.get_xdata()) for line in panel.lines if line.get_linewidth() == 0.5] == [[256, 1024]]


def test_each_line_has_its_name_beside_it(rows, draw):
    panel = draw(rows).axes[0]
    assert {text.get_text() for text in panel.texts} >= {"ours", "torch", "copy (yardstick)"}
    overlaid = draw(rows, rows)
    assert {"ours, run 0", "ours, run 1"} <= {text.get_text() for text in overlaid.axes[0].texts}
    assert {line.get_linestyle() for line in overlaid.axes[0].lines if line.get_linewidth() == 1.5} == {"-", "--", "None"}


def test_other_backends_are_grey_and_listed(rows, draw):
    ours = [row for row in rows if row.backend == "ours"]
    figure = draw(rows + [replace(row, backend=f"b{i:02}", gbps=row.gbps / (3 + i)) for i in range(40) for row in ours])
    listed = next(text.get_text() for text in figure.axes[-1].texts if "best first" in text.get_text())
    assert listed.replace("\n", " ").startswith("grey, best first: b05, b06, ")
    assert "b39" in listed
    named = [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    assert len(named) == 8
    lines = [line for line in figure.axes[0].lines if to_hex(line.get_color()) == to_hex(style.GREY) and line.get_marker() == "."]
    assert len(lines) == 35


def test_a_short_sweep_has_a_tick_at_each_value(rows, draw):
    figure = draw(rows)
    assert list(figure.axes[-1].get_xticks()) == [256, 512, 1024, 2048]
    assert figure.axes[-1].get_xlabel() == "N, columns of a row"
    turned = draw([replace(row, M=row.N, N=64) for row in rows])
    assert turned.axes[-1].get_xlabel() == "M, rows"
    assert "N = 64" in turned.axes[0].get_title()


def test_ticks_have_room_and_prefer_powers_of_two():
    assert curves.ticks([1000, 1024, 1025, 4096, 50257], wide=True) == [1024, 4096, 50257]
    assert curves.ticks([5, 12, 31, 33, 63], wide=False) == [5, 12, 33, 63]


def test_labels_are_spread_around_their_lines():
    assert curves.spread([0.2, 0.5, 0.9], 0.1) == pytest.approx([0.2, 0.5, 0.9])
    assert curves.spread([0.5, 0.5, 0.5], 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert curves.spread([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])
    crowd = curves.spread([0.01 * i for i in range(20)], 0.05)
    assert min(b - a for a, b in pairwise(crowd)) == pytest.approx(0.05)


def test_values_far_apart_have_a_logarithmic_axis(rows, draw):
    assert draw(rows).axes[0].get_yscale() == "linear"
    slow = [row if row.backend == "copy" else replace(row, gbps=row.gbps / 5000) for row in rows]
    assert draw(slow).axes[0].get_yscale() == "log"
