"""Runs compute-sanitizer over the launches of every_tier.py: python tools/sanitized.py memcheck|racecheck --out FOLDER

Many processes run at once. Each has one function of the CUDA or Triton kernels, or a part of its launches, and writes a log into FOLDER.
The output has a line for each, with the number of its launches. Launches that move much are left out: the sanitizer takes long for them.
Kernels of masked softmax are not covered.
Exit code 1: the sanitizer found an error, a result is wrong, or a process was interrupted or launched nothing.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
WAYS = ("cuda", "triton")
FUNCTIONS = ("scaled_softmax", "log_softmax", "cross_entropy", "logprob")
SMALL = ("--rows", "600", "--bytes", "4000000")
ERROR_CODE = 9
LAUNCH = re.compile(r"^\d+: ", re.MULTILINE)
ENVIRONMENT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": str(ROOT)}
"""Exact allocations: the sanitizer then sees an access one byte beside a tensor."""


def run(command: list[str], log: Path) -> tuple[int, int]:
    """Exit code of a command, and how many launches its log names."""
    with log.open("w") as out:
        done = subprocess.run(command, stdout=out, stderr=out, env={**os.environ, **ENVIRONMENT}, cwd=ROOT, check=False)
    return done.returncode, len(LAUNCH.findall(log.read_text(errors="replace")))


def main(sanitizer: tuple[str, ...] = ("compute-sanitizer",)) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tool", choices=("memcheck", "racecheck"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--parts", type=int, default=2, help="processes of each function")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes at once")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    work = {}
    for way, function, part in itertools.product(WAYS, FUNCTIONS, range(1, asked.parts + 1)):
        command = [*sanitizer, "--tool", asked.tool, "--error-exitcode", str(ERROR_CODE), sys.executable, "tools/every_tier.py", way]
        command += ["--function", function, *SMALL, "--part", f"{part}/{asked.parts}", "--verbose"]
        work[f"{way}-{function}-{part}"] = command
    with ThreadPoolExecutor(max(1, asked.jobs)) as pool:
        found = pool.map(lambda item: (item[0], *run(item[1], asked.out / f"{item[0]}.log")), work.items())
        codes = []
        for name, code, launches in found:
            print(f"{name:28} {launches:5} launches, exit code {code}", flush=True)
            codes.append(code or not launches)
    return 1 if any(codes) else 0


if __name__ == "__main__":
    sys.exit(main())
