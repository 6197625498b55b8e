"""When a figure is known: a distribution-free confidence interval of the median, and the rule that stops a cell's rounds.

Below the median lie Binomial(n, 1/2) of n samples, whatever their distribution; so the k-th smallest and the k-th largest enclose it with
a probability that depends on n and k alone (David and Nagaraja, Order Statistics, 7.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, median

CONFIDENCE = 0.95
EXACT = 1000  # samples up to which the binomial is summed; beyond it the normal distribution is as good, and quick

PRECISE, LIMIT, FIXED = "precise", "limit", "fixed"
"""Why a cell was not sampled further: known, at the limit of rounds, or the number of rounds was given."""


@lru_cache(maxsize=4096)
def rank(n: int, confidence: float = CONFIDENCE) -> int:
    """The largest k whose k-th smallest and k-th largest of n samples enclose the median that often; 0 when even the extremes do not."""
    tail = (1 - confidence) / 2
    if n > EXACT:
        return math.floor(n / 2 + 0.5 + NormalDist().inv_cdf(tail) * math.sqrt(n) / 2)
    total, limit, k, ways = 0, tail * 2**n, 0, 1
    while (total := total + ways) <= limit:
        ways = ways * (n - k) // (k + 1)  # from `n over k` to the next, as each by itself takes long
        k += 1
    return k


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Bounds that enclose the median with this confidence; None for fewer than six samples (at 95 %)."""
    k = rank(len(samples), confidence)
    if k == 0:
        return None
    ordered = sorted(samples)
    return ordered[k - 1], ordered[-k]


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
