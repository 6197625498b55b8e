"""`softbench bisect` on a repository, with a pretended gate. The search itself is tested in tests/gate/test_bisect.py."""

import json
from pathlib import Path

import pytest
from composite import git
from gating import key

from softbench.cli import bisect
from softbench.gate.command_line import options
from softbench.gate.verdicts import GateReport, Rules, State, Verdict

BROKEN = "broken"
TIMES = [100, 100, 108, BROKEN, 108, 108, 120, 120]
"""What the kernel of each commit takes."""


class Gate:
    """Compares the numbers in two plugin files. `calls` counts the comparisons."""

    calls = 0

    def __call__(self, words):
        self.calls += 1
        files = [word.partition("=")[2].partition("=")[2].partition(":")[0] for word in words if word.startswith("--plugin")]
        new, old = (Path(file).read_text().strip() for file in files)
        if BROKEN in (new, old):
            return "--candidate new: import: SyntaxError"
        ratio = int(new) / int(old)
        verdict = Verdict(key("new"), State.SLOWER if ratio > 1.03 else State.SAME, "why", ratio, (ratio - 0.01, ratio + 0.01), margin=0.03)
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


def test_a_range_that_is_not_slower_passes(gate, main):
    code, out, _ = main("bisect", "c4", "c5", "--plugin", "mine.py:softmax")
    assert (code, "within the margin: new" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("c0", "no-such-tag"), "no-such-tag: is not a commit"),
        (("c5", "c1"), "c5: is not an ancestor of c1"),
        (("c1", "c1"), "are one commit"),
        (("--N", "64", "c0", "c7"), "no such option before GOOD and BAD"),
        (("c0", "c7", "--plugin", "other.py"), "other.py: is not a file of the repository"),
        (("c0", "c3", "--plugin", "mine.py"), "import: SyntaxError"),
    ],
)
def test_bad_input_is_one_line(gate, main, words, message):
    code, out, err = main("bisect", *words)
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
