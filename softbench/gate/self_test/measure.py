"""Measures the gate's self-test: a backend beside its A/A copy and beside copies with injected slowdowns, in fresh processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

from softbench.core import text
from softbench.core.case import Case, Direction
from softbench.core.errors import ResultsError
from softbench.gate.ab_run import Measure, fixed, found
from softbench.gate.samples import RunSamples
from softbench.gate.self_test import analysis
from softbench.ops.softmax import spec
from softbench.plan import sweep
from softbench.plan.settings import AXES, Axes, Layer, Settings
from softbench.plan.sweep import Sweep
from softbench.plugins.source import absolute
from softbench.results import store
from softbench.run import run
from softbench.run.request import Request

FAMILIES = 59
"""Repetitions: no alarm in this many means a false-alarm rate below 5 %, with 95 % confidence."""
SHAPES = {
    # calls of 100 us and more, so that 3 % is longer than the launch of the sleeping kernel
    "cuda": ((4096,), "16384:35840:1024"),
    "cpu": ((256,), "256:1206:50"),
}
"""Twenty cases, by device."""
START_SECONDS = 3.0
"""Start of a process set on a GPU: forks, CUDA contexts and first launches."""
CASE_SECONDS = 0.05
"""Build and check of a case."""
ROUND_SECONDS = 0.002
"""Cost of a batch besides its calls: do_bench's estimate, and the messages."""
PLUGIN = '''"""Copies of {base} with injected slowdowns; softbench gate --self-test wrote this file for its workers."""

from softbench.backends.injected_slowdown import inject

backends = inject({base!r}, {slowdowns!r}, {plugins!r}, cases={cases!r}, memory={memory!r})
'''


def measure_families(measure: Measure, request: Request, base: str, families: int, announce: Callable[[str], None]) -> RunSamples:
    """Measure this many process sets; `announce` gets the plan and its time before the first starts.

    Raises:
        UsageError: a backend or a device does not exist. Errors of `softbench.run.run.run` pass through.
    """
    store.writable(request.output)
    asked = fixed(request)
    cases = sweep.cases(asked.settings().sweep, "cuda")
    if not cases:
        plan = run.dry_run(replace(asked, flags={**asked.flags, "backends": (base,)}))
        M, N = SHAPES[plan.device]
        shapes = Sweep(M, sweep.parse_axis(N, "N"), ("fp32",), (Direction.FORWARD,))
        given = cast(Axes, {key: value for key, value in asked.flags.items() if key in AXES})
        asked = replace(asked, config={**asked.config, "sweep": (shapes,)})
        cases = sweep.cases([replace(shapes, **given)], plan.device)
    able = planted(cases)
    asked = _with_twins(asked, base, families, able)
    announce(told(asked.settings(), len(cases), len(able), base))
    return found(measure(asked))


def planted(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases that get a slowdown: the quarter that moves most bytes, as a slowdown costs at least a launch."""
    count = max(1, len(cases) // analysis.EVERY)
    most = sorted(cases, key=spec.bytes_moved, reverse=True)[:count]
    return tuple(case for case in cases if case in most)


def told(settings: Settings, cases: int, able: int, base: str) -> str:
    """The plan as a sentence."""
    levels = ", ".join(f"{slowdown:.0%}" for slowdown in analysis.SLOWDOWNS)
    batch = (settings.warmup_ms + settings.batch_ms) / 1e3 + ROUND_SECONDS
    each = START_SECONDS + cases * CASE_SECONDS + (2 * cases + len(analysis.SLOWDOWNS) * able) * settings.rounds * batch
    return (
        f"self-test of the gate with {base}: {text.count(settings.processes, 'family').replace('familys', 'families')} of "
        f"{text.count(cases, 'case')}, each in fresh processes: {base} beside its twin, and in the {able} that move most beside {levels} "
        f"planted, {text.count(settings.rounds, 'round')}; about {text.duration(settings.processes * each)}"
    )


def _with_twins(request: Request, base: str, families: int, able: Sequence[Case]) -> Request:
    """The request of a self-test: its process sets are the repetitions, and a plugin written for it makes the copies."""
    plugins = request.settings().plugins
    slowdowns = (0.0, *analysis.SLOWDOWNS)
    file = (request.output / "planted.py").resolve()
    memory = str(file.with_suffix(".json"))
    about = {"slowdowns": slowdowns, "plugins": [str(absolute(plugin)) for plugin in plugins], "cases": [case.key for case in able]}
    try:
        file.write_text(PLUGIN.format(base=base, memory=memory, **about), encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{file}: cannot be written: {error.strerror}") from None
    names = (base, *(analysis.name(base, slowdown) for slowdown in slowdowns))
    flags: Layer = {**request.flags, "processes": families, "backends": names, "relative_to": base}
    flags["plugins"] = (*request.flags.get("plugins", ()), file)
    return replace(request, flags=flags)
