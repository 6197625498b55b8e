"""The plan of a request: the cases, and the backends that it selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from softbench.core.case import YARDSTICK
from softbench.core.errors import SoftbenchError
from softbench.core.machine import Gpu, Machine
from softbench.core.text import few
from softbench.plan.plan import Plan, cases_of, make, require_few_cells
from softbench.plugins.info import BackendInfo, lacking
from softbench.plugins.select import all_or_all_but, not_loaded, not_loaded_text, select

if TYPE_CHECKING:
    from softbench.run.request import RunRequest


def plan_of(request: RunRequest, machine: Machine, device: str, gpu: Gpu | None, infos: Sequence[BackendInfo]) -> Plan:
    """The plan of a run with the backends that it selects among these. Raises as `prepare`, also if only the yardstick is left."""
    settings = request.settings(device)
    notes = []
    if gpu is None and settings.device == "auto" and not request.settings().sweep:
        measured = "measuring" if request.gives("M", "N") or request.gives("shape") else "a short sweep"
        notes.append(f"no GPU ({machine.no_gpu}): {measured} on the CPU instead")
    cases = cases_of(settings, device, request.shard)
    ops = {case.op for case in cases}
    having = _having(ops, infos, settings.backends)
    selected = select(having, settings.backends, yardstick=settings.yardstick, known=infos)
    notes += [not_loaded_text(info) for info in not_loaded(selected)]
    if all_or_all_but(settings.backends) and all(info.name == YARDSTICK for info in selected):
        raise SoftbenchError(
            f"nothing is measured: no backend but {YARDSTICK} has {few(sorted(ops))}; give its backends with --plugin FILE, "
            f"or measure the copy alone with --backends {YARDSTICK}"
        )
    require_few_cells(len(cases), len(selected), request.shard)
    plan = make(settings, cases, machine, gpu, selected, asked=request.gives("relative_to"))
    return replace(plan, notes=(*notes, *plan.notes), lost=(*_left_out(ops, infos, having, settings.backends), *plan.lost))


def _having(ops: set[str], infos: Sequence[BackendInfo], names: Sequence[str] | None) -> Sequence[BackendInfo]:
    """The backends that `all` may select: those that have one of the operations. Named ones stay, and are skipped with the reason."""
    if not all_or_all_but(names):
        return infos
    return [info for info in infos if info.broken or info.name == YARDSTICK or not all(lacking(info.operations, op) for op in ops)]


def _left_out(ops: set[str], infos: Sequence[BackendInfo], having: Sequence[BackendInfo], names: Sequence[str] | None) -> list[str]:
    """A line on the plugins that the user named, but `all` does not select; not on excluded ones, or those beside one that it selects."""
    fitting, excluded = {info.origin for info in having}, [name[1:] for name in names or () if name.startswith("!")]
    left = [info for info in infos if info.origin.given and info.origin not in fitting]
    told = [
        f"{info.name} is left out: {lacking(info.operations, min(ops))}"
        for info in left
        if not any(fnmatchcase(info.name, pattern) for pattern in excluded)
    ]
    return [f"{few(told, between='; ')}; see docs/plugins.md"] if told else []
