"""The sentences of the overview: who is fastest, how close to the yardstick, and what is wrong or doubtful."""

from dataclasses import replace
from pathlib import Path

import pytest

from softbench.core.outcome import Grade
from softbench.report.page import overview
from softbench.report.standings import crossover, standings
from softbench.results import rows as results
from softbench.results.csv import read_csv

RESULTS = Path(__file__).parents[3] / "results" / "h200"


@pytest.fixture
def rows(make_record):
    """Three backends at four N: `a` is faster below 1024, `b` from there on, and `c` has the times of `b`."""

    def cell(N):
        copy = make_record("copy", [10] * 6, N=N, grade=Grade.YARDSTICK)
        times = {"a": 20, "b": 40, "c": 40} if N < 1024 else {"a": 40, "b": 20, "c": 20}
        return [
            results.row(record, copy, copy, device="H200", run="r")
            for record in (copy, *(make_record(n, [us] * 6, N=N) for n, us in times.items()))
        ]

    return [replace(row, labels="") for N in (256, 512, 1024, 2048) for row in cell(N)]


def test_sentences_say_who_is_fastest_and_how_close(rows):
    first, second, third = overview.sentences(rows)
    assert first == "Of 4 cases, the fastest backend is a in 2; in 2 several tie for the fastest."
    assert second.startswith(
        "The fastest backend reaches a median of 50% of the yardstick's speed in 4 cases without doubtful labels: from 50% (a, "
    )
    assert third == "Of 16 cells, none is wrong; none is doubtful."


def test_sentences_without_intervals_call_no_backend_the_fastest(rows):
    first, *_ = overview.sentences([replace(row, low_us=None, high_us=None) for row in rows])
    assert first == (
        "In none of 4 cases is one backend ahead of all others beyond noise; in 4 the file has no interval, so the fastest is uncertain."
    )


def test_third_sentence_counts_limited_classes():
    rows, _ = read_csv(RESULTS / "strategies.csv")
    assert overview.sentences(rows)[-1].startswith("Of 783 cells, 1 wrong, 115 low-precision; 31 skipped, 360 unavailable; 235 doubtful (")


def test_first_sentence_says_where_a_backend_has_no_other(rows):
    first, *_ = overview.sentences([row for row in rows if row.N > 256 or row.backend in ("a", "copy")])
    assert first == ("Of 4 cases, the fastest backend is a in 2; in 2 several tie for the fastest; in 1 no other backend has a result.")


def test_sentences_without_results(rows):
    lost = [replace(row, status="failed", median_us=None, gbps=None, of_copy=None) for row in rows if row.backend != "copy"]
    assert overview.sentences(lost) == [
        "No case has a fastest backend, because none but the yardstick has a result.",
        "No cell has a fraction of the yardstick.",
        "Of 12 cells, 12 failed; none is doubtful.",
    ]


def test_crossover_needs_intervals_that_part(rows):
    found = list(standings(rows).values())
    assert crossover(found[1], found[2])  # b beats a there, although c may be as fast
    assert not crossover(found[0], found[1])
    unknown = list(standings([replace(row, low_us=None, high_us=None) for row in rows]).values())
    assert not crossover(unknown[1], unknown[2])


def test_counts_add_up_to_the_cells():
    rows, _ = read_csv(RESULTS / "strategies.csv")
    counts = {count.name: count.number for count in overview.counts(rows)}
    assert counts["ok"] + counts["wrong"] + counts["skipped"] + counts["unavailable"] == len(rows)
    assert counts["doubtful"] == 235
