"""The rule that stops a cell's rounds: the median has reached the target precision."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from softbench.core.statistics import median_interval

PRECISE, LIMIT, FIXED = "precise", "limit", "fixed"
"""Why sampling stopped: the precision is reached, the limit of rounds is reached, or the number of rounds is fixed."""


def settled(rounds: Sequence[Sequence[float]], precision: float, tick_us: float) -> bool:
    """True if the 95 % interval lies within a fraction `precision` of the median, or within a tick of the timer.

    The interval assumes independent samples and cannot see drift between rounds. So at least half of the round medians must lie as
    close to the median.
    """
    interval = median_interval([sample for batch in rounds for sample in batch])
    if interval is None or precision == 0:
        return False
    medians = [median(batch) for batch in rounds]
    middle = median(medians)
    near = max(precision * middle, tick_us)
    low, high = interval
    return high - middle <= near and middle - low <= near and median(abs(one - middle) for one in medians) <= near
