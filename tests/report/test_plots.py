"""Figures: one file per group, in the requested format."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from svg import as_svg

from softbench.core.case import Direction
from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Grade
from softbench.report import plots
from softbench.results import rows as results
from softbench.results.csv import read_csv

KINDS = (("curves", ""), ("heatmap", ""), ("speedup", "copy"), ("costs", ""))
"""Each kind, with the backend of its speed-ups."""
RESULTS = Path(__file__).parents[2] / "results" / "h200"


@pytest.fixture
def rows(make_record):
    def cell(N, direction):
        copy = make_record("copy", [10], N=N, grade=Grade.YARDSTICK, direction=direction)
        ours = make_record("ours", [20], N=N, direction=direction)
        return [results.row(record, copy, None, device="H200", run="r") for record in (copy, ours)]

    return [row for direction in (Direction.FORWARD, Direction.BACKWARD) for N in (256, 512) for row in cell(N, direction)]


def test_one_file_for_each_direction_and_dtype(tmp_path, rows):
    files = plots.write([(Path("a.csv"), rows)], [tmp_path / "out.png"])
    assert [file.name for file in files] == ["out-forward-fp32.png", "out-backward-fp32.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


@pytest.mark.slow
def test_many_backends_are_drawn_without_warnings(main):
    code, out, err = main("plot", RESULTS / "strategies.csv", "-o", "s.svg")
    assert (code, err) == (0, "")
    assert out.split() == ["s-forward-bf16.svg", "s-forward-fp32.svg", "s-backward-bf16.svg"]
    names = {row.backend for row in read_csv(RESULTS / "strategies.csv")[0] if row.gbps and row.backend != "copy"}
    drawn = Path("s-forward-bf16.svg").read_text()
    assert len(names) == 43
    assert [name for name in names if f"<!-- {name}" not in drawn] == []


@pytest.mark.slow
def test_a_backend_looks_the_same_in_all_figures(tmp_path, monkeypatch):
    """The third backend of one figure is the second of another, which lacks one."""
    rows, _ = read_csv(RESULTS / "frontier.csv")
    seen = []
    monkeypatch.setattr(plots.style, "saved", lambda figure, file, flag: seen.append(colours(figure)) or file)
    plots.write([(Path("a.csv"), [row for row in rows if (row.backend, row.M) != ("compile", 262144)])], [tmp_path / "o.png"])
    whole = {name: colour for one in seen for name, colour in one.items()}
    assert len(seen) > 10
    assert {"torch", "cuda", "quack"} <= whole.keys()
    assert all(whole[name] == colour for one in seen for name, colour in one.items())
    assert any("compile" not in one and "cuda" in one for one in seen)


def colours(figure):
    """The colours of the names: beside lines by the order of the marks, else of the points of each tick's row."""
    ticks = [text.get_text().partition(" ")[0] for text in figure.axes[0].get_yticklabels()]
    points = [line for panel in figure.axes for line in panel.lines if (line.get_gid() or "").endswith("point-0")]
    panel = figure.axes[0]
    marks = {line.get_ydata()[0]: line.get_color() for line in panel.lines if line.get_transform() == panel.transAxes}
    lines = {text.get_text().partition(" ")[0]: marks[text.get_position()[1]] for text in panel.texts if text.get_position()[1] in marks}
    return lines or {ticks[int(point.get_ydata()[0])]: point.get_color() for point in points}


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_single_group_keeps_name_and_format(tmp_path, rows, suffix, magic):
    (file,) = plots.write([(Path("a.csv"), rows[:4])], [tmp_path / f"out{suffix}"])
    assert file == tmp_path / f"out{suffix}"
    assert file.read_bytes().startswith(magic)


def test_errors_of_drawing_and_writing_are_one_line(tmp_path, rows):
    with pytest.raises(UsageError, match=r"must end in .png, .svg, .pdf"):
        plots.write([(Path("a.csv"), rows)], [tmp_path / "out.jpeg"])
    with pytest.raises(ResultsError, match="cannot be written: No such file"):
        plots.write([(Path("a.csv"), rows[:4])], [tmp_path / "none" / "out.png"])
    with pytest.raises(ResultsError, match="nothing to draw"):
        plots.write([], [tmp_path / "out.png"])


def test_the_bars_of_all_directions_are_one_figure(rows):
    (drawing,) = plots.drawings([(Path("a.csv"), rows)], "costs")
    assert [panel.get_title() for panel in drawing.figure.axes] == ["softmax forward", "softmax backward"]
    gids = [bar.get_gid() for panel in drawing.figure.axes for bar in panel.patches]
    assert (gids, drawing.series) == (["series-0-p0-point-0", "series-0-p1-point-0"], {0: "ours"})
    with pytest.raises(ResultsError, match="no cell has a fraction of copy"):
        list(plots.drawings([(Path("a.csv"), [row for row in rows if row.backend == "copy"])], "costs"))


def test_each_kind_draws_every_group(rows):
    names = {kind: [drawing.name for drawing in plots.drawings([(Path("a.csv"), rows)], kind, over)] for kind, over in KINDS}
    assert names == {
        "curves": ["forward-fp32", "backward-fp32"],
        "heatmap": ["forward-fp32", "backward-fp32"],
        "speedup": ["forward-fp32", "backward-fp32"],
        "costs": [""],
    }
    assert set(names) == set(plots.KINDS)


@pytest.mark.parametrize("kind", plots.ONE_FILE)
def test_figures_of_one_file_refuse_two(rows, kind):
    with pytest.raises(UsageError, match=f"plot --kind {kind}: draws one file at a time"):
        list(plots.drawings([(Path("a.csv"), rows), (Path("b.csv"), rows)], kind))


def test_shapes_and_parameters_of_operations_are_drawn(rows):
    """N-D cases have panels and a heatmap of shapes; each operation with its parameters has its own figures."""
    scaled = [replace(row, op="softmax(scale=0.7)", shape=f"64x{row.N}x64@dim1") for row in rows[:4]]
    for kind, name in (("curves", ""), ("heatmap", "-shapes"), ("speedup", "")):
        drawings = list(plots.drawings([(Path("a.csv"), [*rows[:4], *scaled])], kind, "copy" if kind == "speedup" else ""))
        assert [drawing.name for drawing in drawings] == ["forward-fp32", f"softmax-scale-0.7-forward-fp32{name}"]
        texts = [text.get_text() for text in drawings[1].figure.findobj(lambda artist: hasattr(artist, "get_text"))]
        assert any("64x256x64@dim1" in text for text in texts)


def test_formats_and_output_name_the_files():
    def files(out, *formats):
        return [str(file) for file in plots.targets(out and Path(out), formats, Path("a/run.csv"))]

    assert files(None) == ["a/run.png"]
    assert files(None, "png", "svg") == ["a/run.png", "a/run.svg"]
    assert files("x.svg") == files("x.svg", "svg") == ["x.svg"]
    assert files("v1.2", "pdf", "svg", "pdf") == ["v1.2.pdf", "v1.2.svg"]
    for out, formats, message in (
        ("x", (), "-o x: the file must end in .png, .svg, .pdf"),
        ("x.svg", ("png",), "-o x.svg --format png: contradict each other; give -o x, or no --format"),
        ("x.svg", ("svg", "png"), "-o x.svg --format svg,png: contradict each other; give -o x, or no --format"),
        ("x", ("jpeg",), "--format: unknown format 'jpeg'; known are png, svg, pdf"),
    ):
        with pytest.raises(UsageError) as caught:
            files(out, *formats)
        assert str(caught.value) == message


@pytest.mark.slow
def test_a_dollar_sign_starts_no_formula(rows):
    """Devices and files may have such names."""
    named = [replace(row, device=r"$\frac{1 $ x") for row in rows]
    for kind, over in KINDS:
        for drawing in plots.drawings([(Path("a.csv"), named)], kind, over):
            assert r"$\frac{1 $ x" in as_svg(drawing.figure)


@pytest.mark.parametrize(("kind", "over"), KINDS)
def test_ids_in_svg_are_unique_and_name_points_and_series(rows, kind, over):
    for drawing in plots.drawings([(Path("a.csv"), rows)], kind, over):
        root = ElementTree.fromstring(as_svg(drawing.figure))
        ids = [element.get("id") for element in root.iter() if element.get("id")]
        assert len(ids) == len(set(ids))
        assert set(drawing.points) <= set(ids)
        numbers = {int(name.split("-")[1]) for name in ids if name.startswith("series-")}
        assert numbers <= set(drawing.series)
        assert bool(drawing.points) == (kind != "costs")
