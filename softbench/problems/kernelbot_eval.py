"""kernelbot's evaluator, by softbench: `config.main` of a task names a file with these two lines.

    from softbench.problems.kernelbot_eval import main
    main()

It is called in the folder of the task's files as `main.py test|benchmark|leaderboard FILE`; each line of FILE is a case,
`name: value; ...`.
The lines go to the descriptor POPCORN_FD. softbench draws seeds of its own. https://github.com/gpu-mode/reference-kernels, `eval.py`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from softbench.core.case import Value, parse_value

MODES = ("test", "benchmark", "leaderboard")
USAGE, NO_DESCRIPTOR, FAILED = 2, 111, 112
"""The exit codes of kernelbot's own evaluator."""
SUBMISSION = "submission"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure `submission.py` of the current folder, write the lines, and exit as kernelbot's evaluator does."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 2 or given[0] not in MODES or not Path(given[1]).is_file():
        sys.exit(_told(f"usage: eval.py {'|'.join(MODES)} FILE", USAGE))
    if not (descriptor := os.environ.get("POPCORN_FD", "")).isdigit():
        sys.exit(_told("POPCORN_FD is not set to a descriptor, so the result has no place", NO_DESCRIPTOR))
    mode, cases = given[0], [_case(line) for line in Path(given[1]).read_text().splitlines() if line.strip()]
    lines = evaluated(mode, cases)
    os.write(int(descriptor), ("\n".join(lines) + "\n").encode())
    sys.exit(0 if lines[-1] == "check: pass" else FAILED)


def evaluated(mode: str, cases: Sequence[dict[str, Value]]) -> list[str]:
    """The lines of an evaluation of the current folder's submission."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "task"
        folder.mkdir()
        modules = [file for file in Path.cwd().glob("*.py") if file.stem not in (SUBMISSION, Path(sys.argv[0]).stem)]
        task = {"lang": "py", "files": [{"name": file.name, "source": str(file)} for file in modules], "benchmarks": cases}
        (folder / "task.yml").write_text(json.dumps(task))  # YAML has all of JSON
        asked = ["--problem", f"kernelbot:{folder},{SUBMISSION}.py", "--backends", f"reference,{SUBMISSION}"]
        asked += ["-q", "--output", str(Path(scratch) / "results"), *(["--quick"] if mode == "test" else [])]
        program = [sys.executable, "-m", "softbench"]
        run = subprocess.run([*program, "run", *asked], capture_output=True, text=True, check=False)
        file = Path(scratch) / "results" / "latest.csv"
        wanted = ["export", str(file), "--to", "kernelbot", "--backends", SUBMISSION]
        done = subprocess.run([*program, *wanted], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = next((text for text in reversed((run.stderr if run.returncode else done.stderr).splitlines()) if text.strip()), "no result")
        return [f"{_kind(mode)}.0.status: fail", f"{_kind(mode)}.0.error: {why}", "check: fail"]
    return _of_tests(done.stdout.splitlines()) if mode == "test" else done.stdout.splitlines()


def _kind(mode: str) -> str:
    return "test" if mode == "test" else "benchmark"


def _of_tests(lines: Sequence[str]) -> list[str]:
    """The lines of benchmarks as those of tests, which pass or fail."""
    failed = {line.split(".")[1] for line in lines if ".status: fail" in line}
    found = []
    for line in lines:
        name = line.replace("benchmark", "test", 1)
        if name.startswith(("test-count", "check")) or ".spec: " in name or ".status: " in name or ".error: " in name:
            found.append(name)
            if ".spec: " in name and name.split(".")[1] not in failed:
                found.append(f"test.{name.split('.')[1]}.status: pass")
    return found


def _case(line: str) -> dict[str, Value]:
    pairs = (part.partition(":") for part in line.split(";") if part.strip())
    return {name.strip(): parse_value(value.strip()) for name, _, value in pairs}


def _told(text: str, code: int) -> int:
    print(text, file=sys.stderr)
    return code
