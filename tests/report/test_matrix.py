"""The main table: its numbers, its columns, and its orientation."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from softbench.core.outcome import Grade
from softbench.report import matrix
from softbench.results import rows as results


@pytest.fixture
def cell(make_record):
    def make(backend, gbps, *, of_copy=None, speedup=None, M=4096, N=256):
        grade = Grade.YARDSTICK if backend == "copy" else Grade.PASS
        row = results.row(make_record(backend, [10.0] * 3, N=N, grade=grade), None, None, device="H200", run="r")
        return replace(row, M=M, gbps=gbps, median_us=1000 / gbps, labels="", of_copy=of_copy, speedup=speedup, relative_to="torch")

    return make


def shown(rows, width=80):
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    for section in matrix.sections(rows):
        for part in matrix.tables(section, console):
            console.print(part)
    return out.getvalue()


def test_numbers_of_a_cell_never_run_together(cell):
    rows = [cell("copy", 0.267), cell("torch", 0.211, of_copy=0.79, speedup=1.0), cell("slow", 1.02, of_copy=13.69, speedup=16.61)]
    rows += [replace(row, N=512, of_copy=row.of_copy and 10213.69, speedup=row.speedup and 12345.6) for row in rows]
    text = shown(rows, 120)
    assert "1.02  1369% 16.61x" in text
    assert "1.02 10214x 12346x" in text
    assert "0.211 10214x 12346x" in text


def test_signs_are_apart_from_numbers_and_below_each_other(cell):
    """`1.64x~*!` touched its number, and a cell without signs stood further right than one with signs."""
    rows = [cell("copy", 400, N=N) for N in (256, 512, 1024)]
    low = [replace(cell("low", 300 - N / 8, of_copy=0.5, speedup=1.64, N=N), grade=Grade.LOW_PRECISION) for N in (256, 512, 1024)]
    rows += [replace(low[0], labels="noisy"), low[1], replace(low[2], gbps=0.0, median_us=None, status="skipped", reason="no")]
    rows += [cell("torch", 200, of_copy=0.4, speedup=1.0, N=N) for N in (256, 512, 1024)]
    wide = [line.split("│") for line in shown(rows, 200).splitlines()[3:]]
    assert [cells[1] for cells in wide] == ["  400 "] * 3
    assert [cells[2] for cells in wide] == [" 268 50% 1.64x ~*! ", " 236 50% 1.64x ~*  ", "       skipped     "]
    assert [cells[3].rstrip() for cells in wide] == [" 200 40% 1.00x", " 200 40% 1.00x", " 200 40% 1.00x *"]
    narrow = [line.split("│") for line in shown(rows, 39).splitlines() if "│" in line]
    assert [cells[1] for cells in narrow] == ["  400 "] * 3
    assert [cells[2] for cells in narrow] == [" 268 50% ~*! ", " 236 50% ~*  ", " skipped     "]


def test_no_positive_number_is_shown_as_zero(cell):
    rows = [cell("copy", 41.9), cell("torch", 2e-4, of_copy=5e-6, speedup=1.0), cell("slow", 1e-7, of_copy=2e-9, speedup=5e-4)]
    line = shown(rows).splitlines()[-1]
    assert [word for word in line.replace("│", " ").split() if not float(word.strip("*%x") or 1)] == []
    assert "0.0005%" in line


def test_slow_backends_are_measured_in_megabytes(cell):
    text = shown([cell("copy", 0.09), cell("torch", 0.00312, of_copy=0.035, speedup=1.0)])
    assert "H200: MB/s, % of copy" in text
    assert "3.12" in text
    assert "90.0" in text
    assert "H200: GB/s, % of copy" in shown([cell("copy", 90), cell("torch", 3.12)])


def test_many_backends_have_a_line_each_best_first(cell):
    rows = [cell("copy", 4000, N=N) for N in (256, 512)] + [
        cell(f"b{i:02}", 100 + i, of_copy=0.5, N=N) for N in (256, 512) for i in range(44)
    ]
    lines = shown(rows).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[3:]] == ["copy", *(f"b{i:02}" for i in reversed(range(44)))]
    assert len(lines) == 48


def test_a_scan_over_rows_is_one_table(cell):
    rows = [cell(name, 100 + M, M=M) for M in (1, 8, 64) for name in ("copy", "torch")]
    lines = shown(rows).splitlines()
    assert lines[0].startswith("forward fp32, N=256, H200: GB/s")
    assert [line.split()[0] for line in lines[3:]] == ["1", "8", "64"]
    both = matrix.sections([*rows, *(cell(name, 9, M=8, N=512) for name in ("copy", "torch"))])
    assert [section.axis for section in both] == ["N", "N", "N"]


def test_too_many_shapes_and_backends_fill_several_tables(cell):
    rows = [cell(f"backend-{i}", 100 + i, N=N) for N in range(1, 60) for i in range(12)]
    lines = shown(rows).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(bool(figure.strip()) for line in lines if "│" in line for figure in line.split("│")[1:]) == 59 * 12


def test_markdown_has_the_same_cells(cell):
    rows = [cell("copy", 4000), cell("torch", 2000, of_copy=0.5, speedup=1.0), replace(cell("a|b", 1), status="failed", gbps=None)]
    (section,) = matrix.sections(rows)
    lines = matrix.as_markdown(section).splitlines()
    assert lines[0] == "forward fp32, M=4096, H200: GB/s, % of copy, speed-up over torch"
    assert lines[2:4] == ["| N | copy | torch | a&#124;b |", "| --- | ---: | ---: | ---: |"]
    assert lines[4:] == ["| 256 | 4000 | 2000 50% 1.00x &#42; | failed |"]


def test_each_operation_has_a_table_with_its_name(cell):
    rows = [cell("a", 100.0), replace(cell("a", 200.0), op="log_softmax")]
    text = shown(rows)
    assert "forward fp32, M=4096, H200" in text.splitlines()[0]
    assert any(line.startswith("log_softmax forward fp32, M=4096, H200") for line in text.splitlines())


def test_nd_cases_have_a_table_with_a_line_per_shape(cell):
    plain = cell("torch", 200, M=64, N=256)
    rows = [plain, *(replace(plain, shape=shape) for shape in ("8x8x256", "8x256x8@dim1"))]
    text = shown(rows)
    assert "forward fp32, M=64, H200" in text
    assert "forward fp32, H200" in text
    assert [line.split("│")[0].strip() for line in text.splitlines() if "│" in line] == ["256", "8x8x256", "8x256x8@dim1"]
    assert "backend ┃ 8x8x256 ┃ 8x256x8@dim1" in shown([replace(row, backend=f"b{i}" * 3) for row in rows[1:] for i in range(9)])
