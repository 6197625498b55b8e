"""What a comparison with a baseline finds, and runs that are too noisy for a baseline."""

import math
from dataclasses import replace

import numpy as np
import pytest
from gating import cell_samples, dice, key, stored, write_run
from simulate_gate import Noise, Stored, families

from softbench.core.errors import InconclusiveError
from softbench.gate import power, unpaired
from softbench.gate.inference import t_quantile
from softbench.gate.sittings import MOST_SD
from softbench.gate.verdicts import Rules

RULES = Rules(margin=unpaired.MARGIN)


def noisy(count, cells=20, *, us=50.0, processes=10):
    """A quiet run with `count` cells whose process medians lie between `us` and a multiple of it, up to 2300-fold."""
    base = stored(dice(1), processes, cells=cells)
    for N in range(1, count + 1):
        base.cells[key("ours", N)] = cell_samples(*[(us * math.exp(7.74 * process / (processes - 1)),) for process in range(processes)])
    return base


def test_slowdowns_are_found_as_often_as_said():
    base = Stored(np.random.default_rng(1), Noise(tau=0.02), 40).base
    found = power.slowdowns_found(base, 6, RULES)
    assert len(found) == 40
    assert power.found_by_processes(base, 6, RULES) == pytest.approx(np.median(list(found.values())))
    result = families(15, Noise(tau=0.02), 40, power.found_by_processes(base, 6, RULES) + 0.005, 3, RULES.margin, 1, Stored)
    assert result.found >= 0.9 * result.slow


def test_more_noise_and_fewer_processes_find_larger_slowdowns_only():
    finds = [power.found_by_processes(stored(dice(1), 10, process_sd=sd, outliers=0), 6, RULES) for sd in (0.003, 0.02, 0.1, 0.5)]
    assert finds == sorted(finds)
    assert finds[0] < 0.08
    assert finds[-1] > 1
    assert power.found_by_processes(stored(dice(1), 10), 3, RULES) > power.found_by_processes(stored(dice(1), 10), 6, RULES)


def test_without_a_second_sitting_the_most_that_sittings_may_differ_by_decides():
    quiet = replace(stored(dice(1), 10, process_sd=1e-4, outliers=0), sittings=())
    quantiles = t_quantile(1 - RULES.alpha / power.EXAMPLE_SUSPECTS / 2, math.inf) + t_quantile(0.95, math.inf)
    assert power.found_by_processes(quiet, 6, RULES) == pytest.approx(math.expm1(quantiles * MOST_SD * math.sqrt(2)), rel=0.02)


def test_a_run_of_too_noisy_processes_makes_no_baseline(main, tmp_path):
    run = write_run(tmp_path, noisy(3))
    code, out, err = main("baseline", "save", run, "--name", "h200")
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 1
    assert "too noisy for a baseline: the processes of 3 of 20 cells differ so much that the gate may miss a slowdown of 100%" in err
    assert "(most: ours forward-bf16-4096x1, 50 us to 115 ms)" in err
    assert err.endswith("measure on a machine that does nothing else, with more processes: softbench run --M 4096 --processes 20\n")
    assert not (tmp_path / "results" / "baselines" / "h200.json").exists()


def test_few_noisy_cells_warn_and_quiet_ones_do_not(main, tmp_path):
    code, out, err = main("baseline", "save", write_run(tmp_path, noisy(2)), "--name", "h200")
    assert (code, out) == (0, "results/baselines/h200.json\n")
    assert "noisy: the processes of 2 of 20 cells differ so much that the gate may miss a slowdown of 10% there" in err
    assert "noisy" not in main("baseline", "save", write_run(tmp_path, noisy(0), name="quiet"), "--name", "quiet")[2]


def test_one_outlying_process_and_advisory_cells_do_not_count():
    base = stored(dice(1), 10, cells=20, outliers=0)
    for N in range(1, 21):
        (first, *_), *others = base.cells[key("ours", N)].processes.values()
        base.cells[key("ours", N)] = cell_samples((first.median_us * 2000,), *[(one.median_us,) for (one,) in others])
    assert power.check_noise(base) == []
    launch_bound = noisy(20, us=0.1)
    with pytest.raises(InconclusiveError, match="may miss a slowdown of 100%"):
        power.check_noise(replace(launch_bound, environment={**launch_bound.environment, "device": "cpu"}))
    assert power.check_noise(launch_bound) == []


def test_the_limits_are_those_of_the_gate(main, tmp_path):
    """With the largest margin that the gate takes, a slowdown of 100 % passes."""
    for percent, code in ((power.LARGEST_MARGIN, 0), (power.LARGEST_MARGIN + 0.01, 2)):
        run, base = (write_run(tmp_path, stored(dice(i), 10, cells=5), name=f"run{i}") for i in (1, 2))
        assert main("gate", run, "--baseline", base, "--margin", f"{100 * percent:g}")[0] == code


def test_a_run_without_copy_makes_no_baseline():
    base = stored(dice(1), 10, cells=4)
    without = replace(base, cells={key: samples for key, samples in base.cells.items() if key.backend != "copy"})
    assert power.check_noise(base) == []
    with pytest.raises(InconclusiveError, match="has no results of copy"):
        power.check_noise(without)
