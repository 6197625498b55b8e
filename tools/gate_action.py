"""The steps of action.yml and of the gate job: python3 tools/gate_action.py environment | install | gate [GATE OPTIONS]

`environment` names the folder and the cache key of the environment, `install` fills it, and `gate` runs `softbench gate`. Without options
`gate` compares the plugin, the function or the targets of the checkout GATE_CHECKOUT with an earlier version. Inputs are environment
variables, so that no shell reads them. On a machine that is no runner the checkout is the current folder: a rehearsal.
The standard library is enough, because softbench is not installed yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
VERDICTS = {0: "pass", 1: "fail", 3: "inconclusive"}
"""The words for the gate's exit codes; every other code is `error`."""
USAGE, INCONCLUSIVE = 2, 3
FAILING = ("slower", "broken", "missing", "failed")
"""The states of cells that a comment lists, as the gate's JSON has them."""
LISTED = 10
"""Cells that a comment shows unfolded."""
BASE = ".softbench-base"
"""The worktree of the base in the checkout. Its path is relative, so that commands of the report are the same on every machine."""


class NotMeasuredError(Exception):
    """There is nothing to measure; `code` is the exit code."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(" ".join(message.split()))  # a line, because a new line could begin a command of the runner
        self.code = code


def rehearsed(env: Mapping[str, str]) -> Mapping[str, str]:
    """The variables of a runner; of another machine those of a rehearsal, which writes into the folder of temporary files."""
    if "GITHUB_REPOSITORY" in env:
        return env
    place = Path(tempfile.gettempdir(), f"softbench-rehearsal-{Path.cwd().name}")
    place.mkdir(exist_ok=True)
    (place / "event.json").write_text("{}", encoding="utf-8")
    files = {"EVENT_PATH": "event.json", "OUTPUT": "outputs", "STEP_SUMMARY": "summary.md"}
    known = {"GITHUB_REPOSITORY": Path.cwd().name, "GITHUB_WORKSPACE": str(Path.cwd()), "GATE_CHECKOUT": ".", "GATE_NEUTRAL": "true"}
    known |= {"RUNNER_TEMP": str(place), "RUNNER_TOOL_CACHE": str(place)} | {
        f"GITHUB_{key}": str(place / name) for key, name in files.items()
    }
    if (softbench := shutil.which("softbench")) and not (folder(known) / "bin").exists():  # so that `install` is not needed
        folder(known).mkdir(parents=True, exist_ok=True)
        (folder(known) / "bin").symlink_to(Path(softbench).parent)
    print(f"a rehearsal: the files of the runner are in {place}", flush=True)
    return {**known, **env}


def folder(env: Mapping[str, str]) -> Path:
    """The environment's folder: one for a repository, so that a runner with a disk of its own keeps one and not many."""
    return Path(env["RUNNER_TOOL_CACHE"]) / "softbench" / env["GITHUB_REPOSITORY"]


def report_folder(env: Mapping[str, str]) -> Path:
    """The folder of all that the gate writes; the next job of the runner starts without it."""
    return Path(env["RUNNER_TEMP"]) / "softbench-gate"


def key(env: Mapping[str, str]) -> str:
    """A name for the environment's contents: another Python, other dependencies, packages or settings of pip give another one."""
    pip = [f"{name}={value}" for name, value in sorted(env.items()) if name.startswith("PIP_")]
    parts = [sys.version, platform.machine(), env.get("GATE_PACKAGES", ""), *pip, (ROOT / "pyproject.toml").read_text(encoding="utf-8")]
    return f"softbench-{sys.platform}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:24]}"


def environment(env: Mapping[str, str]) -> int:
    """Set the outputs `folder` and `key`."""
    set_outputs(env, folder=folder(env), key=key(env))
    return 0


def install(env: Mapping[str, str]) -> int:
    """Install softbench and its dependencies, or softbench only if the dependencies are there already."""
    place = folder(env)
    marker, python = place / "key", place / "bin" / "python"
    complete = marker.is_file() and marker.read_text(encoding="utf-8") == key(env) and python.exists()
    what = ["--no-deps", "--force-reinstall"] if complete else _words(env, "GATE_PACKAGES", "packages")
    if not complete:
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what, ROOT], check=True)
    marker.write_text(key(env), encoding="utf-8")
    return 0


def gate(env: Mapping[str, str], options: list[str]) -> int:
    """Run the gate and write its report; returns the exit code of the step."""
    report = report_folder(env)
    shutil.rmtree(report, ignore_errors=True)
    report.mkdir(parents=True)
    try:
        neutral = _switch(env, "GATE_NEUTRAL")
        arguments = options or compared(env)
        softbench = str(folder(env) / "bin" / "softbench")
        code, rest = measured([softbench, "gate", *arguments, *_files(report)], report / "gate.log", None if options else checkout_of(env))
        found = outcome(report / "gate.json")
        text, rest = (found, rest) if found else (rest, "")
        write_page(softbench, report)
    except NotMeasuredError as error:
        code, text, rest, neutral = error.code, str(error), "", neutral if error.code == INCONCLUSIVE else False
        print(f"::error title=softbench gate::{text}")
    verdict = VERDICTS.get(code, "error")
    _publish(env, report, code, verdict, text, rest)
    if code == INCONCLUSIVE and neutral:
        print("::warning title=softbench gate::inconclusive (exit code 3); neutral-exit-3 lets the job pass")
        return 0
    return code


def checkout_of(env: Mapping[str, str]) -> Path:
    """The folder of the checkout, in which the gate runs."""
    return (Path(env["GITHUB_WORKSPACE"]) / env["GATE_CHECKOUT"]).resolve()


def compared(env: Mapping[str, str]) -> list[str]:
    """The options that compare the checkout with its base: its plugin, or functions of its package in two environments.

    Raises:
        NotMeasuredError: the plugin or the base does not exist.
    """
    if env.get("GATE_FILE"):
        return two_commits(env)
    function = ["--candidate", env["GATE_CANDIDATE"]] if env.get("GATE_CANDIDATE") else []
    base = env.get("GATE_BASE") or _git(checkout_of(env), "rev-parse", "--short=12", "HEAD^1").stdout.strip()
    if not base:
        raise NotMeasuredError("base: the checked-out commit has no parent; give the input base a commit, a wheel or NAME==VERSION")
    return [*function, "--candidate-env", env.get("GATE_HEAD") or ".", "--reference-env", base, *_words(env, "GATE_ARGS", "args")]


def two_commits(env: Mapping[str, str]) -> list[str]:
    """The options that compare the plugin of the checkout with that of the base, which gets a worktree.

    Raises:
        NotMeasuredError: the plugin or the base does not exist.
    """
    checkout = checkout_of(env)
    worktree = checkout / BASE
    file, base = env["GATE_FILE"], env.get("GATE_BASE") or "HEAD^1"
    head_file = (checkout / file).resolve()
    if not head_file.is_file() or not head_file.is_relative_to(checkout):
        raise NotMeasuredError(f"file {file}: is not a file of the repository; give the plugin's path from the top of the repository")
    found = _git(checkout, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    if found.returncode:
        raise NotMeasuredError(f"base {base}: is not a commit of the clone; give the input base a commit, or a branch such as origin/main")
    shutil.rmtree(worktree, ignore_errors=True)
    added = _git(checkout, "worktree", "add", "--force", "--detach", str(worktree), found.stdout.strip())
    if added.returncode:
        raise NotMeasuredError(f"base {base}: git worktree failed: {added.stderr.strip()}")
    if not (worktree / file).is_file():
        raise NotMeasuredError(f"file {file}: is not in the base {found.stdout[:12]}, so there is nothing to compare with", INCONCLUSIVE)
    suffix = f".{env['GATE_BACKEND']}" if env.get("GATE_BACKEND") else ""
    exclude = checkout / _git(checkout, "rev-parse", "--git-path", "info/exclude").stdout.strip()
    exclude.parent.mkdir(exist_ok=True)
    with exclude.open("a", encoding="utf-8") as ignored:
        ignored.write(f"/{BASE}/\n")
    plugins = ["--plugin", f"head={head_file.relative_to(checkout)}", "--plugin", f"base={BASE}/{file}"]
    return ["--candidate", f"head{suffix}", "--reference", f"base{suffix}", *plugins, *_words(env, "GATE_ARGS", "args")]


def measured(command: list[str], log: Path, place: Path | None = None) -> tuple[int, str]:
    """Run the gate in this folder, with its output in the job's log and in a file; returns its exit code and the lines of its report."""
    env = {**os.environ, "PATH": os.pathsep.join([str(Path(command[0]).parent), os.environ.get("PATH", os.defpath)])}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with log.open("w", encoding="utf-8") as kept, subprocess.Popen(command, cwd=place, env=env, **piped) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            print(line, end="", flush=True)
            kept.write(line)
            lines.append(line)
    report = [line for line in lines if not line.startswith("softbench: ")]  # without the notes and the progress of stderr
    return process.returncode, "".join((report if process.returncode in VERDICTS else []) or lines[-20:])


def outcome(document: Path) -> str:
    """What a comment shows unfolded: the summary, the worst cells with their intervals, and what to do; empty without a report.

    The plan of --dry-run is no report.
    """
    found = json.loads(document.read_text(encoding="utf-8")) if document.is_file() else {}
    if "verdicts" not in found:
        return ""
    listed = [one for one in found["verdicts"] if one["gated"] and one["state"] in FAILING]
    cells = [(one["state"], f"{one['backend']} {one['case']}", _figure(one)) for one in listed[:LISTED]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=True)).rstrip() for cell in cells]
    more = [f"and {len(listed) - LISTED} more"] if len(listed) > LISTED else []
    what, colon, command = found["next_step"].partition(": ")
    todo = ["", f"next: {what}{colon}".rstrip(), *([command] if command else [])] if what else []
    return "\n".join([found["summary"], *(["", *lines, *more] if lines else []), *todo])


def _figure(verdict: Mapping[str, Any]) -> str:
    """The ratio with its 95 % interval, or why there is none."""
    if verdict["ratio"] is None:
        return str(verdict["reason"])[:100]
    interval = verdict["interval"]
    return f"{verdict['ratio']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def without_paths(text: str, env: Mapping[str, str]) -> str:
    """The text with the last part only of each path of the runner."""
    roots = [env.get(name) for name in ("RUNNER_TEMP", "RUNNER_TOOL_CACHE", "GITHUB_WORKSPACE", "GITHUB_ACTION_PATH", "HOME")]
    known = "|".join(sorted((re.escape(root.rstrip("/")) for root in roots if root and len(root) > 1), key=len, reverse=True))
    return re.sub(rf"(?:{known})(?:/[^\s/:;,'\"]+)*/([^\s/:;,'\"]+)", r"\1", text) if known else text


def write_page(softbench: str, report: Path) -> None:
    """Write gate.html from the first run, which has every cell, and the verdicts. Without a page the verdict stands all the same."""
    runs, verdicts = sorted((report / "measurements").glob("run-*.csv")), report / "gate.json"
    if runs and verdicts.is_file():
        command = [softbench, "report", str(runs[0]), "--gate", str(verdicts), "-o", str(report / "gate.html")]
        if subprocess.run(command, check=False).returncode:
            print("::warning title=softbench gate::gate.html was not written; the log has the reason")


def _files(report: Path) -> list[str]:
    named = {"--json": "gate.json", "--markdown": "gate.md", "--junit": "gate.xml", "--plot": "gate.png", "--output": "measurements"}
    return [part for flag, name in named.items() for part in (flag, str(report / name))]


def _publish(env: Mapping[str, str], report: Path, code: int, verdict: str, text: str, rest: str) -> None:
    """Write what the comment needs, the job's summary if the gate wrote none, and the outputs."""
    event = json.loads(Path(env["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    number = (event.get("pull_request") or {}).get("number")
    comment = {"pull_request": number, "exit_code": code, "text": without_paths(text, env), "rest": without_paths(rest, env)}
    (report / "comment.json").write_text(json.dumps(comment), encoding="utf-8")
    if not (report / "gate.md").exists():
        with Path(env["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as summary:
            summary.write(f"## softbench gate: {verdict}\n\n" + "".join(f"    {line}\n" for line in text.splitlines()))
    set_outputs(env, **{"exit-code": code, "verdict": verdict, "report": report})


def set_outputs(env: Mapping[str, str], **values: object) -> None:
    """Set outputs of the step."""
    with Path(env["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in values.items())


def _words(env: Mapping[str, str], name: str, given: str) -> list[str]:
    """The words of an input, as a shell splits them.

    Raises:
        NotMeasuredError: a quotation mark is open.
    """
    try:
        return shlex.split(env.get(name, ""))
    except ValueError as error:
        raise NotMeasuredError(f"{given} {env[name]}: {error}") from None


def _switch(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name) or "false"
    if value not in ("true", "false"):
        raise NotMeasuredError(f"neutral-exit-3 {value}: must be true or false")
    return value == "true"


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    safe = f"safe.directory={checkout}"  # in a container the checkout may belong to another user
    return subprocess.run(["git", "-c", safe, "-C", str(checkout), *arguments], capture_output=True, text=True, check=False)


STEPS: dict[str, Callable[[Mapping[str, str]], int]] = {"environment": environment, "install": install}

if __name__ == "__main__":
    step, *rest = sys.argv[1:]
    try:
        env = rehearsed(os.environ)
        sys.exit(gate(env, rest) if step == "gate" else STEPS[step](env))
    except NotMeasuredError as error:
        print(f"::error title=softbench gate::{error}")
        sys.exit(error.code)
    except subprocess.CalledProcessError as error:
        print(f"::error title=softbench gate::{' '.join(map(str, error.cmd[1:4]))} failed (exit code {error.returncode}); see above")
        sys.exit(error.returncode)
