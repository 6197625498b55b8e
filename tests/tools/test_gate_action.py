"""action.yml and tools/gate_action.py, run on repositories of two commits."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import gate_action
import gate_comment
import pytest
from composite import Composite, git
from sampled import sampled

ROOT = Path(__file__).parents[2]
KERNEL = "import time\n\nimport torch\n\n\ndef softmax(x):\n    time.sleep({seconds})\n    return torch.softmax(x, dim=-1)\n"
"""A kernel whose time hardly depends on what else the machine does."""
FAST, SLOW = KERNEL.format(seconds=0.003), KERNEL.format(seconds=0.012)
SWEEP = "--M 8 --N 64,128 --rounds 10 --margin 50 --device cpu"

pytest.importorskip("ruamel.yaml")


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """A runner with the action, a copy of the checkout. This environment's packages stand in for the package index."""
    folder = tmp_path_factory.mktemp("runner")
    ignored = shutil.ignore_patterns(".git", ".venv", "*.egg-info", "build", "dist", ".*_cache", "__pycache__")
    shutil.copytree(ROOT, folder / "action", ignore=lambda at, names: ignored(at, names) | ({"results"} if at == str(ROOT) else set()))
    (folder / "event.json").write_text('{"pull_request": {"number": 7}}')
    return folder


def surroundings(machine):
    known = {"GITHUB_REPOSITORY": "someone/kernel", "GITHUB_EVENT_PATH": str(machine / "event.json")}
    packages = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    known |= {"RUNNER_TOOL_CACHE": str(machine / "tools"), "PYTHONPATH": packages, "OMP_NUM_THREADS": "1"}
    known |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return os.environ | known


def run(machine, folder, origin, ref="refs/pull/7/merge", env=(), **inputs):
    given = {"file": "kernels/mine.py", **{name.replace("_", "-"): value for name, value in inputs.items()}}
    return Composite(machine / "action", folder, origin, ref, given, surroundings(machine) | dict(env)).run()


def commit(folder, files, message):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)


def pull_request(folder, start, base, head):
    """A repository whose main moved from `start` to `base` while a branch made the change `head`, with the merge that GitHub checks out."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    commit(folder, start, "start")
    git(folder, "branch", "topic")
    commit(folder, base, "base")
    git(folder, "checkout", "--quiet", "topic")
    commit(folder, head, "head")
    git(folder, "checkout", "--quiet", "-b", "merge", "main")
    git(folder, "merge", "--quiet", "--no-ff", "--no-edit", "topic")
    git(folder, "update-ref", "refs/pull/7/merge", "merge")
    git(folder, "checkout", "--quiet", "main")
    return folder


def kernel(text):
    return {"kernels/mine.py": text}


@pytest.mark.slow
def test_a_planted_slowdown_fails_and_the_summary_names_it(machine, tmp_path):
    origin = pull_request(tmp_path / "origin", kernel(FAST), {}, kernel(SLOW))
    done = run(machine, tmp_path / "job", origin, args=SWEEP)
    assert done.failed == 1, done.log
    assert {name: done.outputs["gate"][name] for name in ("exit-code", "verdict")} == {"exit-code": "1", "verdict": "fail"}
    assert re.search(r"\| slower \| head \| forward-fp32-8x(64|128) \|", (tmp_path / "job" / "summary.md").read_text())
    artifact = tmp_path / "job" / "artifacts" / "softbench-gate"
    assert {"gate.json", "gate.md", "gate.xml", "gate.png", "gate.html", "gate.log", "comment.json", "measurements"} <= {
        x.name for x in artifact.iterdir()
    }
    comment = json.loads((artifact / "comment.json").read_text())
    assert (comment["pull_request"], comment["exit_code"]) == (7, 1)
    assert re.search(r"^FAIL: [12] cells? slower", comment["text"], re.MULTILINE)  # a busy machine can lose the rounds of one cell
    assert "softbench: " not in comment["text"]


PACKAGE = {
    "pyproject.toml": '[project]\nname = "fast"\nversion = "1"\n',
    "softbench.toml": 'build = ["cp -r fast $VIRTUAL_ENV/lib/python3*/site-packages/"]\n[[target]]\nfunction = "fast:scale"\n'
    'inputs = "x[M,N]"\nM = 8\nN = [64, 128]\ndtype = "fp32"\n',
}


@pytest.mark.slow
def test_a_planted_slowdown_of_a_package_fails(machine, tmp_path):
    def package(text):
        return {"fast/__init__.py": text.replace("softmax(x)", "scale(x)")}

    origin = pull_request(tmp_path / "origin", {**PACKAGE, **package(FAST)}, {}, package(SLOW))
    done = run(machine, tmp_path / "job", origin, file="", args="--rounds 6 --margin 50 --device cpu --changed")
    assert (done.failed, done.outputs["gate"]["verdict"]) == (1, "fail"), done.log
    comment = json.loads((tmp_path / "job" / "artifacts" / "softbench-gate" / "comment.json").read_text())["text"]
    assert re.search(r"^FAIL: [12] cells? slower", comment, re.MULTILINE)
    assert str(tmp_path) not in comment


@pytest.fixture
def pretended(machine, tmp_path):
    """A runner with an environment whose pip and softbench print their arguments. softbench ends with the exit code $CODE."""
    place = tmp_path / "runner"
    for name in ("tools/gate_action.py", "action.yml", "pyproject.toml"):
        (place / "action" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, place / "action" / name)
    shutil.copy(machine / "event.json", place)
    programs = gate_action.folder(surroundings(place)) / "bin"
    programs.mkdir(parents=True)
    (programs.parent / "key").write_text(gate_action.key(surroundings(place)))
    for name, code in (("softbench", "$CODE"), ("python", "0")):
        (programs / name).write_text(f'#!/bin/sh\necho "softbench: plan" >&2\nprintf "%s\\n" "$@"\nexit "{code}"\n')
        (programs / name).chmod(0o755)
    return place


@pytest.fixture
def origin(tmp_path):
    return pull_request(tmp_path / "origin", kernel(FAST), {}, kernel(SLOW))


def test_a_slowdown_of_main_is_not_the_pull_requests(pretended, tmp_path):
    """The gate compares two equal files: the merge has the slow one of main, and main itself is the base."""
    origin = pull_request(tmp_path / "origin", kernel(FAST), kernel(SLOW), {"README.md": "new\n"})
    done = run(pretended, tmp_path / "job", origin, env={"CODE": "0"}, args=SWEEP)
    assert (done.failed, done.outputs["gate"]["verdict"]) == (0, "pass"), done.log
    words = done.log.splitlines()
    files = [words[i + 1].partition("=") for i, word in enumerate(words) if word == "--plugin"]
    assert [name for name, _, _ in files] == ["head", "base"]
    assert files[0][2] != files[1][2]
    checkout = tmp_path / "job" / "workspace" / "softbench-gate"
    assert [(checkout / file).read_text() for _, _, file in files] == [SLOW, SLOW]
    assert not any(Path(file).is_absolute() for _, _, file in files)
    assert git(checkout, "status", "--porcelain") == ""


@pytest.mark.parametrize(
    ("neutral", "code", "left"),
    sampled([("true", 3, 0), ("false", 3, 3), ("true", 1, 1), ("true", 2, 2), ("true", 0, 0)], lambda _, code, left: code in (1, 3)),
)
def test_the_switch_makes_exit_3_neutral_and_no_other(pretended, origin, tmp_path, neutral, code, left):
    done = run(pretended, tmp_path / "job", origin, env={"CODE": str(code)}, neutral_exit_3=neutral)
    assert done.failed == left
    assert done.outputs["gate"]["exit-code"] == str(code)
    assert ("::warning title=softbench gate::inconclusive" in done.log) == (neutral == "true" and code == 3)


def test_inputs_reach_the_gate_as_arguments(pretended, origin, tmp_path):
    hostile = "--N 64 '$(touch stolen)' `id` ; exit 0"
    done = run(pretended, tmp_path / "job", origin, env={"CODE": "0"}, args=hostile, backend="row")
    words = done.log.splitlines()
    assert words[words.index("--candidate") + 1] == "head.row"
    assert words[words.index("--reference") + 1] == "base.row"
    start = words.index("--N")
    assert words[start : start + 7] == ["--N", "64", "$(touch stolen)", "`id`", ";", "exit", "0"]
    assert not list(tmp_path.rglob("stolen"))


@pytest.mark.slow
def test_other_dependencies_are_installed_anew(pretended, origin, tmp_path):
    again = run(pretended, tmp_path / "first", origin, env={"CODE": "0"})
    assert "--no-deps\n--force-reinstall\n" in again.log
    assert run(pretended, tmp_path / "second", origin, env={"CODE": "0"}, packages="no-such-package-of-ours").failed
    assert not (gate_action.folder(surroundings(pretended)) / "bin" / "softbench").exists()


def test_a_named_base_is_compared(pretended, origin, tmp_path):
    commit(origin, kernel("# an older version\n"), "later")
    older = git(origin, "rev-parse", "main")
    git(origin, "update-ref", "refs/pull/7/merge", git(origin, "commit-tree", "topic^{tree}", "-p", "topic", "-p", older, "-m", "merge"))
    done = run(pretended, tmp_path / "job", origin, env={"CODE": "0"}, base=older)
    assert done.failed == 0, done.log
    assert (
        tmp_path / "job" / "workspace" / "softbench-gate" / gate_action.BASE / "kernels" / "mine.py"
    ).read_text() == "# an older version\n"


@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    sampled(
        [
            ({"file": "other.py"}, 2, "file other.py: is not a file of the repository"),
            ({"file": "../../../origin/kernels/mine.py"}, 2, "is not a file of the repository"),
            ({"base": "no-such-branch"}, 2, "base no-such-branch: is not a commit of the clone"),
            ({"base": "--help"}, 2, "base --help: is not a commit of the clone"),
            ({"file": "new.py"}, 3, "file new.py: is not in the base"),
            ({"args": '--N "1'}, 2, 'args --N "1: No closing quotation'),
            ({"neutral_exit_3": "yes"}, 2, "neutral-exit-3 yes: must be true or false"),
        ],
        lambda inputs, code, message: "clone" not in message and "repository" not in message,
    ),
)
def test_bad_input_ends_with_one_clear_line(pretended, tmp_path, inputs, code, message):
    repository = pull_request(tmp_path / "origin", kernel(FAST), {}, {"new.py": FAST})
    done = run(pretended, tmp_path / "job", repository, env={"CODE": "0"}, **{"neutral_exit_3": "false", **inputs})
    assert done.failed == code
    assert message in done.log
    assert "Traceback" not in done.log
    assert message in (tmp_path / "job" / "summary.md").read_text()
    assert json.loads((tmp_path / "job" / "artifacts" / "softbench-gate" / "comment.json").read_text())["exit_code"] == code


def test_a_comment_has_the_verdict_the_slow_cells_and_what_to_do(tmp_path):
    slow = {"state": "slower", "gated": True, "backend": "head", "ratio": 1.083, "interval": [1.0711, 1.0952], "reason": "why"}
    cells = [{**slow, "case": f"forward-bf16-8x{64 * number}"} for number in range(1, 13)]
    cells += [{**slow, "state": "missing", "case": "x", "ratio": None}, {**slow, "state": "same", "case": "y"}]
    step = "if the change is not intended, look at its worst cell alone: softbench gate --N 64"
    (tmp_path / "gate.json").write_text(json.dumps({"summary": "FAIL: 13 cells", "next_step": step, "verdicts": cells}))
    lines = gate_action.outcome(tmp_path / "gate.json").splitlines()
    assert lines[:3] == ["FAIL: 13 cells", "", "slower  head forward-bf16-8x64   1.083 [1.071, 1.095]"]
    assert lines[-4:] == ["and 3 more", "", "next: if the change is not intended, look at its worst cell alone:", "softbench gate --N 64"]
    assert len(lines) <= gate_comment.VISIBLE
    (tmp_path / "plan.json").write_text(json.dumps({"cells": 4}))  # of --dry-run
    assert [gate_action.outcome(tmp_path / name) for name in ("plan.json", "none.json")] == ["", ""]


def test_a_comment_has_no_path_of_the_runner():
    env = {"RUNNER_TEMP": "/home/me/_work/_temp", "GITHUB_WORKSPACE": "/home/me/_work/x", "HOME": "/home/me"}
    text = "its output is in /home/me/.cache/softbench/a.log; see /home/me/_work/x/kernels/mine.py:3, 'a/b.py' and /usr/bin"
    assert gate_action.without_paths(text, env) == "its output is in a.log; see mine.py:3, 'a/b.py' and /usr/bin"


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, ["--candidate-env", ".", "--reference-env", "PARENT"]),
        (
            {"candidate": "mine:norm", "head": "v2", "base": "mine==1.2", "args": "--changed"},
            ["--candidate", "mine:norm", "--candidate-env", "v2", "--reference-env", "mine==1.2", "--changed"],
        ),
    ],
)
def test_a_package_is_compared_with_its_base(pretended, origin, tmp_path, inputs, words):
    done = run(pretended, tmp_path / "job", origin, env={"CODE": "0"}, file="", **inputs)
    parent = git(origin, "rev-parse", "--short=12", "main")
    said = done.log.splitlines()
    assert said[said.index("gate") + 1 :][: len(words)] == [parent if word == "PARENT" else word for word in words]


def test_a_new_plugin_without_a_base_is_neutral(pretended, tmp_path):
    repository = pull_request(tmp_path / "origin", kernel(FAST), {}, {"new.py": FAST})
    assert run(pretended, tmp_path / "job", repository, file="new.py").failed == 0


def test_without_a_runner_the_current_folder_is_rehearsed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    env = gate_action.rehearsed({"GATE_ARGS": "--changed"})
    assert gate_action.environment(env) == 0 and gate_action.checkout_of(env) == tmp_path
    assert str(tmp_path) in capsys.readouterr().out
    assert f"folder={env['RUNNER_TEMP']}/softbench/{tmp_path.name}\n" in Path(env["GITHUB_OUTPUT"]).read_text()
    assert gate_action.compared(env | {"GATE_BASE": "main"}) == ["--candidate-env", ".", "--reference-env", "main", "--changed"]


def test_options_replace_the_comparison_of_two_commits(pretended, tmp_path):
    env = surroundings(pretended) | {"CODE": "3", "RUNNER_TEMP": str(tmp_path / "temp"), "GATE_NEUTRAL": ""}
    env |= {"GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    script = [sys.executable, ROOT / "tools" / "gate_action.py", "gate", "--baseline", "h200"]
    done = subprocess.run(script, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    words = done.stdout.splitlines()
    assert words[:5] == ["softbench: plan", "gate", "--baseline", "h200", "--json"]
    assert "--candidate" not in words
    assert "verdict=inconclusive\n" in (tmp_path / "output").read_text()
