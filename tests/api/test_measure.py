"""`compare`, `run_gate` and `check` from Python: the results of the command line, and nothing is left behind."""

import gc
import json
import shlex
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from gating import SyntheticRuns

import softbench
from softbench.gate.verdicts import GateReport
from softbench.plugins import load
from softbench.run import run
from softbench.run.check import CheckReport

QUICK = {"device": "cpu", "M": 8, "N": 32, "quick": True}


def right(x):
    """A right one."""
    return torch.softmax(x, -1)


def wrong(x):
    return torch.softmax(x, 0)


def kept():
    """What a measurement may leave behind: open files, threads and temporary folders. Garbage of earlier tests may hold files."""
    gc.collect()
    return len([*Path("/proc/self/fd").iterdir()]), threading.active_count(), [*Path(tempfile.gettempdir()).iterdir()]


@pytest.fixture
def here(tmp_path, monkeypatch, forked):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path)
    return forked


def test_functions_files_and_names_are_compared(here):
    Path("mine.py").write_text("import torch\ndef softmax(x):\n    return torch.softmax(x, -1)\n")
    result = softbench.compare(right, wrong, "mine.py", "torch", **QUICK)
    rows = {row.backend: row for row in result.rows}
    assert [*rows] == ["copy", "right", "wrong", "mine", "torch"]
    assert {name: row.status for name, row in rows.items() if row.status != "ok"} == {"wrong": "wrong"}
    assert (result.ok, len({sample.backend for sample in result.samples})) == (False, 4)
    assert sorted(path.suffix for path in Path("results").glob("run-*")) == [".csv", ".gz"]
    assert "torch" not in {name for name in sys.modules if name.startswith("softbench_plugin")}
    stored = softbench.Result.load("results/latest.json.gz")
    assert (stored.rows, stored.samples) == (result.rows, result.samples)


@pytest.mark.slow
def test_twice_and_from_a_thread_without_leaks(here, monkeypatch):
    monkeypatch.setenv("SOFTBENCH_QUEUE", "off")
    first = softbench.compare(right, **QUICK)
    before, results = kept(), []
    thread = threading.Thread(target=lambda: results.append(softbench.compare(right, **QUICK)))
    thread.start()
    results.append(softbench.compare(right, **QUICK))  # the two wait for each other
    thread.join()
    assert [one.ok for one in (first, *results)] == [True] * 3
    assert len({one.csv for one in (first, *results)}) == 3
    assert (kept(), here()) == (before, [])


def test_an_error_leaves_nothing_and_is_typed(here):
    for _ in range(2):  # the first use starts the process that forks workers, which stays
        before = kept()
        with pytest.raises(softbench.UsageError, match=r"^device cuda:99: "):
            softbench.compare(right, **{**QUICK, "device": "cuda:99"})
    with pytest.raises(softbench.ResultsError, match=r"^output /proc/none: cannot be written"):
        softbench.compare("torch", output="/proc/none", **QUICK)
    with pytest.raises(softbench.UsageError, match=r"^output: must be a path, not 3$"):
        softbench.compare("torch", output=3, **QUICK)
    with pytest.raises(softbench.UsageError, match=r"^case: must be a pattern of names, or several, not 5$"):
        softbench.check("torch", case=5)
    assert (kept(), here()) == (before, [])


def test_an_interrupted_run_can_be_resumed_in_this_process(here, monkeypatch):
    """Its journal is closed, so that its lock is free."""

    def interrupted(*_):
        raise KeyboardInterrupt

    before = kept()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("softbench.run.isolation.measure", interrupted)
        softbench.compare(right, **QUICK)
    assert len(list(Path("results").glob("*.jsonl"))) == 1
    assert (kept(), here()) == (before, [])


def test_a_call_at_the_import_of_a_worker_is_refused(monkeypatch):
    monkeypatch.setattr(load, "_importing", [None])
    with pytest.raises(softbench.UsageError, match=r"if __name__ == '__main__'"):
        softbench.compare("torch")


@pytest.mark.parametrize(("call", "own"), [(softbench.compare, "config"), (softbench.check, "invariance"), (softbench.run_gate, "margin")])
def test_unknown_arguments_are_refused(call, own):
    for wrong_name, name in (("sede", "seed"), (own + "s", own)):
        with pytest.raises(TypeError, match=f"did you mean '{name}'"):
            call("torch", "naive", **{wrong_name: 1})


def test_backends_that_are_given_by_their_name_are_told_how():
    with pytest.raises(
        TypeError, match=r"unknown argument 'backends'; give backends without this name, as in compare\('torch', 'triton'\)"
    ):
        softbench.compare(backends="torch")


def test_check_finds_the_wrong_one(here):
    report = softbench.check(right, wrong, case="shape 37x33", dtype="fp32", direction="forward", device="cpu")
    assert {finding.backend: finding.verdict for finding in report.findings} == {"right": "pass", "wrong": "wrong"}
    assert report.exit_code == 1


def test_a_function_is_checked_forward_only(monkeypatch):
    asked = []
    report = CheckReport((), (), (), "cpu", 0)
    monkeypatch.setattr("softbench.run.check.check", lambda request, advance: asked.append(request.directions) or report)
    softbench.check(right)
    softbench.check("torch", direction="backward")
    softbench.check("torch", op=Path("log_softmax"))
    assert asked == [("forward",), ("backward",), ("forward", "backward", "both", "fused")]


def test_judge_gives_the_gates_report_and_the_command(tmp_path, monkeypatch):
    measured = SyntheticRuns(tmp_path, 1, slowdown=0.2)
    monkeypatch.setattr(run, "run", measured)
    report = softbench.run_gate("new", "old", margin=0.05, M=4096, N=1, dtype="bf16", output=tmp_path)
    assert isinstance(report, GateReport)
    assert (report.exit_code, report.rules.margin) == (1, 0.05)
    assert 1.1 < report.verdicts[0].ratio < 1.3
    words = shlex.split(measured.asked[0].command)
    assert words[:6] == ["softbench", "gate", "--candidate", "new", "--reference", "old"]
    assert words[6:] == ["--M", "4096", "--N", "1", "--dtype", "bf16", "--margin", "5"]
    assert "softbench gate --candidate new" in report.next_step


def test_judge_takes_a_margin_as_a_fraction():
    with pytest.raises(softbench.UsageError, match=r"margin 3: must be a fraction above 0, such as .03 for 3 %"):
        softbench.run_gate("new", "old", margin=3)


@pytest.mark.slow
def test_the_stored_command_repeats_the_comparison(here, cli):
    """It names the file of a function relative to the folder."""
    Path("mine.py").write_text("import torch\ndef fast(x):\n    return torch.softmax(x, -1)\n")
    result = softbench.compare("mine.py:fast", "new=mine.py:fast", set={"scale": 1}, output=cli.folder / "results", **QUICK)
    words = shlex.split(softbench.api.result._document(result.json)["command"])
    done = cli(*words[1:], "--dry-run", "--json", "-")
    assert done.returncode == 0, done.stderr
    planned = [(cell["backend"], cell["op"], cell["dtype"], cell["M"], cell["N"]) for cell in json.loads(done.stdout)["cells"]]
    assert planned == [(row.backend, row.op, row.dtype, row.M, row.N) for row in result.rows]
