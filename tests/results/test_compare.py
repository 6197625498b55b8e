"""Two files, cell by cell: a verdict only beyond noise, doubt and the drift of the machine."""

from dataclasses import replace

import pytest

from softbench.report.pair_table import comparison
from softbench.results import compare, rows
from softbench.results.csv import to_csv


@pytest.fixture
def base(make_record):
    made = [rows.row(make_record("ours", [20.0], N=N), None, None, device="H200", run="r") for N in (256, 512, 1024)]
    return [replace(row, low_us=19.8, high_us=20.2, labels="") for row in made]


@pytest.fixture
def copy(base):
    return [replace(row, backend="copy", grade="yardstick") for row in base]


def changed(row, factor):
    times = {name: getattr(row, name) * factor for name in ("median_us", "low_us", "high_us")}
    return replace(row, gbps=row.gbps / factor, **times)


def test_only_what_is_beyond_the_noise_of_both_is_marked(base):
    found = compare.pairs(base, [changed(base[0], 1.01), changed(base[1], 2), changed(base[2], 0.5)])
    assert [pair.verdict for pair in found] == ["same", "slower", "faster"]
    assert [pair.ratio for pair in found] == pytest.approx([1 / 1.01, 0.5, 2])
    assert compare.counted(found).text.startswith("1 faster, 1 slower, 1 within noise; geometric mean without drift 0.997")
    assert compare.counted(found).text.endswith("the changes have a median of 50.00%, and 90 % of them are at most 100.00%")


def test_cells_of_one_file_only_say_which_lacks_them(base):
    failed = replace(base[1], status="failed", gbps=None, median_us=None)
    found = compare.pairs(base, [base[0], failed])
    assert [pair.verdict for pair in found] == ["same", "B: failed", "B: missing"]
    assert "1 within noise, 1 without a result in one file, 1 only in A;" in compare.counted(found).text
    assert [(pair.changed, pair.worse(0.05), pair.missing) for pair in found[1:]] == [(True, True, False), (False, False, True)]
    assert [pair.verdict for pair in compare.pairs([], base[:1])] == ["A: missing"]
    assert compare.counted(compare.pairs([], base[:1])).text == "0 faster, 0 slower, 0 within noise, 1 only in B"


def test_cells_without_a_result_in_both_files_are_counted(base):
    failed = [replace(row, status="failed", gbps=None, median_us=None) for row in base]
    a, b = [base[0], *failed[1:]], [failed[0], base[1], failed[2]]
    assert compare.TwoFiles(a, b).without_results == 1
    counts = compare.counted(compare.pairs(a, b), compare.TwoFiles(a, b).without_results).text
    assert counts == "0 faster, 0 slower, 0 within noise, 2 without a result in one file, 1 without a result in either"
    cards = [[replace(row, unit=unit) for unit in ("one", "two") for row in rows] for rows in (a, b)]
    assert compare.TwoFiles(*cards).without_results == 2
    untried = [replace(row, status=status) for row, status in zip(failed, ("skipped", "unavailable", "skipped"), strict=True)]
    assert (compare.TwoFiles(untried, untried).without_results, compare.TwoFiles(untried, failed).without_results) == (0, 3)


def test_cells_of_two_timers_are_not_compared(base, copy):
    """Neither is a copy of two timers the drift."""
    a, b = ([replace(row, timer=timer) for row in (*base, *copy)] for timer in ("do_bench", "queued"))
    found = compare.pairs(a, [a[0], *b[1:]])
    assert [pair.verdict for pair in found[:2]] == ["same", "not compared: timed by do_bench in A, by queued in B"]
    assert [(pair.changed, pair.worse(0.0), pair.ratio) for pair in found[1:3]] == [(False, False, None)] * 2
    assert compare.TwoFiles(a, b).drift.text == ""
    assert compare.counted(found).text.startswith("0 faster, 0 slower, 1 within noise, 5 of two timers; ")


def test_the_command_counts_cells_without_a_result_in_both(main, tmp_path, base):
    failed = replace(base[1], status="wrong", gbps=None, median_us=None)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(to_csv([base[0], failed]))
    assert "1 within noise, 1 without a result in either; " in main("compare", "a.csv", "b.csv")[1]


def test_a_change_up_to_the_threshold_is_noise(base):
    other = [changed(base[0], 1.2), changed(base[1], 1 / 1.2), changed(base[2], 1.3)]
    assert [pair.verdict for pair in compare.pairs(base, other)] == ["slower", "faster", "slower"]
    assert [pair.verdict for pair in compare.pairs(base, other, 0.25)] == ["same", "same", "slower"]


def test_what_changed_most_comes_first(base):
    other = [changed(base[0], 1.2), changed(base[1], 2), replace(base[2], status="failed", gbps=None)]
    found = compare.pairs(base, other)
    assert [pair.case.N for pair in sorted(found, key=compare.beyond_noise_first)] == [1024, 512, 256]  # what has no result comes first


def test_the_command_compares_two_runs(cli, base):
    for name, factor in (("a.csv", 1), ("b.csv", 2)):
        (cli.folder / name).write_text(to_csv([changed(row, factor) for row in base]))
    done = cli("compare", "a.csv", "b.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("slower") == 4
    assert "0.500" in done.stdout
    assert cli("plot", "a.csv", "b.csv", "-o", "both.svg").stdout.strip() == "both.svg"


def test_the_drift_of_copy_is_taken_off(base, copy):
    """All takes 10 % longer in B, and one cell 30 %."""
    slower = [changed(row, 1.1) for row in (*base, *copy)]
    found = compare.pairs([*base, *copy], [changed(base[0], 1.3), *slower[1:]])
    assert [pair.verdict for pair in found] == ["slower", "same", "same", *["yardstick"] * 3]
    assert found[0].change.value == pytest.approx(1.1 / 1.3)
    assert found[0].ratio == pytest.approx(1 / 1.3)
    said = "copy is 9.1 % slower in B (median of 3 cases); verdicts are relative to copy"
    assert compare.TwoFiles([*base, *copy], slower).drift.text == said
    assert compare.TwoFiles(base, base).drift.text == ""


def test_the_usual_drift_is_found_once(base, copy, monkeypatch):
    """It was found for each cell: compare was quadratic."""
    found = []
    monkeypatch.setattr(compare, "median_interval", lambda values: found.append(len(values)))
    compare.pairs([*base, *copy], [*base, *copy])
    assert found == [3]


def test_a_copy_that_changed_alone_convicts_nobody(base, copy):
    """In one case copy takes 10 % less in B: the machine, or its own process."""
    jumped = [*copy[:2], changed(copy[2], 0.9)]
    same = compare.pairs([*base, *copy], [*base, *jumped])
    assert {pair.verdict for pair in same} == {"same", "yardstick"}
    found = compare.pairs([*base, *copy], [*base[:2], changed(base[2], 1.3), *jumped])
    assert [pair.verdict for pair in found][:3] == ["same", "same", "slower"]
    doubtful = [*copy[:2], replace(jumped[2], labels="noisy")]
    assert compare.pairs([*base, *copy], [*base, *doubtful])[2].change.value == 1


def test_a_doubtful_cell_is_shown_and_convicts_nobody(base):
    noisy = replace(changed(base[0], 2), labels="noisy")
    (found,) = compare.pairs(base[:1], [noisy])
    assert (found.verdict, found.changed, found.worse(0.05)) == ("doubtful", True, False)
    both = compare.pairs(base[:2], [noisy, changed(base[1], 1.1)])
    assert [pair.verdict for pair in sorted(both, key=compare.beyond_noise_first)] == ["slower", "doubtful"]
    assert "0 within noise, 1 doubtful; " in compare.counted([found]).text
    assert compare.pairs(base[:1], [replace(base[0], labels="L2-resident")])[0].verdict == "same"


@pytest.mark.parametrize(("factor", "code"), [(1.04, 0), (1.06, 0), (1.08, 1)])
def test_the_exit_code_has_the_margin_of_the_gate(main, tmp_path, base, factor, code):
    """The interval of a ratio of 1.06 reaches to 1.045."""
    for name, rows_ in (("a.csv", base), ("b.csv", [changed(row, factor) for row in base])):
        (tmp_path / name).write_text(to_csv(rows_))
    assert main("compare", "a.csv", "b.csv", "--exit-code")[0] == code
    assert main("compare", "a.csv", "b.csv", "--exit-code", "--threshold", "1")[0] == 1
    assert main("compare", "a.csv", "b.csv")[0] == 0


def test_cells_without_intervals_are_never_worse(base):
    (found,) = compare.pairs([replace(base[0], low_us=None)], [changed(base[0], 3)])
    assert (found.verdict, found.change, found.worse(0.05)) == ("doubtful", None, False)


def test_a_narrow_terminal_gets_fewer_columns(base):
    found = compare.pairs(base, [changed(row, 2) for row in base])
    heads = [[str(column.header) for column in comparison(found, width).columns] for width in (120, 92, 70, 20)]
    assert heads[0] == ["backend", "case", "A, GB/s", "B, GB/s", "B/A", "without drift", "verdict"]
    assert heads[1:] == [[name for name in heads[0] if name != "B/A"], *[["backend", "case", "without drift", "verdict"]] * 2]
