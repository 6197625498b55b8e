"""What commands cost on large results files: synthetic files, and a table of target, measured and ok.

    python tools/measure_scale.py                     every measurement of 20000 cells, of the dry run and of the journal
    python tools/measure_scale.py show compare        some of them; --list names all
    python tools/measure_scale.py show --cells 1000000
    python tools/measure_scale.py --files             only write the files, and print their names

Each command runs on one core, in a process of its own. `s` is user and system time, `MB` the peak of resident memory. Files stay in
--folder, so that the next call has them. The exit code is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

from softbench.core.case import CPU_TIMER, YARDSTICK, Case, Direction
from softbench.core.outcome import Accuracy, Batch, Build, Grade, Measured, Record, Timing
from softbench.core.statistics import LIMIT
from softbench.ops.registry import operation
from softbench.results import writer
from softbench.results.columns import Row
from softbench.results.csv import digest_of, to_csv
from softbench.results.document import beside, environments, load_header, new_digest, write_packed

ROOT = Path(__file__).parents[1]
BACKENDS = (
    *("copy", "torch", "naive", "compile", "triton-row", "triton-tile", "triton", "triton-op", "cuda", "cuda-op"),
    *("quack", "liger", "flashinfer", "flaggems"),
)
OPS = ("softmax", "log_softmax", "softmax(scale=0.5)", "softmax(scale=0.7)")
COPY_GBPS, HOST_US = 4000.0, 5.0
CHANGED = 50  # one cell of so many changes by a fifth in the second file
PROCESSES, SAMPLES = 6, 16
RUN = ("run-20260101-000000", "run-20260102-000000")
TELEMETRY = '{"sm_clock_mhz":1980,"memory_clock_mhz":3201,"power_w":%d.5,"temperature_c":42,"reasons":0,"throttled":""}'
SETTINGS = {
    **{"threads": None, "rounds": 1, "max_rounds": 1, "precision": 0.005, "tick_us": 0.032, "processes": PROCESSES, "seed": 0},
    **{"warmup_ms": 2.0, "batch_ms": 10.0, "timer": "queued", "l2": "cold", "profile": "on", "timeout": {}, "memory_share": 0.9},
}
FACTS = {
    **{"device": "cuda", "gpu": "NVIDIA H200", "gpu_l2_bytes": 62914560, "peak_gbps": 4814.304, "cpu": "Xeon", "torch": "2.13"},
    **{"gpu_memory_bytes": 150109880320, "power_limit_w": 700.0, "driver": "580", "python": "3.12", "cuda": "13.0", "triton": "3.6"},
}


def cases(cells: int) -> Iterator[Case]:
    """The cases of a sweep with so many cells: three dtypes, two directions, up to four operations, twelve M, and as many N as needed."""
    ops = OPS if cells > 100_000 else OPS[:1]
    count = cells // len(BACKENDS)
    columns = -(-count // (len(ops) * 6 * 12))
    axes = product(
        ops, (Direction.FORWARD, Direction.BACKWARD), ("fp32", "fp16", "bf16"), [2**i for i in range(3, 15)], range(1, columns + 1)
    )
    for op, direction, dtype, M, N in islice(axes, count):
        yield Case(M, 256 * N, dtype, direction, "cuda", op)


def cells(number: int, second: bool) -> Iterator[tuple[Row, str]]:
    """Each cell as a row and as JSON. In the second file the card is 3 % slower, and one cell of fifty has changed."""
    rng, own = random.Random(number), random.Random(2 * number + second)
    run, drift = RUN[second], 1.03 if second else 1.0
    for case in cases(number):
        declared = operation(case.op)
        copy_us = drift * (HOST_US + declared.bytes_moved(case) / COPY_GBPS / 1e3) * own.uniform(0.998, 1.002)
        reference = copy_us * 1.6
        for place, backend in enumerate(BACKENDS):
            factor = 1.0 if backend == YARDSTICK else 1.6 if backend == "torch" else 1.05 + 0.1 * (place % 7) + rng.uniform(0, 0.05)
            if second and backend != YARDSTICK and own.random() < 1 / CHANGED:
                factor *= own.choice((1.2, 1 / 1.2))
            us = round(copy_us * factor, 4)
            gbps = declared.gbps(case, us)
            row = Row(
                **{"backend": backend, "direction": case.direction.value, "M": case.M, "N": case.N, "dtype": case.dtype, "status": "ok"},
                **{"grade": "yardstick" if backend == YARDSTICK else "pass", "reason": "", "median_us": us, "p20_us": us * 0.997},
                **{"p80_us": us * 1.003, "n": PROCESSES * SAMPLES, "rounds": PROCESSES, "processes": PROCESSES, "gbps": gbps},
                **{"of_copy": copy_us / us, "speedup": reference / us, "relative_to": "torch", "build_s": 0.5 + 0.01 * place},
                **{"build_cache": "cold", "error_over_bound": 0.01 * (place + 1) + 1e-7 * case.N, "timer": "queued"},
                **{"device": "NVIDIA H200", "run": run, "l2": "cold", "device_us": us * 0.96, "host_us": 11.0 + place, "kernels": 1},
                **{"do_bench_us": us * 1.02, "of_peak": gbps / 4814.304, "low_us": us * 0.995, "high_us": us * 1.005, "stopped": LIMIT},
                **{"peak_bytes": case.M * case.N * 4, "sm_clock_mhz": 1980.0, "memory_clock_mhz": 3201.0, "power_w": 300.5 + place},
                **{"temperature_c": 42.0, "throttled_batches": 0, "op": case.op},
            )
            yield row, _json(case, backend, place, us, own)


def _json(case: Case, backend: str, place: int, us: float, rng: random.Random) -> str:
    batches = []
    for turn in range(PROCESSES):
        level = us * rng.uniform(0.998, 1.002)
        samples = ",".join([f"{level * (1 + 0.0005 * (i % 5 - 2)):.4f}" for i in range(SAMPLES)])
        telemetry = TELEMETRY % (300 + turn)
        batches.append(f'{{"process":{turn},"round":0,"position":{place},"samples_us":[{samples}],"telemetry":{telemetry}}}')
    about = f'{{"M":{case.M},"N":{case.N},"dtype":"{case.dtype}","direction":"{case.direction.value}",'
    about += f'"device":"cuda","op":"{case.op}","shape":""}}'
    profile = f'{{"device_us":[{us * 0.96:.3f}],"host_us":[{11.0 + place}],"kernels":["softmax_kernel_{place}"],"note":"","peak_bytes":0}}'
    grade = "yardstick" if backend == YARDSTICK else "pass"
    return (
        f'{{"backend":"{backend}","case":{about},"outcome":{{"kind":"measured","build":{{"seconds":0.5,"cache":"cold"}},'
        f'"accuracy":{{"grade":"{grade}","worst":0.01,"detail":""}},"timing":{{"batches":[{",".join(batches)}],"kind":"queued",'
        f'"l2":"cold","stopped":"{LIMIT}"}},"profile":{profile}}},"source":"0123456789abcdef","unit":""}}'
    )


def written(folder: Path, number: int) -> tuple[Path, Path]:
    """Two CSVs of so many cells, each with its JSON; made if they are not there."""
    files = (folder / f"a-{number}.csv", folder / f"b-{number}.csv")
    for second, file in enumerate(files):
        if file.exists() and beside(file).exists():
            continue
        header = {
            **{"schema": 1, "run": RUN[second], "started": "2026-01-01T00:00:00+00:00", "command": "softbench run", "softbench": "1.0.0"},
            **{"device_name": "NVIDIA H200", "backends": list(BACKENDS), "origins": {}, "sources": {}, "commits": {}},
            **{
                "yardstick": YARDSTICK,
                "relative_to": "torch",
                "settings": SETTINGS,
                "environment": FACTS,
                "fingerprint": {},
                "seconds": {},
            },
        }
        part, digest = file.with_suffix(".part"), new_digest()
        with part.open("wb") as table:
            made, begin = cells(number, bool(second)), True
            while some := list(islice(made, 10_000)):
                text = to_csv((row for row, _ in some), header=begin).encode()
                table.write(text)
                digest.update(text)
                begin = False
        with beside(file).open("wb") as document:
            write_packed(document, header, (line.encode() for _, line in cells(number, bool(second))), digest.hexdigest())
        part.rename(file)
    return files


@dataclass(frozen=True)
class Used:
    """What a command used."""

    seconds: float
    """User and system time."""
    megabytes: float
    """Peak of resident memory."""


WATCH = """
import os, resource, subprocess, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
print(done.stderr.decode()[-2000:])
"""
"""A small process starts the command: Linux counts the memory of the process that forks to what it forks."""


def used(*command: str | Path, cwd: Path) -> Used:
    """Run a command on one core. Exit codes 1 and 3 are results too."""
    words = list(map(str, command))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-S", "-c", WATCH, *words], stdout=subprocess.PIPE, cwd=cwd, env=environment, check=True)
    first, _, errors = done.stdout.decode().partition("\n")
    code, seconds, megabytes = first.split()
    if code not in ("0", "1", "3"):
        raise SystemExit(f"{' '.join(words)}: exit code {code}\n{errors}")
    return Used(float(seconds), float(megabytes))


SOFTBENCH = (sys.executable, "-m", "softbench")
LOAD = "import sys, softbench; result = softbench.Result.load(sys.argv[1]); print(len(result.rows))"
Line = tuple[str, float, float, str]
"""What was measured, its target, the value, and the unit of both."""


def _costs(name: str, found: Used, seconds: float | None, megabytes: float | None = None) -> list[Line]:
    return [(name, seconds or float("inf"), found.seconds, "s"), (name, megabytes or float("inf"), found.megabytes, "MB")]


def _table(folder: Path, number: int, *command: str) -> list[Line]:
    """A command that has the target of `show`: 1.5 s for 20000 cells, 60 s and 1 GB for a million."""
    a, b = written(folder, number)
    files = (a, b) if command[0] == "compare" else (a,)
    found = used(*SOFTBENCH, *command, *files, cwd=folder)
    return _costs(f"{' '.join(command)}, {number} cells", found, *((60.0, 1000.0) if number > 20_000 else (1.5, None)))


def show(folder: Path, number: int) -> list[Line]:
    return _table(folder, number, "show")


def compare(folder: Path, number: int) -> list[Line]:
    return _table(folder, number, "compare")


def load(folder: Path, number: int) -> list[Line]:
    return _linear(folder, number, "Result.load", lambda a, b: (sys.executable, "-c", LOAD, a))


def load_json(folder: Path, number: int) -> list[Line]:
    return _linear(folder, number, "Result.load of JSON", lambda a, b: (sys.executable, "-c", LOAD, beside(a)))


def merge(folder: Path, number: int) -> list[Line]:
    def command(a: Path, b: Path) -> tuple[str | Path, ...]:
        return (*SOFTBENCH, "merge", *_shards(folder, a), "-o", folder / "merged.csv")

    return _linear(folder, number, "merge", command)


def _shards(folder: Path, file: Path) -> tuple[Path, Path]:
    """A file dealt to two cards."""
    shards = (folder / f"{file.stem}-1.csv", folder / f"{file.stem}-2.csv")
    if all(beside(one).exists() for one in shards):
        return shards
    head, *lines = file.read_bytes().splitlines(keepends=True)
    header = load_header(beside(file))
    with gzip.open(beside(file), "rb") as document:
        _, *records, _ = document
    for number, shard in enumerate(shards):
        unit = f"node1/{number}/0000000{number}"
        table = b"".join([head, *(line.rstrip(b"\n") + unit.encode() + b"\n" for line in lines[number::2])])
        shard.write_bytes(table)
        of_shard = (line.rstrip(b",\n").replace(b'"unit":""', f'"unit":"{unit}"'.encode()) for line in records[number::2])
        with beside(shard).open("wb") as document:
            write_packed(document, {**header, "units": [{"unit": unit}]}, of_shard, digest_of(table))
    return shards


def gate(folder: Path, number: int) -> list[Line]:
    return _linear(folder, number, "gate", lambda a, b: (*SOFTBENCH, "gate", "--baseline", a, b))


def board(folder: Path, number: int) -> list[Line]:
    return _linear(folder, number, "board", lambda a, b: (*SOFTBENCH, "board", a, b, "-o", folder / "board", "--no-pages"))


def _linear(folder: Path, number: int, name: str, command: Callable[[Path, Path], tuple[str | Path, ...]]) -> list[Line]:
    """A command whose time must be linear: at most 1.3 times as much for a cell as in a file of a quarter of the cells."""
    large, small = (used(*command(*written(folder, size)), cwd=folder) for size in (number, number // 4))
    return [
        *_costs(f"{name}, {number} cells", large, None),
        (f"{name}, time of a cell over that of {number // 4}", 1.3, large.seconds / 4 / small.seconds, "x"),
    ]


def report(folder: Path, number: int) -> list[Line]:
    a, _ = written(folder, number)
    page = folder / "page.html"
    found = used(*SOFTBENCH, "report", a, "-o", page, cwd=folder)
    name = f"report, {number} cells"
    return [*_costs(name, found, 10.0), (f"{name}, page", 3.0, page.stat().st_size / 1e6, "MB"), (f"{name}, opens", 2.0, _opens(page), "s")]


def _opens(page: Path) -> float:
    """Seconds until chromium has loaded a page and drawn it once; the start of the browser is not in it. NaN without chromium."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver):
        return float("nan")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(driver))
    try:
        begin = time.monotonic()
        browser.get(page.as_uri())
        browser.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))")
        return time.monotonic() - begin
    finally:
        browser.quit()


def plot(folder: Path, number: int) -> list[Line]:
    a, _ = written(folder, number)
    found = used(*SOFTBENCH, "plot", a, "-o", folder / "figure.png", cwd=folder)
    return _costs(f"plot, {number} cells", found, 10.0, 300.0)


def dry_run(folder: Path, number: int) -> list[Line]:
    plan = (*SOFTBENCH, "run", "--dry-run", "--device", "cpu")
    used(*plan, "--M", "8", "--N", "8", cwd=folder)  # it finds out which backends there are, and later plans read that
    found = used(*plan, "--M", "1:500:1", "--N", "1:200:1", "--backends", "torch", cwd=folder)
    return _costs("run --dry-run, 100000 cases", found, 3.0)


def journal(folder: Path, number: int) -> list[Line]:
    """20000 records of 64 units, added a case at a time, and read again."""
    units = [f"node{i // 8}/{i % 8}/{i:08x}" for i in range(64)]
    sweep = [Case(M, 256 * N, "fp32", Direction.FORWARD) for M, N in product(range(1, 101), range(1, 101))]
    backends = ("copy", "torch")
    header = {
        **{"device_name": "64 GPUs", "backends": list(backends), "sources": dict.fromkeys(backends, ""), "yardstick": YARDSTICK},
        **{"relative_to": "torch", "spread": "shard", "settings": SETTINGS, "fingerprint": {"processes": 1}},
        **environments({unit: {"unit": unit, **FACTS} for unit in units}),
    }
    with tempfile.TemporaryDirectory(dir=folder) as place:
        run = writer.start(Path(place), header)
        made = [[_record(case, name, units[i % 64]) for name in backends] for i, case in enumerate(sweep)]
        begin = time.process_time()
        for records in made:
            run.add(0, records)
        stored = time.process_time() - begin
        run.interrupt()
        begin = time.process_time()
        again, _ = writer.resume(Path(place), header, sweep)
        assert again is not None and len(again.cells) == len(sweep) * len(backends)
        resumed = time.process_time() - begin
    name = f"journal, {len(again.cells)} records of 64 units"
    return [(f"{name}: store one", 0.2, 1e3 * stored / len(again.cells), "ms"), (f"{name}: resume", 3.0, resumed, "s")]


def _record(case: Case, backend: str, unit: str) -> Record:
    batches = tuple(Batch(0, turn, 0, tuple(20.0 + 0.01 * i for i in range(SAMPLES))) for turn in range(PROCESSES))
    grade = Grade.YARDSTICK if backend == YARDSTICK else Grade.PASS
    outcome = Measured(Build(0.1, ""), Accuracy(grade, 0.1, ""), Timing(batches, CPU_TIMER, "", LIMIT))
    return Record(backend, case, outcome, "", unit)


MEASUREMENTS: dict[str, Callable[[Path, int], list[Line]]] = {
    **{
        "show": show,
        "compare": compare,
        "load": load,
        "load-json": load_json,
        "merge": merge,
        "gate": gate,
        "board": board,
        "report": report,
    },
    **{"plot": plot, "dry-run": dry_run, "journal": journal},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--cells", type=int, default=20_000)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "softbench-scale")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--files", action="store_true")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    if given.list:
        print("\n".join(MEASUREMENTS))
        return 0
    if given.files:
        print("\n".join(map(str, written(given.folder, given.cells))))
        return 0
    if unknown := [name for name in given.names if name not in MEASUREMENTS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
    missed = False
    print(f"{'what':<60} {'target':>10} {'measured':>10}  ok", flush=True)
    for name in given.names or MEASUREMENTS:
        for what, target, value, unit in MEASUREMENTS[name](given.folder, given.cells):
            ok = "" if target == float("inf") else "yes" if value <= target else "NO"
            missed |= ok == "NO"
            print(f"{what:<60} {'' if not ok else f'{target:g} {unit}':>10} {f'{value:.3g} {unit}':>10}  {ok}", flush=True)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
