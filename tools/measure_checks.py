"""Held-out bugs, tricks and honest plugins, through the command line: what check and run find, and what is published.

    python tools/measure_checks.py                    everything of tests/adversarial/held_out, and a table with targets
    python tools/measure_checks.py bugs               bugs, tricks or honest alone
    python tools/measure_checks.py --list             also the names that pass, with their descriptions
    python tools/measure_checks.py --only 'ring_*'    some by name

Each bug shows a wrong element first, and each trick a gain in a timer without checks.
A bug passes if check reports no wrong or failed case and run publishes its figure. A trick passes if `run` or `judge` publishes a figure
that is better than its honest twin's by the factor GAIN, three times in a row. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
HELD_OUT = ROOT / "tests/adversarial/held_out"
GAIN = 1.3
TARGETS = {"bugs and tricks that pass": 5, "honest refused": 0}
"""Of 65 bugs and 25 tricks, and of 45 honest plugins, at most."""
TRICK_CASE = ["--M", "512", "--N", "4096", "--dtype", "fp32", "--device", "cpu"]
HEADER = """import ctypes, gc, json, math, os, struct, subprocess, sys, tempfile, time, weakref
from pathlib import Path
import numpy as np
import torch


"""
TIMEOUT = 560
UNGUARDED = """
import importlib.util, statistics, sys, time
import torch
torch.set_num_threads(1)
spec = importlib.util.spec_from_file_location("plugin", sys.argv[1])
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)
inputs = [torch.randn(512, 4096, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
def timed(x):
    start = time.perf_counter()
    y = plugin.softmax(x)
    return time.perf_counter() - start
print(statistics.median([timed(inputs[i % 3]) for i in range(90)][30:]))
"""
"""A timer without checks: the median of 60 calls over three inputs."""
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}  # a thread a command: their times are steadier on a busy machine


def softbench(*arguments: str, folder: Path) -> str:
    """Output of a command; its exit code says nothing here."""
    command = [sys.executable, "-m", "softbench", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT, check=False, env={**os.environ, "NO_COLOR": "1"}
    )
    return done.stdout + done.stderr


def chunks(backends, key, most):
    """Lists of backends that one command can take."""
    groups = defaultdict(list)
    for backend in backends:
        groups[key(backend)].append(backend)
    return [group[i : i + most] for group in groups.values() for i in range(0, len(group), most)]


def named(op: str) -> list[str]:
    problem = HELD_OUT / f"problems/{op}.py"
    return ["--problem", str(problem)] if problem.exists() else ["--op", op]


def common(file: str, group) -> list[str]:
    first = group[0]
    words = ["--plugin", str(HELD_OUT / file), "--backends", ",".join(b.name for b in group), *named(first.op), "--device", "cpu"]
    return [*words, "--dtype", first.at["dtype"], "--direction", first.direction, *(["--set", first.sets] if first.sets else [])]


def checked(file: str, group) -> dict[str, str]:
    """What check says of each backend: empty if nothing is wrong, else the first reason."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        output = softbench("check", "-q", *common(file, group), "--json", "c.json", folder=Path(folder))
        path = Path(folder, "c.json")
        findings = json.loads(path.read_text())["findings"] if path.exists() else []
    for backend in group:
        own = [f for f in findings if f["backend"] == backend.name and f["verdict"] != "skipped"]
        bad = [f for f in own if f["verdict"] not in ("pass", "low-precision", "finite-only", "sampled", "tolerance")]
        found[backend.name] = f"{bad[0]['item']} {bad[0]['dtype']}: {bad[0]['verdict']}: {bad[0]['reason']}" if bad else ""
        if not own:
            found[backend.name] = f"not checked: {output[-300:]}"
    return found


def rows_of(folder: Path) -> dict[str, dict[str, str]]:
    path = folder / "latest.csv"
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["backend"]: row for row in csv.DictReader(file)}


def measured(file: str, group, *rounds: str) -> dict[str, str]:
    """What run says of each backend: empty if it publishes a figure, else the reason."""
    shape = group[0].at
    sizes = ["--shape", shape["shape"]] if "shape" in shape else ["--M", shape["M"], "--N", shape["N"]]
    sizes += ["--dim", shape["dim"]] if "dim" in shape else []
    with tempfile.TemporaryDirectory() as folder:
        words = [*common(file, group), *sizes, "--threads", "1", *rounds, "--profile", "off"]
        output = softbench("run", "-q", *words, "-o", folder, folder=Path(folder))
        rows = rows_of(Path(folder))
    if not rows:
        return {b.name: f"no results: {output[-300:]}" for b in group}
    cells = {b.name: rows.get(b.name, {"status": "absent", "reason": ""}) for b in group}
    return {name: "" if cell["status"] == "ok" else f"{cell['status']}: {cell['reason']}" for name, cell in cells.items()}


def both(pool, file: str, backends, longer: bool = True) -> dict[str, tuple[str, str]]:
    """Name -> what check and what run found. What a quick run did not find, a longer one gets."""
    checks = [pool.submit(checked, file, group) for group in chunks(backends, lambda b: (b.op, b.sets, b.direction, b.at["dtype"]), 10)]
    runs = [
        pool.submit(measured, file, group, "--quick") for group in chunks(backends, lambda b: (b.op, b.sets, b.direction, str(b.at)), 10)
    ]
    by_check = {name: text for job in checks for name, text in job.result().items()}
    by_run = {name: text for job in runs for name, text in job.result().items()}
    passing = [b for b in backends if not by_check[b.name] and not by_run[b.name]] if longer else []
    for job in [pool.submit(measured, file, [backend], "--rounds", "5") for backend in passing]:
        by_run |= job.result()
    return {backend.name: (by_check[backend.name], by_run[backend.name]) for backend in backends}


def write_plugin(trick, folder: Path) -> Path:
    """The body of a trick as a file of its own, in a folder of its own."""
    place = folder / trick.__name__
    place.mkdir(exist_ok=True)
    header = HEADER + inspect.getsource(held_out("tricks").compiled) + "\n\n"
    source = textwrap.dedent(inspect.getsource(trick))
    body = source[source.index("def ") :]
    (place / f"{trick.__name__}.py").write_text(f"{header}{body}\n\nmade = {trick.__name__}()\n\n\ndef softmax(x):\n    return made(x)\n")
    return place / f"{trick.__name__}.py"


def figure_in_run(plugin: Path, twin: Path, judged: bool) -> tuple[float, str]:
    """How many times faster than its twin the run says it is; 0 and the reason if it publishes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--plugin", str(plugin), "--plugin", str(twin), "--backends", f"{plugin.stem},{twin.stem}", "--threads", "1"]
        words += ["--rounds", "3", *TRICK_CASE, *(["--judge", "separate"] if judged else [])]
        output = softbench("run", "-q", *words, "-o", folder, folder=Path(folder))
        rows = rows_of(Path(folder))
    if plugin.stem not in rows:
        return 0.0, f"no results: {output[-300:]}"
    cell, other = rows[plugin.stem], rows.get(twin.stem, {})
    if cell["status"] != "ok" or not cell["gbps"]:
        return 0.0, f"{cell['status']}: {cell['reason']} {cell['labels']}"
    return float(other["median_us"]) / float(cell["median_us"]) if other.get("status") == "ok" else 0.0, cell["labels"]


def unguarded(plugin: Path) -> float:
    """Seconds of a call in a timer without checks."""
    done = subprocess.run([sys.executable, "-c", UNGUARDED, str(plugin)], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    return float(done.stdout)


def judged_us(file: Path) -> tuple[float, str]:
    """Microseconds of a call by judge; 0 and the reason if it publishes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        output = softbench("judge", str(file), *TRICK_CASE, "--json", "j.json", "--key", f"{folder}/key", folder=Path(folder))
        path = Path(folder, "j.json")
        verdict = json.loads(path.read_text()) if path.exists() else {"status": "none", "reason": output[-300:]}
    return (verdict["us"], "") if verdict["status"] == "ok" and verdict.get("us") else (0.0, f"{verdict['status']}: {verdict['reason']}")


def figure_in_judge(plugin: Path, twin: Path) -> tuple[float, str]:
    """As figure_in_run, by judge."""
    us, text = judged_us(plugin)
    return (judged_us(twin)[0] / us if us else 0.0), text


def gain(figure, *arguments) -> tuple[float, str]:
    """The smallest of three gains; fewer are measured if one is small."""
    least, text = figure(*arguments)
    for _ in range(2):
        if least < GAIN:
            break
        least, text = min((least, text), figure(*arguments))
    return least, text


def tricked(pool, tricks, twin, folder: Path) -> dict[str, tuple[tuple[float, str], ...]]:
    """Name -> gain in run, in run --judge separate, and in judge."""
    honest = write_plugin(twin, folder)
    files = [write_plugin(trick, folder) for trick in tricks]
    jobs = {
        file.stem: (pool.submit(gain, figure_in_run, file, honest, False), pool.submit(gain, figure_in_judge, file, honest))
        for file in files
    }
    found = {name: tuple(job.result() for job in pair) for name, pair in jobs.items()}
    again = {f.stem: pool.submit(figure_in_run, f, honest, True) for f in files if found[f.stem][0][0] >= GAIN}
    return {name: (pair[0], again[name].result() if name in again else (0.0, ""), pair[1]) for name, pair in found.items()}


def report_bugs(found, described, listed: bool) -> int:
    passed = [bug for bug, (check, run) in found.items() if not check and not run]
    by_check, by_run = sum(bool(c) for c, _ in found.values()), sum(bool(r) for _, r in found.values())
    print(f"{'':<10} {'tried':>5} {'check':>6} {'run':>6} {'neither':>8}")
    print(f"{'bugs':<10} {len(found):>5} {by_check:>6} {by_run:>6} {len(passed):>8}")
    if listed:
        for bug, (check, run) in found.items():
            where = " ".join(word for word, text in (("check", check), ("run", run)) if text) or "NEITHER"
            print(f"    {where:<10} {bug}: {described[bug]}")
            print("".join(f"        {text[:160]}\n" for text in (check, run) if text), end="")
    return len(passed)


def report_tricks(found, described, listed: bool) -> int:
    gains = [[figure[0] >= GAIN for figure in figures] for figures in found.values()]
    passed = sum(row[0] or row[2] for row in gains)
    in_run, in_judged_run, in_judge = (sum(row[i] for row in gains) for i in range(3))
    print(f"{'':<10} {'tried':>5} {'run':>6} {'run --judge separate':>20} {'judge':>6} {'gain':>8}")
    print(f"{'tricks':<10} {len(found):>5} {in_run:>6} {in_judged_run:>20} {in_judge:>6} {passed:>8}")
    if listed:
        for trick, figures in found.items():
            print(f"    {'PASSES' if figures[0][0] >= GAIN or figures[2][0] >= GAIN else 'caught':<10} {trick}: {described[trick]}")
            for where, (times, text) in zip(("run", "run --judge separate", "judge"), figures, strict=True):
                print(f"        {where}: {times:.2f} {' '.join(text.split())[:160]}")
    return passed


def held_out(module: str):
    sys.path.insert(0, str(HELD_OUT))
    return importlib.import_module(module)


def bugs():
    """The bugs, after each has shown a wrong element."""
    backends = held_out("bugs").backends
    if unshown := [b.name for b in backends if not held_out("showing").wrong_elements(b)]:
        sys.exit(f"no wrong element in what these bugs show: {', '.join(unshown)}")
    return backends


def gaining_tricks(folder: Path):
    """The tricks, after each has gained in a timer without checks."""
    tricks = held_out("tricks")
    honest = unguarded(write_plugin(tricks.honest_twin, folder))
    gains = {t: honest / unguarded(write_plugin(t, folder)) for t in tricks.TRICKS}
    if slow := [t.__name__ for t, times in gains.items() if times < GAIN]:
        print(f"no gain in a timer without checks, so left out: {', '.join(slow)}")
    return [t for t, times in gains.items() if times >= GAIN]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="bugs, tricks, honest; all by default")
    parser.add_argument("--only", default="*", metavar="PATTERNS", help="names, with commas between them")
    parser.add_argument("--list", action="store_true", help="what each was found by")
    parser.add_argument("--jobs", type=int, default=2, help="commands at once")
    options = parser.parse_args()
    what = options.what or ["bugs", "tricks", "honest"]
    passed = refused = 0
    wanted = lambda name: any(fnmatchcase(name, pattern) for pattern in options.only.split(","))  # noqa: E731
    with ThreadPoolExecutor(options.jobs) as pool, tempfile.TemporaryDirectory() as folder:
        if "bugs" in what:
            chosen = [b for b in bugs() if wanted(b.name)]
            passed += report_bugs(both(pool, "bugs.py", chosen), {b.name: b.summary for b in chosen}, options.list)
        if "tricks" in what:
            chosen = [trick for trick in gaining_tricks(Path(folder)) if wanted(trick.__name__)]
            found = tricked(pool, chosen, held_out("tricks").honest_twin, Path(folder))
            passed += report_tricks(found, {t.__name__: t.__doc__.splitlines()[0] for t in chosen}, options.list)
        if "honest" in what:
            chosen = [b for b in held_out("honest").backends if wanted(b.name)]
            found = both(pool, "honest.py", chosen, longer=False)
            wrong = {name: texts for name, texts in found.items() if any(texts)}
            refused = len(wrong)
            print(f"{'honest':<10} {len(found):>5}   refused {refused}")
            for name, texts in wrong.items():
                print("".join(f"    {name}: {text[:300]}\n" for text in texts if text), end="")
    missed = False
    for (name, most), value in zip(TARGETS.items(), (passed, refused), strict=True):
        missed |= value > most
        print(f"{name}: {value}, target at most {most}: {'missed' if value > most else 'ok'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
