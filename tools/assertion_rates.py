"""How often assert_not_slower is wrong: its false alarms on unchanged code, and the slowdowns that it finds.

    python tools/assertion_rates.py                          on the GPU: margin 3 %, 4096x4096 in bf16, 60 repetitions of each
    python tools/assertion_rates.py --device cpu --margin 20 --slowdown 60 --M 16 --N 1024 --dtype fp32

Each repetition is a call of the fixture's method, with fresh processes. The exit code is 1 if more than 5 % of the A/A repetitions fail, or
if fewer than 95 % of the slower ones do.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from softbench.api.assertions import Softbench
from softbench.gate.inference import proportion_bounds

PLUGIN = "from softbench.backends.injected_slowdown import inject\nbackends = inject('torch', (0.0, {slowdown}), memory={memory!r})\n"
FALSE_ALARMS, FOUND = 0.05, 0.95


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
    given = parser.parse_args(arguments)
    found: dict[str, list[str]] = {"unchanged": [], "slower": []}
    with TemporaryDirectory() as folder:
        plugin = Path(folder) / "slowed.py"
        plugin.write_text(PLUGIN.format(slowdown=given.slowdown / 100, memory=str(Path(folder) / "calibration.json")))
        names = {"unchanged": "torch+0", "slower": f"torch+{given.slowdown / 100:g}"}
        fixture = Softbench(Path(folder) / "results", lambda line: print(f"  {line}", flush=True))
        for repetition in range(given.repetitions):
            for what, name in names.items():
                begin = time.monotonic()
                found[what].append(outcome(fixture, name, given, plugin))
                print(f"{repetition + 1} {what}: {found[what][-1]}, {time.monotonic() - begin:.0f} s", flush=True)
    print(shown("unchanged", found["unchanged"]))
    print(shown(f"{given.slowdown:g} % slower", found["slower"]))
    rates = {what: outcomes.count("fail") / len(outcomes) for what, outcomes in found.items()}
    return int(rates["unchanged"] > FALSE_ALARMS or rates["slower"] < FOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
