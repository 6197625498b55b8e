"""The gate's statistics: corrections for multiple tests, moderated spreads, outliers, bounds of proportions.

`paired` and `unpaired` compute the p values of cells; `verdicts.corrected` corrects them.

scipy.special has the t, beta and polygamma functions. It is imported on first use; scipy.stats would take half a second to import.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, median
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
ROBUST_CELLS = 10
"""Fewer cells have no value beyond the winsorized tails."""
WINSORIZED = (0.05, 0.10)
"""The lower and the upper tail that do not count in the prior."""
QUANTILES = 50


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
    """Degrees of freedom: the cell's own and the prior's; those of all cells if all have the same spread."""


def moderate(groups: Sequence[Sequence[Sequence[float]]], floor: float = PROCESS_SD_FLOOR) -> list[Moderated]:
    """Each cell's spread, shrunk toward that of all cells: the robust empirical Bayes of limma (Phipson et al. 2016).

    `groups[cell]` holds the cell's groups of process values (baseline, new), whose means may differ. A cell whose spread is far above that
    of the others keeps its own, and has few degrees of freedom of the prior.

    Raises:
        ValueError: a cell has no degree of freedom.
    """
    import numpy as np

    own = [within(cell) for cell in groups]
    if any(df < 1 for _, df in own):
        raise ValueError("a cell needs at least two processes in one group")
    variances, dfs = (np.array(column, float) for column in zip(*own, strict=True)) if own else (np.empty(0), np.empty(0))
    variances = np.maximum(variances, floor**2)
    prior, prior_dfs = _prior(variances, dfs)
    with np.errstate(invalid="ignore"):
        weights = np.where(np.isinf(prior_dfs), 1.0, prior_dfs / (prior_dfs + dfs))
    sds = np.sqrt(weights * prior + (1 - weights) * variances)
    return [Moderated(*each) for each in zip(sds.tolist(), np.minimum(prior_dfs + dfs, dfs.sum()).tolist(), strict=True)]


def within(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Pooled variance within the groups, and its degrees of freedom; 0 if no group has two values."""
    df = sum(max(0, len(group) - 1) for group in groups)
    total = sum((value - centre) ** 2 for group in groups if len(group) > 1 for centre in [fmean(group)] for value in group)
    return (total / df if df else 0.0), df


def _prior(variances: Any, dfs: Any) -> tuple[float, Any]:
    """The prior's variance, and its degrees of freedom for each cell: few where the variance is outlying.

    Variances follow a scaled F distribution. The winsorized mean and variance of their logs give its scale and its degrees of freedom.
    """
    import numpy as np

    count = len(variances)
    if count < PRIOR_CELLS:
        return 0.0, np.zeros(count)
    df, cut = float(dfs.max()), WINSORIZED if count >= ROBUST_CELLS else (0.0, 0.0)
    z = np.log(variances)
    for _ in range(2):  # variances of fewer degrees of freedom are moved to the same quantile of `df`, which needs the prior
        logs = np.clip(z, *np.quantile(z, [cut[0], 1 - cut[1]]))
        prior_df = _prior_df(df, float(logs.var(ddof=1)), cut)
        prior = math.exp(float(logs.mean()) - _winsorized(df, prior_df, cut)[0])
        z = np.log(prior * _f_quantile(1 - _f_tail(variances / prior, dfs, prior_df), df, prior_df)) if dfs.min() < df else z
    tails = _f_tail(variances / prior, dfs, prior_df)
    order = (-tails).argsort(kind="stable")  # the largest variance last
    usual = np.minimum(tails[order] * count / (count - np.arange(count) - 0.5), 1.0)
    """The probability that a variance is of the prior: 1 unless so large ones are more than the prior has."""
    if math.isinf(prior_df):
        shrunk = np.where(usual < 1, usual * dfs.sum(), math.inf)[::-1]
    else:
        least = prior_df
        for _ in range(2):  # until the largest variance is the median of its own F
            least *= math.log(0.5) / math.log(min(float(_f_tail((variances / prior).max(), df, least)), 0.5))
        shrunk = (usual * prior_df + (1 - usual) * least)[::-1]
        means = shrunk.cumsum() / np.arange(1, count + 1)
        shrunk[: means.argmin() + 1] = means.min()
    found = np.empty(count)
    found[order[::-1]] = np.maximum.accumulate(shrunk)
    return prior, found


def _prior_df(df: float, spread: float, cut: tuple[float, float]) -> float:
    """The prior's degrees of freedom that give the logs of variances this winsorized variance."""
    if spread <= _winsorized(df, math.inf, cut)[1]:
        return math.inf
    low, high = -5.0, 10.0
    for _ in range(25):
        middle = (low + high) / 2
        low, high = (middle, high) if _winsorized(df, math.exp(middle), cut)[1] > spread else (low, middle)
    return math.exp(middle)


@lru_cache(maxsize=4096)
def _winsorized(df: float, prior_df: float, cut: tuple[float, float]) -> tuple[float, float]:
    """Mean and variance of the log of an F distribution, winsorized at these tails."""
    import numpy as np

    p = np.clip((np.arange(QUANTILES) + 0.5) / QUANTILES, cut[0], 1 - cut[1])
    logs = np.log(_f_quantile(p, df, prior_df))
    return float(logs.mean()), float(logs.var())


def _f_tail(f: Any, df: Any, prior_df: float) -> Any:
    """P(F >= f), at least 1e-300."""
    special = _special()
    return (special.gammaincc(df / 2, df / 2 * f) if math.isinf(prior_df) else special.fdtrc(df, prior_df, f)).clip(1e-300, 1)


def _f_quantile(p: Any, df: float, prior_df: float) -> Any:
    special = _special()
    p = p.clip(1e-12, 1 - 1e-12)
    return special.gammaincinv(df / 2, p) / (df / 2) if math.isinf(prior_df) else special.fdtri(df, prior_df, p)


def t_upper(t: float, df: float) -> float:
    """P(T >= t) of Student's t; the normal's for df = inf."""
    special = _special()
    return float(special.ndtr(-t) if math.isinf(df) else special.stdtr(df, -t))


def t_quantile(p: float, df: float) -> float:
    """The p quantile of Student's t; the normal's for df = inf."""
    special = _special()
    return float(special.ndtri(p) if math.isinf(df) else special.stdtrit(df, p))


def proportion_bounds(hits: float, trials: int, level: float = 0.95) -> tuple[float, float]:
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
