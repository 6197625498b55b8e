"""The gate's statistics against textbooks, scipy.stats and enumeration."""

import math
import random

import numpy as np
import pytest

from softbench.gate import inference


def test_only_few_and_far_values_are_outliers():
    rng = random.Random(5)
    values = [rng.gauss(0, 0.01) for _ in range(9)]
    assert inference.outlying([*values, 0.7]) == {9}
    assert len(inference.outlying([*values, 0.7, 0.7])) == 1  # one of ten at most
    assert inference.outlying([0.0] * 9 + [0.04]) == set()
    assert inference.outlying([0.0, 0.0, 0.0, 0.7]) == set()
    assert inference.outlying([0.0, 0.0, 0.0, 0.0, 0.7]) == {4}
    assert inference.outlying([0.0, 0.1] * 5) == set()


def test_adjusted_p_values_are_the_textbooks():
    p = [0.01, 0.04, 0.03, 0.005]
    assert inference.holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert inference.benjamini_hochberg(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert inference.holm([]) == inference.benjamini_hochberg([]) == []


def test_bounds_of_a_proportion_are_clopper_and_pearsons():
    assert inference.proportion_bounds(0, 59) == pytest.approx((0, 0.0495), abs=1e-4)
    assert inference.proportion_bounds(0, 299)[1] == pytest.approx(0.010, abs=1e-4)
    assert inference.proportion_bounds(30, 30)[0] == pytest.approx(0.905, abs=1e-3)
    assert inference.proportion_bounds(59, 59)[0] == pytest.approx(0.951, abs=1e-3)
    assert inference.proportion_bounds(0, 0) == (0.0, 1.0)


def spread(rng, process_sds, sizes=(10, 3)):
    return [[[rng.gauss(0, process_sd) for _ in range(size)] for size in sizes] for process_sd in process_sds]


def test_similar_cells_get_a_common_spread():
    found = inference.moderate(spread(random.Random(2), [0.005] * 100))
    own = sorted(cell.process_sd for cell in found)
    assert own[10] == pytest.approx(0.005, rel=0.1)  # the quiet ones are raised to the common spread
    assert found[0].df > 50


def test_the_prior_recovers_the_distribution_of_the_spreads():
    rng = random.Random(3)
    df0, s0 = 8.0, 0.004
    process_sds = [s0 * math.sqrt(df0 / rng.gammavariate(df0 / 2, 2)) for _ in range(2000)]
    variances, dfs = map(np.array, zip(*[inference.within(cell) for cell in spread(rng, process_sds)], strict=True))
    prior, prior_dfs = inference._prior(variances, dfs)
    assert math.sqrt(prior) == pytest.approx(s0, rel=0.05)
    assert np.median(prior_dfs) == pytest.approx(df0, rel=0.25)


def test_a_noisy_cell_keeps_its_spread_and_changes_no_other():
    quiet = spread(random.Random(4), [0.002] * 20)
    *found, noisy = inference.moderate([*quiet, [[0.0, 0.1] * 5, [0.0, 0.1, 0.0]]])
    assert (noisy.process_sd > 0.05, noisy.df) == (True, pytest.approx(11, abs=1))
    alone = inference.moderate(quiet)
    assert [cell.process_sd for cell in found] == pytest.approx([cell.process_sd for cell in alone], rel=0.1)
    assert min(cell.df for cell in found) > 50


@pytest.mark.parametrize("process_sds", [[0.003] * 20, [0.003] * 18 + [0.06] * 2, [0.001, 0.003, 0.01, 0.03] * 5], ids=str)
def test_a_t_test_keeps_its_level_with_unequal_cells(process_sds):
    """6 values a cell. 4000 tests at 1 % reject 40 true hypotheses; three standard errors more are 59."""
    rng, rejected = random.Random(6), 0
    for _ in range(200):
        values = [[rng.gauss(0, sd) for _ in range(6)] for sd in process_sds]
        for value, cell in zip(values, inference.moderate([[each] for each in values]), strict=True):
            rejected += inference.t_upper(sum(value) / 6 / (cell.process_sd / math.sqrt(6)), cell.df) <= 0.01
    assert rejected <= 59


def test_few_cells_and_equal_spreads():
    assert inference.moderate([[[0.0] * 10, [0.0] * 3]])[0].process_sd == inference.PROCESS_SD_FLOOR
    assert inference.moderate([[[0.0] * 10, [0.0] * 3]] * 30)[0].df == 30 * 11
    with pytest.raises(ValueError, match="two processes"):
        inference.moderate([[[1.0], [1.0]]])


def test_students_t_has_the_normals_limit():
    assert inference.t_upper(2.0, math.inf) == pytest.approx(0.02275, abs=1e-5)
    assert inference.t_upper(inference.t_quantile(0.975, 11), 11) == pytest.approx(0.025)
