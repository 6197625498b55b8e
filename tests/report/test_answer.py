"""The answer before the tables: its lines, and that they agree with the tables' signs."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from softbench.core.outcome import Grade
from softbench.report import answer, matrix
from softbench.report.standings import standings
from softbench.results.csv import read_csv

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture
def cell(make_row):
    def make(backend, us, N=256, **changes):
        copy = {"grade": Grade.YARDSTICK, "of_copy": None, "speedup": None} if backend == "copy" else {}
        given = {"labels": "", "of_copy": 10 / us, "speedup": 40 / us, "relative_to": "torch", **copy, **changes}
        return make_row(backend, us, N=N, **{"low_us": 0.99 * us, "high_us": 1.01 * us, **given})

    return make


@pytest.fixture
def rows(cell):
    """Four N: `a` is ahead at 256 and ties with `b` at 512 and 1024, and `b` is ahead at 2048."""
    times = {256: (20, 30), 512: (20, 20.1), 1024: (20, 20.1), 2048: (30, 20)}
    return [cell(name, us, N) for N, (a, b) in times.items() for name, us in (("copy", 10), ("torch", 40), ("a", a), ("b", b))]


def lines(rows):
    return {line.name: line.text for line in answer.lines(rows, standings(rows))}


def test_the_answer_says_who_is_fastest_by_how_much_and_how_close(rows):
    assert lines(rows) == {
        "fastest": "a in 3 of 4 cases, in 2 of them a tie with b; b in 1 (N=2048)",
        "speed-up": "2.00x over torch (median; 2.00x to 2.00x)",
        "of copy": "50% of the speed of copy, which only moves the bytes (median; 50% to 50%)",
        "correct": "all 12 cells within the bound",
    }


def test_one_case_has_the_interval_of_its_speedup(rows):
    found = lines([row for row in rows if row.N == 256])
    assert found["fastest"] == "a"
    assert found["speed-up"] == "2.00x over torch (95 % interval 1.97x to 2.03x)"
    assert found["of copy"] == "50% of the speed of copy, which only moves the bytes"


def test_compute_bound_calls_tell_their_memory(rows):
    bytes_of = {"copy": 0, "torch": 2**32, "a": 2**30, "b": 2**31}
    bound = [replace(row, labels="compute-bound", peak_bytes=bytes_of[row.backend]) for row in rows if row.N == 256]
    assert lines(bound)["memory"] == "1 GiB by a, 2 GiB by b, 4 GiB by torch, of a call with its results"
    assert "memory" not in lines([replace(row, peak_bytes=2**30) for row in bound]) | lines(rows)


def test_backends_that_always_tie_are_named_together(rows):
    same = [replace(row, median_us=20, low_us=19.8, high_us=20.2) if row.backend in "ab" else row for row in rows]
    assert lines(same)["fastest"] == "a and b tie in all 4 cases"


def test_a_reference_that_ties_is_no_speedup(rows):
    near = [replace(row, median_us=20, low_us=19.8, high_us=20.2) if row.backend == "torch" and row.N < 2048 else row for row in rows]
    assert lines(near)["speed-up"].endswith("; torch is the fastest or ties in 3 cases (N=256 to 1024)")
    assert lines([row for row in near if row.N < 2048])["speed-up"] == "none over torch, which is the fastest or ties in all 3 cases"


def test_what_is_wrong_missing_and_doubtful_is_told_with_what_to_do(rows, cell):
    lost = {"median_us": None, "gbps": None, "of_copy": None, "speedup": None}
    rows += [cell("bad", 9, 512, status="wrong", grade="wrong", **lost)]
    rows += [cell(name, 9, N, status="skipped", grade="", **lost) for name in ("few",) for N in (256, 512)]
    rows += [cell(f"gone{i}", 9, status="unavailable", grade="", **lost) for i in range(3)]
    rows += [cell("emulated", 9, status="checked", **lost)]
    rows += [cell("low", 90, grade="low-precision"), cell("c", 50, 512, labels="noisy L2-resident")]
    found = lines(rows)
    assert found["correct"] == "14 of 16 cells within the bound; wrong: bad (N=512); low-precision: low (N=256)"
    assert (
        found["missing"]
        == "unavailable: gone0, gone1, gone2 (--long says why); skipped: few (2 cells); checked, not timed: emulated (1 cell)"
    )
    assert found["doubtful"] == "1 of 18 cells; 1 noisy: repeat with --processes 3, or when nothing else runs"


def test_a_case_without_any_result_has_its_own_place(rows, cell):
    lost = {"median_us": None, "gbps": None, "of_copy": None, "speedup": None, "status": "failed", "grade": ""}
    rows = [*(row for row in rows if row.N == 256), cell("a", 9, 512, **lost)]
    rows += [replace(row, dtype="bf16") for row in rows]
    assert "failed: a (forward fp32 N=512; forward bf16 N=512)" in lines(rows)["correct"]
    assert lines(rows)["fastest"] == "a in both cases"


def test_a_leader_that_is_finite_only_or_doubtful_is_said_to_be(rows):
    assert lines([replace(row, grade="finite-only") if row.backend == "b" else row for row in rows])["fastest"].endswith(
        "b (finite-only) in 1 (N=2048)"
    )
    some = [replace(row, grade="low-precision") if row.backend == "a" and row.N == 512 else row for row in rows]
    assert lines(some)["fastest"].startswith("a (low-precision in 1) in 3 of 4 cases")
    assert lines([replace(row, labels="busy") for row in rows])["fastest"].endswith("; doubtful, see below")


def test_without_intervals_or_results_the_answer_says_so(rows):
    assert lines([replace(row, low_us=None) for row in rows])["fastest"].endswith("4 leads have no interval and may be noise")
    unknown = lines([replace(row, low_us=None) for row in rows if row.N == 256 and row.backend in ("a", "b", "copy")])
    assert unknown["fastest"].endswith("1 lead has no interval and may be noise")
    assert unknown["correct"] == "both cells within the bound"
    assert lines([row for row in rows if row.backend == "copy"])["fastest"] == "none: no backend but copy has a result"
    assert lines([row for row in rows if row.backend in ("a", "copy")])["fastest"] == "a in all 4 cases; no other backend has a result"
    assert lines([replace(row, of_copy=None) for row in rows])["of copy"].startswith("unknown: copy is doubtful")


def test_a_fraction_of_copy_says_of_how_many_cases_it_is(rows):
    few = [replace(row, labels="busy") if row.N >= 1024 else row for row in rows]
    assert lines(few)["of copy"] == "50% of the speed of copy, which only moves the bytes (median of 2 of 4 cases; 50% to 50%)"
    assert lines([replace(row, of_copy=None) if row.N > 256 else row for row in rows])["of copy"].endswith(" (1 of 4 cases)")


@pytest.mark.parametrize("file", sorted(RESULTS.glob("h?00/*.csv")), ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_answer_and_signs_of_the_tables_agree(file):
    rows, _ = read_csv(file)
    found = standings(rows)
    signs = Counter(name for section in matrix.sections(rows, found) for shape in section.shapes for name in section.places(shape))
    text = answer.lines(rows, found)[0].text
    assert signs[text.split()[0]] == max(signs.values())
    every = " in both cases" if len(found) == 2 else f" in all {len(found)} cases"
    assert f" in {max(signs.values())} of {len(found)} cases" in text or every in text
    assert 3 <= len(answer.lines(rows, found)) <= 6


def test_the_leader_so_far(rows):
    assert answer.leader(standings(rows)) == "a and b tie in 3 of 4 cases"
    assert answer.leader(standings([row for row in rows if row.N < 2048])) == "a leads in 3 of 3 cases"
    assert answer.leader(standings([row for row in rows if row.backend == "a"])) == ""
