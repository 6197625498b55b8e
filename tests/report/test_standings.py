"""Which backend is fastest in a case, and where it changes."""

from dataclasses import replace

import pytest

from softbench.core.outcome import Grade
from softbench.report.standings import crossover, standings
from softbench.results import rows as results


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


def test_crossover_needs_intervals_that_part(rows):
    found = list(standings(rows).values())
    assert crossover(found[1], found[2])  # b beats a there, although c may be as fast
    assert not crossover(found[0], found[1])
    unknown = list(standings([replace(row, low_us=None, high_us=None) for row in rows]).values())
    assert not crossover(unknown[1], unknown[2])
