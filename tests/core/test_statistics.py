"""Statistics derived from samples."""

import math

import pytest

from softbench.core import statistics
from softbench.core.case import Case, Direction
from softbench.core.outcome import Batch, Telemetry, Timing
from softbench.core.statistics import median_interval
from softbench.ops import registry


def timing(*rounds: tuple[float, ...]) -> Timing:
    return Timing(tuple(Batch(0, i, 0, samples) for i, samples in enumerate(rounds)), "do_bench")


def test_a_cells_figure_is_the_median_of_its_round_medians():
    assert statistics.median_us(timing((1, 2, 3), (100, 100, 100, 100, 100), (4, 5, 6))) == 5


def test_the_band_is_taken_over_all_samples():
    assert statistics.p20_p80_us(timing(tuple(range(1, 7)), tuple(range(7, 12)))) == (3, 9)
    assert statistics.p20_p80_us(timing((7.0,))) == (7.0, 7.0)


def test_ratios_are_paired_by_round_so_that_drift_cancels():
    fast, slow = timing((10,), (20,), (30,)), timing((20,), (40,), (60,))
    assert statistics.times_faster(fast, slow) == 2
    other = Timing((Batch(1, 0, 0, (40.0,)),), "do_bench")
    assert statistics.times_faster(timing((10,)), other) == 4  # no round in common


@pytest.mark.parametrize(("direction", "passes"), [(Direction.FORWARD, 2), (Direction.BACKWARD, 3), (Direction.BOTH, 5)])
def test_bandwidth_counts_algorithmic_bytes(direction, passes):
    case = Case(4096, 1024, "bf16", direction)
    softmax = registry.operation(case.op)
    assert softmax.bytes_moved(case) == passes * 4096 * 1024 * 2
    assert softmax.gbps(case, 10) == pytest.approx(passes * 4096 * 1024 * 2 / 10e-6 / 1e9)


@pytest.mark.parametrize(("n", "ranks"), [(12, (3, 10)), (20, (6, 15)), (30, (10, 21)), (6, (1, 6))])
def test_the_interval_of_a_median_is_made_of_order_statistics(n, ranks):
    assert median_interval(list(range(n, 0, -1))) == ranks


def test_fewer_than_six_values_have_no_interval():
    assert median_interval([1.0] * 5) is None
    assert median_interval([]) is None


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99])
def test_interval_ranks_are_exact_binomial_tails(level):
    for n in range(1, 201):
        below, k = 0, 0
        while below + math.comb(n, k) <= (1 - level) / 2 * 2**n:
            below += math.comb(n, k)
            k += 1
        expected = (k, n + 1 - k) if k else None
        assert median_interval(list(range(1, n + 1)), level) == expected, n


def test_a_round_with_several_disturbed_batches_counts_once():
    """Of a backend with itself, the ratio is 1."""
    batches = [Batch(0, number, 0, (us,), Telemetry(throttled="waited")) for number, us in ((0, 10.0), (0, 30.0), (0, 20.0), (1, 10.0))]
    disturbed = Timing(tuple(batches), "do_bench")
    assert statistics.times_faster(disturbed, disturbed) == 1
    assert statistics.times_faster(timing((10,), (10,)), disturbed) == 1.5  # rounds of 20 and 10
