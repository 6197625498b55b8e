"""`softbench bisect` on a repository, with a pretended gate. The search itself is tested in tests/gate/test_bisect.py."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from composite import git
from gating import key

from softbench.cli import bisect
from softbench.core.errors import Interrupted
from softbench.gate.command_line import options
from softbench.gate.verdicts import GateReport, Rules, State, Verdict

BROKEN = "broken"
TIMES = [100, 100, 108, BROKEN, 108, 108, 120, 120]
"""What the kernel of each commit takes."""


class Gate:
    """Compares the numbers in two plugin files. `calls` counts the comparisons."""

    calls, width = 0, 0.01

    def __call__(self, words):
        self.calls += 1
        files = [word.partition("=")[2].partition("=")[2].partition(":")[0] for word in words if word.startswith("--plugin")]
        new, old = (Path(file).read_text().strip() for file in files)
        if BROKEN in (new, old):
            return "--candidate new: import: SyntaxError"
        ratio = int(new) / int(old)
        state = State.AMBIGUOUS if self.width > 0.03 else State.SLOWER if ratio > 1.03 else State.SAME
        verdict = Verdict(key("new"), state, "why", ratio, (ratio - self.width, ratio + self.width), margin=0.03)
        Path(options(words, ("--json",))[1]).write_text(json.dumps(GateReport("x", (verdict,), Rules(margin=0.03)).document()))
        return ""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository whose commits have the tags c0, c1 and so on."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    for number, us in enumerate(TIMES):
        (folder / "mine.py").write_text(f"{us}\n")
        git(folder, "add", "mine.py")
        git(folder, "commit", "--quiet", "--allow-empty", "-m", f"Change {number}")
        git(folder, "tag", f"c{number}")
    return folder


@pytest.fixture
def gate(main, monkeypatch, repository):
    """The gate, with the repository as the current folder: `main` has set another one."""
    monkeypatch.chdir(repository)
    pretended = Gate()
    monkeypatch.setattr(bisect, "run_gate", pretended)
    return pretended


def test_each_slowdown_is_named_and_a_second_call_measures_nothing(gate, main, repository):
    words = ("bisect", "c0", "c7", "--plugin", "mine.py", "--N", "64")
    code, out, err = main(*words)
    assert code == 1, err
    assert [line.split('"')[1] for line in out.splitlines()] == ["Change 2", "Change 6"]
    assert "is slower: new forward-bf16-4096x1024 1.080 [1.070, 1.090], against" in out.splitlines()[0]
    assert "undecided: --candidate new: import: SyntaxError" in err
    assert git(repository, "worktree", "list").count("\n") == 0
    calls = gate.calls
    found = json.loads(main(*words, "--json", "-")[1])
    assert [one["named"] for one in found["found"]] == [True, True]
    assert all(one["steps"] <= 7 for one in found["found"])
    assert gate.calls == calls + sum(step["decision"] == "undecided" for step in found["steps"])


GATE = """import sys, time
print("softbench: plan: much", file=sys.stderr)
print("softbench: 3 of 8 cells, about 5 s left", file=sys.stderr, flush=True)
time.sleep(600 if sys.argv[-1] == "hang" else 0)
sys.exit("softbench: no GPU")
"""


def test_a_comparison_tells_how_far_it_is_and_ends_with_the_command(tmp_path, monkeypatch, capsys):
    (tmp_path / "gate.py").write_text(GATE)
    program = ["-c", f"exec(open({str(tmp_path / 'gate.py')!r}).read())"]
    popen, started = subprocess.Popen, []

    def start(words, **given):
        started.append(popen([words[0], *program, *words[4:]], **given))
        return started[-1]

    monkeypatch.setattr(bisect.subprocess, "Popen", start)
    assert bisect.run_gate(["--x"]) == "no GPU"
    assert capsys.readouterr().err == "softbench:   3 of 8 cells, about 5 s left\n"

    def interrupt(text):
        raise Interrupted(15)

    monkeypatch.setattr(bisect, "note", interrupt)
    with pytest.raises(Interrupted):
        bisect.run_gate(["hang"])
    assert started[-1].returncode == -15


def test_an_undecided_comparison_is_measured_again_and_says_what_to_do(gate, main, monkeypatch):
    monkeypatch.setattr(gate, "width", 0.09)
    words = ("bisect", "c0", "c1", "--plugin", "mine.py", "--N", "65")
    code, out, _ = main(*words)
    assert code == 3 and "undecided: new forward" in out
    assert out.endswith("; next: repeat it on a machine that does nothing else, or look for larger slowdowns: --margin 10\n")
    calls = gate.calls
    assert main(*words)[0] == 3 and gate.calls > calls


def test_sigterm_says_how_to_go_on(gate, main, monkeypatch):
    def killed(words):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    monkeypatch.setattr(bisect, "run_gate", killed)
    code, _, err = main("bisect", "c0", "c7", "--plugin", "mine.py", "--N", "66")
    assert code == 143
    assert err.splitlines()[-1] == "softbench: interrupted; the same command goes on from here, with the measurements in results/bisect"


def test_options_of_the_gate_may_follow_good(gate, main):
    code, out, _ = main("bisect", "c5", "--plugin", "mine.py", "--N", "67")
    assert (code, [line.split('"')[1] for line in out.splitlines()]) == (1, ["Change 6"])


def test_a_range_that_is_not_slower_passes(gate, main):
    code, out, _ = main("bisect", "c4", "c5", "--plugin", "mine.py:softmax")
    assert (code, "within the margin: new" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("c0", "no-such-tag"), "no-such-tag: is not a commit"),
        (("c5", "c1"), "c5: is not an ancestor of c1"),
        (("c1", "c1"), "are one commit"),
        (("--N", "64", "c0", "c7"), "no such option before GOOD: --N"),
        (("c0", "c7", "--dry-run"), "--dry-run decides nothing"),
        (("c0", "c7", "--plugin", "other.py"), "other.py: is not a file of the repository"),
        (("c0", "c3", "--plugin", "mine.py"), "import: SyntaxError"),
    ],
)
def test_bad_input_is_one_line(gate, main, words, message):
    code, out, err = main("bisect", *words)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
