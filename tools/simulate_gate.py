"""Simulates the gate on its own code: false alarms, exit codes and power for several kinds of noise.

    python tools/simulate_gate.py --families 400
    python tools/simulate_gate.py --families 40 --cells 300 --noise "tau 2 %" --pairs 10
    python tools/simulate_gate.py --families 400 --baseline

A family is one use of the gate. In A/A families nothing is slower; an alarm is exit code 1. In the others every tenth cell is slower.
`sets` is the mean number of process sets that a family measured: each is a fresh start of all workers.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from softbench.gate import baseline_run, fresh_pairs, paired, power, unpaired
from softbench.gate.inference import proportion_bounds
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples, join
from softbench.gate.verdicts import GateReport, Rules

SLOW_CELLS = 10  # one cell of ten is slower


@dataclass(frozen=True)
class Noise:
    """Standard deviations and shifts of log latencies."""

    tau: float = 0.003
    """Between processes of one backend, for each cell."""
    common: float = 0.0
    """Between processes of one backend, the same for all cells."""
    sigma: float = 0.003
    """Between rounds of one process."""
    half: float = 0.0
    """Each process of a cell is slower by this with probability .5."""
    drift: float = 0.0
    """All backends of a process become slower by this from the first round to the last."""
    slow_batches: float = 0.0
    """The share of batches that take twice as long."""
    half_slower: float = 0.0
    """Each process of the candidate is slower by this in all cells with probability .5."""
    first_tau: float = 0.0
    """Between processes of the first cell, in addition."""
    first_slower: float = 0.0
    """The candidate is slower by this in the first cell."""
    first_wrong: bool = False
    """The first cell is wrong on both sides."""
    sitting: float = 0.0
    """Between sittings, for each cell. This and the rest matter only against a baseline."""
    machine: float = 0.0
    """All cells and copies are slower by this than in the baseline."""
    copy: float = 0.0
    """Between the copies of the baseline and the new ones, for each case."""
    bad: bool = False
    """One stored process is twice as slow, in one cell of ten."""


NOISES = {
    "quiet": Noise(),
    "tau 1 %": Noise(tau=0.01),
    "tau 2 %": Noise(tau=0.02),
    "tau 4 %": Noise(tau=0.04),
    "common 2 %": Noise(common=0.02),
    "common 4 %": Noise(common=0.04),
    "half 3.8 %": Noise(half=0.038),
    "half 10 %": Noise(half=0.10),
    "drift 20 %": Noise(drift=0.2),
    "slow batches": Noise(slow_batches=0.05),
    "rounds 1 %": Noise(sigma=0.01),
}
MUST_NOT_PASS = {
    "wrong twice": Noise(first_wrong=True),
    "tau 6 % +9 %": Noise(first_tau=0.06, first_slower=0.09),
    "half +8 %": Noise(half_slower=0.08),
}
"""A family with exit code 0 is a false PASS."""
STORED = {
    **{name: NOISES[name] for name in ("quiet", "tau 1 %", "tau 2 %", "tau 4 %", "half 3.8 %", "slow batches")},
    "sitting .3 %": Noise(sitting=0.003),
    "sitting 1 %": Noise(sitting=0.01),
    "machine 4 %": Noise(machine=0.04),
    "copy 5 %": Noise(copy=0.05),
    "bad process": Noise(bad=True),
}
ENVIRONMENT = {"device": "cuda", "interleaved": True}
ORDER = [(number + number // 2) % 2 for number in range(1000)]


def logs(rng: np.random.Generator, noise: Noise, shape: tuple[int, int, int]) -> np.ndarray:
    """Log latencies of cells x processes x rounds without the common drift."""
    cells, processes, _ = shape
    process = rng.normal(0, noise.tau, (cells, processes, 1)) + noise.half * rng.integers(0, 2, (cells, processes, 1))
    process = process + rng.normal(0, noise.common, (1, processes, 1))
    return process + rng.normal(0, noise.sigma, shape) + math.log(2) * (rng.random(shape) < noise.slow_batches)


def samples(values: np.ndarray, places: Sequence[int]) -> CellSamples:
    """One cell's samples from the log latencies of processes x rounds."""
    processes = {i: tuple(map(RoundMedian, range(len(row)), places, row)) for i, row in enumerate(np.exp(values).tolist())}
    return CellSamples("ok", "", "pass", processes)


class SameRun:
    """A source of process pairs, each independent of the others."""

    def __init__(self, rng: np.random.Generator, noise: Noise, cells: int, slowdown: float = 0.0, rounds: int = 20) -> None:
        self.rng, self.noise, self.rounds, self.sets, self.runs = rng, noise, rounds, 0, 0
        self.keys = [CellKey("new", "forward", "bf16", 4096, i + 1) for i in range(cells)]
        self.slowdown = {key: math.log1p(slowdown) if i % SLOW_CELLS == 0 else 0.0 for i, key in enumerate(self.keys)}

    def measure(self, keys: Sequence[CellKey], pairs: int) -> RunSamples:
        """Fresh pairs of these cells."""
        self.sets, self.runs = self.sets + pairs, self.runs + 1
        shape = (len(keys), pairs, self.rounds)
        drift = np.linspace(0, self.noise.drift, self.rounds)
        both = [logs(self.rng, self.noise, shape) + drift + math.log(50) for _ in range(2)]
        if self.noise.half_slower:
            both[0] += math.log1p(self.noise.half_slower) * self.rng.integers(0, 2, (1, pairs, 1))
        if self.noise.first_tau and self.keys[0] in keys:
            for side in both:
                side[keys.index(self.keys[0])] += self.rng.normal(0, self.noise.first_tau, (pairs, 1))
            both[0][keys.index(self.keys[0])] += math.log1p(self.noise.first_slower)
        cells = {}
        for i, key in enumerate(keys):
            cells[key] = samples(both[0][i] + self.slowdown[key], ORDER)
            cells[key.with_backend("old")] = samples(both[1][i], [1 - place for place in ORDER])
        if self.noise.first_wrong:
            cells |= {key: CellSamples("wrong", "", "wrong") for key in (self.keys[0], self.keys[0].with_backend("old"))}
        return RunSamples("run", (f"run-{self.runs}",), 1, "GPU", dict(ENVIRONMENT), {}, "", cells, pairs)

    def judge(self, pairs: int, margin: float) -> GateReport:
        """The gate's report."""
        report = paired.screen(self.measure(self.keys, pairs), "new", "old", Rules(margin=margin))
        return fresh_pairs.settle(report, self.measure, "old", fresh_pairs.looks(pairs), pairs)


class Stored:
    """A baseline of ten processes, and new processes of another sitting. `sittings` is the number of runs in the baseline."""

    def __init__(self, rng: np.random.Generator, noise: Noise, cells: int, slowdown: float = 0.0, sittings: int = 1) -> None:
        self.rng, self.noise, self.sets, self.runs = rng, noise, 0, 0
        self.keys = [CellKey("new", "forward", "bf16", 4096, i + 1) for i in range(cells)]
        self.slowdown = {key: math.log1p(slowdown) if i % SLOW_CELLS == 0 else 0.0 for i, key in enumerate(self.keys)}
        self.copies = {key: noise.copy * rng.normal() for key in self.keys}
        self.base = join([self._sitting(self.keys, 10 // sittings, new=False) for _ in range(sittings)])
        if noise.bad:
            for key in self.keys[::SLOW_CELLS]:
                stored = self.base.cells[key]
                slow = tuple(one._replace(median_us=2 * one.median_us) for one in stored.processes[3])
                self.base.cells[key] = replace(stored, processes={**stored.processes, 3: slow})
        self.now = self._effects()

    def _effects(self) -> dict[CellKey, float]:
        return {key: self.rng.normal(0, self.noise.sitting) for key in self.keys}

    def _sitting(self, keys: Sequence[CellKey], processes: int, *, new: bool) -> RunSamples:
        self.runs += 1
        effects = self.now if new else self._effects()
        shape = (len(keys), processes, 5)
        mine, copies = (logs(self.rng, each, shape) + math.log(50) + new * self.noise.machine for each in (self.noise, NOISES["quiet"]))
        cells = {}
        for i, key in enumerate(keys):
            cells[key] = samples(mine[i] + effects[key] + new * self.slowdown[key], ORDER)
            cells[key.with_backend("copy")] = samples(copies[i] + new * self.copies[key], ORDER)
        return RunSamples("run", (f"run-{self.runs}",), 1, "GPU", dict(ENVIRONMENT), {}, "", cells, processes)

    def judge(self, processes: int, margin: float) -> GateReport:
        """The gate's report, with its second look."""
        rules = Rules(margin=margin)
        self.sets += processes
        first = unpaired.compare(self._sitting(self.keys, processes, new=True), self.base, rules)

        def fresh(keys: Sequence[CellKey]) -> RunSamples:
            self.sets += power.SECOND_LOOK * processes
            return self._sitting(keys, power.SECOND_LOOK * processes, new=True)

        return baseline_run.second_look(first, self.base, rules, fresh)


@dataclass
class Result:
    """Counts over families."""

    exits: Counter[int]
    found: int = 0
    slow: int = 0
    others: int = 0
    """Cells that are not slower and were called slower."""
    sets: int = 0


def families(
    count: int,
    noise: Noise,
    cells: int,
    slowdown: float,
    pairs: int,
    margin: float,
    seed: int,
    kind: Callable[[np.random.Generator, Noise, int, float], SameRun | Stored] = SameRun,
) -> Result:
    """Judge this many families. `pairs` are process pairs, or new processes against a baseline."""
    result = Result(Counter())
    for number in range(count):
        source = kind(np.random.default_rng([seed, number]), noise, cells, slowdown)
        report = source.judge(pairs, margin)
        result.exits[report.exit_code] += 1
        result.sets += source.sets
        for verdict in report.verdicts:
            if slowdown and source.slowdown[verdict.cell]:
                result.slow, result.found = result.slow + 1, result.found + verdict.fails
            else:
                result.others += verdict.fails
    return result


def line(name: str, noise: Noise, options: argparse.Namespace) -> str:
    """The results for one kind of noise."""
    kind = Stored if options.baseline else SameRun
    common = (options.pairs, options.margin)
    aa = families(options.families, noise, options.cells, 0.0, *common, options.seed, kind)
    exits = "/".join(f"{100 * aa.exits[code] / options.families:.0f}" for code in (0, 1, 3))
    alarm, most = aa.exits[1] / options.families, proportion_bounds(aa.exits[1], options.families)[1]
    powers = []
    for slowdown in options.slowdowns:
        some = families(max(1, options.families // 4), noise, options.cells, slowdown, *common, options.seed + 1, kind)
        powers.append(f"{some.found / some.slow:.3f}" + (f" (exit 0: {some.exits[0]})" if some.exits[0] and slowdown >= 0.3 else ""))
    return f"{name:12} {exits:>11} {alarm:7.1%} {most:7.1%} {aa.sets / options.families:6.1f}  " + "  ".join(powers)


def false_pass(name: str, options: argparse.Namespace) -> str:
    """The exit codes of families that must not pass, and the upper bound of the false PASSes."""
    found = families(options.families, MUST_NOT_PASS[name], options.cells, 0.0, options.pairs, options.margin, options.seed)
    exits = "/".join(f"{100 * found.exits[code] / options.families:.0f}" for code in (0, 1, 3))
    return f"{name:12} {exits:>11} {found.exits[0] / options.families:7.1%} {proportion_bounds(found.exits[0], options.families)[1]:7.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=int, default=100)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--pairs", type=int, help="process pairs of the screening, or new processes with --baseline")
    parser.add_argument("--baseline", action="store_true", help="new processes against a baseline of ten, with the second look")
    parser.add_argument("--noise", choices=[*NOISES, *STORED, *MUST_NOT_PASS], action="append")
    parser.add_argument("--slowdowns", type=float, nargs="*", default=[0.05, 0.08, 0.30])
    parser.add_argument("--margin", type=float)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    noises, pairs, margin = (STORED, unpaired.MIN_NEW, unpaired.MARGIN) if options.baseline else (NOISES, 1, paired.MARGIN)
    options.pairs, options.margin = options.pairs or pairs, options.margin or margin
    units = "new processes" if options.baseline else "process pairs at first"
    print(f"{options.families} A/A families of {options.cells} cells, {options.pairs} {units}, margin {options.margin:.0%}")
    print("noise       exit 0/1/3 %  alarms at most   sets  found: " + "  ".join(f"{slowdown:.0%}" for slowdown in options.slowdowns))
    asked = options.noise or [*noises, *({} if options.baseline else MUST_NOT_PASS)]
    for name in asked:
        if name not in MUST_NOT_PASS:
            print(line(name, {**NOISES, **STORED}[name], options), flush=True)
    if bad := [name for name in asked if name in MUST_NOT_PASS]:
        print("must not pass  0/1/3 %  passed at most")
    for name in bad:
        print(false_pass(name, options), flush=True)


if __name__ == "__main__":
    main()
