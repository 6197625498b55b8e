"""Figures: one file per group, in the requested format."""

from pathlib import Path

import pytest

from softbench.core.case import Direction
from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Grade
from softbench.report import plots
from softbench.results import rows as results
from softbench.results.csv import read_csv

RESULTS = Path(__file__).parents[2] / "results" / "h200"


@pytest.fixture
def rows(make_record):
    def cell(N, direction):
        copy = make_record("copy", [10], N=N, grade=Grade.YARDSTICK, direction=direction)
        ours = make_record("ours", [20], N=N, direction=direction)
        return [results.row(record, copy, None, device="H200", run="r") for record in (copy, ours)]

    return [row for direction in (Direction.FORWARD, Direction.BACKWARD) for N in (256, 512) for row in cell(N, direction)]


def test_one_file_for_each_direction_and_dtype(tmp_path, rows):
    files = plots.write([(Path("a.csv"), rows)], tmp_path / "out.png")
    assert [file.name for file in files] == ["out-forward-fp32.png", "out-backward-fp32.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_many_backends_are_drawn_without_warnings(main):
    """44 backends made Matplotlib warn of an axis without room, and cut the legend."""
    code, out, err = main("plot", RESULTS / "strategies.csv", "-o", "s.svg")
    assert (code, err) == (0, "")
    assert out.split() == ["s-forward-bf16.svg", "s-forward-fp32.svg", "s-backward-bf16.svg"]
    names = {row.backend for row in read_csv(RESULTS / "strategies.csv")[0] if row.gbps and row.backend != "copy"}
    drawn = Path("s-forward-bf16.svg").read_text()
    assert len(names) == 43
    assert [name for name in names if f"<!-- {name}" not in drawn] == []


def test_a_backend_looks_the_same_in_all_figures(tmp_path, monkeypatch):
    """The third backend of one figure is the second of another, which lacks one."""
    rows, _ = read_csv(RESULTS / "frontier.csv")
    seen = []
    monkeypatch.setattr(plots.style, "saved", lambda figure, file, flag: seen.append(colours(figure)) or file)
    plots.write([(Path("a.csv"), [row for row in rows if (row.backend, row.M) != ("compile", 262144)])], tmp_path / "o.png")
    whole = {name: colour for one in seen for name, colour in one.items()}
    assert len(seen) > 10
    assert {"torch", "cuda", "quack"} <= whole.keys()
    assert all(whole[name] == colour for one in seen for name, colour in one.items())
    assert any("compile" not in one and "cuda" in one for one in seen)


def colours(figure):
    """The colours of the names: beside lines by the order of the marks, else of the ticks."""
    ticks = {text.get_text().partition(" ")[0]: text.get_color() for text in figure.axes[0].get_yticklabels()}
    panel = figure.axes[0]
    marks = {line.get_ydata()[0]: line.get_color() for line in panel.lines if line.get_transform() == panel.transAxes}
    lines = {text.get_text().partition(" ")[0]: marks[text.get_position()[1]] for text in panel.texts if text.get_position()[1] in marks}
    return lines or {name: colour for name, colour in ticks.items() if name}


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_single_group_keeps_name_and_format(tmp_path, rows, suffix, magic):
    (file,) = plots.write([(Path("a.csv"), rows[:4])], tmp_path / f"out{suffix}")
    assert file == tmp_path / f"out{suffix}"
    assert file.read_bytes().startswith(magic)


def test_errors_of_drawing_and_writing_are_one_line(tmp_path, rows):
    with pytest.raises(UsageError, match=r"must end in .png, .svg, .pdf"):
        plots.write([(Path("a.csv"), rows)], tmp_path / "out.jpeg")
    with pytest.raises(ResultsError, match="cannot be written: No such file"):
        plots.write([(Path("a.csv"), rows[:4])], tmp_path / "none" / "out.png")
    with pytest.raises(ResultsError, match="nothing to draw"):
        plots.write([], tmp_path / "out.png")


def test_the_bars_of_all_directions_are_one_figure(tmp_path, rows):
    file = plots.backends(rows, tmp_path / "backends.png")
    assert file.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ResultsError, match="no cell has a fraction of copy"):
        plots.backends([row for row in rows if row.backend == "copy"], tmp_path / "none.png")
