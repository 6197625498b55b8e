"""The gate's statistics: corrections for multiple tests, moderated spreads, outliers, bounds of proportions.

`paired` and `unpaired` compute the p values of cells; `verdicts.corrected` corrects them.

scipy.special has the t, beta and polygamma functions. It is imported on first use; scipy.stats would take half a second to import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, variance
from typing import Any, cast

PROCESS_SD_FLOOR = 0.001
"""The smallest between-process standard deviation, as a fraction. Event times tick in 32 ns, which is 0.1 % of 32 us."""
MAD_TO_SD = 1.4826  # of a normal distribution
OUTLIER_SDS = 6.0
OUTLYING = 0.05
"""The least distance of an outlying process from the median, of log latencies or log ratios."""
MIN_FOR_OUTLIERS = 5
PRIOR_CELLS = 5
"""Fewer cells are too few to estimate a prior."""


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: rejecting those at most alpha holds the family-wise error rate at alpha (Holm 1979)."""
    adjusted, running = [1.0] * len(p), 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        running = max(running, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = running
    return adjusted


def benjamini_hochberg(p: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's adjusted p values (1995): rejecting those at most q holds the false discovery rate at q."""
    adjusted, running = [1.0] * len(p), 1.0
    for rank, index in enumerate(sorted(range(len(p)), key=p.__getitem__, reverse=True)):
        running = min(running, len(p) / (len(p) - rank) * p[index])
        adjusted[index] = running
    return adjusted


def robust_sd(values: Sequence[float]) -> float:
    """The standard deviation from the median absolute deviation, which ignores outliers."""
    centre = median(values)
    return MAD_TO_SD * median(abs(value - centre) for value in values)


def without_outliers(values: Sequence[float]) -> list[float]:
    """The values without the outlying ones."""
    dropped = outlying(values)
    return [value for i, value in enumerate(values) if i not in dropped]


def outlying(values: Sequence[float]) -> set[int]:
    """The indices of outlying values of processes: at most one of ten, and one of five to nine.

    A value is outlying if it is further from the median than six robust standard deviations and OUTLYING.
    """
    most = max(1, len(values) // 10) if len(values) >= MIN_FOR_OUTLIERS else 0
    if not most:
        return set()
    centre, limit = median(values), max(OUTLIER_SDS * robust_sd(values), OUTLYING)
    furthest = sorted(range(len(values)), key=lambda i: abs(values[i] - centre), reverse=True)[:most]
    return {i for i in furthest if abs(values[i] - centre) > limit}


@dataclass(frozen=True, slots=True)
class Moderated:
    """One cell's between-process spread, moderated by all other cells."""

    process_sd: float
    """Standard deviation between processes of the log of a process's median; a fraction."""
    df: float
    """Degrees of freedom: the cell's own and the prior's; inf if all cells have the same spread."""


def moderate(groups: Sequence[Sequence[Sequence[float]]], floor: float = PROCESS_SD_FLOOR) -> list[Moderated]:
    """Each cell's spread, shrunk toward that of all cells: the empirical Bayes of limma (Smyth 2004, section 6.2).

    `groups[cell]` holds the cell's groups of process values (baseline, new), whose means may differ. Shrinking never reduces a cell's
    spread. A cell with a larger spread than the prior keeps its own, which reduces power and causes no false alarm.

    Raises:
        ValueError: a cell has no degree of freedom.
    """
    own = [_within(cell) for cell in groups]
    if any(df < 1 for _, df in own):
        raise ValueError("a cell needs at least two processes in one group")
    min_variance = floor**2
    prior, prior_df = _prior([(max(variance_, min_variance), df) for variance_, df in own])
    moderated = []
    for variance_, df in own:
        shrunk = prior if math.isinf(prior_df) else (prior_df * prior + df * variance_) / (prior_df + df)
        moderated.append(Moderated(math.sqrt(max(shrunk, variance_, min_variance)), prior_df + df))
    return moderated


def _within(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Pooled variance within the groups, and its degrees of freedom."""
    df = sum(max(0, len(group) - 1) for group in groups)
    total = sum(variance(group) * (len(group) - 1) for group in groups if len(group) > 1)
    return (total / df if df else 0.0), df


def _prior(own: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Variance and degrees of freedom of the scaled inverse chi-square that fits the cells' variances."""
    if len(own) < PRIOR_CELLS:
        return 0.0, 0.0
    special = _special()
    e = [math.log(variance_) - special.digamma(df / 2) + math.log(df / 2) for variance_, df in own]
    excess = variance(e) - fmean(float(special.polygamma(1, df / 2)) for _, df in own)
    if excess <= 0:
        return math.exp(fmean(e)), math.inf
    df0 = 2 * _trigamma_inverse(excess)
    return math.exp(fmean(e) + float(special.digamma(df0 / 2)) - math.log(df0 / 2)), df0


def _trigamma_inverse(x: float) -> float:
    """Newton's iteration of Smyth 2004, appendix; converges from below for every x > 0."""
    special = _special()
    if x > 1e7:
        return 1 / math.sqrt(x)
    if x < 1e-6:
        return 1 / x
    y = 0.5 + 1 / x
    for _ in range(50):
        trigamma = float(special.polygamma(1, y))
        step = trigamma * (1 - trigamma / x) / float(special.polygamma(2, y))
        y += step
        if -step / y < 1e-8:
            break
    return y


def between_groups_sd(cells: Iterable[Sequence[Sequence[float]]]) -> float | None:
    """The standard deviation between the groups of a cell: `cells[cell]` holds the values of each group.

    It is the moment estimate of a one-way random effects model, averaged over the cells. It is 0 if groups differ no more than their values
    do. It is None if no cell has two groups and a group of two values.
    """
    estimates = []
    for cell in cells:
        groups = [group for group in cell if group]
        count, sizes = len(groups), [len(group) for group in groups]
        if count < 2 or sum(sizes) <= count:
            continue
        total = fmean([value for group in groups for value in group])
        within = sum(variance(group) * (len(group) - 1) for group in groups if len(group) > 1) / (sum(sizes) - count)
        among = sum(size * (fmean(group) - total) ** 2 for size, group in zip(sizes, groups, strict=True)) / (count - 1)
        weight = (sum(sizes) - sum(size**2 for size in sizes) / sum(sizes)) / (count - 1)
        estimates.append((among - within) / weight)
    return math.sqrt(max(0.0, fmean(estimates))) if estimates else None


def t_upper(t: float, df: float) -> float:
    """P(T >= t) of Student's t; the normal's for df = inf."""
    special = _special()
    return float(special.ndtr(-t) if math.isinf(df) else special.stdtr(df, -t))


def t_quantile(p: float, df: float) -> float:
    """The p quantile of Student's t; the normal's for df = inf."""
    special = _special()
    return float(special.ndtri(p) if math.isinf(df) else special.stdtrit(df, p))


def proportion_bounds(hits: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """One-sided Clopper-Pearson bounds (lower, upper), each at `level`: 0 of 59 is at most 0.0495, 59 of 59 at least 0.951."""
    if not trials:
        return 0.0, 1.0
    inverse = cast(Callable[[float, float, float], float], _special().betaincinv)
    lower = 0.0 if hits == 0 else float(inverse(hits, trials - hits + 1, 1 - level))
    upper = 1.0 if hits == trials else float(inverse(hits + 1, trials - hits, level))
    return lower, upper


def _special() -> Any:
    from scipy import special

    return special
