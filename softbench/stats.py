"""Statistics derived from raw samples. Medians and quantiles; never a mean."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles

from softbench.model import Batch, Timing
from softbench.sampling import median_interval


def counted(batches: Sequence[Batch]) -> list[Batch]:
    """The batches that make a figure: those of an unthrottled GPU, or all where there are none."""
    return [batch for batch in batches if not batch.throttled] or list(batches)


def median_us(timing: Timing) -> float:
    """A cell's figure: the median of its round medians, microseconds. A round that was disturbed as a whole weighs one vote."""
    return median(median(batch.samples_us) for batch in counted(timing.batches))


def p20_p80_us(timing: Timing) -> tuple[float, float]:
    """The 20th and 80th percentile over the samples of all rounds, microseconds."""
    pooled = _pooled(timing)
    if len(pooled) == 1:
        return pooled[0], pooled[0]
    cuts = quantiles(pooled, n=5, method="inclusive")
    return cuts[0], cuts[3]


def interval_us(timing: Timing) -> tuple[float, float] | None:
    """The 95 % interval of the median over the samples of all rounds, microseconds; None where they are too few."""
    return median_interval(_pooled(timing))


def samples(timing: Timing) -> int:
    """How many raw samples make the figure."""
    return len(_pooled(timing))


def rounds(timing: Timing) -> int:
    """Over how many rounds they were taken, of all processes."""
    return len({(batch.process, batch.round) for batch in counted(timing.batches)})


def _pooled(timing: Timing) -> list[float]:
    return [sample for batch in counted(timing.batches) for sample in batch.samples_us]


def times_faster(timing: Timing, reference: Timing) -> float:
    """Median over the shared rounds of reference time / time: above 1 is faster than the reference.

    Rounds are paired because drift hits both backends of a round alike. Where no round is shared (workers that could not be
    interleaved) it is the ratio of the two figures.
    """
    by_round = {(batch.process, batch.round): median(batch.samples_us) for batch in counted(reference.batches)}
    ratios = [
        by_round[batch.process, batch.round] / median(batch.samples_us)
        for batch in counted(timing.batches)
        if (batch.process, batch.round) in by_round
    ]
    return median(ratios) if ratios else median_us(reference) / median_us(timing)
