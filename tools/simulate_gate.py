"""Simulates the gate on its own code: false alarms, exit codes and power for several kinds of noise.

    python tools/simulate_gate.py --families 400
    python tools/simulate_gate.py --families 40 --cells 300 --noise "tau 2 %" --pairs 10
    python tools/simulate_gate.py --families 200 --must-not-pass
    python tools/simulate_gate.py --families 400 --baseline

A family is one use of the gate. In A/A families nothing is slower, or all cells are as slow as the margin; an alarm is exit code 1. In the
others every tenth cell is slower.
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
from softbench.gate.samples import CellKey, CellSamples, RoundMedian, RunSamples, Sitting, join
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
    unequal: float = 0.0
    """Of the log of tau, between cells. This and the next ones matter only in process pairs."""
    heavy: bool = False
    """Processes and rounds differ by Student's t of two degrees of freedom."""
    starts_first: float = 0.0
    """The process that starts first is slower by this."""
    slow_calls: float = 0.0
    """The share of the calls of a batch that take twice as long."""
    bad_processes: float = 0.0
    """The share of processes that are twice as slow, in each cell."""
    slower: float = 0.0
    """The candidate is slower by this in all cells."""
    half_slower: float = 0.0
    """Each process of the candidate is slower by this in all cells with probability .5."""
    slower_calls: float = 0.0
    """The share of the candidate's calls that take twice as long, besides `slow_calls`."""
    bad_references: float = 0.0
    """The share of the reference's processes that are twice as slow in all cells."""
    first_tau: float = 0.0
    """Between processes of the first cell, in addition."""
    first_slower: float = 0.0
    """The candidate is slower by this in the first cell."""
    first_wrong: bool = False
    """The first cell is wrong on both sides."""
    sitting: float = 0.0
    """Between sittings, for each cell. This and the rest matter only against a baseline."""
    sittings: int = 2
    """Those of the baseline. Ten have one process each."""
    new_sittings: int = 1
    """Those of the new processes."""
    common_sitting: float = 0.0
    """Between sittings, the same for all cells and for no copy."""
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
PAIRED = {
    "unequal": Noise(tau=0.01, unequal=1.0),
    "one cell 6 %": Noise(first_tau=0.06),
    "heavy tails": Noise(heavy=True),
    "first +4 %": Noise(starts_first=0.04),
    "slow calls": Noise(slow_calls=0.1),
    "bad processes": Noise(bad_processes=0.01),
}
"""Noise that only the comparison in process pairs simulates."""
AT_MARGIN = {
    f"margin, {name}": replace(noise, slower=0.03)
    for name, noise in {**NOISES, **PAIRED}.items()
    if name in ("quiet", "tau 2 %", "common 2 %", "half 10 %", *PAIRED)
}
MUST_NOT_PASS = {
    "wrong twice": Noise(first_wrong=True),
    "all +8 %": Noise(slower=0.08),
    "tau 2 % +8 %": Noise(tau=0.02, slower=0.08),
    "tau 4 % +8 %": Noise(tau=0.04, slower=0.08),
    "common 4 % +8 %": Noise(common=0.04, slower=0.08),
    "one 6 % +8 %": Noise(first_tau=0.06, first_slower=0.08),
    "one 6 % +9 %": Noise(first_tau=0.06, first_slower=0.09),
    "half +8 %": Noise(half_slower=0.08),
    "bad old +15 %": Noise(bad_references=0.125, slower=0.15),
    "40 % of calls": Noise(slower_calls=0.4),
}
"""A family with exit code 0 is a false PASS."""
STORED = {
    **{name: NOISES[name] for name in ("quiet", "tau 1 %", "tau 2 %", "tau 4 %", "half 3.8 %", "slow batches")},
    **{f"sitting {100 * sd:g} %": Noise(sitting=sd) for sd in (0.003, 0.01, 0.02, 0.04)},
    **{f"one sitting {100 * sd:g} %": Noise(sitting=sd, sittings=1) for sd in (0.003, 0.01, 0.02, 0.04)},
    **{f"ten sittings {100 * sd:g} %": Noise(sitting=sd, sittings=10) for sd in (0.003, 0.01, 0.02)},
    **{f"{count} new 2 %": Noise(sitting=0.02, new_sittings=count) for count in (2, 3)},
    "common 2 %": Noise(common_sitting=0.02),
    "machine 4 %": Noise(machine=0.04),
    "copy 5 %": Noise(copy=0.05),
    "bad process": Noise(bad=True),
}
WIDTH = 22
ENVIRONMENT = {"device": "cuda", "interleaved": True}
ORDER = [(number + number // 2) % 2 for number in range(1000)]
REVERSED = [1 - place for place in ORDER]
CALLS = 50
"""Calls in a batch."""


def logs(rng: np.random.Generator, noise: Noise, shape: tuple[int, int, int], tau: np.ndarray | float = 1.0) -> np.ndarray:
    """Log latencies of cells x processes x rounds without the common drift. `tau` multiplies that of each cell."""
    cells, processes, _ = shape
    of_processes = (cells, processes, 1)

    def spread(sd: np.ndarray | float, size: tuple[int, ...]) -> np.ndarray:
        return sd * (rng.standard_t(2, size) if noise.heavy else rng.normal(size=size))

    process = spread(noise.tau * tau, of_processes) + noise.half * rng.integers(0, 2, of_processes)
    process = process + rng.normal(0, noise.common, (1, processes, 1)) + math.log(2) * (rng.random(of_processes) < noise.bad_processes)
    return process + spread(noise.sigma, shape) + math.log(2) * (rng.random(shape) < noise.slow_batches)


def samples(values: np.ndarray, places: Sequence[Sequence[int]], means: np.ndarray | None = None) -> CellSamples:
    """One cell's samples from the log latencies of processes x rounds. `places` are those of each process, the last ones repeated."""
    rows = zip(np.exp(values).tolist(), np.exp(values if means is None else means).tolist(), strict=True)
    processes = {i: tuple(map(RoundMedian, range(len(row[0])), places[i % len(places)], *row)) for i, row in enumerate(rows)}
    return CellSamples("ok", "", "pass", processes)


class SameRun:
    """A source of process pairs, each independent of the others."""

    def __init__(self, rng: np.random.Generator, noise: Noise, cells: int, slowdown: float = 0.0, rounds: int = paired.ROUNDS) -> None:
        self.rng, self.noise, self.rounds, self.sets, self.runs = rng, noise, rounds, 0, 0
        self.keys = [CellKey("new", "forward", "bf16", 4096, i + 1) for i in range(cells)]
        self.slowdown = {key: math.log1p(slowdown) if i % SLOW_CELLS == 0 else 0.0 for i, key in enumerate(self.keys)}
        self.tau = dict(zip(self.keys, np.exp(noise.unequal * rng.normal(size=cells)).tolist(), strict=True))

    def measure(self, keys: Sequence[CellKey], pairs: int) -> RunSamples:
        """Fresh pairs of these cells."""
        self.sets, self.runs = self.sets + pairs, self.runs + 1
        shape = (len(keys), pairs, self.rounds)
        drift = np.linspace(0, self.noise.drift, self.rounds)
        noise, rng = self.noise, self.rng
        tau = np.array([self.tau[key] for key in keys])[:, None, None]
        both = [logs(rng, noise, shape, tau) + drift + math.log(50) for _ in range(2)]
        starts = np.arange(pairs)[None, :, None] % 2  # the candidate starts first in even process sets
        both[0] += math.log1p(noise.slower) + noise.starts_first * (1 - starts)
        both[1] += noise.starts_first * starts + math.log(2) * (rng.random((1, pairs, 1)) < noise.bad_references)
        both[0] += math.log1p(noise.half_slower) * rng.integers(0, 2, (1, pairs, 1))
        for side in both:
            if self.keys[0] in keys:
                side[keys.index(self.keys[0])] += rng.normal(0, noise.first_tau, (pairs, 1))
        both[0] += np.array([self.slowdown[key] + (key == self.keys[0]) * math.log1p(noise.first_slower) for key in keys])[:, None, None]
        shares = noise.slow_calls + noise.slower_calls, noise.slow_calls
        means = [side + np.log1p(rng.binomial(CALLS, share, shape) / CALLS) for side, share in zip(both, shares, strict=True)]
        cells = {}
        for i, key in enumerate(keys):
            cells[key] = samples(both[0][i], (ORDER, REVERSED), means[0][i])
            cells[key.with_backend("old")] = samples(both[1][i], (REVERSED, ORDER), means[1][i])
        if noise.first_wrong:
            cells |= {key: CellSamples("wrong", "", "wrong") for key in (self.keys[0], self.keys[0].with_backend("old"))}
        return RunSamples("run", (f"run-{self.runs}",), 1, "GPU", dict(ENVIRONMENT), {}, "", cells, pairs)

    def judge(self, pairs: int, margin: float) -> GateReport:
        """The gate's report."""
        first = self.measure(self.keys, pairs)
        return fresh_pairs.compare(first, self.measure, "new", "old", Rules(margin=margin), fresh_pairs.looks(pairs))


class Stored:
    """A baseline of ten processes, and new processes of other sittings."""

    def __init__(self, rng: np.random.Generator, noise: Noise, cells: int, slowdown: float = 0.0) -> None:
        self.rng, self.noise, self.sets, self.runs = rng, noise, 0, 0
        self.keys = [CellKey("new", "forward", "bf16", 4096, i + 1) for i in range(cells)]
        self.slowdown = {key: math.log1p(slowdown) if i % SLOW_CELLS == 0 else 0.0 for i, key in enumerate(self.keys)}
        self.copies = {key: noise.copy * rng.normal() for key in self.keys}
        self.base = join([self._sitting(self.keys, 10 // noise.sittings, new=False) for _ in range(noise.sittings)])
        if noise.bad:
            for key in self.keys[::SLOW_CELLS]:
                stored = self.base.cells[key]
                slow = tuple(one._replace(median_us=2 * one.median_us) for one in stored.processes[3])
                self.base.cells[key] = replace(stored, processes={**stored.processes, 3: slow})
        self.now = [self._effects() for _ in range(noise.new_sittings)]

    def _effects(self) -> dict[CellKey, float]:
        common = self.rng.normal(0, self.noise.common_sitting)
        return {key: common + self.rng.normal(0, self.noise.sitting) for key in self.keys}

    def _new(self, keys: Sequence[CellKey], processes: int) -> RunSamples:
        return join([self._sitting(keys, processes, new=True, effects=effects) for effects in self.now])

    def _sitting(self, keys: Sequence[CellKey], processes: int, *, new: bool, effects: dict[CellKey, float] | None = None) -> RunSamples:
        self.runs += 1
        effects = effects or self._effects()
        shape = (len(keys), processes, 5)
        mine, copies = (logs(self.rng, each, shape) + math.log(50) + new * self.noise.machine for each in (self.noise, NOISES["quiet"]))
        cells = {}
        for i, key in enumerate(keys):
            cells[key] = samples(mine[i] + effects[key] + new * self.slowdown[key], [ORDER])
            cells[key.with_backend("copy")] = samples(copies[i] + new * self.copies[key], [ORDER])
        times = (86400.0 * self.runs, 86400.0 * self.runs + 600)
        sittings = (Sitting(tuple(range(processes)), times),)
        return RunSamples("run", (f"run-{self.runs}",), 1, "GPU", dict(ENVIRONMENT), {}, "", cells, processes, sittings=sittings)

    def judge(self, processes: int, margin: float) -> GateReport:
        """The gate's report, with its second look."""
        rules = Rules(margin=margin)
        self.sets += processes
        first = unpaired.compare(self._new(self.keys, processes), self.base, rules)

        if self.noise.new_sittings > 1:
            return first  # files are judged once

        def fresh(keys: Sequence[CellKey]) -> RunSamples:
            self.sets += power.SECOND_LOOK * processes
            return self._new(keys, power.SECOND_LOOK * processes)

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
    powers: list[str] = []
    for slowdown in [] if name in AT_MARGIN else options.slowdowns:
        some = families(max(1, options.families // 4), noise, options.cells, slowdown, *common, options.seed + 1, kind)
        powers.append(f"{some.found / some.slow:.3f}" + (f" (exit 0: {some.exits[0]})" if some.exits[0] and slowdown >= 0.3 else ""))
    return f"{name:{WIDTH}} {exits:>11} {alarm:7.1%} {most:7.1%} {aa.sets / options.families:6.1f}  " + "  ".join(powers)


def false_pass(name: str, options: argparse.Namespace) -> str:
    """The exit codes of families that must not pass, and the upper bound of the false PASSes."""
    found = families(options.families, MUST_NOT_PASS[name], options.cells, 0.0, options.pairs, options.margin, options.seed)
    exits = "/".join(f"{100 * found.exits[code] / options.families:.0f}" for code in (0, 1, 3))
    most = proportion_bounds(found.exits[0], options.families)[1]
    share, sets = found.exits[0] / options.families, found.sets / options.families
    return f"{name:{WIDTH}} {exits:>11} {share:7.1%} {most:7.1%} {sets:6.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", type=int, default=100)
    parser.add_argument("--cells", type=int, default=20)
    parser.add_argument("--pairs", type=int, help="process pairs at first, or new processes with --baseline")
    parser.add_argument("--baseline", action="store_true", help="new processes against a baseline of ten, with the second look")
    parser.add_argument("--noise", choices=[*NOISES, *PAIRED, *AT_MARGIN, *STORED, *MUST_NOT_PASS], action="append")
    parser.add_argument("--slowdowns", type=float, nargs="*", default=[0.05, 0.08, 0.30])
    parser.add_argument("--margin", type=float)
    parser.add_argument("--must-not-pass", action="store_true", help="only the families that must not pass")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    stored, in_pairs = (STORED, unpaired.MIN_NEW, unpaired.MARGIN), ({**NOISES, **PAIRED, **AT_MARGIN}, fresh_pairs.PAIRS, paired.MARGIN)
    noises, pairs, margin = stored if options.baseline else in_pairs
    options.pairs, options.margin = options.pairs or pairs, options.margin or margin
    units = "new processes" if options.baseline else "process pairs at first"
    print(f"{options.families} families of {options.cells} cells, {options.pairs} {units}, margin {options.margin:.0%}")
    asked = options.noise or [*({} if options.must_not_pass else noises), *({} if options.baseline else MUST_NOT_PASS)]
    known = {**NOISES, **PAIRED, **AT_MARGIN, **STORED}
    if alike := [name for name in asked if name in known]:
        powers = "  ".join(f"{slowdown:.0%}" for slowdown in options.slowdowns)
        print(f"{'noise':{WIDTH}} exit 0/1/3 %  alarms at most   sets  found: {powers}")
    for name in alike:
        print(line(name, known[name], options), flush=True)
    if bad := [name for name in asked if name in MUST_NOT_PASS]:
        print(f"{'must not pass':{WIDTH}} exit 0/1/3 %  passed at most   sets")
    for name in bad:
        print(false_pass(name, options), flush=True)


if __name__ == "__main__":
    main()
