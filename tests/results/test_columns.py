"""Rows that are stored by column are Rows for every reader, and small."""

import copy
import pickle
import tracemalloc
from dataclasses import replace

import pytest

from softbench.results import csv
from softbench.results.columns import Row
from softbench.results.csv import read_csv, to_csv


@pytest.fixture
def rows(make_row):
    return [replace(make_row("ours", 20.0 + N, N=N), reason="so") for N in range(1, 3001)]


def test_a_view_is_a_row(tmp_path, rows):
    (tmp_path / "x.csv").write_text(to_csv(rows[:3]))
    read, _ = read_csv(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text(to_csv(read))
    again, _ = read_csv(tmp_path / "x.csv")
    made = replace(read[0])
    assert type(made) is Row and isinstance(read[0], Row)
    assert read[0] == again[0] == made == read[0]
    assert (hash(read[0]), repr(read[0])) == (hash(made), repr(made))
    assert type(copy.copy(read[0])) is type(pickle.loads(pickle.dumps(read[0]))) is Row
    assert pickle.loads(pickle.dumps(read[0])) == read[0]
    assert read[0] != read[1] and replace(read[0], unit="x/0/0000000a") != read[0]
    assert [*read] == read[:] and read[-1].N == 3 and len(read) == 3
    assert (read[0].case, read[0].timed, read[0].ends) == (made.case, made.timed, made.ends)


def test_a_row_of_a_large_file_takes_few_bytes(tmp_path, rows):
    """As Rows a million took more than 1 GB. `keep` leaves out what a command does not read."""
    (tmp_path / "x.csv").write_text(to_csv(rows))
    read_csv(tmp_path / "x.csv")

    def size(**keep):
        tracemalloc.start()
        read, _ = read_csv(tmp_path / "x.csv", **keep)
        found = tracemalloc.get_traced_memory()[0] / len(read)
        tracemalloc.stop()
        return found

    assert size() < 750  # each row of these is another case, whose names take half of it
    assert size(keep=("median_us",)) < 0.7 * size()


def test_a_damaged_line_is_named_behind_good_ones(tmp_path, rows, monkeypatch):
    """Lines are read together, and the first damaged one is found among them."""
    monkeypatch.setattr(csv, "LINES", 4)
    lines = to_csv(rows[:10]).splitlines(keepends=True)
    for number in (2, 6, 7):
        bad = [*lines]
        bad[number - 1] = bad[number - 1].replace(",ok,", ",fine,")
        (tmp_path / "x.csv").write_text("".join(bad))
        with pytest.raises(csv.ResultsError, match=f"line {number}: status: unknown 'fine'"):
            read_csv(tmp_path / "x.csv")
    for kept in (2, 5, 9):
        (tmp_path / "x.csv").write_text("".join(lines[: kept + 1]) + lines[kept + 1][:30])
        read, warnings = read_csv(tmp_path / "x.csv", stored=False)
        assert (len(read), len(warnings)) == (kept, 1)
