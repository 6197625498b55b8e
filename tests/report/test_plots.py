"""Figures: one file per group, in the requested format."""

from pathlib import Path

import pytest

from softbench.core.case import Direction
from softbench.core.errors import ResultsError, UsageError
from softbench.core.outcome import Grade
from softbench.report import plots
from softbench.results import rows as results


@pytest.fixture
def rows(make_record):
    def cell(N, direction):
        copy = make_record("copy", [10], N=N, grade=Grade.YARDSTICK, direction=direction)
        ours = make_record("ours", [20], N=N, direction=direction)
        return [results.row(record, copy, None, device="H200", run="r") for record in (copy, ours)]

    return [row for direction in (Direction.FORWARD, Direction.BACKWARD) for N in (256, 512) for row in cell(N, direction)]


def test_one_file_for_each_direction_dtype_and_m(tmp_path, rows):
    files = plots.write([(Path("a.csv"), rows)], tmp_path / "out.png")
    assert [file.name for file in files] == ["out-forward-fp32-M4096.png", "out-backward-fp32-M4096.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


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
