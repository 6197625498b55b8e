"""Who is fastest in each case: leads, ties, crossovers, and cases without a result."""

from dataclasses import replace

import pytest

from softbench.core.errors import ResultsError
from softbench.report import heatmap, style
from softbench.report.figure_data import groups


@pytest.fixture
def cell(make_row):
    return lambda backend, N, us: make_row(backend, us, N=N, low_us=us * 0.99, high_us=us * 1.01, labels="")


def draw(rows):
    return heatmap.figure(rows, groups(rows))


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def below(figure):
    """The texts around the map."""
    return "\n".join(text.get_text() for text in figure.texts)


def edges(figure):
    return [line for line in figure.axes[0].lines if line.get_linewidth() == 1.8]


def test_a_cell_has_the_fastest_and_its_lead(cell):
    drawing = draw([cell("copy", 256, 1), cell("a", 256, 10), cell("b", 256, 12), cell("a", 512, 22), cell("b", 512, 20)])
    assert texts(drawing)[:2] == ["+20%", "+10%"]
    assert [text.get_text() for text in drawing.legends[0].get_texts()] == ["a ahead in 1", "b ahead in 1"]
    marks = [line.get_color() for line in drawing.axes[0].lines if line.get_marker() != "None"]
    assert marks == [style.own("a").colour, style.own("b").colour]
    assert len(edges(drawing)) == 1


def test_overlapping_intervals_tie_and_make_no_crossover(cell):
    drawing = draw([cell("a", 256, 10), cell("b", 256, 12), cell("a", 512, 20.1), cell("b", 512, 20)])
    assert texts(drawing)[:2] == ["+20%", "tie"]
    assert edges(drawing) == []
    assert "a is ahead of all others in 1 of 2 cases; 1 tie" in below(drawing)
    assert "no backend is ahead of all others in any of 1 case; 1 tie" in below(draw([cell("a", 256, 10), cell("b", 256, 10.05)]))
    many = heatmap.standing([cell(name, 256, us) for name, us in (("a", 10), ("b", 10.1), ("c", 10.13), ("d", 11))])
    assert [row.backend for row in many.tied] == ["a", "b", "c"]


def test_an_interval_beside_its_median_reaches_to_it(cell):
    """As in a file of another program: the median of a lies above its interval, at that of b."""
    beside = replace(cell("a", 256, 10), low_us=8.0, high_us=8.5)
    found = heatmap.standing([beside, cell("b", 256, 10.05)])
    assert [row.backend for row in found.tied] == ["a", "b"]
    assert not found.parted
    assert heatmap.standing([beside, cell("b", 256, 12)]).parted
    above = replace(cell("b", 256, 10.05), low_us=12.0, high_us=13.0)
    assert [row.backend for row in heatmap.standing([cell("a", 256, 10), above]).tied] == ["a", "b"]


def test_few_samples_of_a_slow_backend_hide_no_lead(cell):
    slow = replace(cell("c", 256, 100), low_us=None, high_us=None, p20_us=90.0)
    found = heatmap.standing([cell("a", 256, 10), cell("b", 256, 12), slow])
    assert (found.parted, found.unknown) == (True, False)
    near = heatmap.standing([cell("a", 256, 10), replace(slow, median_us=10.2, p20_us=10.0)])
    assert [row.backend for row in near.tied] == ["a", "c"]


def test_a_lead_without_intervals_is_in_parentheses(cell):
    older = [replace(cell(name, 256, us), low_us=None, high_us=None) for name, us in (("a", 10), ("b", 12))]
    drawing = draw([*older, cell("a", 512, 30), cell("b", 512, 20)])
    assert texts(drawing)[0] == "(+20%)"
    assert edges(drawing) == []
    assert "the file has no interval" in below(drawing)


def test_cases_without_a_result_are_visible(cell):
    def lost(backend, N, status):
        return replace(cell(backend, N, 1), status=status, median_us=None, gbps=None)

    drawing = draw([
        *(cell("a", 256, 10), lost("b", 256, "wrong"), lost("c", 256, "skipped")),
        *(lost("a", 512, "wrong"), lost("b", 512, "skipped")),
        *(lost("a", 1024, "skipped"), lost("b", 1024, "unavailable")),
    ])  # fmt: skip
    assert texts(drawing)[:4] == ["alone", "x1 -1", "wrong", "skipped"]
    assert [patch.get_hatch() for patch in drawing.axes[0].patches] == [None, "////", "////"]


def test_implausible_and_yardstick_cells_never_lead(cell):
    found = heatmap.standing([cell("copy", 256, 1), cell("a", 256, 9), replace(cell("b", 256, 2), labels="implausible")])
    assert ([row.backend for row in found.rows], found.lead, found.parted) == (["a"], None, False)


def test_a_fastest_backend_is_never_grey(cell):
    """Of 40 backends 10 have a colour in curves, and another one is fastest in one case."""
    rows = [cell(f"b{i:02}", N, 10 + i) for i in range(40) for N in (256, 512, 1024)]
    rows = [replace(row, median_us=1.0, low_us=1.0, high_us=1.0) if (row.backend, row.N) == ("b39", 256) else row for row in rows]
    assert not style.styles(rows)["b39"].named
    marks = [line.get_color() for line in draw(rows).axes[0].lines if line.get_marker() != "None"]
    assert marks == [style.own(name).colour for name in ("b39", "b00", "b00")]


def test_a_picture_of_too_many_shapes_is_refused(cell):
    with pytest.raises(ResultsError, match=r"201 shapes in a line, at most 200; select some: softbench plot FILE"):
        draw([replace(cell("a", 256, 1), N=N) for N in range(1, 202)])
    with pytest.raises(ResultsError, match="no backend but the yardstick has a time"):
        draw([cell("copy", 256, 1)])


def test_a_tie_with_a_third_backend_hides_no_crossover(cell):
    """At 256, a and c tie and both are ahead of b; at 512, b is ahead of both."""
    tied = [cell("a", 256, 10), cell("b", 256, 20), cell("c", 256, 10.1)]
    assert len(edges(draw([*tied, cell("a", 512, 20), cell("b", 512, 10), cell("c", 512, 20)]))) == 1
    assert edges(draw([*tied, cell("a", 512, 20), cell("b", 512, 20), cell("c", 512, 10)])) == []


def test_sparse_shapes_are_a_list_without_empty_fields(cell):
    rows = [replace(cell(name, 256 * i, us), M=i) for i in range(1, 31) for name, us in (("a", 10), ("b", 12))]
    figure = draw(rows)
    names = [[label.get_text() for label in panel.get_yticklabels()] for panel in figure.axes]
    assert [len(some) for some in names] == [15, 15]  # two columns
    assert names[0][:2] == ["1x256", "2x512"]
    assert not edges(figure)  # neighbours in a list are no neighbours of an axis


def test_host_times_have_no_bandwidth_and_a_fastest(cell):
    drawing = draw([replace(cell(name, 256, us), gbps=None) for name, us in (("a", 10), ("b", 12))])
    assert texts(drawing) == ["+20%"]


def test_long_names_and_titles_lie_beside_each_other(cell):
    """Of maps of N-D shapes of several operations, as of segmentation."""
    ops = [f"masked_softmax(scale=0.{i})" for i in range(6)]
    drawing = draw([replace(cell("a", 256, 10), op=op, shape="16x19x1024x2048@dim1") for op in ops])
    drawing.canvas.draw()
    boxes = [
        box
        for panel in drawing.axes
        for box in (panel._left_title.get_window_extent(), *(t.get_window_extent() for t in panel.get_yticklabels()))
    ]
    assert len(boxes) == 12
    assert not any(one.overlaps(other) for at, one in enumerate(boxes) for other in boxes[:at])


def test_the_name_of_an_axis_fits_a_low_map(cell):
    assert draw([cell("a", N, 10) for N in (256, 512)]).axes[0].get_ylabel() == "N"
    assert draw([cell("a", 256 * i, 10) for i in range(1, 9)]).axes[0].get_ylabel() == "N, columns of a row"
