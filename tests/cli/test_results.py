"""`show`, `plot` and `compare` from the command line."""

import csv
import io
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from softbench.cli import results
from softbench.results.csv import COLUMNS, read_csv, to_csv
from tests.support.documents import packed, vouch

ROOT = Path(__file__).parents[2]
FRONTIER = ROOT / "results" / "h200" / "frontier.csv"
STRATEGIES = ROOT / "results" / "h200" / "strategies.csv"


@pytest.fixture
def base(make_row):
    return [make_row("ours", 20.0, N=N) for N in (256, 512, 1024)]


@pytest.fixture
def write(main, base):
    """Writes a.csv, and b.csv with these factors of the times; the files lie in the working folder of `main`."""

    def wrote(*factors, **changes):
        Path("a.csv").write_text(to_csv(base))
        times = [
            replace(row, gbps=row.gbps / by, **{name: getattr(row, name) * by for name in ("median_us", "low_us", "high_us")}, **changes)
            for row, by in zip(base, factors, strict=False)
        ]
        Path("b.csv").write_text(to_csv(times))
        for name in ("a.csv", "b.csv"):
            vouch(name)

    return wrote


def test_compare_shows_changed_cells_the_largest_change_first(main, write):
    write(1, 1.5, 2)
    code, out, _ = main("compare", "a.csv", "b.csv")
    assert code == 0
    assert [line.split()[2] for line in out.splitlines() if line.startswith("ours")] == ["forward-fp32-4096x1024", "forward-fp32-4096x512"]
    no_copy = "no drift is taken off: copy has no clean result in both files"
    assert out.splitlines()[:3] == [no_copy, "A: a.csv, H200", "B: b.csv, H200"]
    assert "0 faster, 2 slower, 1 within noise" in out
    code, out, _ = main("compare", "a.csv", "b.csv", "--threshold", "60")
    assert [line.split()[2] for line in out.splitlines() if line.startswith("ours")] == ["forward-fp32-4096x1024"]


def test_compare_prints_the_drift_then_what_changed_most_then_a_count_of_the_rest(main, base, monkeypatch):
    copy = [replace(row, backend="copy", grade="yardstick") for row in base]
    names = ("median_us", "low_us", "high_us")
    for file, factors in (("a", [1] * 6), ("b", [1.1] * 4 + [1.32, 2.2])):
        times = zip([*copy, *base], factors, strict=True)
        moved = [replace(row, gbps=row.gbps / by, **{name: getattr(row, name) * by for name in names}) for row, by in times]
        Path(f"{file}.csv").write_text(to_csv(moved))

    def printed(*flags):
        lines = main("compare", "a.csv", "b.csv", *flags)[1].splitlines()
        assert lines[0].startswith("copy is 9.1 % slower in B (median of 3 cases)")
        return [line.split()[2].split("x")[1] for line in lines if "forward-" in line], lines[-2]

    assert printed()[0] == ["1024", "512"]
    assert printed()[1] == "not shown: 4 cells without a change beyond noise; --all shows every cell"
    assert printed("--json", "every.json") == printed()
    assert len(printed("--all")[0]) == 3 + 3
    monkeypatch.setattr(results, "LINES", 1)
    assert printed() == (["1024"], "not shown: 1 more changed cell, 4 cells without a change beyond noise; --all shows every cell")


def test_compare_refuses_cells_of_two_timers(main, write, base):
    """do_bench has the host in its time: a call that cannot be queued falls back to it, and would look slower or faster."""
    write(1, 1, 2)
    fallen = [replace(row, timer="do_bench") if row.N == 1024 else row for row in base]
    Path("a.csv").write_text(to_csv([replace(row, timer="queued") for row in base]))
    vouch("a.csv")
    Path("b.csv").write_text(to_csv([replace(row, timer="do_bench" if row.N == 1024 else "queued") for row in fallen]))
    vouch("b.csv")
    code, out, _ = main("compare", "a.csv", "b.csv", "--exit-code")
    assert code == 0
    assert "1 cell not compared: timed by queued in A, by do_bench in B; their ratio would compare the timers" in out
    assert "0 faster, 0 slower, 2 within noise, 1 of two timers" in out
    Path("b.csv").write_text(to_csv([replace(row, timer="do_bench") for row in base]))
    vouch("b.csv")
    code, out, err = main("compare", "a.csv", "b.csv")
    assert (code, out) == (3, "")
    assert "share no cell of one timer: not compared: timed by queued in A, by do_bench in B; measure both with one --timer" in err


def test_compare_fails_on_request_only(main, write):
    write(1, 1, 2)
    assert main("compare", "a.csv", "b.csv")[0] == 0
    assert main("compare", "a.csv", "b.csv", "--exit-code")[0] == 1
    assert main("compare", "b.csv", "a.csv", "--exit-code")[0] == 0
    assert main("compare", "a.csv", "b.csv", "--exit-code", "--threshold", "110")[0] == 0
    assert main("compare", "a.csv", "b.csv", "--threshold", "nan")[::2] == (
        2,
        "softbench: --threshold: must be a percentage from 0, not nan\n",
    )


def test_compare_counts_the_cells_of_another_card(main, write, base):
    mine, other = "node1/0/0000000a", "node1/1/0000000b"
    write(1, 1, 1)
    for name, units in (("a", [mine] * 3), ("b", [mine, other, mine])):
        Path(f"{name}.csv").write_text(to_csv([replace(row, unit=unit) for row, unit in zip(base, units, strict=True)]))
        vouch(f"{name}.csv")
    code, _, err = main("compare", "a.csv", "b.csv")
    elsewhere = "of another card in B than in A; cards of one model differ in bandwidth"
    assert (code, err) == (0, f"softbench: 1 cell {elsewhere}\n")
    assert main("compare", "b.csv", "b.csv")[2] == ""
    moved = to_csv([replace(row, unit=unit.replace("node1/0", "node2/7")) for row, unit in zip(base, [other, mine, mine], strict=True)])
    Path("a.csv").write_text(moved)
    vouch("a.csv")
    assert main("compare", "a.csv", "b.csv")[2] == f"softbench: 2 cells {elsewhere}\n"  # the same cards in another host, dealt otherwise
    assert main("report", "a.csv", "b.csv", "-o", "page.html")[0] == 0
    assert f"2 cells {elsewhere}." in Path("page.html").read_text()


def test_compare_names_the_facts_that_differ(main, write):
    write(1, 1, 1)
    assert main("compare", "a.csv", "b.csv")[2] == ""
    for name, threads in (("a", 2), ("b", 1)):
        vouch(f"{name}.csv", environment={"device": "cpu", "cpu": "x", "torch_threads": threads})
    assert main("compare", "a.csv", "b.csv")[::2] == (0, "softbench: the environments differ: torch_threads is 2 in A, 1 in B\n")
    vouch("b.csv", environment=3)
    assert main("compare", "a.csv", "b.csv")[2] == ""
    for name, found in (("a", {"rms": "0123abcd", "other": "0"}), ("b", {"rms": "4567abcd", "third": "1"})):
        vouch(f"{name}.csv", environment={"device": "cpu", "cpu": "x", "operations": found})
    message = "softbench: the environments differ: two files define the operation rms: their hashes are 0123abcd and 4567abcd\n"
    assert main("compare", "a.csv", "b.csv")[::2] == (0, message)
    # overrides of torch: a result of `torch` may be that of other kernels
    for name, found in (("a", {}), ("b", {"overrides": {"flag_gems": ["_softmax"]}})):
        vouch(f"{name}.csv", environment={"device": "cpu", "cpu": "x", **found})
    text = "overrides is not recorded in A, {'flag_gems': ['_softmax']} in B"
    assert main("compare", "a.csv", "b.csv")[::2] == (0, f"softbench: the environments differ: {text}\n")


def test_compare_of_two_devices_is_one_line_and_exit_3(main, write):
    write(1, 1, 2, device="B200")
    code, out, err = main("compare", "a.csv", "b.csv", "--exit-code")
    assert code == 3
    assert err == "softbench: the devices differ: A is H200, B is B200; the ratios compare the devices, not the backends\n"
    assert "1 slower" in out


def test_files_without_a_common_cell_cannot_be_compared(main, write):
    write(1, 1, 1)
    code, out, err = main("compare", "a.csv", STRATEGIES)
    assert (code, out, len(err.splitlines())) == (3, "", 1)
    assert "a.csv (H200) and " in err
    assert "strategies.csv (NVIDIA H200) share no cell with a result" in err


def test_files_of_host_times_are_told_apart_from_files_without_results(main):
    host = ROOT / "results" / "h200" / "host.csv"
    code, _, err = main("compare", host, host)
    assert (code, "neither file has a cell with a bandwidth; host times have none: softbench show FILE prints them" in err) == (2, True)


def test_cells_of_one_file_are_counted_not_listed(main, write):
    write(1)
    code, out, _ = main("compare", "a.csv", "b.csv", "--exit-code")
    assert code == 0
    assert "missing" not in out
    assert "1 within noise, 2 only in A" in out


def test_a_csv_whose_json_has_no_digest_of_it_is_shown_with_a_line(main, write):
    write(1)
    Path("a.json.gz").write_bytes(packed({"run": "r", "cells": []}))
    code, _, err = main("show", "a.csv")
    text = "softbench: a.csv: a.json.gz has no digest of it, so a changed number is not noticed\n"
    assert (code, err) == (0, text)


def test_compare_writes_json_and_markdown(main, write):
    write(1, 1, 2)
    document = json.loads(main("compare", "a.csv", "b.csv", "--json", "-")[1])
    assert document["b"] == {"file": "b.csv", "device": "H200"}
    found = [(cell["N"], cell["ratio"], cell["verdict"]) for cell in document["cells"]]
    assert found == [(1024, pytest.approx(0.5, rel=1e-5), "slower"), (256, 1, "same"), (512, 1, "same")]
    lines = main("compare", "a.csv", "b.csv", "--markdown")[1].splitlines()
    assert lines[4] == "| backend | case | A, GB/s | B, GB/s | B/A | without drift | verdict |"
    assert lines[6].endswith("| 0.500 | 0.500 (0.477 to 0.524) | slower |")


def test_show_selects_cells_and_writes_csv_and_json(main):
    code, out, _ = main("show", FRONTIER, "--backends", "torch,triton*", "--N", "1024", "--dtype", "bf16", "--M", "4096", "--csv", "-")
    assert code == 0
    found = list(csv.DictReader(io.StringIO(out)))
    assert {row["backend"] for row in found} == {"copy", "torch", "triton", "triton-row"}
    assert {(row["N"], row["dtype"], row["direction"]) for row in found} == {("1024", "bf16", "forward"), ("1024", "bf16", "backward")}
    assert tuple(found[0]) == COLUMNS
    code, out, _ = main("show", FRONTIER, "--direction", "backward", "--backends", "liger", "--json", "cells.json")
    cells = json.loads(Path("cells.json").read_text())["cells"]
    assert {cell["direction"] for cell in cells} == {"backward"}
    assert tuple(cells[0]) == COLUMNS
    assert "backward bf16, M=4096" in out
    assert main("show", FRONTIER, "--csv", "-", "--json", "-")[0] == 2
    assert main("show", FRONTIER, "--backends", "all") == main("show", FRONTIER)


def test_show_has_speedups_over_another_backend_also_over_one_that_is_not_shown(main):
    given = ("--M", "4096", "--N", "1024", "--dtype", "bf16", "--direction", "forward", "--backends", "cuda")
    shown = main("show", FRONTIER, *given, "--relative-to", "liger")[1]
    assert "speed-up over liger" in shown and "8.53 us 103% 2.69x" in shown
    (row,) = list(csv.DictReader(io.StringIO(main("show", FRONTIER, *given, "--relative-to", "liger", "--csv", "-")[1])))[1:]
    assert (row["relative_to"], row["speedup"][:4]) == ("liger", "2.68")
    assert main("show", FRONTIER, "--relative-to", "")[2].startswith("softbench: --relative-to: unknown backend ''; known are ")


def test_json_has_no_infinity(main, write, base):
    Path("wrong.csv").write_text(to_csv([replace(base[0], status="wrong", grade="wrong", gbps=None, error_over_bound=float("inf"))]))
    assert json.loads(main("show", "wrong.csv", "--json", "-")[1])["cells"][0]["error_over_bound"] == "inf"


def test_markdown_is_the_main_table(main):
    code, out, _ = main("show", FRONTIER, "--markdown", "--M", "4096", "--dtype", "bf16", "--direction", "forward")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].endswith("L2, 2026-11-23 23:47 UTC")
    assert lines[2].startswith("- **fastest**: cuda in all 17 cases")
    table = [line for line in lines if line.startswith("|")]
    assert table[0] == "| N | copy | torch | compile | liger | quack | triton-row | triton | cuda |"
    assert table[2].startswith("| 1024 | 8.74 us | 14.1 us 62% | 27.9 us 31% 0.51x ! |")
    assert any(line.startswith("- noisy (") for line in lines)
    assert "| backend | direction |" in main("show", FRONTIER, "--markdown", "--long")[1]
    assert "| backend | build |" in main("show", FRONTIER, "--markdown", "--costs")[1]


@pytest.mark.slow
def test_a_dash_reads_stdin(main, monkeypatch):
    small = FRONTIER.with_name("odd.csv")
    text = small.read_bytes()
    expected = main("show", small)[1].replace(str(small), "stdin", 1)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main("show", "-") == (0, expected, "")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main("plot", "-", "-o", "x.svg")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no,csv\n")))
    code, out, err = main("show", "-")
    assert (code, out) == (2, "")
    assert err.startswith("softbench: stdin: line 1: not a softbench results file")
    assert main("plot", "-")[2] == "softbench: plot -: name the picture with -o\n"


def test_selected_rows_can_be_read_again(main):
    main("show", STRATEGIES, "--backends", "cuda", "--csv", "some.csv")
    again, warnings = read_csv(Path("some.csv"))
    assert warnings == ["some.csv: the JSON of its run is not beside it, so a changed number is not noticed"]
    assert [*again] == [row for row in read_csv(STRATEGIES)[0] if row.backend in ("copy", "cuda")]


@pytest.mark.slow
def test_plot_names_its_file_by_the_results_and_the_kind(main):
    some = ("--M", "4096", "--N", "1024,2048,4096", "--dtype", "bf16", "--direction", "forward")

    def written(*arguments):
        code, out, err = main("plot", *arguments)
        assert code == 0
        assert err.splitlines()[-1].startswith("softbench: other figures: --kind ")
        return out.split()

    assert written(FRONTIER, *some, "--kind", "speedup", "--relative-to", "compile", "-o", "s.svg") == ["s.svg"]
    assert "speed-up over compile" in Path("s.svg").read_text()
    main("show", FRONTIER, *some, "--csv", "some.csv")
    assert written("some.csv", "--kind", "heatmap", "-o", "some-heatmap.svg") == ["some-heatmap.svg"]
    assert "softmax: the fastest backend" in Path("some-heatmap.svg").read_text()
    assert written("some.csv", "--kind", "costs") == ["some-costs.png"]
    assert written("some.csv") == ["some.png"]
    Path("some.csv").rename("v1.5.csv")
    assert written("v1.5.csv", "--kind", "heatmap") == ["v1.5-heatmap.png"]


def test_plot_draws_selected_cells_and_says_which_figures_there_are(main):
    code, out, err = main("plot", FRONTIER, "--M", "4096", "--N", "1024,2048", "--dtype", "bf16", "--backends", "cuda,quack", "-o", "p.svg")
    others = "--kind bandwidth, heatmap, speedup or costs; --M, --N, --dtype, --direction or --backends draw a part"
    assert (code, out, err) == (0, "p.svg\n", f"softbench: other figures: {others}\n")
    drawn = Path("p.svg").read_text()
    assert "<!-- quack" in drawn and "<!-- torch" not in drawn
    assert "softbench: --M: no cell has 7; the file has " in main("plot", FRONTIER, "--M", "7")[2]


def test_show_and_plot_take_the_latest_results_by_default(main, tmp_path):
    assert main("show") == (2, "", "softbench: results/latest.csv: No such file or directory; softbench run writes it\n")
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "results" / "h200" / "odd.csv", tmp_path / "results" / "latest.csv")
    assert main("show") == main("show", "results/latest.csv")
    assert main("show", "latest") == (2, "", "softbench: latest: No such file or directory; did you mean results/latest.csv?\n")
    code, pictures, _ = main("plot")
    assert code == 0
    assert pictures == "results/latest.png\n"


ONE_STDOUT = "only one of them can have stdout; give a file instead of -"
KINDS = "known are curves, bandwidth, heatmap, speedup, costs"
CONTRADICTIONS = {
    "two tables": (("show", "a.csv", "--long", "--costs"), "show: --long and --costs are two tables; give one of them"),
    "two documents": (("show", "a.csv", "--csv", "-", "--json", "-"), f"--csv - and --json -: {ONE_STDOUT}"),
    "JSON and a table": (("show", "a.csv", "--json", "-", "--long"), f"--json - and --long: {ONE_STDOUT}"),
    "CSV and Markdown": (("show", "a.csv", "--csv", "-", "--markdown"), f"--csv - and --markdown: {ONE_STDOUT}"),
    "a comparison twice": (("compare", "a.csv", "b.csv", "--json", "-", "--markdown"), f"--json - and --markdown: {ONE_STDOUT}"),
    "two documents of a check": (("check", "--csv", "-", "--json", "-"), f"--csv - and --json -: {ONE_STDOUT}"),
    "XML of a check": (("check", "--junit", "-"), "--junit -: only --json and --csv write to stdout; give a file"),
    "Markdown of a gate": (("gate", "a.csv", "--markdown", "-"), "--markdown -: only --json and --csv write to stdout; give a file"),
    "stdin twice": (("compare", "-", "-"), "-: only one of the files can be stdin"),
    "stdin twice in a plot": (("plot", "-", "-", "-o", "x.png"), "-: only one of the files can be stdin"),
    "an unknown kind": (("plot", "a.csv", "--kind", "heat"), "--kind: unknown kind 'heat'; did you mean 'heatmap'? " + KINDS),
    "a reference of no speed-up": (("plot", "a.csv", "--relative-to", "x"), "--relative-to x: goes with --kind speedup, not with curves"),
    "the JSON": (("show", "run.json"), "run.json: is JSON; give the .csv beside it"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_contradictory_flags_are_refused_in_one_line(main, write, what):
    write(1, 1, 1)
    Path("run.json").write_text('{"schema": 1}')
    arguments, message = CONTRADICTIONS[what]
    assert main(*arguments) == (2, "", f"softbench: {message}\n")


def test_a_document_goes_to_a_file_beside_the_table(main, write):
    write(1, 1, 1)
    code, out, _ = main("show", "a.csv", "--json", "a.json", "--csv", "copy.csv", "--long", "--markdown")
    assert code == 0
    assert out.splitlines()[2].startswith("| backend | direction |")
    assert len(json.loads(Path("a.json").read_text())["cells"]) == 3
    assert Path("copy.csv").read_text() == Path("a.csv").read_text()


def test_an_output_never_replaces_what_the_command_reads(main, write, plugins):
    write(1.0, 1.0, 1.0)
    Path("mine.py").write_text(before := (plugins / "correct" / "logsumexp.py").read_text())
    rows, document = Path("a.csv").read_text(), Path("a.json.gz").read_bytes()
    commands = (
        ("show", "./a.csv", "--csv", "a.csv"),
        ("show", "a.csv", "--json", "a.json.gz"),
        ("compare", "a.csv", "b.csv", "--json", "b.csv"),
        ("check", "--plugin", "own=mine.py:Logsumexp", "--json", "mine.py"),
        ("judge", "mine.py", "--json", "mine.py"),
    )
    for command in commands:
        code, _, err = main(*command)
        assert code == 2, (command, err)
        assert f"{command[-2]} {command[-1]}: another argument of this command is that file" in err
    assert (Path("a.csv").read_text(), Path("a.json.gz").read_bytes(), Path("mine.py").read_text()) == (rows, document, before)
    assert main("show", "a.csv", "--csv", "c.csv")[0] == 0
    assert main("show", "a.csv", "--csv", "c.csv")[0] == 0


def test_a_full_disk_leaves_an_existing_report_as_it_was(main, write, monkeypatch):
    write(1.0, 1.0, 1.0)
    Path("out.json").write_text("old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("softbench.cli.actions.replace_file", full)
    code, _, err = main("compare", "a.csv", "b.csv", "--json", "out.json")
    assert (code, Path("out.json").read_text()) == (4, "old"), err
