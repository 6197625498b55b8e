"""Statistics derived from raw samples: medians, quantiles, intervals of the median, and the rule that stops a cell's rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, median, quantiles

from softbench.core.outcome import Batch, Timing

CONFIDENCE = 0.95
EXACT = 1000  # up to this many samples the binomial is summed; beyond it the normal approximation is exact enough
PRECISE, LIMIT, FIXED = "precise", "limit", "fixed"
"""Why sampling stopped: the precision is reached, the limit of rounds is reached, or the number of rounds is fixed."""


@lru_cache(maxsize=4096)
def rank(n: int, confidence: float = CONFIDENCE) -> int:
    """The largest k for which the k-th smallest and k-th largest sample enclose the median with this confidence; 0 if none does."""
    tail = (1 - confidence) / 2
    if n > EXACT:
        return math.floor(n / 2 + 0.5 + NormalDist().inv_cdf(tail) * math.sqrt(n) / 2)
    total, limit, k, ways = 0, tail * 2**n, 0, 1
    while (total := total + ways) <= limit:
        ways = ways * (n - k) // (k + 1)  # the next binomial coefficient from the last one, which is fast
        k += 1
    return k


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Bounds that enclose the median with this confidence; None for fewer than six samples (at 95 %).

    12 samples: ranks 3..10; 20: 6..15; 30: 10..21. Source: David and Nagaraja, Order Statistics, 7.1.
    """
    k = rank(len(samples), confidence)
    if k == 0:
        return None
    ordered = sorted(samples)
    return ordered[k - 1], ordered[-k]


def counted(batches: Sequence[Batch]) -> list[Batch]:
    """The batches that count: those of an unthrottled GPU, or all batches if every one was throttled."""
    return [batch for batch in batches if not batch.throttled] or list(batches)


def median_us(timing: Timing) -> float:
    """A cell's median: the median of its round medians, microseconds. A disturbed round counts as one value."""
    return median(median(batch.samples_us) for batch in counted(timing.batches))


def p20_p80_us(timing: Timing) -> tuple[float, float]:
    """The 20th and 80th percentile over the samples of all rounds, microseconds."""
    pooled = _pooled(timing)
    if len(pooled) == 1:
        return pooled[0], pooled[0]
    cuts = quantiles(pooled, n=5, method="inclusive")
    return cuts[0], cuts[3]


def interval_us(timing: Timing) -> tuple[float, float] | None:
    """The 95 % interval of the median over the samples of all rounds, microseconds; None for too few samples."""
    return median_interval(_pooled(timing))


def samples(timing: Timing) -> int:
    """Number of counted samples."""
    return len(_pooled(timing))


def rounds(timing: Timing) -> int:
    """Number of counted rounds over all processes."""
    return len({(batch.process, batch.round) for batch in counted(timing.batches)})


def _pooled(timing: Timing) -> list[float]:
    return [sample for batch in counted(timing.batches) for sample in batch.samples_us]


def _round_medians(timing: Timing) -> dict[tuple[int, int], float]:
    """The median of each counted round, by process set and number. A round that stayed disturbed has several batches."""
    found: dict[tuple[int, int], list[float]] = {}
    for batch in counted(timing.batches):
        found.setdefault((batch.process, batch.round), []).append(median(batch.samples_us))
    return {key: median(medians) for key, medians in found.items()}


def times_faster(timing: Timing, reference: Timing) -> float:
    """Median over the shared rounds of reference time / time; above 1 is faster than the reference.

    Rounds are paired, as drift affects both backends of a round alike. Without shared rounds it is the ratio of the two medians.
    """
    theirs, ours = _round_medians(reference), _round_medians(timing)
    ratios = [theirs[key] / us for key, us in ours.items() if key in theirs]
    return median(ratios) if ratios else median_us(reference) / median_us(timing)


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
