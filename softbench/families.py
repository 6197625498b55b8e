"""The gate measures itself: a backend beside its own twin, and beside itself with slowdowns planted, in fresh processes again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from softbench import calibration, runner, store, sweep, units
from softbench.errors import ResultsError
from softbench.evidence import Evidence
from softbench.model import Direction
from softbench.plan import Plan
from softbench.runner import Request
from softbench.same_run import FIXED_ROUNDS
from softbench.sweep import Sweep
from softbench.versus import AXES, DEFAULTS, Measure, found

FAMILIES = 59
"""No alarm in so many is a false-alarm rate below 5 %, with 95 % confidence."""
SHAPES = {
    # Calls of some 100 us and more: a planted share of 3 % must be more than the launch of the kernel that waits.
    "cuda": ((4096,), "16384:35840:1024"),
    "cpu": ((256,), "256:1206:50"),
}
"""Twenty cases, by device."""
PLUGIN = '''"""{base} beside itself with planted slowdowns; written by softbench gate --self-test, and read by its workers."""

from softbench.backends.planted import plant

backends = plant({base!r}, {slowdowns!r}, {plugins!r})
'''


def measure_families(measure: Measure, request: Request, base: str, families: int, announce: Callable[[str], None]) -> Evidence:
    """Measure `families` sets of processes; `announce` is told the plan and its time before the first starts.

    Raises:
        UsageError: a backend or a device that is not there. What `softbench.runner.run` raises passes through.
    """
    asked = _request(request, base, families)
    plan = runner.dry_run(asked)
    if "sweep" not in asked.file and "N" not in asked.flags:
        M, N = SHAPES[plan.device]
        shapes = Sweep(M, sweep.parse_axis(N, "N"), ("fp32",), (Direction.FORWARD,))
        asked = replace(asked, file={**asked.file, "sweep": (shapes,)})
        given = {key: value for key, value in asked.flags.items() if key in AXES}
        plan = replace(plan, cases=sweep.cases([replace(shapes, **given)], plan.device))
    announce(told(plan, base, families))
    run = measure(asked)
    return found(run)


def told(plan: Plan, base: str, families: int) -> str:
    """The plan in words."""
    planted = ", ".join(f"{slowdown:.0%}" for slowdown in calibration.SLOWDOWNS)
    return (
        f"self-test of the gate with {base} on {plan.device_name}: {units.count(families, 'family').replace('familys', 'families')} of "
        f"{units.count(len(plan.cases), 'case')}, each in fresh processes: {base} beside its twin and beside {planted} planted, "
        f"{units.count(plan.settings.rounds, 'round')}; about {units.duration(plan.estimate_seconds())}"
    )


def _request(request: Request, base: str, families: int) -> Request:
    """The run of a self-test: all families are its sets of processes, and the twins come from a plugin written for it."""
    store.writable(request.output)
    plugins = tuple(str(path) for path in (*request.file.get("plugins", ()), *request.flags.get("plugins", ())))
    slowdowns = (0.0, *calibration.SLOWDOWNS)
    file = request.output / "planted.py"
    resolved = [_absolute(plugin) for plugin in plugins]
    try:
        file.write_text(PLUGIN.format(base=base, slowdowns=slowdowns, plugins=resolved), encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{file}: cannot be written: {error.strerror}") from None
    names = (base, *(calibration.name(base, slowdown) for slowdown in slowdowns))
    flags = {**FIXED_ROUNDS, **request.flags, "processes": families, "backends": names, "relative_to": base}
    flags["plugins"] = (*request.flags.get("plugins", ()), file)
    return replace(request, file={**DEFAULTS, **request.file}, flags=flags)


def _absolute(plugin: str) -> str:
    """`[name=]file` with the file's whole path: workers read it from elsewhere."""
    alias, equals, rest = plugin.rpartition("=")
    return f"{alias}{equals}{Path(rest).resolve()}"
