"""Compares device times with ncu's gpu__time_duration over a mixed grid: python tools/against_ncu.py

It prints a line per cell. Exit code 1: a cell differs by more than 3 % and 0.3 us. Exit code 2: no cell could be compared.

ncu runs each kernel alone and adds about a microsecond to every kernel, even an empty one. So the default cells have 2^28 elements,
where a microsecond is small; --M 4096 compares short kernels. The last column subtracts ncu's excess for the empty kernel. The exit
code uses ncu's values without that correction.

ncu leaves the clocks alone and neither empties nor restores caches: invalidating L2 would differ from the flush. The program flushes
L2 as do_bench does. Only the timed kernels are in ncu's range, one call at a time. Both values are medians of several processes, as a
kernel can have another speed in another process. The driver copies tensors without a kernel that ncu lists, so the yardstick is
compared in its backward form, an add.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from softbench.plan.sweep import parse_axis
from softbench.plugins.load import load
from softbench.plugins.source import origins

ELEMENTS = 1 << 28
LENGTHS = "256:65536:*4"
CALLS = 9  # per cell under ncu, each with a flushed L2
WARM_CALLS = 3
RELATIVE, ABSOLUTE_US = 0.03, 0.3
METRIC = "gpu__time_duration.sum"
NCU = ["ncu", "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off", "--target-processes", "application-only"]
MICROSECONDS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--backends", default="torch,compile,triton")
    parser.add_argument("--M", type=int, help=f"rows of every cell; by default as many as make {ELEMENTS} elements")
    parser.add_argument("--N", default=LENGTHS, help="columns, written as for `softbench run`")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--direction", default="forward,backward")
    parser.add_argument("--processes", type=int, default=3, help="fresh processes of softbench and of ncu; their medians are compared")
    parser.add_argument("--under-ncu", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--empty", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.empty:
        print(empty_us())
        return 0
    if given.under_ncu:
        call_each(json.loads(given.under_ncu.read_text()))
        return 0
    if shutil.which("ncu") is None:
        print("no ncu on PATH; it comes with the CUDA toolkit")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        cells = measured(given, Path(folder))
        seen = [cell for cell in cells if not unseen(cell)]
        print(f"{len(seen)} of {len(cells)} cells run kernels that ncu lists", flush=True)
        done = subprocess.run([sys.executable, __file__, "--empty"], capture_output=True, text=True, check=True)
        ours_us = float(done.stdout.split()[-1])
        (Path(folder) / "cells.json").write_text(json.dumps(seen))
        command = [*NCU, "--metrics", METRIC, "--csv", "--print-units", "base"]
        command += [sys.executable, __file__, "--under-ncu", str(Path(folder) / "cells.json")]
        processes: list[list[float]] = []
        while seen and len(processes) < max(1, given.processes):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            try:
                processes.append(grouped(durations_us(done.stdout), [{"kernels": ["an empty one"]}, *seen]))
            except ValueError as error:
                print(f"{error}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
                return 2
    if not processes:
        return 2
    empty, *others = map(median, zip(*processes, strict=True))
    return report(seen, others, ours_us, empty)


def measured(given: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """softbench's cells: case, device time in microseconds, and kernel names."""
    sweeps = [f"[[sweep]]\nM = {given.M or max(1, ELEMENTS // N)}\nN = {N}\n" for N in parse_axis(given.N, "N")]
    (folder / "grid.toml").write_text("".join(sweeps))
    command = [sys.executable, "-m", "softbench", "run", "--timer", "device", "--rounds", "3", "--output", str(folder)]
    command += ["--processes", str(given.processes)]
    command += ["--config", str(folder / "grid.toml")]
    for flag in ("backends", "dtype", "direction"):
        command += [f"--{flag}", getattr(given, flag)]
    subprocess.run(command, check=False)  # exit code 1: a backend failed; the others are compared
    cells = []
    for cell in json.loads((folder / "latest.json").read_text())["cells"]:
        outcome = cell["outcome"]
        if outcome["kind"] == "measured" and outcome["profile"]["kernels"]:
            rounds: dict[int, list[float]] = {}
            for batch in outcome["timing"]["batches"]:
                rounds.setdefault(batch["process"], []).append(median(batch["samples_us"]))
            us = median(map(median, rounds.values()))
            case = {key: cell["case"][key] for key in ("M", "N", "dtype", "direction")}
            cells.append({"backend": cell["backend"], **case, "us": us, "kernels": outcome["profile"]["kernels"]})
    return cells


def unseen(cell: dict[str, Any]) -> bool:
    """True if the driver copies or fills without a kernel that ncu lists."""
    return any(name.startswith(("Memcpy", "Memset")) for name in cell["kernels"])


def empty_us() -> float:
    """Device time of an empty kernel, in microseconds, as softbench measures it."""
    import torch

    from softbench.worker.timing import device_timer

    meter = device_timer.cuda_meter()
    meter.begin("cold")
    meter.run(lambda: torch.cuda._sleep(0), 3, "cold")
    found: Sequence[float] = meter.end()[0]
    return median(found)


def call_each(cells: Sequence[dict[str, Any]]) -> None:
    """Under ncu: call an empty kernel, then every built and warm cell. Each call has a flushed L2 and its own profiler range."""
    import torch

    from softbench.core.case import Case, Direction
    from softbench.ops.softmax import inputs
    from softbench.worker.timing.device_timer import FLUSH_BYTES

    sources = {source.label: source for source in origins(()) if source.kind == "entry point"}
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    cuda = torch.cuda.cudart()

    def each(call: Callable[[], object]) -> None:
        for _ in range(WARM_CALLS):
            call()
        for _ in range(CALLS):
            flush.zero_()
            torch.cuda.synchronize()
            cuda.cudaProfilerStart()
            call()
            torch.cuda.synchronize()
            cuda.cudaProfilerStop()

    each(lambda: torch.cuda._sleep(0))
    for cell in cells:
        (backend,) = (one for one in load(sources[cell["backend"]]) if one.name == cell["backend"])
        case = Case(cell["M"], cell["N"], cell["dtype"], Direction(cell["direction"]))
        given = inputs.make(case, 0, torch.device("cuda"))
        call = backend.prepare(case)
        each(partial(call, *given))


def durations_us(text: str) -> list[float]:
    """Microseconds of each kernel, in ncu's order.

    Raises:
        ValueError: ncu measured no kernel.
    """
    rows = list(csv.DictReader(line for line in text.splitlines() if line.startswith('"')))
    found = [row for row in rows if row.get("Metric Name") == METRIC]
    if not found:
        raise ValueError("ncu measured no kernel")
    return [float(row["Metric Value"].replace(",", "")) * MICROSECONDS[row["Metric Unit"]] for row in found]


def grouped(durations: Sequence[float], cells: Sequence[dict[str, Any]]) -> list[float]:
    """ncu's time of each cell in microseconds: the median over calls of the sum of their kernels.

    Raises:
        ValueError: the number of kernels differs from that of the calls.
    """
    expected = sum(CALLS * len(cell["kernels"]) for cell in cells)
    if len(durations) != expected:
        raise ValueError(f"ncu saw {len(durations)} kernels, the calls have {expected}: it saw others, or a call runs others than it did")
    found, place = [], 0
    for cell in cells:
        each = len(cell["kernels"])
        calls = [sum(durations[start : start + each]) for start in range(place, place + CALLS * each, each)]
        found.append(median(calls))
        place += CALLS * each
    return found


def report(cells: Sequence[dict[str, Any]], ncu_us: Sequence[float], empty_us: float, empty_ncu_us: float) -> int:
    """Print a line per cell and return the exit code. `empty_us` and `empty_ncu_us` are softbench's and ncu's time of an empty kernel."""
    launch = empty_ncu_us - empty_us
    print(f"an empty kernel: {empty_us:.2f} us, by ncu {empty_ncu_us:.2f} us")
    print(f"{'backend':10} {'case':28} {'kernels':>7} {'softbench us':>12} {'ncu us':>10} {'difference':>18} {'less launches':>18}")
    beyond = explained = 0
    for cell, other in zip(cells, ncu_us, strict=True):
        less = other - launch * len(cell["kernels"])
        told = []
        for theirs in (other, less):
            apart = cell["us"] - theirs
            wrong = abs(apart) > max(RELATIVE * theirs, ABSOLUTE_US)
            told.append(f"{apart:+.2f} us {apart / theirs:+.1%}" + (" !" if wrong else "  "))
        beyond += "!" in told[0]
        explained += "!" in told[0] and "!" not in told[1]
        case = f"{cell['direction']}-{cell['dtype']}-{cell['M']}x{cell['N']}"
        print(f"{cell['backend']:10} {case:28} {len(cell['kernels']):7} {cell['us']:12.2f} {other:10.2f} {told[0]:>18} {told[1]:>18}")
    count = len(cells)
    print(f"{count - beyond} of {count} cells within max(3 %, 0.3 us) of ncu's gpu__time_duration; less launches {explained} more")
    return 1 if beyond or not cells else 0


if __name__ == "__main__":
    sys.exit(main())
