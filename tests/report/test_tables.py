"""The tables: the matrix of shapes and backends, a line per cell, and the notes below."""

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from softbench.cli import output
from softbench.core.outcome import Failed, Grade, Record, Skipped, Status
from softbench.report import matrix, tables
from softbench.report.standings import standings
from softbench.results import rows as results


def text(renderable, width=200):
    out = StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


@pytest.fixture
def rows(make_record):
    records = []
    for N in (256, 512):
        copy = make_record("copy", [10] * 3, N=N, grade=Grade.YARDSTICK)
        torch = make_record("torch", [40] * 3, N=N)
        naive = make_record("naive", [80] * 3, N=N, grade=Grade.LOW_PRECISION)
        gone = Record("gone", copy.case, Skipped("no nvcc; install it", unavailable=True))
        bad = Record("bad", copy.case, Failed(Status.WRONG, "check", "y[0, 0] is 1"))
        records += [(record, copy, torch) for record in (copy, torch, naive, gone, bad)]
    return [results.row(record, copy, torch, device="NVIDIA H200", run="r") for record, copy, torch in records]


def test_the_best_is_marked_and_every_reason_is_given_once(rows):
    shown = text(tables.results(rows, Console(width=200)))
    assert "forward fp32, M=4096: GB/s, % of copy, speed-up over torch" in shown
    assert shown.splitlines()[0] == "8 cells on NVIDIA H200"
    assert shown.count("25% *") == 2
    assert shown.count("0.50x ~") == 2
    assert shown.count("no nvcc; install it") == 1
    assert "gone" not in shown.partition("━")[0].splitlines()[-1]  # no column without results
    alone = text(tables.results([row for row in rows if row.backend == "gone"], Console(width=200)))
    assert "gone" in alone.partition("━")[0].splitlines()[-1]
    assert "gone: unavailable (2 cells, forward fp32 4096x256 to forward fp32 4096x512): no nvcc; install it" in shown
    assert "bad: wrong (2 cells" in shown
    assert "~ low-precision" in shown


def test_calls_of_users_are_compared_by_operation_and_with_torch(make_row):
    others = {"relative_to": "torch", "timer": "host"}
    measured = [
        make_row(
            name,
            N=N,
            **others,
            no_grad_us=us * N / 256,
            recorded_us=2 * us,
            training_us=None if name == "torch" else 50.0,
            no_grad_ratio=ratio,
        )
        for name, us, ratio in (("torch", 10.0, None), ("softbench", 8.0, 0.7))
        for N in (256, 1024)
    ]
    lines = [line.split() for line in text(tables.results(measured, Console(width=200))).splitlines()]
    assert ["softmax", "│", "without", "autograd", "│", "25", "us", "│", "20", "us", "0.70x"] in lines
    assert ["softmax", "│", "recorded", "by", "autograd", "│", "20", "us", "│", "16", "us"] in lines
    assert ["softmax", "│", "with", "backward", "│", "│", "50", "us"] in lines
    assert "| softmax | without autograd | 25 us | 20 us 0.70x |" in tables.as_markdown(measured)
    head = "host time of users' calls, median over the cases"
    assert f"{head}, and its ratio to torch in the same process\n" in tables.as_markdown(measured)
    assert f"{head}\n" in tables.as_markdown([replace(row, no_grad_ratio=None) for row in measured])  # of an earlier version


def test_more_than_two_unavailable_backends_have_no_reasons_below(rows):
    (gone,) = [row for row in rows if row.backend == "gone" and row.N == 256]
    many = [*rows, *(replace(gone, backend=f"gone-{i}", reason=f"no library {i}") for i in range(12))]
    shown = text(tables.results(many, Console(width=200)))
    assert "missing   unavailable: 13 backends (--long says why)" in shown
    assert "gone" not in shown
    assert text(tables.cells(many)).count("no library") == 12
    few = text(tables.results([*rows, replace(gone, backend="gone-0", reason="no library")], Console(width=200)))
    assert "gone-0: unavailable (forward fp32 4096x256): no library" in few


def test_one_reason_of_several_backends_is_one_line(rows):
    checked = [replace(row, backend=f"t{i}", status="checked", reason="not timed") for i, row in enumerate(rows[:3])]
    assert "t0, t1, t2: checked (3 cells): not timed" in text(tables.results(checked, Console(width=200)))


def test_a_label_of_many_backends_gives_their_number(rows):
    (torch,) = [row for row in rows if row.backend == "torch" and row.N == 256]
    many = [replace(torch, backend=f"b{i}", labels="noisy") for i in range(20)]
    assert "noisy (20 cells of 20 backends): " in text(tables.results(many, Console(width=200), every=True))
    assert "noisy (" not in text(tables.results(many, Console(width=200)))  # the answer has its advice


def test_backends_that_tie_have_no_winner(cell):
    near = [cell("a", 400, N=N) for N in (256, 512)] + [cell("b", 399, N=256), cell("b", 300, N=512), cell("c", 200, N=256)]
    lines = shown(near).splitlines()[3:]
    assert [[part.strip() for part in line.split("│")[1:]] for line in lines] == [["400  =", "399 =", "200"], ["400 *", "300", "-"]]
    assert not {"*", "="} & set(shown([cell("alone", 400)]).split("M=4096")[1])
    unknown = [replace(row, low_us=None) for row in near]
    assert "*" not in shown(unknown)


def test_the_yardstick_is_never_the_best(rows):
    shown = text(tables.results([row for row in rows if row.backend == "copy"], Console(width=200)))
    assert "*" not in shown


@pytest.mark.parametrize("width", [30, 50, 80, 120])
def test_a_narrow_terminal_gets_less_detail_in_whole_lines(rows, width):
    console = Console(width=width)
    shown = text(tables.results(rows, console), width)
    figures = [line for line in shown.splitlines() if "│" in line]
    assert all(len(line) <= width for line in figures)
    assert sum(line.count("*") for line in figures) == 2
    assert sum(bool(cell.strip()) for line in figures for cell in line.split("│")[1:]) == 8


def test_markup_in_a_reason_is_shown_as_text(make_record):
    case = make_record("x", [1]).case
    row = results.row(Record("[red]x", case, Failed(Status.FAILED, "build", "[bold]no[/bold]")), None, None, device="d", run="r")
    assert "[red]x: failed (forward fp32 4096x256): [bold]no[/bold]" in text(tables.results([row], Console(width=200)))


def test_the_long_table_has_a_line_per_cell(rows):
    shown = text(tables.cells(rows))
    assert len([line for line in shown.splitlines() if "│ forward" in line]) == len(rows)
    assert "gone: unavailable (2 cells" in shown
    assert "38.8 us..41.2 us" in shown


def test_the_long_table_has_no_legend_of_signs(rows):
    limited = [replace(row, grade=grade) for row, grade in zip(rows, ("low-precision", "finite-only"), strict=False)]
    for shown in (text(tables.cells(limited)), tables.as_markdown(limited, long=True)):
        assert not set("*~!") & set(shown)
        assert "low-precision; finite-only: NaN in rows that hold -inf" in shown
    assert "~ low-precision; ~ finite-only: " in text(tables.results(limited, Console(width=200)))


def test_the_worst_cell_says_why_a_backend_is_limited(rows):
    limited = [
        replace(row, backend="x", grade="finite-only", reason=f"{error}e", error_over_bound=error)
        for row, error in zip(rows, (2, 9, 3), strict=False)
    ]
    assert "x: finite-only (3 cells, forward fp32 4096x256 to forward fp32 4096x256): 9e\n" in text(tables.cells(limited))


def test_the_heading_says_file_device_timer_and_date(rows):
    assert tables.heading(rows, "a.csv") == "a.csv: 8 cells on NVIDIA H200"
    timed = [replace(row, timer="device", l2="warm", run="run-20261129-010300+run-20261129-110300") for row in rows]
    assert tables.heading(timed) == "8 cells on NVIDIA H200, device with warm L2, 2026-11-29 01:03 to 11:03 UTC"
    assert tables.heading([replace(row, run="run-20261129-010300-2") for row in rows]).endswith("H200, 2026-11-29 01:03 UTC")
    host = text(tables.results([replace(row, timer="host", l2="cold", gbps=None) for row in rows], Console(width=200)))
    assert "80 us" in host


def test_a_dumb_terminal_cuts_no_column(rows, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    out = StringIO()
    output.show(tables.cells(rows), Console(file=out, force_terminal=True, color_system=None))
    assert [word.strip() for word in out.getvalue().splitlines()[1].split("┃")] == list(tables.CELL)[:-1]  # one card has no unit


def test_the_table_of_readme_equals_the_output_of_show(main, monkeypatch):
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root)
    command, excerpt = re.search(
        r"`softbench (show results/[^`]+)`[^`]*```text\n(.*?)```", (root / "README.md").read_text(), re.DOTALL
    ).groups()
    _, out, _ = main(*command.split())
    assert "".join(f"{line.rstrip()}\n" for line in out.splitlines()).startswith(excerpt)


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_cuts_no_column_of_a_wide_table(rows, width):
    """The terminal breaks the lines. Otherwise M and N would be missing on 80 characters."""
    out = StringIO()
    output.show(tables.cells(rows), Console(file=out, width=width, color_system=None))
    _, head, _, first, *_ = out.getvalue().splitlines()
    assert [word.strip() for word in head.split("┃")] == list(tables.CELL)[:-1]  # one card has no unit
    assert [word.strip() for word in first.split("│")][:6] == ["copy", "forward", "fp32", "4096", "256", "ok"]
    assert "…" not in out.getvalue()
    assert "no nvcc; install it" in " ".join(out.getvalue().split())


def test_cards_that_shared_a_sweep_are_named_below_the_table(rows):
    mine, other = "node1/0/0000000a", "node1/1/0000000b"
    dealt = [replace(row, unit=mine if row.N == 256 else other) for row in rows]
    line = f"cells of 2 cards: {mine}, {other}; --long has the card of each"
    assert line in text(tables.results(dealt, Console(width=200)))
    assert f"- {line}" in tables.as_markdown(dealt).splitlines()
    twice = [replace(row, unit=unit) for unit in (mine, other) for row in rows]  # these are shown apart
    for some in (rows, [replace(row, unit=mine) for row in rows], twice):
        assert "cells of 2 cards" not in text(tables.results(some, Console(width=200)))


@pytest.fixture
def cell(make_record):
    def make(backend, gbps, *, of_copy=None, speedup=None, M=4096, N=256):
        grade = Grade.YARDSTICK if backend == "copy" else Grade.PASS
        row = results.row(make_record(backend, [10.0] * 3, N=N, grade=grade), None, None, device="H200", run="r")
        times = {"median_us": 1000 / gbps, "low_us": 990 / gbps, "high_us": 1010 / gbps}
        return replace(row, M=M, gbps=gbps, **times, labels="", of_copy=of_copy, speedup=speedup, relative_to="torch")

    return make


def shown(rows, width=80, lines=24, **given):
    out = StringIO()
    console = Console(file=out, width=width, color_system=None)
    for section in matrix.sections(rows, standings(rows)):
        for part in matrix.fitted(section, width, lines, **given).parts():
            console.print(part)
    return out.getvalue()


def test_numbers_of_a_cell_never_run_together(cell):
    rows = [cell("copy", 0.267), cell("torch", 0.211, of_copy=0.79, speedup=1.0), cell("slow", 1.02, of_copy=13.69, speedup=16.61)]
    rows += [replace(row, N=512, of_copy=row.of_copy and 10213.69, speedup=row.speedup and 12345.6) for row in rows]
    text = shown(rows, 120)
    assert "1.02  1369% 16.61x" in text
    assert "1.02 10214x 12346x" in text
    assert "0.211 10214x" in text


def test_signs_are_apart_from_numbers_and_below_each_other(cell):
    """`1.64x~*!` touched its number, and a cell without signs stood further right than one with signs."""
    rows = [cell("copy", 400, N=N) for N in (256, 512, 1024)]
    low = [replace(cell("low", 300 - N / 8, of_copy=0.5, speedup=1.64, N=N), grade=Grade.LOW_PRECISION) for N in (256, 512, 1024)]
    rows += [replace(low[0], labels="noisy"), low[1], replace(low[2], gbps=0.0, median_us=None, status="skipped", reason="no")]
    rows += [cell("torch", 200, of_copy=0.4, speedup=1.0, N=N) for N in (256, 512, 1024)]
    wide = [line.split("│") for line in shown(rows, 200).splitlines()[3:]]
    assert [cells[1] for cells in wide] == ["  400 "] * 3
    assert [cells[2] for cells in wide] == [" 268 50% 1.64x ~*! ", " 236 50% 1.64x ~*  ", "       skipped     "]
    assert [cells[3].rstrip() for cells in wide] == [" 200 40%"] * 3  # without a rival it wins nothing
    assert "without" not in shown(rows, 200)
    assert shown([replace(row, relative_to="torch") for row in rows], 39).splitlines()[1] == "without speed-up over torch"
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
    assert "M=4096: MB/s, % of copy" in text
    assert "3.12" in text
    assert "90.0" in text
    assert "M=4096: GB/s, % of copy" in shown([cell("copy", 90), cell("torch", 3.12, of_copy=0.035)])


def test_calls_of_matrix_products_show_times(cell):
    products = replace(cell("torch", 60, of_copy=0.9, speedup=1.0), median_us=38_000.0, labels="compute-bound")
    text = shown([replace(cell("copy", 4000), median_us=580.0), products])
    assert "M=4096: time, % of the roof" in text
    assert "580 us" in text
    assert "38 ms 90%" in text


def many(cell, Ns):
    rows = [cell("copy", 4000, N=N) for N in Ns]
    return rows + [cell(f"b{i:02}", 100 + i, of_copy=0.5, N=N) for N in Ns for i in range(44)]


def test_many_backends_have_a_line_each_best_first(cell):
    lines = shown(many(cell, (256, 512)), lines=50).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[3:]] == ["copy", *(f"b{i:02}" for i in reversed(range(44)))]
    assert lines[0].startswith("forward fp32, M=4096: GB/s")


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_table_is_cut_to_what_fits_and_says_so(cell, width):
    rows = [replace(row, relative_to="b07") for row in many(cell, range(16, 16 * 49, 16))]
    title, cut, head, _, *lines = shown(rows, width, lines=10).splitlines()
    assert max(map(len, (title, head, *lines))) <= width
    columns = [word.strip() for word in head.split("┃")][1:]
    assert (columns[0], columns[-1]) == ("N=16", "N=768")
    assert cut == f"{len(columns)} of 48 N, the best 10 of 45 backends"
    assert [line.split()[0] for line in lines] == ["copy", *(f"b{i:02}" for i in range(43, 35, -1)), "b07"]  # the reference stays


def test_a_long_table_is_cut_to_evenly_spread_shapes_and_wide_has_all(cell):
    rows = [cell(name, 100 + N, N=N) for N in range(1, 61) for name in ("copy", "torch")]
    _, cut, _, _, *lines = shown(rows, lines=7).splitlines()
    assert cut == "7 of 60 N"
    assert [int(line.split()[0]) for line in lines] == [1, 11, 21, 31, 40, 50, 60]
    cut, wide = (text(tables.results(rows, Console(width=80), wide=wide), 400) for wide in (False, True))
    assert "the tables are cut to fit: --wide shows everything" in cut
    assert sum("│" in line for line in wide.splitlines()) == 60
    assert "--wide" not in wide


def test_a_file_of_many_passes_shows_a_few_tables_and_says_so(cell):
    rows = [replace(cell("torch", 100 + i, N=N), op=f"softmax(scale={i})") for i in range(2, 40) for N in range(1, 13)]
    shown = text(tables.results(rows, Console(width=120)), 120)
    assert shown.count("━╇━") == tables.TABLES
    assert f"{38 - tables.TABLES} tables more; the tables are cut to fit: --wide shows everything; --op" in shown


def test_colour_terminals_get_bars_and_curves(cell):
    assert "████████" in shown(many(cell, (256, 512)), graphic=True)
    assert "curve │ ▂▃▄▅▅▆▇█" in shown([cell("longname", 100 * N, N=N) for N in range(1, 9)], graphic=True)
    assert not {"█", "▂"} & set(text(tables.results(many(cell, (256, 512)), Console(width=120))))


def test_a_scan_over_rows_is_one_table(cell):
    rows = [cell(name, 100 + M, M=M) for M in (1, 8, 64) for name in ("copy", "torch")]
    lines = shown(rows).splitlines()
    assert lines[0].startswith("forward fp32, N=256: GB/s")
    assert [line.split()[0] for line in lines[3:]] == ["1", "8", "64"]
    both = [*rows, *(cell(name, 9, M=8, N=512) for name in ("copy", "torch"))]
    assert [section.axis for section in matrix.sections(both, standings(both))] == ["N", "N", "N"]


def test_shapes_of_many_row_counts_are_one_table_unless_wide(cell):
    rows = [cell(name, 100 + M, M=M, N=N) for M, N in ((1, 64), (2, 64), (4, 32), (8, 64), (8, 128)) for name in ("copy", "torch")]
    lines = shown(rows).splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["1x64", "2x64", "4x32", "8x64", "8x128"]
    assert len(matrix.sections(rows, standings(rows), merged=False)) == 4


def test_markdown_has_the_same_cells(cell):
    rows = [cell("copy", 4000), cell("torch", 2000, of_copy=0.5, speedup=1.0), replace(cell("a|b", 1), status="failed", gbps=None)]
    (section,) = matrix.sections(rows, standings(rows))
    lines = matrix.as_markdown(section).splitlines()
    assert lines[0] == "forward fp32, M=4096: GB/s, % of copy"  # no cell has a speed-up
    assert lines[2:4] == ["| N | copy | torch | a&#124;b |", "| --- | ---: | ---: | ---: |"]
    assert lines[4:] == ["| 256 | 4000 | 2000 50% | failed |"]


def test_each_operation_has_a_table_with_its_name(cell):
    rows = [cell("a", 100.0), replace(cell("a", 200.0), op="log_softmax")]
    text = shown(rows)
    assert "forward fp32, M=4096: " in text.splitlines()[0]
    assert any(line.startswith("log_softmax forward fp32, M=4096: ") for line in text.splitlines())


def test_nd_cases_have_a_table_with_a_line_per_shape(cell):
    plain = cell("torch", 200, M=64, N=256)
    rows = [plain, *(replace(plain, shape=shape) for shape in ("8x8x256", "8x256x8@dim1"))]
    text = shown(rows)
    assert "forward fp32, M=64: " in text
    assert "forward fp32: " in text
    assert [line.split("│")[0].strip() for line in text.splitlines() if "│" in line] == ["256", "8x8x256", "8x256x8@dim1"]
    assert "backend ┃ 8x8x256 ┃ 8x256x8@dim1" in shown([replace(row, backend=f"b{i}" * 3) for row in rows[1:] for i in range(9)])
