"""Lines over N or M: their labels, signs and axes. Of shapes that form no line, a row per backend and a panel per shape."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex
from svg import as_svg

from softbench.report import axes, curves, dots, style
from softbench.report.figure_data import KINDS, slices, speedup


@pytest.fixture
def rows(make_row):
    def cell(name, N, gbps):
        return make_row(name, 10 * N / gbps, N=N, gbps=gbps, labels="", of_copy=None if name == "copy" else 0.5)

    return [cell(name, N, speed * N) for N in (256, 512, 1024, 2048) for name, speed in (("copy", 1), ("ours", 0.9), ("torch", 0.5))]


@pytest.fixture
def draw():
    def drawn(*runs):
        every = [row for run in runs for row in run]
        (what,) = slices(every)
        sources = {i: f", run {i}" if len(runs) > 1 else "" for i in range(len(runs))}
        return curves.figure(runs, what, style.styles(every), sources).figure

    return drawn


def points(figure, *, hollow):
    lines = [line for line in figure.axes[0].lines if "-point-" in (line.get_gid() or "") and line.get_markersize() > 1]
    return {line.get_xdata()[0] for line in lines if (line.get_markerfacecolor() == style.PAPER) == hollow}


def lines_of(figure, number, panel=0):
    return [line for line in figure.axes[panel].lines if (line.get_gid() or "").startswith(f"series-{number}-p{panel}-line-")]


def test_doubtful_points_are_hollow(rows, draw):
    noisy = [replace(row, labels="noisy") if (row.backend, row.N) == ("ours", 512) else row for row in rows]
    figure = draw([row for row in noisy if row.backend != "torch"])
    assert points(figure, hollow=True) == {512}
    assert points(figure, hollow=False) == {256, 1024, 2048}
    assert "doubtful: see the labels" in [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert points(draw(rows), hollow=True) == set()


def test_a_missing_point_is_a_cross_and_a_gap(rows, draw):
    failed = [replace(row, status="failed", gbps=None) if (row.backend, row.N) == ("ours", 512) else row for row in rows]
    panel = draw(failed).axes[0]
    assert [line.get_xdata() for line in panel.lines if line.get_marker() == "x"] == [[512]]
    (line,) = lines_of(panel.figure, 0)
    assert [y == y for y in line.get_ydata()] == [True, False, True, True]
    assert [list(line.get_xdata()) for line in panel.lines if line.get_linewidth() == 0.5] == [[256, 1024]]


def test_each_line_has_its_name_beside_it(rows, draw):
    panel = draw(rows).axes[0]
    assert {text.get_text() for text in panel.texts} >= {"ours", "torch", "copy (yardstick)"}
    overlaid = draw(rows, rows)
    assert {"ours, run 0", "ours, run 1"} <= {text.get_text() for text in overlaid.axes[0].texts}
    assert [line.get_linestyle() for number in (0, 1, 3, 4) for line in lines_of(overlaid, number)] == ["-", "-", "--", "--"]


def test_overlaid_cards_look_unlike_for_every_kind_of_length(rows, draw):
    every = [*rows, *(replace(row, N=row.N + 1) for row in rows), *(replace(row, N=row.N * 2 + 8) for row in rows)]
    figure = draw(every, every, every)
    for backend, card in [(number, card) for number in (0, 1) for card in range(3)]:
        lines = lines_of(figure, backend + 3 * card)
        assert {line.get_linestyle() for line in lines} == {style.DASHES[card]}
        assert len({line.get_linewidth() for line in lines}) == len(lines) == 3
    marks = {line.get_gid(): line for line in figure.axes[0].lines if (line.get_gid() or "").endswith("-name")}
    assert len({marks[f"series-{number}-name"].get_marker() for number in (0, 3, 6)}) == 3
    assert {marks[f"series-{number}-name"].get_color() for number in (0, 3, 6)} == {style.LINE_COLOURS[0]}
    across = marks["series-3-name"].get_window_extent().width * 72 / figure.dpi
    assert across > 30 > 20 > marks["series-3-name"].get_markersize()  # points: two dashes on each side of the marker
    kinds = [line for line in figure.axes[-1].get_legend().get_lines() if line.get_label().startswith("N: ")]
    assert {line.get_linestyle() for line in kinds} == {"-"} and len({line.get_linewidth() for line in kinds}) == 3


def test_backends_of_one_colour_keep_their_markers_in_overlays(rows, draw):
    ours = [row for row in rows if row.backend == "ours"]
    some = [replace(row, backend=f"b{i}") for i in range(len(style.LINE_COLOURS) + 1) for row in ours]
    figure = draw(some, some)
    points = {line.get_gid().split("-p0")[0]: line for line in figure.axes[0].lines if "-point-0" in (line.get_gid() or "")}
    assert len({(line.get_color(), line.get_marker()) for line in points.values()}) == len(style.LINE_COLOURS) + 1


def test_other_backends_are_grey_and_listed(rows, draw):
    ours = [row for row in rows if row.backend == "ours"]
    figure = draw(rows + [replace(row, backend=f"b{i:02}", gbps=row.gbps / (3 + i)) for i in range(40) for row in ours])
    listed = next(text.get_text() for text in figure.axes[-1].texts if "best first" in text.get_text())
    assert listed.replace("\n", " ").startswith("grey, best first: b05, b06, ")
    assert "b39" in listed
    named = [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    assert len(named) == 8
    grey = [line for line in figure.axes[0].lines if "-line-" in (line.get_gid() or "") and to_hex(line.get_color(), True) == style.GREY]
    assert len(grey) == 35


def test_a_backend_that_fails_everywhere_is_named_below(rows, draw):
    def below(*runs):
        texts = [text.get_text() for text in draw(*runs).axes[-1].texts]
        return next((text for text in texts if text.startswith("without any result")), "")

    lost = {"p20_us": None, "median_us": None, "p80_us": None, "gbps": None, "of_copy": None}
    ours = [row for row in rows if row.backend == "ours"]
    failed = [replace(row, backend=name, status=status, **lost) for name, status in (("w", "wrong"), ("u", "unavailable")) for row in ours]
    assert below(rows + failed) == "without any result: w (wrong)"
    some = replace(ours[0], status="wrong", **lost)  # a backend with other results has a cross there
    assert not below([some, *(row for row in rows if row != ours[0])])
    without = [replace(row, status="failed", **lost) if row.backend == "ours" else row for row in rows]
    assert below(rows, without) == "without any result: ours, run 1 (failed)"


def test_a_short_sweep_has_a_tick_at_each_value(rows, draw):
    figure = draw(rows)
    assert list(figure.axes[-1].get_xticks()) == [256, 512, 1024, 2048]
    assert figure.axes[-1].get_xlabel() == "N, columns of a row"
    turned = draw([replace(row, M=row.N, N=64) for row in rows])
    assert turned.axes[-1].get_xlabel() == "M, rows"
    assert "N = 64" in turned.axes[0].get_title()


def test_values_far_apart_have_a_logarithmic_axis(rows, draw):
    assert draw(rows).axes[0].get_yscale() == "linear"
    slow = [row if row.backend == "copy" else replace(row, gbps=row.gbps / 5000) for row in rows]
    assert draw(slow).axes[0].get_yscale() == "log"


def test_powers_of_two_and_other_lengths_have_their_own_lines(rows, draw):
    odd = [replace(row, N=row.N + 1, gbps=row.gbps / 2) for row in rows]
    aligned = [replace(row, N=row.N * 2 + 8) for row in rows]
    figure = draw([*rows, *odd, *aligned])
    assert [list(line.get_xdata()) for line in lines_of(figure, 0)] == [
        [256, 512, 1024, 2048],
        [520, 1032, 2056, 4104],
        [257, 513, 1025, 2049],
    ]
    assert len({line.get_linestyle() for line in lines_of(figure, 0)}) == 3
    legend = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert [text for text in legend if text.startswith("N: ")] == [f"N: {kind}" for kind in KINDS]


def test_a_line_of_other_lengths_does_not_leap(rows, draw):
    other = [replace(row, N=row.N + 1 if row.N < 2048 else 100001) for row in rows]
    parts = [list(line.get_xdata()) for line in lines_of(draw([*rows, *other]), 0)]
    assert parts == [[256, 512, 1024, 2048], [257, 513, 1025], [100001]]


def test_lines_on_each_other_have_unlike_widths(rows, draw):
    """The lower line is wider, and its points lie where they were measured."""
    twins = [replace(row, backend="twin", gbps=1.001 * row.gbps) for row in rows if row.backend == "ours"]
    figure = draw([*rows, *twins])
    (ours,), (torch,), (twin,) = (lines_of(figure, number) for number in range(3))
    assert ours.get_linewidth() > twin.get_linewidth() == torch.get_linewidth()
    assert ours.get_zorder() < twin.get_zorder()
    assert [list(line.get_ydata()) for line in (ours, twin)] == [[row.gbps for row in some] for some in (rows[1::3], twins)]


def test_a_speedup_is_drawn_around_one(rows, draw):
    every = [replace(row, relative_to="torch") for row in rows]
    (what,) = slices(every)
    drawing = curves.figure([every], what, style.styles(every), {0: ""}, speedup(every))
    (panel,) = drawing.figure.axes
    assert panel.get_yscale() == "log"
    assert panel.get_ylabel() == "speed-up over torch"
    assert drawing.series == {0: "ours", 2: "copy (yardstick)"}
    assert list(drawing.points) == [f"series-{number}-p0-point-{i}" for number in (0, 2) for i in range(4)]
    drawn = [line.get_ydata()[0] for line in panel.lines if (line.get_gid() or "").startswith("series-0-p0-point")]
    assert drawn == pytest.approx([0.9 / 0.5] * 4)


def test_each_point_in_svg_has_its_row(rows):
    """A page finds the points of a backend by their ids, and the row of each in `Drawing.points`."""
    (what,) = slices(rows)
    drawing = curves.figure([rows], what, style.styles(rows), {0: ""})
    ids = {element.get("id") for element in ElementTree.fromstring(as_svg(drawing.figure)).iter()}
    places = [(drawing.points[f"series-1-p0-point-{i}"].backend, drawing.points[f"series-1-p0-point-{i}"].N) for i in range(4)]
    assert places == [("torch", N) for N in (256, 512, 1024, 2048)]
    assert dict(drawing.series) == {0: "ours", 1: "torch", 2: "copy (yardstick)"}
    assert {f"series-{number}-name" for number in drawing.series} <= ids
    assert {f"series-0-p{panel}-line-0" for panel in (0, 1)} <= ids


def test_names_without_room_are_in_the_legend(rows, draw):
    ours = [row for row in rows if row.backend == "ours"]
    figure = draw(*([replace(row, backend=f"b{i}") for i in range(9) for row in ours] for _ in range(3)))
    height = figure.axes[0].get_window_extent().height / figure.dpi
    beside = [text for text in figure.axes[0].texts if text.get_text()]
    listed = [text.get_text() for text in figure.axes[-1].get_legend().get_texts() if text.get_text().startswith("b")]
    assert len(beside) <= height / axes.LABEL + 1
    assert len(beside) + len(listed) == 27


def test_long_sweeps_have_few_parts(rows):
    ours, torch = rows[1], rows[2]
    many = [replace(row, N=256 * i, labels="noisy" * (i == 7)) for i in range(1, curves.MANY + 2) for row in (ours, torch)]
    (what,) = slices(many)
    drawing = curves.figure([many], what, style.styles(many), {0: ""})
    parts = {line.get_gid(): len(line.get_xdata()) for line in drawing.figure.axes[0].lines if "-points-" in (line.get_gid() or "")}
    assert sum(parts.values()) == 2 * (curves.MANY + 1)
    assert len(parts) <= 2 * 2 * 2
    assert parts["series-0-p0-points-1-hollow"] == 1
    assert drawing.points == {}


@pytest.fixture
def shapes(make_row):
    def cell(name, N, gbps):
        return make_row(name, N=N, gbps=gbps, labels="", of_copy=None if name == "copy" else gbps / 4000)

    return [cell(name, N, gbps) for N in (256, 512) for name, gbps in (("copy", 4000), ("slow", 400), ("best", 3900), ("mean", 2000))]


@pytest.fixture
def panels():
    def drawn(shapes):
        (what,) = slices(shapes)
        return dots.figure([shapes], what, style.styles(shapes), {0: ""}).figure

    return drawn


def test_the_best_backend_is_first(shapes, panels):
    figure = panels(shapes)
    assert [panel.get_title() for panel in figure.axes] == ["M = 4096, N = 256", "M = 4096, N = 512"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["best", "mean", "slow"]
    assert "98%" in [text.get_text() for text in figure.axes[0].texts]


def test_missing_and_doubtful_cells_look_different(shapes, panels):
    changed = {("mean", 256): {"labels": "noisy"}, ("slow", 512): {"status": "wrong", "gbps": None}}
    first, second = panels([replace(row, **changed.get((row.backend, row.N), {})) for row in shapes]).axes
    faces = [line.get_markerfacecolor() for line in first.lines if line.get_marker() not in ("None", "")]
    assert [face == style.PAPER for face in faces] == [False, True, False]
    assert [text.get_text() for text in second.texts] == ["98%", "50%", "wrong"]


def test_the_legend_names_doubtful_points_only_if_there_are_some(shapes, panels):
    for labels, count in (("", 2), ("noisy", 3)):
        (legend,) = panels([replace(shapes[1], labels=labels), shapes[0], *shapes[2:]]).legends
        assert len(legend.get_texts()) == count


def test_two_runs_have_a_row_each(shapes):
    (what,) = slices(shapes)
    figure = dots.figure([shapes, shapes], what, style.styles(shapes), {0: ", a", 1: ", b"}).figure
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()][:2] == ["best, a", "best, b"]


def test_the_panel_of_an_nd_case_has_its_shape(shapes, panels):
    figure = panels([replace(row, shape=f"64x{row.N}x64@dim1") for row in shapes])
    assert [panel.get_title() for panel in figure.axes] == ["64x256x64@dim1", "64x512x64@dim1"]


def test_shapes_with_a_yardstick_alone_are_drawn(shapes, panels):
    assert len(panels([row for row in shapes if row.backend == "copy"]).axes) == 2
