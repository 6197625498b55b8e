"""Two files, cell by cell: a mark only beyond the noise of both."""

from dataclasses import replace

import pytest

from softbench.results import compare, rows
from softbench.results.csv import to_csv


@pytest.fixture
def base(make_record):
    return [rows.row(make_record("ours", [20.0], N=N), None, None, device="H200", run="r") for N in (256, 512, 1024)]


def changed(row, factor):
    return replace(row, median_us=row.median_us * factor, p20_us=row.p20_us * factor, p80_us=row.p80_us * factor, gbps=row.gbps / factor)


def test_only_what_is_beyond_the_noise_of_both_is_marked(base):
    found = compare.pairs(base, [changed(base[0], 1.02), changed(base[1], 2), changed(base[2], 0.5)])
    assert [pair.verdict for pair in found] == ["same", "slower", "faster"]
    assert [pair.ratio for pair in found] == pytest.approx([1 / 1.02, 0.5, 2])
    assert compare.summary(found).startswith("1 faster, 1 slower, 1 within noise; geometric mean of B/A 0.993")
    assert compare.summary(found).endswith("they differ by a median of 50.00%, 90 % of the cells by at most 100.00%")


def test_cells_of_one_file_only_say_which_lacks_them(base):
    failed = replace(base[1], status="failed", gbps=None, median_us=None)
    found = compare.pairs(base, [base[0], failed])
    assert [pair.verdict for pair in found] == ["same", "B: failed", "B: missing"]
    assert "1 within noise, 1 without a result in one file, 1 only in A;" in compare.summary(found)
    assert [(pair.changed, pair.worse, pair.missing) for pair in found[1:]] == [(True, True, False), (False, False, True)]
    assert [pair.verdict for pair in compare.pairs([], base[:1])] == ["A: missing"]
    assert compare.summary(compare.pairs([], base[:1])) == "0 faster, 0 slower, 0 within noise, 1 only in B"


def test_cells_without_a_result_in_both_files_are_counted(base):
    failed = [replace(row, status="failed", gbps=None, median_us=None) for row in base]
    a, b = [base[0], *failed[1:]], [failed[0], base[1], failed[2]]
    assert compare.without_results(a, b) == 1
    counts = compare.summary(compare.pairs(a, b), compare.without_results(a, b))
    assert counts == "0 faster, 0 slower, 0 within noise, 2 without a result in one file, 1 without a result in both"
    cards = [[replace(row, unit=unit) for unit in ("one", "two") for row in rows] for rows in (a, b)]
    assert compare.without_results(*cards) == 2
    untried = [replace(row, status=status) for row, status in zip(failed, ("skipped", "unavailable", "skipped"), strict=True)]
    assert (compare.without_results(untried, untried), compare.without_results(untried, failed)) == (0, 3)


def test_the_command_counts_cells_without_a_result_in_both(main, tmp_path, base):
    failed = replace(base[1], status="wrong", gbps=None, median_us=None)
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(to_csv([base[0], failed]))
    assert "1 within noise, 1 without a result in both; " in main("compare", "a.csv", "b.csv")[1]


def test_a_change_up_to_the_threshold_is_noise(base):
    other = [changed(base[0], 1.2), changed(base[1], 1 / 1.2), changed(base[2], 1.3)]
    assert [pair.verdict for pair in compare.pairs(base, other)] == ["slower", "faster", "slower"]
    assert [pair.verdict for pair in compare.pairs(base, other, 0.25)] == ["same", "same", "slower"]


def test_orders_put_the_slowest_first_or_backends_together(base):
    other = [changed(base[0], 1.2), changed(base[1], 2), replace(base[2], status="failed", gbps=None)]
    found = compare.pairs(base, other)
    assert [pair.case.N for pair in sorted(found, key=compare.ORDERS["ratio"])] == [512, 256, 1024]
    assert sorted(found, key=compare.ORDERS["file"]) == sorted(found, key=compare.ORDERS["backend"]) == found


def test_the_command_compares_two_runs(cli, base):
    for name, factor in (("a.csv", 1), ("b.csv", 2)):
        (cli.folder / name).write_text(to_csv([changed(row, factor) for row in base]))
    done = cli("compare", "a.csv", "b.csv")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("slower") == 4
    assert "0.500" in done.stdout
    assert cli("plot", "a.csv", "b.csv", "-o", "both.svg").stdout.strip() == "both.svg"


@pytest.mark.parametrize(("median", "band"), [(0.5, (3.0, 4.0)), (2.0, (0.3, 0.4)), (1.0, (3.0, 4.0))])
def test_a_verdict_has_the_direction_of_its_ratio(base, median, band):
    """Medians of rounds may say one thing and the band of all samples another; then the cell is within noise."""
    one = changed(base[0], median)
    other = replace(one, p20_us=band[0] * base[0].median_us, p80_us=band[1] * base[0].median_us)
    assert [pair.verdict for pair in compare.pairs(base[:1], [other])] == ["same"]
