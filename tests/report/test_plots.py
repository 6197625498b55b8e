"""Figures: kinds, files and their names."""

from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from svg import as_svg

from softbench.core.case import Direction
from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Grade
from softbench.report import plots, style
from softbench.results import rows as results
from softbench.results.csv import read_csv

KINDS = (("curves", ""), ("bandwidth", ""), ("heatmap", ""), ("speedup", "copy"), ("costs", ""))
"""Each kind, with the backend of its speed-ups."""
RESULTS = Path(__file__).parents[2] / "results" / "h200"


@pytest.fixture
def rows(make_record):
    def cell(N, direction):
        copy = make_record("copy", [10], N=N, grade=Grade.YARDSTICK, direction=direction)
        ours = make_record("ours", [20], N=N, direction=direction)
        return [results.row(record, copy, None, device="H200", run="r") for record in (copy, ours)]

    return [row for direction in (Direction.FORWARD, Direction.BACKWARD) for N in (256, 512) for row in cell(N, direction)]


def written(*arguments):
    return [one.file for one in plots.write(*arguments)]


@pytest.mark.parametrize(("kind", "over"), KINDS)
def test_each_kind_is_one_file(tmp_path, rows, kind, over):
    assert tuple(kind for kind, _ in KINDS) == plots.KINDS
    assert written([(Path("a.csv"), rows)], tmp_path / "out.png", kind, over) == [tmp_path / "out.png"]
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_many_panels_have_a_file_for_each_pass_or_dtype_with_the_largest(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(plots, "MOST", 3)

    def of(direction, dtype, number):
        some = [row for row in rows if row.direction == direction]
        sweep = [replace(row, M=M, N=row.N * k + M, dtype=dtype) for M in range(1, number + 1) for k in (1, 3, 9) for row in some]
        return [row for row in sweep if (row.M, row.N) != (1, 257)]

    many = of("forward", "fp32", plots.MOST) + of("backward", "fp32", plots.MOST + 2) + of("backward", "bf16", 1)
    found = plots.write([(Path("a.csv"), many)], tmp_path / "o.svg")
    assert [one.file.name for one in found] == ["o-forward.svg", "o-backward-fp32.svg", "o-backward-bf16.svg"]
    note = "2 further panels of backward fp32 left out; --M, --N and --shape select others"
    assert [one.note for one in found] == ["", note, ""]
    text = (tmp_path / "o-backward-fp32.svg").read_text()
    assert "backward fp32, M = 2 -->" in text
    assert "backward fp32, M = 1 -->" not in text  # it has one shape less


def test_curves_without_a_fraction_of_copy_say_that_they_draw_the_bandwidth(tmp_path, rows):
    alone = [(Path("a.csv"), [replace(row, of_copy=None) for row in rows if row.backend == "ours"])]
    notes = [plots.write(alone, tmp_path / "o.svg", kind)[0].note for kind in ("curves", "bandwidth")]
    assert notes == ["no cell has a fraction of copy: the bandwidth is drawn", ""]


@pytest.mark.slow
def test_many_backends_are_drawn_without_warnings(main):
    code, out, err = main("plot", RESULTS / "strategies.csv", "--kind", "costs", "-o", "s.svg")
    assert (code, out) == (0, "s.svg\n")
    assert err.startswith("softbench: other figures: --kind curves, bandwidth, heatmap or speedup;")
    names = {row.backend for row in read_csv(RESULTS / "strategies.csv")[0] if row.gbps and row.backend != "copy"}
    drawn = Path("s.svg").read_text()
    assert len(names) == 43
    assert [name for name in names if f"<!-- {name} -->" not in drawn] == []


def test_a_backend_has_the_colour_of_its_name_in_every_figure(rows):
    """Whatever else the file has, and also where it is grey in curves."""
    crowd = [replace(row, backend=f"b{i}") for i in range(20) for row in rows if row.backend == "ours"]
    for some in (rows, rows + crowd):
        for kind in ("heatmap", "costs"):
            (drawing,) = plots.drawings([(Path("a.csv"), some)], kind)
            artists = [*drawing.figure.findobj(lambda artist: hasattr(artist, "get_markerfacecolor"))]
            assert style.own("ours").colour in {artist.get_color() for artist in artists}


@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_a_single_group_keeps_name_and_format(tmp_path, rows, suffix, magic):
    (file,) = written([(Path("a.csv"), rows[:4])], tmp_path / f"out{suffix}")
    assert file == tmp_path / f"out{suffix}"
    assert file.read_bytes().startswith(magic)


def test_webp_has_the_pixels_of_png(tmp_path, rows):
    (one,), (other,) = (written([(Path("a.csv"), rows[:4])], tmp_path / f"out{suffix}") for suffix in (".png", ".webp"))
    assert Image.open(one).convert("RGB").tobytes() == Image.open(other).convert("RGB").tobytes()


def test_errors_of_drawing_and_writing_are_one_line(tmp_path, rows):
    with pytest.raises(UsageError, match=r"must end in .png, .svg, .pdf, .webp"):
        plots.write([(Path("a.csv"), rows)], tmp_path / "out.jpeg")
    with pytest.raises(ResultsError, match="cannot be written: No such file"):
        plots.write([(Path("a.csv"), rows[:4])], tmp_path / "none" / "out.png")
    with pytest.raises(ResultsError, match="nothing to draw"):
        plots.write([], tmp_path / "out.png")


def test_costs_are_time_host_time_builds_and_memory(rows):
    costly = [replace(row, host_us=5.0, build_s=2.0, build_cache="cold", peak_bytes=0 if row.backend == "copy" else 4096) for row in rows]
    costly += [replace(row, backend="big", peak_bytes=12288, of_copy=0.25, build_cache="") for row in costly if row.backend == "ours"]
    (drawing,) = plots.drawings([(Path("a.csv"), costly)], "costs")
    titles = ["time of a call over copy's", "host time of a call (us)", "prepare and first call (s)", "peak memory over the least"]
    assert [panel.get_title(loc="left") for panel in drawing.figure.axes] == titles
    medians = [[line.get_xdata()[0] for line in panel.lines if line.get_marker() == "o"] for panel in drawing.figure.axes]
    assert medians == [[2, 4], [5, 5], [2, 2], [1, 3]]
    assert [text.get_text() for text in drawing.figure.axes[0].get_yticklabels()] == ["ours", "big"]
    faces = [line.get_markerfacecolor() == style.PAPER for line in drawing.figure.axes[2].lines if line.get_marker() == "o"]
    assert faces == [False, True]
    with pytest.raises(ResultsError, match="no cell has a cost"):
        list(plots.drawings([(Path("a.csv"), [row for row in rows if row.backend == "copy"])], "costs"))


@pytest.mark.parametrize("kind", plots.ONE_FILE)
def test_figures_of_one_file_refuse_two(rows, kind):
    with pytest.raises(UsageError, match=f"plot --kind {kind}: draws one file at a time"):
        list(plots.drawings([(Path("a.csv"), rows), (Path("b.csv"), rows)], kind))


def test_shapes_and_parameters_of_operations_are_drawn(rows):
    scaled = [replace(row, op="softmax(scale=0.7)", shape=f"64x{row.N}x64@dim1") for row in rows[:4]]
    for kind, over in KINDS[:4]:
        (drawing,) = plots.drawings([(Path("a.csv"), [*rows[:4], *scaled])], kind, over)
        texts = [text.get_text() for text in drawing.figure.findobj(lambda artist: hasattr(artist, "get_text"))]
        assert {"64x256x64@dim1", "softmax forward fp32", "softmax(scale=0.7) forward fp32"} <= {text.partition(",")[0] for text in texts}


def test_results_and_kind_name_the_file():
    run = Path("a/run.csv")
    assert [str(plots.target(None, run, kind)) for kind in ("curves", "costs")] == ["a/run.png", "a/run-costs.png"]
    assert plots.target(Path("x.svg"), run, "curves") == Path("x.svg")
    with pytest.raises(UsageError) as caught:
        plots.target(Path("x"), run, "curves")
    assert str(caught.value) == "-o x: the file must end in .png, .svg, .pdf, .webp"


@pytest.mark.slow
def test_a_dollar_sign_starts_no_formula(rows):
    """Devices and files may have such names."""
    named = [replace(row, device=r"$\frac{1 $ x") for row in rows]
    for kind, over in KINDS:
        for drawing in plots.drawings([(Path("a.csv"), named)], kind, over):
            assert r"$\frac{1 $ x" in as_svg(drawing.figure)


def test_a_heatmap_of_several_passes_is_one_file_with_a_map_each(rows):
    (drawing,) = plots.drawings([(Path("a.csv"), rows)], "heatmap")
    assert [panel.get_title(loc="left") for panel in drawing.figure.axes] == ["forward fp32", "backward fp32"]
    assert "softmax: the fastest backend, H200" in [text.get_text() for text in drawing.figure.texts]
