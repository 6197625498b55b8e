"""Statistics derived from raw samples: medians, quantiles, intervals of medians and ratios, and the rule that stops a cell's rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, median, quantiles, variance

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


@dataclass(frozen=True, slots=True)
class Spread:
    """How far the medians of fresh processes differ on a machine."""

    sd: float
    """Standard deviation between processes, as a fraction of the median."""
    jitter_us: float = 0.0
    """Standard deviation between processes that a call of any length has, microseconds."""
    tick_us: float = 0.0
    """Tick of the timer, microseconds; no interval reaches less far from the median."""


GPU_SPREAD = Spread(0.003, jitter_us=0.1, tick_us=0.032)
"""Where nothing was measured on a GPU. Calls over 20 us spread by .3 % between two runs of one code, on an H200 and on an H100. The jitter
of calls of 5 to 20 us on an H200 was .08 us with queued calls, and .13 to .2 us with do_bench."""
CPU_SPREAD = Spread(0.01)
"""Where nothing was measured on a CPU, and for host times: a cautious guess."""
SPREAD, SPREAD_FROM = "process_spread", "process_spread_from"
"""Facts of a machine: the standard deviation between processes as a fraction, and `default` or what measured it."""


def default_spread(device: str, timer: str) -> Spread:
    """How far processes differ on a machine where nothing was measured. A host time is the CPU's."""
    return GPU_SPREAD if device == "cuda" and timer != "host" else CPU_SPREAD


PRIOR_DF = 10
"""Degrees of freedom of the machine's spread: a cell's own processes outweigh it from this number on."""
MIN_SPREAD = 0.001
"""The smallest spread that is believed of a machine."""
MIN_DF = 20
"""Degrees of freedom that a machine's spread takes: ten cells of three processes."""


def interval_us(timing: Timing, spread: Spread) -> tuple[float, float] | None:
    """The 95 % interval of the median over processes, microseconds. It contains the median. None for too few samples.

    It combines two parts, in logs, by the root of the sum of squares. Within processes it is the wider of two intervals by order
    statistics. One is that of the round medians, since samples of a round are correlated; the other that of all samples, since few rounds
    have none. Between processes it is a t interval. Its variance is that of the cell's processes, shrunk toward the machine's `spread`
    (Smyth 2004) and never reduced by it. A cell of one process has the machine's spread alone.
    """
    middle, by_process = median_us(timing), _by_process(timing)
    scales = {process: middle / median(medians) for process, medians in by_process.items()}  # so that processes do not differ
    rounds = [us * scales[process] for process, medians in by_process.items() for us in medians]
    pooled = [us * scales[batch.process] for batch in counted(timing.batches) for us in batch.samples_us]
    within = [found for values in (rounds, pooled) if (found := median_interval(values))]
    if not within:
        return None
    between = _between([median(medians) for medians in by_process.values()], spread, middle)
    down = math.hypot(math.log(middle / min(middle, *(low for low, _ in within))), between)
    up = math.hypot(math.log(max(middle, *(high for _, high in within)) / middle), between)
    tick = spread.tick_us / middle
    return middle * math.exp(-max(down, tick)), middle * math.exp(max(up, tick))


def _between(medians: Sequence[float], spread: Spread, middle: float) -> float:
    """Half of the 95 % interval of the log median, as far as processes differ."""
    count = len(medians)
    prior = spread.sd**2 + (spread.jitter_us / middle) ** 2
    own, df = variance(map(math.log, medians)) if count > 1 else 0.0, PRIOR_DF + count - 1
    sd = math.sqrt(max(own, (PRIOR_DF * prior + (count - 1) * own) / df))
    efficiency = math.sqrt(math.pi / 2) if count > 2 else 1.0  # a median of several is less precise than their mean
    return _t(df) * efficiency * sd / math.sqrt(count)


def _t(df: int) -> float:
    """The two-sided 95 % point of Student's t. Source: Abramowitz and Stegun, 26.7.5; exact to three digits from 10 degrees of freedom."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    return z + (z**3 + z) / (4 * df) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * df**2)


def process_sd(timings: Iterable[Timing], jitter_us: float) -> float | None:
    """The standard deviation between processes of a machine, a fraction: the typical one of these cells. None for too few processes.

    The cells' variances are those of logs of process medians, without the jitter. Their median, over that of chi-squared, ignores cells
    with two speeds.
    """
    variances, df = [], []
    for timing in timings:
        medians = [median(some) for some in _by_process(timing).values()]
        if len(medians) > 2:
            variances.append(variance(map(math.log, medians)) - (jitter_us / median_us(timing)) ** 2)
            df.append(len(medians) - 1)
    if sum(df) < MIN_DF:
        return None
    expected = median((1 - 2 / (9 * one)) ** 3 for one in df)  # of the median of chi-squared over its degrees of freedom
    return max(MIN_SPREAD, math.sqrt(max(0.0, median(variances)) / expected))


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two medians, with its interval as `ratio` computes it."""

    value: float
    """The ratio."""
    low: float
    """Lower end of its 95 % interval, which contains it."""
    high: float
    """Upper end of its 95 % interval."""

    @property
    def parted(self) -> bool:
        """True if the interval does not contain 1: the two differ by more than noise."""
        return not self.low <= 1 <= self.high


Ends = tuple[float, float]


def ratio(upper: float, upper_ends: Ends, lower: float, lower_ends: Ends) -> Ratio:
    """`upper` over `lower`, two medians with their intervals. Logs of independent medians add: the root of the sum of squares."""
    value = upper / lower
    down = math.hypot(math.log(upper / upper_ends[0]), math.log(lower_ends[1] / lower))
    up = math.hypot(math.log(upper_ends[1] / upper), math.log(lower / lower_ends[0]))
    return Ratio(value, value * math.exp(-down), value * math.exp(up))


def over(upper: Ratio, lower: Ratio) -> Ratio:
    """The ratio of two independent ratios."""
    return ratio(upper.value, (upper.low, upper.high), lower.value, (lower.low, lower.high))


def samples(timing: Timing) -> int:
    """Number of counted samples."""
    return len(_pooled(timing))


def rounds(timing: Timing) -> int:
    """Number of counted rounds over all processes."""
    return len({(batch.process, batch.round) for batch in counted(timing.batches)})


def _pooled(timing: Timing) -> list[float]:
    return [sample for batch in counted(timing.batches) for sample in batch.samples_us]


def _by_process(timing: Timing) -> dict[int, list[float]]:
    """The round medians of each process set. A round that stayed disturbed has several batches."""
    rounds: dict[tuple[int, int], list[float]] = {}
    for batch in counted(timing.batches):
        rounds.setdefault((batch.process, batch.round), []).append(median(batch.samples_us))
    found: dict[int, list[float]] = {}
    for (process, _), medians in rounds.items():
        found.setdefault(process, []).append(median(medians))
    return found


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
