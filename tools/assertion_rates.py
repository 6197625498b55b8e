"""How often assert_not_slower is wrong: its false alarms on unchanged code, and the slowdowns that it finds.

    python tools/assertion_rates.py                          on the GPU: margin 3 %, 4096x4096 in bf16, 60 repetitions of each
    python tools/assertion_rates.py --apart                  the same, each repetition with its own measurements: some 14 s each
    python tools/assertion_rates.py --device cpu --margin 20 --slowdown 60 --M 16 --N 1024 --dtype fp32

One run measures a process set for each repetition: torch beside an unchanged and a slower copy. Then each repetition calls the fixture's
method, whose measurements come from these sets: its own set first, and the next ones as fresh process pairs. So repetitions share sets, as
in the gate's self-test. The exit code is 1 if more than 5 % of the A/A repetitions fail, or if fewer than 95 % of the slower ones do.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest import mock

import pytest

from softbench.api.assertions import Softbench
from softbench.api.measure import compare
from softbench.gate import ab_run, run_files
from softbench.gate.inference import proportion_bounds
from softbench.gate.paired import FIXED_ROUNDS
from softbench.gate.samples import RunSamples
from softbench.run import run
from softbench.run.request import RunRequest

PLUGIN = "from softbench.backends.injected_slowdown import inject\nbackends = inject('torch', (0.0, {slowdown}), memory={memory!r})\n"
FALSE_ALARMS, FOUND = 0.05, 0.95
FEWEST = 13  # sets: one that is screened, and twelve fresh pairs


class Sets:
    """Process sets that were measured beforehand, as the measurements of assertions."""

    def __init__(self, samples: RunSamples) -> None:
        self.samples = samples
        self.numbers = sorted(set.intersection(*(set(cell.processes) for cell in samples.cells.values())))

    @contextmanager
    def serving(self, repetition: int) -> Iterator[None]:
        """Inside, a measurement takes the next sets, beginning with that of the repetition."""
        used = 0

        def measure(request: RunRequest, *observers: object) -> SimpleNamespace:
            nonlocal used
            first, used = used, used + request.settings().processes
            taken = [self.numbers[(repetition + step) % len(self.numbers)] for step in range(first, used)]
            return SimpleNamespace(csv=f"sets {first} to {used - 1}", samples=self.select(request.flags["backends"], taken))

        with mock.patch.object(run, "run", measure), mock.patch.object(ab_run, "samples_of", lambda found: found.samples):
            yield

    def select(self, backends: tuple[str, ...], sets: list[int]) -> RunSamples:
        """The samples of these backends in these sets."""
        cells = {
            key: replace(cell, processes={number: cell.processes[taken] for number, taken in enumerate(sets)})
            for key, cell in self.samples.cells.items()
            if key.backend in backends
        }
        return replace(self.samples, cells=cells, processes=len(sets), runs=(f"sets-{sets[0]}-{len(sets)}",))


def measured(given: argparse.Namespace, folder: Path, names: tuple[str, ...], plugin: Path) -> Sets:
    """A process set for each repetition, with the settings of an A/B run."""
    config = folder / "sets.toml"
    config.write_text(f"batch_ms = {ab_run.DEFAULTS['batch_ms']}\n")
    sweep = {"M": given.M, "N": given.N, "dtype": given.dtype, "device": given.device}
    found = compare(
        *("torch", *names),
        **{**sweep, **FIXED_ROUNDS, "config": config, "output": folder / "sets", "plugins": [plugin]},
        relative_to="torch",
        processes=max(FEWEST, given.repetitions),
        direction="forward",
    )
    return Sets(run_files.read(found.csv))


def outcome(fixture: Softbench, new: str, given: argparse.Namespace, plugin: Path) -> str:
    """`pass`, `fail` or `skip` of one assertion on `new` against torch."""
    sweep = {"M": given.M, "N": given.N, "dtype": given.dtype, "device": given.device, "plugins": [plugin]}
    try:
        fixture.assert_not_slower(new, "torch", given.margin / 100, **sweep)
    except AssertionError:
        return "fail"
    except pytest.skip.Exception:
        return "skip"
    return "pass"


def shown(what: str, outcomes: list[str]) -> str:
    """A line about the repetitions of one kind."""
    fails = outcomes.count("fail")
    low, high = proportion_bounds(fails, len(outcomes))
    return (
        f"{what}: {fails} of {len(outcomes)} fail ({fails / len(outcomes):.1%}, 95 % interval {low:.1%} to {high:.1%}), "
        f"{outcomes.count('skip')} inconclusive"
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=60)
    parser.add_argument("--margin", type=float, default=3.0, help="percent")
    parser.add_argument("--slowdown", type=float, default=8.0, help="percent")
    parser.add_argument("--M", type=int, default=4096)
    parser.add_argument("--N", type=int, default=4096)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--apart", action="store_true", help="each repetition measures by itself")
    given = parser.parse_args(arguments)
    found: dict[str, list[str]] = {"unchanged": [], "slower": []}
    with TemporaryDirectory() as folder:
        plugin = Path(folder) / "slowed.py"
        plugin.write_text(PLUGIN.format(slowdown=given.slowdown / 100, memory=str(Path(folder) / "calibration.json")))
        names = {"unchanged": "torch+0", "slower": f"torch+{given.slowdown / 100:g}"}
        fixture = Softbench(Path(folder) / "results", lambda line: print(f"  {line}", flush=True))
        begin = time.monotonic()
        sets = None if given.apart else measured(given, Path(folder), tuple(names.values()), plugin)
        if sets:
            print(f"{len(sets.numbers)} process sets, {time.monotonic() - begin:.0f} s", flush=True)
        for repetition in range(given.repetitions):
            for what, name in names.items():
                begin = time.monotonic()
                with sets.serving(repetition) if sets else nullcontext():
                    found[what].append(outcome(fixture, name, given, plugin))
                print(f"{repetition + 1} {what}: {found[what][-1]}, {time.monotonic() - begin:.0f} s", flush=True)
    print(shown("unchanged", found["unchanged"]))
    print(shown(f"{given.slowdown:g} % slower", found["slower"]))
    rates = {what: outcomes.count("fail") / len(outcomes) for what, outcomes in found.items()}
    return int(rates["unchanged"] > FALSE_ALARMS or rates["slower"] < FOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
