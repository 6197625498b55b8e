"""Statistics derived from samples, and when a median is known, on streams whose median is."""

import math
import random
from statistics import median

import pytest

from softbench.core import statistics
from softbench.core.case import Case, Direction
from softbench.core.outcome import Batch, Timing
from softbench.core.statistics import median_interval, rank
from softbench.ops import registry


def timing(*rounds: tuple[float, ...]) -> Timing:
    return Timing(tuple(Batch(0, i, 0, samples) for i, samples in enumerate(rounds)), "do_bench")


def test_a_cells_figure_is_the_median_of_its_round_medians():
    assert statistics.median_us(timing((1, 2, 3), (100, 100, 100, 100, 100), (4, 5, 6))) == 5


def test_the_band_is_taken_over_all_samples():
    assert statistics.p20_p80_us(timing(tuple(range(1, 7)), tuple(range(7, 12)))) == (3, 9)
    assert statistics.p20_p80_us(timing((7.0,))) == (7.0, 7.0)


SPREAD = statistics.Spread(0.003, jitter_us=0.1, tick_us=0.032)


def processes(*medians, rounds=3):
    """A cell with these medians in fresh processes."""
    batches = [Batch(process, i, 0, (us,) * 3) for process, us in enumerate(medians) for i in range(rounds)]
    return Timing(tuple(batches), "queued")


def reach(timing, spread=SPREAD):
    """How far the interval reaches from the median, as fractions of it."""
    low, high = statistics.interval_us(timing, spread)
    middle = statistics.median_us(timing)
    return 1 - low / middle, high / middle - 1


def test_an_interval_covers_the_difference_between_processes():
    assert reach(processes(1000.0)) == pytest.approx((0.0067, 0.0067), abs=1e-4)  # a t interval of 10 degrees of freedom
    assert reach(processes(1000.0), statistics.CPU_SPREAD)[1] > 0.02
    assert reach(processes(5.0))[1] > 4 * reach(processes(1000.0))[1]  # the jitter
    assert reach(processes(*[1000.0] * 10))[1] < 0.5 * reach(processes(1000.0))[1]
    apart = reach(processes(*[1000.0 + 10 * i for i in range(10)]))[1]
    assert apart > 2 * reach(processes(*[1000.0] * 10))[1]
    assert reach(processes(*[1.0] * 40), statistics.Spread(1e-9, tick_us=0.032)) == pytest.approx((0.0315, 0.0325), abs=1e-4)


def test_two_runs_of_one_code_seldom_have_disjoint_intervals():
    rng, spread = random.Random(1), statistics.Spread(0.003)
    disjoint = 0
    for _ in range(400):
        cells = [processes(*(100 * math.exp(rng.gauss(0, 0.003)) for _ in range(rng.choice((1, 3))))) for _ in range(2)]
        (low, high), (other_low, other_high) = (statistics.interval_us(cell, spread) for cell in cells)
        disjoint += high < other_low or other_high < low
    assert disjoint <= 0.03 * 400


def test_rounds_that_disagree_widen_the_interval_which_contains_the_median():
    rounds = [(us,) * 50 for us in (100.0, 100, 100, 104, 104, 104, 104)]
    low, high = statistics.interval_us(timing(*rounds), SPREAD)
    assert low < 100 < 104 < high
    few = timing((10.0,) * 9, (20.0,), (20.0,))  # most samples are of the first round
    assert statistics.interval_us(few, SPREAD)[1] > statistics.median_us(few) == 20


def test_a_machines_spread_is_the_typical_one_of_its_cells():
    rng = random.Random(2)
    cells = [processes(*(100 * math.exp(rng.gauss(0, 0.004)) for _ in range(5))) for _ in range(60)]
    assert statistics.process_sd(cells, 0) == pytest.approx(0.004, rel=0.2)
    assert statistics.process_sd([*cells, processes(100, 200, 100, 200, 100)], 0) < 0.005
    assert statistics.process_sd(cells, 0.39) == pytest.approx(statistics.MIN_SPREAD, abs=1e-3)
    assert statistics.process_sd(cells[:4], 0) is None


def test_the_interval_of_a_ratio_contains_the_ratio_of_the_medians():
    found = statistics.ratio(20.0, (19.0, 21.0), 10.0, (9.8, 10.1))
    assert found.low < found.value == 2 < found.high
    assert found.high == pytest.approx(2 * math.exp(math.hypot(math.log(21 / 20), math.log(10 / 9.8))))
    assert found.parted
    assert not statistics.ratio(10.0, (9.8, 10.2), 10.1, (10.0, 10.2)).parted


@pytest.mark.parametrize(("direction", "passes"), [(Direction.FORWARD, 2), (Direction.BACKWARD, 3), (Direction.BOTH, 5)])
def test_bandwidth_counts_algorithmic_bytes(direction, passes):
    case = Case(4096, 1024, "bf16", direction)
    softmax = registry.operation(case.op)
    assert softmax.bytes_moved(case) == passes * 4096 * 1024 * 2
    assert softmax.gbps(case, 10) == pytest.approx(passes * 4096 * 1024 * 2 / 10e-6 / 1e9)


@pytest.mark.parametrize(("n", "ranks"), [(12, (3, 10)), (20, (6, 15)), (30, (10, 21)), (6, (1, 6))])
def test_the_interval_of_a_median_is_made_of_order_statistics(n, ranks):
    assert median_interval(list(range(n, 0, -1))) == ranks


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_interval_ranks_are_exact_binomial_tails(level):
    for n in range(201):
        below, k = 0, 0
        while below + math.comb(n, k) <= (1 - level) / 2 * 2**n:
            below += math.comb(n, k)
            k += 1
        expected = (k, n + 1 - k) if k else None
        assert median_interval(list(range(1, n + 1)), level) == expected, n


TICK_US = 0.032


@pytest.mark.parametrize("n", [*range(1, 80), 200, 999, 1000])
def test_the_rank_is_the_largest_whose_interval_covers(n):
    k = rank(n)
    assert k == 0 or 1 - 2 * binomial_cdf(k - 1, n) >= 0.95
    assert 1 - 2 * binomial_cdf(k, n) < 0.95


def binomial_cdf(k, n):
    return sum(math.comb(n, i) for i in range(k + 1)) / 2**n


@pytest.mark.parametrize("n", [1001, 5000, 100_001])
def test_many_samples_are_ranked_by_the_normal_distribution_as_well(n):
    exact = next(k for k in range(n // 2, 0, -1) if 2 * math.exp(log_cdf(k - 1, n)) <= 0.05)
    assert abs(rank(n) - exact) <= 1


def log_cdf(k, n):
    logs = [math.lgamma(n + 1) - math.lgamma(i + 1) - math.lgamma(n - i + 1) - n * math.log(2) for i in range(max(0, k - 2000), k + 1)]
    top = max(logs)
    return top + math.log(sum(math.exp(one - top) for one in logs))


STREAMS = {
    "normal": (lambda rng: rng.gauss(100, 1), 100),
    "skewed": (lambda rng: 100 * math.exp(abs(rng.gauss(0, 0.02))), 100 * math.exp(0.02 * 0.67448975)),
    "outliers": (lambda rng: 100 + rng.gauss(0, 0.5) + (rng.random() < 0.02) * 500, 100.0129),
    "heavy tails": (lambda rng: 100 + 0.4 * math.tan(math.pi * (rng.random() - 0.5)), 100),
}


def sampled(rng, draw, size, precision=0.005, floor=3, limit=10):
    rounds = []
    while len(rounds) < limit:
        rounds.append([draw(rng) for _ in range(size)])
        if len(rounds) >= floor and statistics.settled(rounds, precision, TICK_US):
            break
    return rounds


@pytest.mark.parametrize("name", STREAMS)
def test_the_interval_covers_the_median_despite_early_stopping(name):
    draw, truth = STREAMS[name]
    rng = random.Random(name)
    covered = 0
    for _ in range(400):
        rounds = sampled(rng, draw, size=20)
        low, high = median_interval([sample for batch in rounds for sample in batch])
        covered += low <= truth <= high
    assert covered >= 0.92 * 400  # 95 % less three standard deviations of 400 tries


@pytest.mark.parametrize("name", STREAMS)
def test_early_stopping_is_accurate_and_takes_fewer_rounds(name):
    draw, truth = STREAMS[name]
    rng = random.Random(name)
    runs = [sampled(rng, draw, size=60) for _ in range(200)]
    early = [rounds for rounds in runs if len(rounds) < 10]
    assert len(early) > 190
    assert sum(abs(median(map(median, rounds)) / truth - 1) <= 0.005 for rounds in early) >= 0.95 * len(early)
    assert sum(map(len, runs)) < 0.6 * 10 * len(runs)


def test_a_noisy_stream_goes_to_the_limit():
    assert len(sampled(random.Random(1), lambda rng: rng.uniform(50, 150), size=20)) == 10


def test_drifting_rounds_are_not_settled_by_many_samples():
    rounds = [[100 + 2 * i + 0.01 * j for j in range(-50, 51)] for i in range(3)]
    assert all(statistics.settled([batch, batch, batch], 0.005, TICK_US) for batch in rounds)
    assert not statistics.settled(rounds, 0.005, TICK_US)
    assert statistics.settled([rounds[0], rounds[0], rounds[2]], 0.005, TICK_US)  # one disturbed round does not undo the others


def test_a_tick_is_near_enough_for_short_kernels():
    ticks = [[2.0, 2.0, 2.032, 2.032, 2.0, 2.032]] * 3
    assert not statistics.settled(ticks, 0.005, 0)
    assert statistics.settled(ticks, 0.005, TICK_US)
    assert not statistics.settled(ticks, 0, TICK_US)  # switched off
