"""Measures the cost of the harness: wall time of a sweep over that of a plain do_bench loop, and the effect of adaptive sampling.

    python tools/harness_cost.py [--backends torch,compile,triton,cuda] [--N 256:6272:128] [--most 1.3]

A first sweep warms the compilers' caches; the second sweep is timed. Then one process builds the same cells and calls do_bench for as
many samples as the sweep took, without checks, workers and profiles. Last, a part of the sweep runs ten rounds of 10 ms per cell. Its
samples show where adaptive sampling would have stopped. Exit code 1: the ratio is over `--most`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from softbench.plugins.load import load
from softbench.plugins.source import origins

PRECISION, TICK_US, MIN_ROUNDS = 0.005, 0.032, 3  # the defaults of `softbench run`
FIXED_ROUNDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="torch,compile,triton,cuda")
    parser.add_argument("--N", default="256:6272:128")
    parser.add_argument("--some-N", default="256:6272:1024", help="columns of the part with ten rounds")
    parser.add_argument("--most", type=float, default=1.3)
    parser.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        print(json.dumps(bare(json.loads(given.bare.read_text()))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        sweep(given.backends, given.N, Path(folder), "--rounds", "1")
        ours_s, document = sweep(given.backends, given.N, Path(folder))
        cells = taken(document)
        file = Path(folder) / "cells.json"
        file.write_text(json.dumps(cells))
        begin = time.monotonic()
        done = subprocess.run([sys.executable, __file__, "--bare", str(file)], stdout=subprocess.PIPE, text=True, check=True)
        bare_s, loop = time.monotonic() - begin, json.loads(done.stdout.splitlines()[-1])
        _, fixed = sweep(given.backends, given.some_N, Path(folder), "--rounds", str(FIXED_ROUNDS))
    samples = sum(cell["samples"] for cell in cells)
    ratio = compared(ours_s, bare_s, samples, loop)
    print(f"softbench run: {ours_s:.1f} s for {len(cells)} cells, {samples} samples; of these {json.dumps(document['seconds'])}")
    print(f"bare loop: {bare_s:.1f} s, {loop['samples']} samples; builds {loop['build_s']:.1f} s, do_bench {loop['bench_s']:.1f} s")
    print(f"ratio {ratio:.2f}, for the same number of samples; at most {given.most} is wanted")
    print(spared([batches(cell) for cell in fixed["cells"] if cell["outcome"]["kind"] == "measured"], fixed["settings"]["batch_ms"]))
    return int(ratio > given.most)


def sweep(backends: str, N: str, folder: Path, *more: str) -> tuple[float, dict[str, Any]]:
    """Wall seconds of `softbench run`, and its run document."""
    command = [sys.executable, "-m", "softbench", "run", "--backends", backends, "--M", "4096", "--N", N, "--output", str(folder), *more]
    begin = time.monotonic()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    return time.monotonic() - begin, json.loads((folder / "latest.json").read_text())


def batches(cell: dict[str, Any]) -> list[list[float]]:
    return [batch["samples_us"] for batch in cell["outcome"]["timing"]["batches"]]


def taken(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Backend, case, samples and sampled milliseconds of each measured cell."""
    batch_ms = document["settings"]["batch_ms"]
    found = []
    for cell in document["cells"]:
        if cell["outcome"]["kind"] == "measured":
            rounds = batches(cell)
            amount = {"samples": sum(map(len, rounds)), "ms": batch_ms * len(rounds)}
            found.append({"backend": cell["backend"], "case": cell["case"], **amount})
    return found


def bare(cells: Sequence[dict[str, Any]]) -> dict[str, float]:
    """A plain loop: build, then do_bench with its default warm-up, for as long as the sweep sampled the cell."""
    import torch
    from triton.testing import do_bench

    from softbench.core.case import Case, Direction
    from softbench.ops.softmax import inputs

    sources = {source.label: source for source in origins(()) if source.kind == "entry point"}
    loaded: dict[str, Any] = {}
    found = {"samples": 0.0, "build_s": 0.0, "bench_s": 0.0}
    for cell in cells:
        name = cell["backend"]
        if name not in loaded:
            (loaded[name],) = (one for one in load(sources[name]) if one.name == name)
        begin = time.monotonic()
        case = Case(**{**cell["case"], "direction": Direction(cell["case"]["direction"])})
        given = inputs.make(case, 0, torch.device("cuda"))
        call = loaded[name].prepare(case)
        call(*given)
        torch.cuda.synchronize()
        built = time.monotonic()
        found["samples"] += len(do_bench(lambda call=call, given=given: call(*given), rep=cell["ms"], return_mode="all"))
        found["build_s"] += built - begin
        found["bench_s"] += time.monotonic() - built
    return found


def compared(ours_s: float, bare_s: float, samples: int, loop: dict[str, float]) -> float:
    """The ratio of the wall times, with the loop's do_bench time scaled to the same number of samples."""
    return ours_s / (bare_s + loop["bench_s"] * (samples / loop["samples"] - 1))


def spared(cells: Sequence[Sequence[Sequence[float]]], batch_ms: float) -> str:
    """Summary line: sampled time and precise cells with adaptive sampling, and with all rounds."""
    from softbench.core.stopping import settled

    needed, known, known_at_all = [], 0, 0
    for rounds in cells:
        counts = range(min(MIN_ROUNDS, len(rounds)), len(rounds) + 1)
        stop = next((count for count in counts if settled(rounds[:count], PRECISION, TICK_US)), 0)
        needed.append(batch_ms * (stop or len(rounds)))
        known += bool(stop)
        known_at_all += settled(rounds, PRECISION, TICK_US)
    fixed = median(batch_ms * len(rounds) for rounds in cells)
    mean = sum(needed) / len(cells)
    return (
        f"adaptive sampling: {mean:.0f} ms a cell (median {median(needed):.0f}), {known} of {len(cells)} cells known to {PRECISION:.1%}; "
        f"a fixed {fixed:.0f} ms a cell: {known_at_all} known; {mean / fixed:.2f} of its time"
    )


if __name__ == "__main__":
    sys.exit(main())
