"""A Slurm that only pretends, for one host without GPUs: `sbatch`, `srun` and `scontrol`, and a scheduler that a test drives.

A task that starts again is on another node. `--devices all` means all processors, as there is no GPU. The scheduler has arrays,
dependencies, constraints, `--requeue`, `--signal`, preemption, time limits and lost nodes. Options that it does not know are refused.
Sources: sbatch(1), srun(1), scontrol(1), https://slurm.schedmd.com/preempt.html and job_exit_code.html.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

OPTIONS = {
    *("array", "constraint", "dependency", "gres", "job-name", "open-mode", "output", "parsable", "requeue", "signal", "time"),
}
FEATURES = ("h200",)
FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)


def options_of(words):
    """`--name=value`, `--name value` and flags; the other words."""
    found, others, words = {}, [], list(words)
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            others.append(name + equals + value)
        elif name[2:] not in OPTIONS:
            sys.exit(f"sbatch: unrecognized option '{name}'")
        else:
            found[name[2:]] = value if equals else "" if name[2:] in ("parsable", "requeue") else words.pop(0)
    return found, others


def sbatch(*words):
    given, (script,) = options_of(words)
    text = Path(script).read_text()
    head = re.match(r"(?:#.*\n|\n)*", text)[0]
    lines = [line.removeprefix("#SBATCH") for line in head.splitlines() if line.startswith("#SBATCH")]
    written, _ = options_of([word for line in lines for word in shlex.split(line, comments=True)])
    options = {**written, **given}
    if options.get("constraint", FEATURES[0]) not in FEATURES:
        sys.exit("sbatch: error: Batch job submission failed: Requested node configuration is not available")
    queue = Path(os.environ["FAKE_SLURM"])
    number = 100 * (1 + len(list(queue.glob("job-*"))))
    (queue / f"new-{number}").write_text(json.dumps({"number": number, "text": text, "options": options, "folder": str(Path.cwd())}))
    (queue / f"new-{number}").rename(queue / f"job-{number}")
    print(number if "parsable" in options else f"Submitted batch job {number}")


def on_a_quiet_machine(code):
    """As `conftest.on_a_quiet_machine`: other programs use the processors while the tests run."""
    return 0 if code == 5 else code


def srun(*words):
    child = subprocess.Popen(words)
    for signum in FORWARDED:
        signal.signal(signum, lambda number, _: child.send_signal(number))
    (Path(os.environ["FAKE_SLURM"]) / f"step-{os.environ['SLURM_JOB_ID']}").write_text(str(child.pid))
    code = on_a_quiet_machine(child.wait())
    sys.exit(code if code >= 0 else 128 - code)


def scontrol(command, number):
    assert command == "requeue"
    (Path(os.environ["FAKE_SLURM"]) / f"requeue-{number}").touch()


def descendants(pid):
    """The processes below a process, the latest first."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[:0:-1]


@dataclass
class Task:
    """A task of an array, or a job without one."""

    job: dict
    index: int
    number: int
    process: subprocess.Popen | None = None
    codes: list[int] = field(default_factory=list)
    """Exit codes of its starts; signals are negative."""
    state: str = "PENDING"
    again: bool = False
    """True if it starts again when it ends."""


class Slurm:
    """The scheduler. `tick` lets it look at its jobs once."""

    def __init__(self, folder, env):
        self.folder, self.queue, self.tasks = folder, folder / "slurm", []
        (self.queue / "bin").mkdir(parents=True)
        commands = {name: f"{sys.executable} {__file__} {name}" for name in ("sbatch", "srun", "scontrol")}
        processors = 'for word do shift; [ "$word" = all ] && word=cpu:0; set -- "$@" "$word"; done'
        for name, command in {**commands, "softbench": f"{sys.executable} -P -m softbench"}.items():
            file = self.queue / "bin" / name
            file.write_text(f'#!/bin/sh\n{processors}\nexec {command} "$@"\n')
            file.chmod(0o755)
        self.env = {**env, "FAKE_SLURM": str(self.queue), "PATH": f"{self.queue / 'bin'}:{env['PATH']}"}

    def shell(self, text):
        """Run commands as a user of the cluster does."""
        return subprocess.run(["bash", "-euc", text], cwd=self.folder, env=self.env, capture_output=True, text=True, check=True).stdout

    def tick(self):
        for file in sorted(self.queue.glob("job-*")):
            job = json.loads(file.read_text())
            if not any(task.job["number"] == job["number"] for task in self.tasks):
                first, _, last = job["options"].get("array", "0").partition("-")
                indexes = range(int(first), int(last or first) + 1)
                self.tasks += [Task(job, index, job["number"] + place) for place, index in enumerate(indexes)]
        for task in self.tasks:
            if task.state == "RUNNING" and task.process.poll() is not None:
                self._ended(task)
            elif task.state == "PENDING":
                self._start(task)

    def _start(self, task):
        kind, _, number = task.job["options"].get("dependency", "afterany:0").partition(":")
        others = [other for other in self.tasks if other.job["number"] == int(number)]
        if any(other.state in ("PENDING", "RUNNING") for other in others):
            return
        if kind == "afterok" and any(other.state != "COMPLETED" for other in others):
            task.state = "CANCELLED"
            return
        options = task.job["options"]
        log = self.folder / options.get("output", f"slurm-{task.number}.out").replace("%a", str(task.index))
        log.parent.mkdir(exist_ok=True)
        about = {"SLURM_JOB_ID": task.number, "SLURM_ARRAY_TASK_ID": task.index, "SOFTBENCH_HOST": f"node{len(task.codes)}"}
        script = self.queue / f"script-{task.number}"
        script.write_text(task.job["text"])
        with log.open("a" if options.get("open-mode") == "append" else "w") as out:
            task.process = subprocess.Popen(
                ["bash", script],
                **{"cwd": task.job["folder"], "env": {**self.env, **{name: str(value) for name, value in about.items()}}},
                **{"stdout": out, "stderr": subprocess.STDOUT, "start_new_session": True},
            )
        task.state, task.again = "RUNNING", False

    def _ended(self, task):
        task.codes.append(task.process.returncode)
        asked = self.queue / f"requeue-{task.number}"
        again = task.again or asked.exists()
        asked.unlink(missing_ok=True)
        (self.queue / f"step-{task.number}").unlink(missing_ok=True)
        task.state = "PENDING" if again else "FAILED" if task.codes[-1] else "COMPLETED"

    def preempt(self, task):
        """All processes of the step get SIGCONT and SIGTERM, the program itself last. With --requeue the task starts again."""
        program = int((self.queue / f"step-{task.number}").read_text())
        for signum in (signal.SIGCONT, signal.SIGTERM):
            for pid in (*descendants(program), program):
                with suppress(ProcessLookupError):
                    os.kill(pid, signum)
        task.again = "requeue" in task.job["options"]

    def near_its_limit(self, task):
        """The signal of --signal goes to the batch shell with `B:`, else to all processes of the step."""
        where, name, _ = re.fullmatch(r"(B:)?([A-Z0-9]+)@(\d+)", task.job["options"]["signal"]).groups()
        program = int((self.queue / f"step-{task.number}").read_text())
        for pid in [task.process.pid] if where else (*descendants(program), program):
            os.kill(pid, signal.Signals[f"SIG{name}"])

    def lose_node(self, task):
        """Nothing is left of the task."""
        for pid in (task.process.pid, *descendants(task.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        task.again = "requeue" in task.job["options"]

    def run(self, until, seconds=300):
        """Schedule until the condition holds."""
        end = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < end, [(task.number, task.state, task.codes) for task in self.tasks]
            self.tick()
            time.sleep(0.05)


if __name__ == "__main__":
    {"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[sys.argv[1]](*sys.argv[2:])
