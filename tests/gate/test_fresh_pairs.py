"""Fresh process pairs: what they decide, family errors and power with fixed seeds, and large slowdowns.

The bounds hold for the seeds here. `python tools/simulate_gate.py` shows more families.
"""

from dataclasses import replace

import numpy as np
import pytest
from gating import cell_samples, dice, interleaved, key
from sampled import sampled
from simulate_gate import NOISES, SLOW_CELLS, Noise, SameRun, families

from softbench.gate import fresh_pairs, paired
from softbench.gate.inference import proportion_bounds
from softbench.gate.verdicts import Rules, State

RULES = Rules(margin=paired.MARGIN)
UNLIKE = ("quiet", "tau 2 %", "half 3.8 %", "drift 20 %", "slow batches")
"""A noise of each kind."""
MOST_UNLIKE = ("quiet", "half 3.8 %", "slow batches")
"""Of these, one without noise, one of processes and one of batches."""


def source(slowdown=0.0, *, noise=NOISES["quiet"], cells=20, seed=1):
    return SameRun(np.random.default_rng(seed), noise, cells, slowdown)


def by_state(report):
    return {state: {v.cell.N for v in report.verdicts if v.state is state} for state in {v.state for v in report.verdicts}}


def test_a_quiet_family_needs_no_fresh_pair():
    run = source()
    assert (run.judge(1, 0.03).exit_code, run.sets) == (0, 1)


@pytest.mark.parametrize(("slowdown", "state", "code"), [(0.08, State.SLOWER, 1), (-0.08, State.FASTER, 0)])
def test_slower_and_faster_are_confirmed_by_fresh_pairs(slowdown, state, code):
    run = source(slowdown)
    report = run.judge(1, 0.03)
    assert by_state(report)[state] == {1, 11}
    assert (report.exit_code, run.sets) == (code, 4)
    assert report.verdicts[0].n == "3 fresh process pairs" or state is State.FASTER


@pytest.mark.parametrize("shift", [0.08, -0.08])
def test_what_only_the_screening_saw_is_no_verdict(shift):
    screened = source(shift)
    report = paired.screen(screened.measure(screened.keys, 1), "new", "old", RULES)
    report = fresh_pairs.settle(report, source(seed=2).measure, "old", fresh_pairs.looks())
    assert set(by_state(report)) == {State.SAME}


def test_a_cell_without_a_shared_round_is_measured_again():
    run = source()
    screened = run.measure(run.keys, 1)
    old = screened.cells[key("old", 1)]
    screened.cells[key("old", 1)] = replace(old, processes={7: old.processes[0]})
    report = paired.screen(screened, "new", "old", RULES)
    assert by_state(report)[State.AMBIGUOUS] == {1}
    assert set(by_state(fresh_pairs.settle(report, run.measure, "old", fresh_pairs.looks()))) == {State.SAME}


def test_an_interval_of_one_pair_does_not_pass():
    """Of three process pairs, one has shared rounds. It looks the same, but the cell is 8 % slower."""
    screened = interleaved(dice(1), 20, processes=3)
    old = screened.cells[key("old", 1)]
    screened.cells[key("old", 1)] = replace(old, processes={number * 7: rounds for number, rounds in old.processes.items()})
    report = paired.screen(screened, "new", "old", RULES)
    assert by_state(report)[State.AMBIGUOUS] == {1}
    report = fresh_pairs.settle(report, source(0.08).measure, "old", fresh_pairs.looks(3), 3)
    assert by_state(report)[State.SLOWER] == {1}


def test_fresh_pairs_measure_steady_cells_too():
    """Their values show how much process pairs differ, also if only one cell is undecided."""
    run, asked = source(0.08, cells=10), []

    def fresh(keys, pairs):
        asked.append((len(keys), pairs))
        return run.measure(keys, pairs)

    fresh_pairs.settle(paired.screen(run.measure(run.keys, 1), "new", "old", RULES), fresh, "old", fresh_pairs.looks())
    assert asked == [(fresh_pairs.SPREAD_CELLS, 3)]


def test_a_cell_that_fails_when_measured_again_is_broken():
    run = source(0.08)

    def fresh(keys, pairs):
        found = run.measure(keys, pairs)
        return replace(found, cells={**found.cells, key("new", 1): cell_samples(status="failed", reason="crashed")})

    report = fresh_pairs.settle(paired.screen(run.measure(run.keys, 1), "new", "old", RULES), fresh, "old", fresh_pairs.looks())
    assert by_state(report)[State.BROKEN] == {1}
    assert "when measured again: crashed" in report.verdicts[1].reason


def test_one_process_that_is_twice_as_slow_hides_nothing():
    run = source(0.08, noise=Noise(tau=0.01))

    def fresh(keys, pairs):
        found = run.measure(keys, pairs)
        if pairs > 3:  # of the last look
            old = found.cells[key("old", 1)]
            slow = tuple(one._replace(median_us=2 * one.median_us) for one in old.processes[0])
            found.cells[key("old", 1)] = replace(old, processes={**old.processes, 0: slow})
        return found

    plan = [fresh_pairs.Look(12, 1.0)]
    report = fresh_pairs.settle(paired.screen(run.measure(run.keys, 1), "new", "old", RULES), fresh, "old", plan)
    assert by_state(report)[State.SLOWER] == {1, 11}
    assert any(verdict.n == "12 fresh process pairs, 1 outlying left out" for verdict in report.verdicts)


def launch_bound(run):
    """The run, whose first case is limited by the host."""
    for name in ("new", "old"):
        run.cells[key(name, 1)] = replace(run.cells[key(name, 1)], host_bound="do_bench measured 50 us")
    return run


@pytest.mark.parametrize(
    ("slowdown", "process_sd", "looks", "state", "gated"),
    [(0.0, 0.1, 3, State.AMBIGUOUS, False), (0.4, 0.002, 1, State.SLOWER, True), (0.8, 0.25, 2, State.SLOWER, True)],
    ids=["noise", "slower", "slower and noisy"],
)
def test_a_gated_launch_bound_cell_may_be_advisory_again(slowdown, process_sd, looks, state, gated):
    """The screening gates it, because it is 40 % slower there."""
    screened = paired.screen(launch_bound(interleaved(dice(1), 20, slowdown=lambda i: 0.4 * (i == 0))), "new", "old", RULES)
    assert [verdict.cell.N for verdict in screened.verdicts if verdict.gated and verdict.state is State.AMBIGUOUS] == [1]
    asked = []

    def fresh(keys, pairs):
        asked.append(pairs)
        run = interleaved(dice(2 + len(asked)), 20, processes=pairs, process_sd=process_sd, slowdown=lambda i: slowdown * (i == 0))
        cells = {one: run.cells[one] for new in keys for one in (new, new.with_backend("old"))}
        return launch_bound(replace(run, cells=cells, runs=(f"run-{len(asked)}",)))

    report = fresh_pairs.settle(screened, fresh, "old", fresh_pairs.looks())
    [found] = [verdict for verdict in report.verdicts if verdict.cell.N == 1]
    assert (found.state, found.gated, len(asked)) == (state, gated, looks)
    assert found.reason.startswith("advisory: launch-bound") is not gated
    assert report.exit_code == int(state is State.SLOWER)


def test_a_launch_bound_cell_that_was_not_tested_stays_gated():
    """Its fresh pairs share no round, so the slowdown of 20 % is that of the screening."""
    screened = paired.screen(interleaved(dice(1), 20, slowdown=lambda i: 0.2 * (i == 0)), "new", "old", RULES)
    run = source()

    def fresh(keys, pairs):
        found = launch_bound(run.measure(keys, pairs))
        old = found.cells[key("old", 1)]
        found.cells[key("old", 1)] = replace(old, processes={number + 100: rounds for number, rounds in old.processes.items()})
        return found

    report = fresh_pairs.settle(screened, fresh, "old", fresh_pairs.looks())
    [found] = [verdict for verdict in report.verdicts if verdict.cell.N == 1]
    assert (found.state, found.gated, report.exit_code) == (State.AMBIGUOUS, True, 3)


def test_looks_spend_the_error_rate_once():
    assert [look.pairs for look in fresh_pairs.looks()] == [3, 6, 12]
    assert [look.pairs for look in fresh_pairs.looks(10)] == [3, 6, 20]
    assert sum(look.share for look in fresh_pairs.looks()) == pytest.approx(1)


FAMILIES = [*((name, 20, 60) for name in NOISES), ("tau 2 %", 300, 2), ("half 3.8 %", 300, 2)]


@pytest.mark.parametrize(("noise", "cells", "count"), sampled(FAMILIES, lambda noise, cells, _: noise in MOST_UNLIKE and cells == 20))
def test_identical_cells_raise_no_alarm(noise, cells, count):
    result = families(count, NOISES[noise], cells, 0.0, 1, 0.03, seed=3)
    assert result.exits[1] == 0
    assert count < 59 or proportion_bounds(0, count)[1] <= 0.05
    if noise in ("quiet", "tau 1 %", "drift 20 %", "slow batches", "rounds 1 %"):
        assert result.exits[0] == count


@pytest.mark.slow
def test_cells_at_the_margin_stay_within_the_level(monkeypatch):
    """The least favourable truth: every cell is slower by exactly the margin. Two standard errors above 5 % of 80 families are 8."""
    monkeypatch.setattr("simulate_gate.SLOW_CELLS", 1)
    assert SLOW_CELLS == 10
    assert families(80, NOISES["tau 1 %"], 20, 0.03, 1, 0.03, seed=4).exits[1] <= 8


@pytest.mark.parametrize(
    ("noise", "pairs", "slowdown", "least"),
    [
        ("quiet", 1, 0.08, 0.95),
        ("quiet", 1, 0.05, 0.95),
        pytest.param("slow batches", 1, 0.08, 0.95, marks=pytest.mark.slow),
        ("tau 1 %", 1, 0.08, 0.95),
        pytest.param("tau 2 %", 10, 0.08, 0.9, marks=pytest.mark.slow),
    ],
)
def test_slower_cells_are_found(noise, pairs, slowdown, least):
    result = families(30, NOISES[noise], 20, slowdown, pairs, 0.03, seed=5)
    assert proportion_bounds(result.found, result.slow)[0] >= least
    assert result.others == 0


@pytest.mark.slow
def test_more_pairs_find_more():
    few, many = (families(8, NOISES["tau 2 %"], 20, 0.05, pairs, 0.03, seed=6) for pairs in (1, 20))
    assert many.found > few.found + 3


@pytest.mark.parametrize("noise", sampled(NOISES, lambda noise: noise in UNLIKE))
@pytest.mark.parametrize("slowdown", sampled([0.3, 4.0], lambda slowdown: slowdown == 0.3))
def test_a_large_slowdown_never_passes(noise, slowdown):
    assert families(10, NOISES[noise], 20, slowdown, 1, 0.03, seed=7).exits[0] == 0


@pytest.mark.parametrize("margin", [0.03, 0.15])
def test_a_wide_margin_passes_identical_cells(margin):
    assert families(5, NOISES["tau 1 %"], 20, 0.0, 1, margin, seed=8).exits[0] == 5


def test_many_rounds_are_judged_fast():
    run = SameRun(np.random.default_rng(9), NOISES["quiet"], 20, 0.08, rounds=600)
    assert run.judge(1, 0.03).exit_code == 1
