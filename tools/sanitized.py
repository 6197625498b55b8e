"""Runs compute-sanitizer over the launches of every_tier.py: python tools/sanitized.py memcheck|racecheck --out FOLDER [--functions F,...]

Many processes run at once. Each has one function of the CUDA or Triton kernels, or a part of its launches, and writes a log into FOLDER.
The output has a line for each, with the number of its launches, and at the end a line with their sums. Launches that move much are left
out: the sanitizer takes long for them. The kernels of softmax are launched by scaled_softmax.

An interrupt ends all processes in some seconds. Their logs stay, and all lines are still printed.
Exit code 1: the sanitizer found an error, a result is wrong, or a process was interrupted or launched nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from on_gpus import stopped_by_signals

ROOT = Path(__file__).parents[1]
WAYS = ("cuda", "triton")
FUNCTIONS = ("scaled_softmax", "log_softmax", "cross_entropy", "logprob", "masked_softmax")
"""Those of most launches first, so that none of their processes starts when others have ended."""
SMALL = ("--rows", "600", "--bytes", "4000000")
ERROR_CODE = 9
LAUNCH = re.compile(r"^\d+: ", re.MULTILINE)
FINISHED = re.compile(r'^\{"launches": .*\}$', re.MULTILINE)
"""The last line of every_tier.py."""
SUMMARY = re.compile(r"^=+ (?:ERROR|RACECHECK) SUMMARY: (\d+)", re.MULTILINE)
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
"""Exact allocations: the sanitizer then sees an access one byte beside a tensor. One thread: the processes already use all cores."""
END_SECONDS = 5
"""From the interrupt to the kill. on_gpus.py waits 15."""
LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Work:
    """One process."""

    way: str
    function: str
    part: str
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.way}-{self.function}-{self.part.partition('/')[0]}"


@dataclass(frozen=True)
class Done:
    """What became of a process."""

    launches: int
    what: str
    right: bool


def run(work: Work, out: Path, stop: threading.Event) -> Done:
    """Runs a process that writes its log into a folder. `stop` interrupts it."""
    log = out / f"{work.name}.log"
    log.unlink(missing_ok=True)  # of another run
    if stop.is_set():
        return Done(0, "left out: interrupted", False)
    environment = {**os.environ, **ENVIRONMENT}
    try:
        with log.open("w") as file:
            process = subprocess.Popen(
                work.command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, cwd=ROOT, process_group=0
            )
    except OSError as error:  # such as no compute-sanitizer
        return Done(0, f"not started: {error}", False)
    in_time = _wait(process, None, stop)
    if not in_time:
        os.killpg(process.pid, signal.SIGINT)
        _wait(process, END_SECONDS, None)
    with suppress(OSError):  # what the sanitizer left behind; no other process has its number until `wait`
        os.killpg(process.pid, signal.SIGKILL)
    return judged(process.wait(), log.read_text(errors="replace"), in_time)


def judged(code: int, text: str, in_time: bool) -> Done:
    """By the exit code and by the log: the sanitizer's exit code may be that of every_tier.py."""
    launches, finished = len(LAUNCH.findall(text)), FINISHED.search(text)
    reasons = [] if in_time else ["interrupted"]
    counts = [int(count) for count in SUMMARY.findall(text)]
    if any(counts):
        reasons.append("the sanitizer found errors")
    if in_time and finished and not counts:
        reasons.append("the sanitizer printed no summary")
    if finished and json.loads(finished[0])["wrong"]:
        reasons.append("results are wrong")
    if in_time and not finished:
        reasons.append("it did not reach its end")
    return Done(launches, ", ".join([f"exit code {code}", *reasons]), code == 0 and launches > 0 and not reasons)


def _wait(process: subprocess.Popen[bytes], seconds: float | None, stop: threading.Event | None) -> bool:
    """True if the process has ended in this time and before `stop`. It is not reaped."""
    end = time.monotonic() + (seconds or float("inf"))
    while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if time.monotonic() > end or (stop is not None and stop.is_set()):
            return False
        time.sleep(LOOK_SECONDS)
    return True


def sums(done: list[tuple[Work, Done]]) -> str:
    """One line of all launches."""
    of: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    for work, found in done:
        of[work.way][work.function] += found.launches
    failed = sum(not found.right for _, found in done)
    each = "; ".join(
        f"{way} {counts.total()}: " + ", ".join(f"{name} {count}" for name, count in counts.items()) for way, counts in of.items()
    )
    return f"{failed} of {len(done)} processes failed, {sum(counts.total() for counts in of.values())} launches; {each}"


def main(sanitizer: tuple[str, ...] = ("compute-sanitizer",)) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tool", choices=("memcheck", "racecheck"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--functions", default=",".join(FUNCTIONS), metavar="F,...", help="only these, of the default %(default)s")
    parser.add_argument("--parts", type=int, default=2, help="processes of each function")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    asked = parser.parse_args()
    chosen = [name.strip() for name in asked.functions.split(",")]
    for name in chosen:
        if name not in FUNCTIONS:
            parser.exit(2, f"sanitized.py: --functions has no {name or 'name'!r}; choose from {', '.join(FUNCTIONS)}\n")
    asked.out.mkdir(parents=True, exist_ok=True)
    work = []
    for function, way, number in itertools.product(FUNCTIONS, WAYS, range(1, asked.parts + 1)):
        if function in chosen:
            part = f"{number}/{asked.parts}"
            command = [*sanitizer, "--tool", asked.tool, "--error-exitcode", str(ERROR_CODE), sys.executable, "tools/every_tier.py", way]
            work.append(Work(way, function, part, (*command, "--function", function, *SMALL, "--part", part, "--verbose")))
    stop, done = threading.Event(), []
    with stopped_by_signals(stop), ThreadPoolExecutor(max(1, asked.jobs)) as pool:
        for one, found in zip(work, pool.map(lambda one: run(one, asked.out, stop), work), strict=True):
            print(f"{one.name:28} {found.launches:5} launches, {found.what}", flush=True)
            done.append((one, found))
    print(sums(done), flush=True)
    return 0 if all(found.right for _, found in done) else 1


if __name__ == "__main__":
    sys.exit(main())
