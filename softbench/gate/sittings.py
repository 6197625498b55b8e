"""The variance between sittings: runs of unchanged code that differ by more than their processes do.

A sitting is one run. Its processes share the temperature and the clocks of that time, so more processes of one sitting do not show how
sittings differ. A baseline of several runs shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from softbench.core.errors import InconclusiveError
from softbench.core.json_types import JsonObject
from softbench.gate import unpaired
from softbench.gate.inference import proportion_bounds
from softbench.gate.samples import RunSamples, join
from softbench.gate.verdicts import Rules


@dataclass(frozen=True, slots=True)
class SittingTest:
    """The self-test against a baseline: each run of unchanged code is an A/A family."""

    baseline: str
    """The baseline's file."""
    device_name: str
    """Name of the GPU or CPU."""
    families: int
    """Number of A/A families: a file is one."""
    alarms: int
    """Families that ended with exit code 1."""
    passed: int
    """Families that ended with exit code 0."""
    sitting_sd: float
    """Standard deviation between sittings of a cell's log latency, over the baseline and all families."""
    outcomes: tuple[str, ...]
    """The summary of each family."""

    @property
    def exit_code(self) -> int:
        """0 without a false alarm and if at least one family passed, else 1."""
        return 0 if self.passed and not self.alarms else 1

    def document(self) -> JsonObject:
        """As JSON, with the bound."""
        bound = proportion_bounds(self.alarms, self.families)[1]
        return {**asdict(self), "exit_code": self.exit_code, "false_alarm_rate_at_most": bound}


def analyse(families: Sequence[RunSamples], base: RunSamples, rules: Rules) -> SittingTest:
    """Judge each run against the baseline, and estimate the variance between all sittings.

    Raises:
        InconclusiveError: a run has too few processes, or the sittings have one process each.
    """
    reports = [unpaired.judge(family, base, rules) for family in families]
    estimate = unpaired.sitting_sd_of(join([base, *families]))
    if estimate is None:
        raise InconclusiveError(f"{base.source}: no sitting has two processes, so the variance between sittings is unknown")
    codes = [report.exit_code for report in reports]
    outcomes = tuple(f"{family.source}: {report.summary}" for family, report in zip(families, reports, strict=True))
    return SittingTest(base.source, base.device_name, len(codes), codes.count(1), codes.count(0), estimate, outcomes)
