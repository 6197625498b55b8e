"""`softbench history`: a target over the commits of stored runs."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from composite import git
from gating import dice, interleaved, stored_run

from softbench.gate import paired, run_files
from softbench.gate.commits import SHORT, Commit
from softbench.gate.verdicts import Rules
from softbench.report.board.history import EDGE, HEIGHT, Chart, History, Point, times
from softbench.results import rows as results

RULES = Rules(margin=paired.MARGIN)


@pytest.fixture
def stored(main, tmp_path):
    """A repository of three commits, and two runs of the gate: the later commits, each beside the first one and 8 % slower."""
    git(tmp_path, "init", "--quiet")
    for number in range(3):
        git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", f"<b>Change</b> {number}")
    commits = [git(tmp_path, "rev-parse", f"HEAD~{2 - number}")[:SHORT] for number in range(3)]
    (tmp_path / "results").mkdir()
    for number, commit in enumerate(commits[:0:-1]):
        run = interleaved(dice(number), 2, processes=6, slowdown=lambda i: 0.08, process_sd=0.001, sigma=0.001, outliers=0)
        sides = {"commits": {"new": commit, "old": commits[0]}, "origins": {side: f"{side}=/x/softmax.py" for side in ("new", "old")}}
        stored_run(tmp_path / "results", run, **sides)
    return commits


def test_the_commit_that_changed_a_target_is_named_and_drawn(main, stored, tmp_path):
    unfinished = next((tmp_path / "results").glob("run-*.csv")).read_text().replace("run-2", "run-1")
    (tmp_path / "results" / "run-19990101-000000.csv").write_text(unfinished)
    much = interleaved(dice(9), 2, processes=6, slowdown=lambda i: 0.5)
    interrupted = stored_run(tmp_path / "results", much, interrupted=True, commits={"new": stored[1], "old": stored[0]})
    code, out, err = main("history", "softmax.py")
    assert code == 0, err
    assert "results/run-19990101-000000.csv, " in err and f"{interrupted.csv.name}: left out, because the run is unfinished, or no" in err
    *changes, page = out.splitlines()
    assert page == "history.html"
    assert [line.partition(":")[0] for line in changes] == [f"{stored[1]} is slower than {stored[0]}"] * 2
    assert all(re.search(r"1\.0[78]\d \[1\.0\d+, 1\.\d+\]$", line) for line in changes)
    read = run_files.read(sorted((tmp_path / "results").glob("run-2*.csv"))[-2])
    verdicts = paired.compare(read, "new", "old", RULES).verdicts
    ratios = {f"{one.ratio:.3f} [{one.interval[0]:.3f}, {one.interval[1]:.3f}]" for one in verdicts}
    assert {line.partition("1.0")[1] + line.partition("1.0")[2] for line in changes} == ratios, "as the gate compares process pairs"
    text = (tmp_path / page).read_text()
    assert text.index(f"<code>{stored[2]}") < text.index(f"<code>{stored[1]}") < text.index(f"<code>{stored[0]}")
    assert (text.count("<svg"), text.count('<g class="bad">'), text.count("<circle")) == (2, 2, 6)
    assert "<b>Change" not in text and "&lt;b&gt;Change" in text


def test_backends_of_an_operation_are_not_taken_for_its_commits(main, stored, tmp_path):
    code, out, err = main("history", "softmax")
    assert (code, out) == (0, "history.html\n"), "the slower one is not a later commit of the other"
    assert "; no commit is faster or slower than the one before by 3 % or more\n" in err
    text = (tmp_path / "history.html").read_text()
    assert "new forward" in text and "old forward" in text


def test_doubtful_times_show_no_change(make_record):
    row = results.row(make_record("ours", [10]), None, None, device="H200", run="r")
    old, new = (Point(run, replace(row, low_us=9.9, high_us=10.1), None) for run in "ab")
    assert times(old, new) is not None
    assert times(old, new._replace(row=replace(new.row, labels="busy"))) is None


def test_a_faster_commit_is_a_change_too_and_marks_stay_inside_their_chart(make_record):
    row = results.row(make_record("ours", [10]), None, None, device="H200", run="r")
    points = {
        name: [Point(SimpleNamespace(run=name), replace(row, median_us=us, low_us=us - 1, high_us=us + 1), None)]
        for name, us in {"a": 10, "b": 5}.items()
    }
    made = History("ours", 0.03, {"a case": points}, [Commit(name, "", "") for name in points])
    assert [change.text.partition(":")[0] for change in made.changes()] == ["faster than a"]
    assert all(EDGE <= y <= HEIGHT - EDGE for mark in Chart.of(made, "a case", {}).marks for y in mark[2:5])


def test_a_target_that_no_run_has_is_one_line(main, stored):
    code, out, err = main("history", "other.py")
    assert (code, out) == (2, "")
    assert err.endswith("other.py: no run in results has a time of it; the targets there are new, old, softmax, softmax.py\n")


def test_a_function_of_a_package_is_found_by_its_name(main, tmp_path):
    """The operation has the package's name too, where softbench has an operation of that name."""
    (tmp_path / "results").mkdir()
    run = interleaved(dice(1), 1, processes=6)
    stored_run(tmp_path / "results", run, functions={"softmax": "fast.norms:rms_norm"}, origins={"new": "new=/x/new.targets"})
    for name in ("rms_norm", "fast.norms:rms_norm", "softmax"):
        assert main("history", name)[0] == 0
    assert "the targets there are fast.norms:rms_norm, new, old, rms_norm, softmax" in main("history", "other")[2]
