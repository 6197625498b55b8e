"""A row per backend and a panel per shape."""

from dataclasses import replace

import pytest

from softbench.report import dots, style
from softbench.report.figure_data import slices


@pytest.fixture
def rows(make_row):
    def cell(name, N, gbps):
        return make_row(name, N=N, gbps=gbps, labels="", of_copy=None if name == "copy" else gbps / 4000)

    return [cell(name, N, gbps) for N in (256, 512) for name, gbps in (("copy", 4000), ("slow", 400), ("best", 3900), ("mean", 2000))]


@pytest.fixture
def draw():
    def drawn(rows):
        (what,) = slices(rows)
        return dots.figure([rows], what, style.styles(rows), {0: ""}).figure

    return drawn


def test_the_best_backend_is_first(rows, draw):
    figure = draw(rows)
    assert [panel.get_title() for panel in figure.axes] == ["M = 4096, N = 256", "M = 4096, N = 512"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["best", "mean", "slow"]
    assert "98%" in [text.get_text() for text in figure.axes[0].texts]


def test_missing_and_doubtful_cells_look_different(rows, draw):
    changed = {("mean", 256): {"labels": "noisy"}, ("slow", 512): {"status": "wrong", "gbps": None}}
    first, second = draw([replace(row, **changed.get((row.backend, row.N), {})) for row in rows]).axes
    faces = [line.get_markerfacecolor() for line in first.lines if line.get_marker() not in ("None", "")]
    assert [face == style.PAPER for face in faces] == [False, True, False]
    assert [text.get_text() for text in second.texts] == ["98%", "50%", "wrong"]


def test_the_legend_names_doubtful_points_only_if_there_are_some(rows, draw):
    for labels, count in (("", 2), ("noisy", 3)):
        (legend,) = draw([replace(rows[1], labels=labels), rows[0], *rows[2:]]).legends
        assert len(legend.get_texts()) == count


def test_two_runs_have_a_row_each(rows):
    (what,) = slices(rows)
    figure = dots.figure([rows, rows], what, style.styles(rows), {0: ", a", 1: ", b"}).figure
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()][:2] == ["best, a", "best, b"]


def test_the_panel_of_an_nd_case_has_its_shape(rows, draw):
    figure = draw([replace(row, shape=f"64x{row.N}x64@dim1") for row in rows])
    assert [panel.get_title() for panel in figure.axes] == ["64x256x64@dim1", "64x512x64@dim1"]


def test_shapes_with_a_yardstick_alone_are_drawn(rows, draw):
    assert len(draw([row for row in rows if row.backend == "copy"]).axes) == 2
