"""Measures the gate's self-test: a backend with its A/A copy and with copies that have injected slowdowns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from softbench.core import text
from softbench.core.case import Case
from softbench.core.files import not_written
from softbench.gate import self_test
from softbench.gate.ab_run import Measure, samples_of, with_fixed_rounds
from softbench.gate.samples import RunSamples
from softbench.ops.registry import operation
from softbench.plan import estimate, grammar, sweep
from softbench.plan.plan import Plan
from softbench.plan.settings import axes_of
from softbench.plan.sweep import Sweep
from softbench.plugins.source import absolute
from softbench.results import writer
from softbench.run import run
from softbench.run.request import RunRequest

REPETITIONS = 59
"""Repetitions. `self_test.FOR_5_PERCENT` without an alarm mean a false-alarm rate below 5 %, with 95 % confidence."""
SHAPES = {
    # calls of at least 100 us, so that 3 % is longer than the launch of the sleeping kernel
    "cuda": ((4096,), "16384:35840:1024"),
    "cpu": ((256,), "256:1206:50"),
}
"""Twenty cases, by device."""
PLUGIN = '''"""Copies of {reference} with injected slowdowns; softbench gate --self-test wrote this file for its workers."""

from softbench.backends.injected_slowdown import inject

backends = inject({reference!r}, {slowdowns!r}, {plugins!r}, cases={cases!r}, memory={memory!r})
'''


def measure_repetitions(
    measure: Measure, request: RunRequest, reference: str, repetitions: int, announce: Callable[[str], None]
) -> RunSamples:
    """Measure this many process sets; `announce` gets the plan and its time before the first one starts.

    Raises:
        UsageError: a backend or a device does not exist. Errors of `softbench.run.run.run` pass through.
    """
    writer.writable(request.output)
    adjusted = with_fixed_rounds(request)
    cases = sweep.cases(adjusted.settings().sweep, "cuda")
    plan = run.dry_run(replace(adjusted, flags={**adjusted.flags, "backends": (reference,)}))
    if not cases:
        M, N = SHAPES[plan.device]
        shapes = Sweep(M, grammar.parse_axis(N, "N"))
        adjusted = replace(adjusted, config={**adjusted.config, "sweep": (shapes,)})
        cases = sweep.cases([replace(shapes, **axes_of(adjusted.flags))], plan.device)
    injected = injected_cases(cases)
    adjusted = _with_copies(adjusted, reference, repetitions, injected)
    announce(plan_text(replace(plan, settings=adjusted.settings(), cases=tuple(cases)), [case.key for case in injected], reference))
    return samples_of(measure(adjusted))


def injected_cases(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The cases that get a slowdown: the quarter that moves most bytes, because a slowdown takes at least a launch."""
    count = max(1, len(cases) // self_test.CASES_PER_INJECTION)
    largest = sorted(cases, key=lambda case: operation(case.op).bytes_moved(case), reverse=True)[:count]
    return tuple(case for case in cases if case in largest)


def plan_text(plan: Plan, injected: Sequence[str], reference: str) -> str:
    """The plan and its expected time as a sentence. `plan` has the reference; `injected` are the keys of cases with slowdowns."""
    settings, levels = plan.settings, ", ".join(f"{slowdown:.0%}" for slowdown in self_test.SLOWDOWNS)
    [info] = [info for info in plan.infos if info.name == reference]
    slowed = {self_test.name(reference, slowdown) for slowdown in self_test.SLOWDOWNS}
    names = (reference, self_test.name(reference, 0), *sorted(slowed))
    measured = replace(plan, infos=tuple(replace(info, name=name) for name in names), groups=(names,))
    seconds = estimate.run_seconds(measured, lambda name, case: name not in slowed or case.key in injected)
    return (
        f"self-test of the gate with {reference}: {text.count(settings.processes, 'A/A repetition')} of "
        f"{text.count(len(plan.cases), 'case')}, each in fresh processes: {reference} beside its A/A copy, "
        f"and in the {text.count(len(injected), 'case')} of most bytes beside injected slowdowns of {levels}; "
        f"{text.count(settings.rounds, 'round')}; about {text.duration(seconds)}"
    )


def _with_copies(request: RunRequest, reference: str, repetitions: int, injected: Sequence[Case]) -> RunRequest:
    """The request of a self-test. Its process sets are the repetitions; a plugin, written here, has the copies."""
    plugins = request.settings().plugins
    slowdowns = (0.0, *self_test.SLOWDOWNS)
    file = (request.output / "planted.py").resolve()
    memory = str(file.with_suffix(".json"))
    values = {"slowdowns": slowdowns, "plugins": [str(absolute(plugin)) for plugin in plugins], "cases": [case.key for case in injected]}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PLUGIN.format(reference=reference, memory=memory, **values), encoding="utf-8")
    except OSError as error:
        raise not_written(file, error) from None
    names = (reference, *(self_test.name(reference, slowdown) for slowdown in slowdowns))
    flags = {**request.flags, "processes": repetitions, "backends": names, "relative_to": reference}
    flags["plugins"] = (*request.flags.get("plugins", ()), file)
    return replace(request, flags=flags)
