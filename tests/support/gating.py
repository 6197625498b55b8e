"""Synthetic samples for the tests of the gate."""

import math
import random
from collections import defaultdict
from dataclasses import replace

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Batch, Build, Failed, Grade, Measured, Record, Status, Telemetry, Timing
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples, Sitting
from softbench.results import writer

GPU = {
    **{"device": "cuda", "gpu": "NVIDIA H200", "gpu_memory_bytes": 150109880320, "ecc": True, "mig": False, "power_limit_w": 700.0},
    **{"driver": "580", "cuda": "13.0", "torch": "2.11", "triton": "3.6", "python": "3.12", "interleaved": True},
}


def run_samples(cells, *, source="latest.csv", environment=GPU, processes=None, command="softbench run --M 4096"):
    """One sitting, or two on two days if there are ten processes and more."""
    processes = processes or max((len(cell.processes) for cell in cells.values()), default=0)
    found = RunSamples(
        source, (source,), 1, str(environment.get("gpu", "CPU")), dict(environment), {"rounds": 5}, command, cells, processes
    )
    if processes < 10:
        return replace(found, sittings=tuple(one._replace(times=on_day(9)) for one in found.by_sitting))
    half = processes // 2
    return replace(found, sittings=(Sitting(tuple(range(half)), on_day(1)), Sitting(tuple(range(half, processes)), on_day(2))))


def on_day(number):
    """The times of a sitting."""
    return 86400.0 * number, 86400.0 * number + 600


def key(backend, N=1024):
    return CellKey(backend, "forward", "bf16", 4096, N)


def cell_samples(*processes, status="ok", reason="", positions=None):
    """One tuple of round medians (microseconds) per process; `positions` are the backend's place in each round."""
    by_process = {
        i: tuple(RoundMedian(j, (positions or [0] * len(rounds))[j], us) for j, us in enumerate(rounds))
        for i, rounds in enumerate(processes)
    }
    return CellSamples(status, reason, "pass" if status == "ok" else "", by_process)


def stored(
    rng, processes, cells=40, *, process_sd=0.003, slowdown=lambda i: 0.0, source="latest.csv", outliers=0.03, copy=lambda process: 1.0
):
    """A run of `cells` cells and their copies, with one round median per process."""
    found = {}
    for i in range(cells):
        us = 20.0 + i
        found[key("copy", i + 1)] = cell_samples(*[(us * copy(k) * math.exp(rng.gauss(0, process_sd / 3)),) for k in range(processes)])
        values = []
        for k in range(processes):
            noise = rng.gauss(0, process_sd) + (5 * process_sd if rng.random() < outliers else 0)
            values.append((us * 1.2 * copy(k) * (1 + slowdown(i)) * math.exp(noise),))
        found[key("ours", i + 1)] = cell_samples(*values)
    return run_samples(found, source=source)


def interleaved(rng, cells, *, processes=1, rounds=20, process_sd=0.002, sigma=0.003, slowdown=lambda i: 0.0, outliers=0.03, drift=0.0):
    """A candidate and a reference in one run; `process_sd` is that of one backend."""
    found = {}
    for i in range(cells):
        mine, others = [], []
        for _ in range(processes):
            ours, theirs = rng.gauss(0, process_sd), rng.gauss(0, process_sd)
            pairs = []
            for number in range(rounds):
                common = drift * number / rounds
                a, b = (common + rng.gauss(0, sigma) + (0.1 if rng.random() < outliers else 0) for _ in range(2))
                pairs.append((50 * (1 + slowdown(i)) * math.exp(ours + a), 50 * math.exp(theirs + b)))
            mine.append(tuple(a for a, _ in pairs))
            others.append(tuple(b for _, b in pairs))
        order = [(number + number // 2) % 2 for number in range(rounds)]
        found[key("new", i + 1)] = cell_samples(*mine, positions=order)
        found[key("old", i + 1)] = cell_samples(*others, positions=[1 - place for place in order])
    return run_samples(found)


def dice(seed):
    return random.Random(seed)


def clocked(measured, mhz, every=1, mean=1.0):
    """The samples with this SM clock of each backend, by name, known in one of `every` rounds; `new` has means so many times as large."""
    cells = {}
    for k, samples in measured.cells.items():
        clock, times = mhz.get(k.backend, 0.0), mean if k.backend == "new" else 1.0
        rounds = {
            i: tuple(one._replace(mhz=0.0 if one.number % every else clock, mean_us=one.mean_us * times) for one in some)
            for i, some in samples.processes.items()
        }
        cells[k] = replace(samples, processes=rounds)
    return replace(measured, cells=cells)


def read(mhz):
    """Telemetry with this SM clock."""
    return Telemetry(sm_clock_mhz=mhz) if mhz else None


def stored_run(folder, measured, *, environment=GPU, device="cuda", **more):
    """The run document of these samples, with `more` in its header."""
    header = {
        **{"device_name": "NVIDIA H200", "softbench": "0.1.0", "git_commit": "abc", "command": measured.command},
        **{"backends": list({k.backend: 0 for k in measured.cells}), "sources": {}, "yardstick": "copy", "relative_to": "copy"},
        **{"settings": measured.settings, "environment": environment, "fingerprint": {}, **more},
    }
    run, by_process = writer.start(folder, header), defaultdict(list)
    run._due = math.inf  # its CSV is written at its end
    for k, s in measured.cells.items():
        case = Case(k.M, k.N, k.dtype, Direction(k.direction), device)
        grade = Grade.YARDSTICK if k.backend == "copy" else Grade.PASS
        if s.status != "ok":
            by_process[0].append(Record(k.backend, case, Failed(Status(s.status), "time", s.reason)))
        for process, rounds in s.processes.items():
            batches = tuple(Batch(process, one.number, one.position, (one.median_us,), read(one.mhz)) for one in rounds)
            outcome = Measured(Build(0.1, ""), Accuracy(grade, 0.1, ""), Timing(batches, "do_bench"))
            by_process[process].append(Record(k.backend, case, outcome))
    for process, records in by_process.items():
        run.add(process, records)
    run.finish(publish=False)
    (folder / f"{run.name}.jsonl").touch()  # so the next run of this second gets another name
    return run


class Answers:
    """Stands in for a measurement: the run document of the next of these samples. `asked` has the requests."""

    def __init__(self, folder, *runs):
        self.folder, self.runs, self.asked = folder, list(runs), []

    def __call__(self, request):
        self.asked.append(request)
        return stored_run(self.folder, self.runs.pop(0))


class SyntheticRuns:
    """Stands in for `softbench.run.run.run`: synthetic runs of one cell of `new` and `old`."""

    def __init__(self, folder, seed, slowdown=0.0, process_sd=0.003):
        self.folder, self.dice, self.slowdown, self.process_sd, self.asked = folder, dice(seed), slowdown, process_sd, []

    def __call__(self, request, *_):
        self.asked.append(request)
        given = {"processes": request.flags.get("processes", 1), "process_sd": self.process_sd}
        return stored_run(self.folder, interleaved(self.dice, 1, slowdown=lambda i: self.slowdown, **given))


def write_run(folder, measured, *, environment=GPU, name="latest"):
    """Write the CSV and the JSON of `stored_run`."""
    run = stored_run(folder, measured, environment=environment)
    run.csv.rename(folder / f"{name}.csv")
    run.json.rename(folder / f"{name}.json.gz")
    return folder / f"{name}.csv"


def self_test_run(rng, repetitions, cells, *, base="torch", realised=None, alarm=frozenset(), process_sd=0.002, sigma=0.003):
    """A self-test's run. `realised` maps injected to measured slowdowns; `alarm` has the repetitions whose A/A copies are slower."""
    realised = realised if realised is not None else {0.03: 0.03, 0.05: 0.05, 0.08: 0.08}
    found = {}
    for i in range(cells):
        rounds = {name: [] for name in (base, f"{base}+0", *(f"{base}+{injected:g}" for injected in realised))}
        factor = {f"{base}+{injected:g}": 1 + slowdown for injected, slowdown in realised.items()}
        for repetition in range(repetitions):
            for name, processes in rounds.items():
                process = rng.gauss(0, process_sd)
                slow = factor.get(name, 1.2 if name == f"{base}+0" and repetition in alarm else 1)
                processes.append(tuple(100 * slow * math.exp(process + rng.gauss(0, sigma)) for _ in range(20)))
        order = [(number + number // 2) % 2 for number in range(20)]
        for name, processes in rounds.items():
            found[key(name, i + 1)] = cell_samples(*processes, positions=[1 - p for p in order] if name == base else order)
    return run_samples(found)
