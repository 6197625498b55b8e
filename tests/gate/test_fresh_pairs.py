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
UNLIKE = ("tau 2 %", "half 3.8 %", "drift 20 %")
"""A noise of each kind."""


def source(slowdown=0.0, *, noise=NOISES["quiet"], cells=20, seed=1):
    return SameRun(np.random.default_rng(seed), noise, cells, slowdown)


def by_state(report):
    return {state: {v.cell.N for v in report.verdicts if v.state is state} for state in {v.state for v in report.verdicts}}


def settled(first, fresh):
    """The report on these first pairs, and on the ones that `fresh` measures."""
    return fresh_pairs.compare(first, fresh, "new", "old", RULES, fresh_pairs.looks())


@pytest.mark.parametrize(("slowdown", "state", "code"), [(0.0, State.SAME, 0), (0.08, State.SLOWER, 1), (-0.08, State.FASTER, 0)])
def test_a_quiet_family_needs_no_fresh_pair(slowdown, state, code):
    run = source(slowdown)
    report = run.judge(6, 0.03)
    assert {1, 11} <= by_state(report)[state]
    assert (report.exit_code, run.sets, report.verdicts[0].n) == (code, 6, "6 process pairs")


def test_undecided_cells_are_measured_until_they_are_decided():
    run = source(0.08, noise=Noise(first_tau=0.06), seed=3)
    asked = []

    def fresh(keys, pairs):
        asked.append(([one.N for one in keys], pairs))
        return run.measure(keys, pairs)

    report = settled(run.measure(run.keys, 6), fresh)
    assert asked == [([1], 6), ([1], 12)]
    assert next(verdict.n for verdict in report.verdicts if verdict.cell.N == 1) == "24 process pairs"
    assert report.exit_code == 1


@pytest.mark.parametrize(("tau", "undecided"), [(0.002, False), (0.02, False), (0.08, True)])
def test_noise_in_which_equal_code_is_undecided_is_foreseen(tau, undecided, monkeypatch):
    """At the first look: what follows takes three times as long. Each look has its share of the error rate."""
    looks, foreseen, shares, compare = fresh_pairs.looks(), [], [], paired.compare
    monkeypatch.setattr(paired, "compare", lambda *given, **more: shares.append(given[4]) or compare(*given, **more))

    def watch(report, look):
        foreseen.append(bool(fresh_pairs.why_undecided(report, look, looks[-1])))

    run = source(noise=Noise(tau=tau))
    report = fresh_pairs.compare(run.measure(run.keys, 6), run.measure, "new", "old", RULES, looks, watch=watch)
    assert (foreseen[:1] == [True], report.exit_code) == (undecided, 3 if undecided else 0)
    assert shares == [look.share for look in looks[: len(foreseen) + 1]]


@pytest.mark.parametrize("pairs", [1, 3])
def test_few_first_pairs_decide_nothing(pairs):
    run = source(0.08)
    report = run.judge(pairs, 0.03)
    assert (by_state(report)[State.SLOWER], run.sets) == ({1, 11}, 6)


def without_rounds(samples, backend="old"):
    """The samples, in which the first cell of the two backends shares no round."""
    old = samples.cells[key(backend, 1)]
    samples.cells[key(backend, 1)] = replace(old, processes={number + 100: rounds for number, rounds in old.processes.items()})
    return samples


def test_a_cell_without_a_shared_round_is_measured_again():
    run = source()
    first = without_rounds(run.measure(run.keys, 6))
    assert by_state(paired.compare(first, "new", "old", RULES))[State.AMBIGUOUS] == {1}
    assert set(by_state(settled(first, run.measure))) == {State.SAME}


@pytest.mark.parametrize(("backend", "state", "code"), [("new", State.BROKEN, 1), ("old", State.AMBIGUOUS, 3)])
def test_a_cell_that_fails_when_measured_again_does_not_pass(backend, state, code):
    run = source(noise=Noise(first_tau=0.1), seed=3)

    def fresh(keys, pairs):
        found = run.measure(keys, pairs)
        return replace(found, cells={**found.cells, key(backend, 1): cell_samples(status="failed", reason="crashed")})

    report = settled(run.measure(run.keys, 6), fresh)
    assert by_state(report)[state] == {1}
    assert report.exit_code == code
    assert state is State.AMBIGUOUS or "crashed" in report.verdicts[0].reason


def test_one_process_that_is_twice_as_slow_hides_nothing():
    run = source(0.15)
    first = run.measure(run.keys, 6)
    old = first.cells[key("old", 1)]
    slow = tuple(one._replace(median_us=2 * one.median_us, mean_us=2 * one.mean_us) for one in old.processes[0])
    first.cells[key("old", 1)] = replace(old, processes={**old.processes, 0: slow})
    assert by_state(paired.compare(first, "new", "old", RULES))[State.AMBIGUOUS] == {1}
    report = settled(first, run.measure)
    assert 1 not in by_state(report)[State.SAME]
    assert report.exit_code == 1


def launch_bound(run):
    """The run, whose first case is limited by the host."""
    for name in ("new", "old"):
        run.cells[key(name, 1)] = replace(run.cells[key(name, 1)], host_bound="do_bench measured 50 us")
    return run


@pytest.mark.parametrize(
    ("slowdown", "process_sd", "state", "gated"),
    [(0.0, 0.15, State.AMBIGUOUS, False), (0.4, 0.002, State.SLOWER, True)],
    ids=["noise", "slower"],
)
def test_a_gated_launch_bound_cell_may_be_advisory_again(slowdown, process_sd, state, gated):
    """The first pairs gate it, because it is 40 % slower there, in one of them much more."""
    run = interleaved(dice(1), 20, processes=6, slowdown=lambda i: 0.4 * (i == 0))
    slowest = run.cells[key("new", 1)]
    rounds = tuple(one._replace(median_us=one.median_us * 4) for one in slowest.processes[0])
    run.cells[key("new", 1)] = replace(slowest, processes={**slowest.processes, 0: rounds})
    asked = []

    def fresh(keys, pairs):
        asked.append(pairs)
        more = interleaved(dice(3), 20, processes=pairs, process_sd=process_sd, slowdown=lambda i: slowdown * (i == 0))
        cells = {one: more.cells[one] for new in keys for one in (new, new.with_backend("old"))}
        return launch_bound(replace(more, cells=cells, runs=(f"run-{len(asked)}",)))

    report = settled(launch_bound(run), fresh)
    [found] = [verdict for verdict in report.verdicts if verdict.cell.N == 1]
    assert (found.state, found.gated) == (state, gated)
    assert found.reason.startswith("advisory: launch-bound") is not gated
    assert report.exit_code == int(state is State.SLOWER)


def test_looks_spend_the_error_rate_once():
    assert [look.pairs for look in fresh_pairs.looks()] == [6, 12, 24]
    assert [look.pairs for look in fresh_pairs.looks(1)] == [1, 6, 12, 24]
    assert [look.pairs for look in fresh_pairs.looks(10)] == [10, 20, 40]
    assert sum(look.share for look in fresh_pairs.looks(1)) == pytest.approx(1)


FAMILIES = [*((name, 20, 60) for name in NOISES), ("tau 2 %", 300, 2), ("half 3.8 %", 300, 2)]


@pytest.mark.parametrize(("noise", "cells", "count"), sampled(FAMILIES, lambda noise, cells, _: noise == "slow batches" and cells == 20))
def test_identical_cells_raise_no_alarm(noise, cells, count):
    result = families(count, NOISES[noise], cells, 0.0, 6, 0.03, seed=3)
    assert result.exits[1] == 0
    assert count < 59 or proportion_bounds(0, count)[1] <= 0.05
    if noise in ("quiet", "tau 1 %", "drift 20 %", "slow batches", "rounds 1 %"):
        assert result.exits[0] == count


@pytest.mark.slow
def test_cells_at_the_margin_stay_within_the_level(monkeypatch):
    """The least favourable truth: every cell is slower by exactly the margin. Two standard errors above 5 % of 80 families are 8."""
    monkeypatch.setattr("simulate_gate.SLOW_CELLS", 1)
    assert SLOW_CELLS == 10
    assert families(80, NOISES["tau 1 %"], 20, 0.03, 6, 0.03, seed=4).exits[1] <= 8


@pytest.mark.parametrize(
    ("noise", "pairs", "slowdown", "least"),
    [
        ("quiet", 6, 0.05, 0.95),
        pytest.param("slow batches", 6, 0.08, 0.95, marks=pytest.mark.slow),
        ("tau 1 %", 6, 0.08, 0.95),
        pytest.param("tau 2 %", 6, 0.08, 0.9, marks=pytest.mark.slow),
    ],
)
def test_slower_cells_are_found(noise, pairs, slowdown, least):
    result = families(30, NOISES[noise], 20, slowdown, pairs, 0.03, seed=5)
    assert proportion_bounds(result.found, result.slow)[0] >= least
    assert result.others == 0


@pytest.mark.slow
def test_more_pairs_find_more():
    few, many = (families(8, NOISES["tau 2 %"], 20, 0.05, pairs, 0.03, seed=6) for pairs in (6, 20))
    assert many.found > few.found + 3


@pytest.mark.parametrize("noise", sampled(NOISES, lambda noise: noise in UNLIKE))
@pytest.mark.parametrize("slowdown", sampled([0.3, 4.0], lambda slowdown: slowdown == 0.3))
def test_a_large_slowdown_never_passes(noise, slowdown):
    assert families(10, NOISES[noise], 20, slowdown, 6, 0.03, seed=7).exits[0] == 0


@pytest.mark.parametrize("margin", [0.03, 0.15])
def test_a_wide_margin_passes_identical_cells(margin):
    assert families(5, NOISES["tau 1 %"], 20, 0.0, 6, margin, seed=8).exits[0] == 5


def test_many_rounds_are_judged_fast():
    run = SameRun(np.random.default_rng(9), NOISES["quiet"], 20, 0.08, rounds=600)
    assert run.judge(6, 0.03).exit_code == 1
