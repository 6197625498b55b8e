"""Estimates the seconds of a run by phase. `softbench.run.pace` corrects them while it runs.

A phase of a case takes a time of its own, a time per backend, and a time per element and backend. The numbers are from the `seconds` of run
documents: on the GPU of an H200, on the CPU of a machine with two cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from softbench.core.case import DTYPES, YARDSTICK, Case, Direction
from softbench.ops.registry import operation
from softbench.plan.plan import IsStored, Plan, nothing_stored
from softbench.plan.settings import WORKER
from softbench.plugins.info import BackendInfo

PROCESSORS = os.cpu_count() or 1
PHASES = ("load", "first build", "build", "check", "time", "profile", "judge")
"""A first build is the first of a dtype and direction in its worker: it may compile what later ones use again."""

Seconds = dict[str, float]
"""Seconds by phase."""
Supported = Callable[[str, Case], bool]
"""Whether a backend has a case."""


@dataclass(frozen=True, slots=True)
class Rates:
    """The cost of a phase, in seconds."""

    case: float = 0.0
    cell: float = 0.0
    element: float = 0.0
    """Per element of the input, in fp32 and forward."""
    compared: float = 0.0
    """Per element that is compared with float64."""

    def seconds(self, cells: float, elements: float = 0, compared: float = 0) -> float:
        """For one case with this many cells."""
        return self.case + cells * (self.cell + self.element * elements + self.compared * compared)


RATES = {
    "cuda": {
        "load": Rates(case=3.5, cell=0.6),
        "later load": Rates(cell=0.13),
        "package load": Rates(case=4.0, cell=0.5),
        "first build": Rates(case=0.1, cell=0.1),
        "build": Rates(case=0.02, cell=0.005, element=1e-11),
        "check": Rates(case=0.01, cell=0.003, element=5e-10),
        "whole check": Rates(cell=0.05, element=5e-10),
        "round": Rates(case=0.005, cell=0.02, element=1e-11),
        "whole round": Rates(case=0.005, cell=0.03, element=1e-11),
        "profile": Rates(case=0.05, cell=0.025),
        "judge": Rates(cell=4.1, element=1e-11),
    },
    "cpu": {
        "load": Rates(case=1.5, cell=0.2),
        "later load": Rates(case=1.5, cell=0.2),
        "first build": Rates(cell=0.05, element=1e-8),
        "build": Rates(cell=0.01, element=1e-8),
        "check": Rates(cell=0.02, element=3e-8, compared=1e-7),
        "round": Rates(cell=0.01, element=5e-9, compared=1e-7),
        "profile": Rates(cell=0.001),
        "judge": Rates(cell=0.55, element=1.5e-8, compared=1e-7),
    },
}
"""`round` is what a round costs beside its timed calls: new inputs, and the verification of outputs.

`later load` is the import of every process set but the first. On a GPU its forkserver starts while the set before it is measured. That of a
package in an environment is `package load`. `whole` is for a case of a problem, such as a function of a package.
"""
JUDGE_START = 3.6
"""Seconds until the judge's process has started and has its device."""
CHALLENGES, JUDGED_CALLS, JUDGED_BYTES = 10, {"cpu": 64, "cuda": 256}, {"cpu": 2**26, "cuda": 2**34}
"""Challenges of a judgement; calls of one and their bytes, at most (`softbench.judge.judgement`). `judge` is for all elements of the calls.
A GPU's rate is that of results/h200/judged.json.gz: 894 s for 204 cells.
"""
CALL_ELEMENT = {"cuda": 2e-12, "cpu": 2e-9}
"""Seconds of a call per element, in fp32 and forward."""
CALL_FLOP, COMPARED_FLOP = {"cuda": 2e-15, "cpu": 1e-11}, {"cuda": 3.5e-14, "cpu": 3e-11}
"""Seconds of a call, and of its comparison with float64, per operation of its matrix products: on an H200 in 16 bits, and on a core."""
FEWEST_CALLS = {"cuda": 12, "cpu": 7}
"""Calls of a batch, however long they take."""
OVERHEAD = 1.2
"""Time of a batch over that of its calls, if they are short."""
LATER_ROUNDS = {"cuda": 0.4, "cpu": 0.8}
"""The share of the rounds beyond the fewest that a backend takes, on average."""
WHOLE, LONG, FEWEST_ROWS, KINDS = 2**22, 2**24, 4, 16
"""The sample of a check on a CPU (`softbench.worker.checking.row_sample`): elements of a full check and of KINDS rows, fewest rows."""
LOOKED_AT, PROBES = 2**14, 13
"""What a batch's verification compares on a CPU: elements of each of two outputs, and rows that changed in between."""


def rounds_of(plan: Plan) -> float:
    """The rounds that a backend is expected to take."""
    settings = plan.settings
    return settings.rounds + LATER_ROUNDS[plan.device] * (settings.max_rounds - settings.rounds)


def _checked(case: Case) -> float:
    """Elements that a check on a CPU compares: structured rows, of each kind if the rows are not long, and normal rows."""
    kinds = min(KINDS, max(FEWEST_ROWS, LONG // case.N))
    most = max(kinds, WHOLE // case.N)
    return (max(kinds, min(case.M, most)) + min(case.M, most)) * case.N


def _verified(case: Case) -> float:
    """Elements that the verification of a batch on a CPU compares."""
    return 2 * min(case.M * case.N, max(case.N, LOOKED_AT)) + PROBES * case.N


def _judged(plan: Plan, case: Case, cells: int) -> float:
    """Seconds of the judgements of a case's cells."""
    moved = operation(case.op).bytes_moved(case)
    elements = CHALLENGES * max(2, min(JUDGED_CALLS[plan.device], JUDGED_BYTES[plan.device] // moved)) * moved / (2 * DTYPES[case.dtype])
    compared = CHALLENGES * min(case.M * case.N, max(case.N, WHOLE)) * moved / (2 * DTYPES[case.dtype] * case.M * case.N)
    return RATES[plan.device]["judge"].seconds(cells, elements, compared)


def case_seconds(plan: Plan, case: Case, names: Iterable[str], *, first: bool, process: int = 0) -> Seconds:
    """The phases of one case with these backends; `first`: none of its dtype and direction was built before in these workers.

    The judge judges the cells of the first process set, which alone is profiled.
    """
    return _seconds(plan, case, _able(plan, names), first=first, process=process)


def _able(plan: Plan, names: Iterable[str]) -> list[BackendInfo]:
    chosen = {*names}
    return [info for info in plan.infos if info.able and info.name in chosen]


def _seconds(plan: Plan, case: Case, able: Sequence[BackendInfo], *, first: bool, process: int) -> Seconds:
    """`case_seconds` of backends that can run here."""
    if not able or plan.too_large(case):
        return {}
    settings, cells = plan.settings, len(able)
    rates = RATES[plan.device]
    if operation(case.op).whole:
        rates = {**rates, **{kind.removeprefix("whole "): rate for kind, rate in rates.items() if kind.startswith("whole ")}}
    elements = operation(case.op).bytes_moved(case) / (2 * DTYPES[case.dtype])  # of softmax forward: as many as the input has
    work = elements / (case.M * case.N)
    together = not plan.takes_turns(case, cells)
    declared = [info.build_seconds for info in able]
    build = "first build" if first else "build"
    flops = operation(case.op).flops(case)
    calls = FEWEST_CALLS[plan.device] * (CALL_ELEMENT[plan.device] * elements + CALL_FLOP[plan.device] * flops)
    products = COMPARED_FLOP[plan.device] * flops
    batch = OVERHEAD * (settings.warmup_ms + settings.batch_ms) / 1e3 + calls
    share = 1 / min(cells, PROCESSORS) if plan.device == "cpu" and together else 1  # workers check at the same time
    check = rates["check"].seconds(cells * share, elements, work * _checked(case)) + cells * products
    alone = rates["round"].seconds(1, elements, work * _verified(case)) + products
    each = rates["round"].seconds(cells, elements, work * _verified(case)) + cells * products
    rounds = rounds_of(plan)
    if check > settings.timeout["check"]:
        check, rounds = settings.timeout["check"], 0  # the cells end there
    elif alone > settings.timeout["time"]:
        each, rounds = cells * settings.timeout["time"], 1
    found = {
        build: rates[build].seconds(cells, elements) + (max(declared) if together else sum(declared)),
        "check": check,
        "time": rounds * (cells * batch + each),
    }
    if process == 0 and (plan.device == "cpu" or settings.profile == "on"):
        found["profile"] = rates["profile"].seconds(cells, elements)
    if settings.judge != WORKER and process == 0:
        found["judge"] = _judged(plan, case, sum(info.name != YARDSTICK for info in able))
    return found


def load_seconds(plan: Plan, names: Iterable[str], *, later: bool) -> Seconds:
    """The start of the workers of these backends; `later`: in a process set that is not the first."""
    rates, able = RATES[plan.device], _able(plan, names)
    package = later and "package load" in rates and any(info.origin.python for info in able)
    return {"load": rates["package load" if package else "later load" if later else "load"].seconds(len(able), 0)}


def set_seconds(
    plan: Plan,
    supported: Supported | None = None,
    process: int = 0,
    stored: IsStored = nothing_stored,
    *,
    loaded: bool = False,
) -> list[tuple[Case, tuple[str, ...], Seconds]]:
    """The cases of one process set in their order, each with its backends and its phases; the first of each group has its import.

    `supported`: whether a backend has a case, as far as that is known; None: each has all. Cases that are `stored` are left out.
    `loaded`: the workers of the first process set have imported the backends already, if all are alive at once.
    """
    found: list[tuple[Case, tuple[str, ...], Seconds]] = []
    for names in plan.groups:
        built: set[tuple[str, str, Direction]] = set()
        able = _able(plan, names)
        for case in plan.cases:
            if stored(process, names, case):
                continue
            kind = (case.op, case.dtype, case.direction)
            chosen = able if supported is None else [info for info in able if supported(info.name, case)]
            over = built or (loaded and process == 0 and len(plan.groups) == 1)
            loading = {} if over else load_seconds(plan, names, later=process > 0)
            if plan.settings.judge != WORKER and process == 0 and not found:
                loading["load"] = loading.get("load", 0.0) + JUDGE_START
            found.append((case, names, {**loading, **_seconds(plan, case, chosen, first=kind not in built, process=process)}))
            built.add(kind)
    return found


def run_seconds(plan: Plan, supported: Supported | None = None, stored: IsStored = nothing_stored, *, loaded: bool = False) -> float:
    """Wall time of what is left of a run; `supported`, `stored` and `loaded`: as in `set_seconds`."""
    sets = (set_seconds(plan, supported, process, stored, loaded=loaded) for process in range(plan.settings.processes))
    return sum(sum(seconds.values()) for one in sets for _, _, seconds in one)
