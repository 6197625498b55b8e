"""When a figure is known: a distribution-free confidence interval of the median, and the rule that stops a cell's rounds.

Below the median lie Binomial(n, 1/2) of n samples, whatever their distribution; so the k-th smallest and the k-th largest enclose it with
a probability that depends on n and k alone (David and Nagaraja, Order Statistics, 7.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from softbench.core.statistics import median_interval

PRECISE, LIMIT, FIXED = "precise", "limit", "fixed"
"""Why a cell was not sampled further: known, at the limit of rounds, or the number of rounds was given."""


def settled(rounds: Sequence[Sequence[float]], precision: float, tick_us: float) -> bool:
    """True when the figure is known to within a fraction `precision` of it, or a tick of the timer.

    The interval over all samples takes them for independent, which samples of one round are not quite: what drifts between rounds it
    cannot see. So at least half of the rounds must have their median as near to the figure as that.
    """
    interval = median_interval([sample for batch in rounds for sample in batch])
    if interval is None or precision == 0:
        return False
    medians = [median(batch) for batch in rounds]
    figure = median(medians)
    near = max(precision * figure, tick_us)
    low, high = interval
    return high - figure <= near and figure - low <= near and median(abs(one - figure) for one in medians) <= near
