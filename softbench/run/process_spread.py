"""The spread between processes of a machine: a run of several process sets measures it, and later runs on that card read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from softbench.core import statistics
from softbench.core.errors import ResultsError
from softbench.core.files import replace_file
from softbench.core.outcome import Measured, Record, Timing
from softbench.core.statistics import SPREAD, SPREAD_FROM, default_spread
from softbench.kernels.common.cuda_toolkit import cache_folder
from softbench.plan.plan import Plan
from softbench.results.columns import Row
from softbench.results.document import lines, load

MIN_PROCESSES = 3
MIN_US = 10.0
"""Shorter cells have the jitter of calls more than the spread."""


def facts(plan: Plan) -> dict[str, object]:
    """The facts `process_spread` and `process_spread_from` of a run's machine."""
    with suppress(ResultsError, ValueError, KeyError, TypeError):
        found = load(_file(plan))
        sd, origin = float(found["sd"]), found["from"]
        if 0 < sd < 1 and isinstance(origin, str):
            return {SPREAD: sd, SPREAD_FROM: origin}
    return {SPREAD: default_spread(plan.device, plan.settings.timer).sd, SPREAD_FROM: "default"}


def keep(plan: Plan, name: str, measured: Iterable[tuple[Record, Row]]) -> dict[str, object]:
    """The facts as a run of several process sets measured them, kept for later runs on this card. Empty if it has too few cells.

    The spread is that of clean cells over 10 us. A folder that cannot be written is no error.

    Args:
        name: the name of the run.
        measured: its records and rows.
    """
    if plan.settings.processes < MIN_PROCESSES:
        return {}
    clean = 0

    def timings() -> Iterator[Timing]:
        """One after the other: the samples of all cells may need more memory than there is."""
        nonlocal clean
        for record, row in measured:
            if isinstance(record.outcome, Measured) and row.timed and not row.doubtful and (row.median_us or 0) > MIN_US:
                clean += 1
                yield record.outcome.timing

    sd = statistics.process_sd(timings(), default_spread(plan.device, plan.settings.timer).jitter_us)
    if sd is None:
        return {}
    found = {"sd": round(sd, 5), "from": f"measured by {name}: {clean} cells of {plan.settings.processes} processes"}
    with suppress(OSError):
        file = _file(plan)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, b"".join(lines(json.dumps(found)[:-1].encode(), ())))
    return {SPREAD: found["sd"], SPREAD_FROM: found["from"]}


def _file(plan: Plan) -> Path:
    """The file of this card: a host time has its own, as it is of the host."""
    kind = "host" if plan.settings.timer == "host" else "device"
    return cache_folder() / "process-spread" / f"{plan.unit.rpartition('/')[2] or 'unknown'}-{kind}.json"
