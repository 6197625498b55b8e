"""The paired comparison: the value of a process pair, and the screening. Fresh pairs are tested in test_fresh_pairs."""

import math
from dataclasses import replace

import numpy as np
import pytest
from gating import cell_samples, dice, interleaved, key, run_samples
from sampled import sampled
from simulate_gate import NOISES, SameRun

from softbench.gate import paired
from softbench.gate.fresh_pairs import undecided
from softbench.gate.verdicts import Rules, State, Verdict, state_and_reason

RULES = Rules(margin=paired.MARGIN)
ORDER = [(turn + turn // 2) % 2 for turn in range(20)]


def screen(run, **options):
    return paired.screen(run, "new", "old", RULES, **options)


def pair(logs, *, order=ORDER):
    """One process pair with these log ratios."""
    mine = cell_samples(tuple(50 * math.exp(value) for value in logs), positions=order)
    return paired.pair(mine, cell_samples((50.0,) * len(logs), positions=[1 - place for place in order]))[0]


def states(report):
    return {verdict.cell.N: verdict.state for verdict in report.verdicts}


def test_a_few_disturbed_rounds_change_no_pair_value():
    """Three rounds of twenty in which the reference took four times as long hid a slowdown of 50 %."""
    logs = [math.log(1.5)] * 20
    for disturbed in (3, 4, 9):
        logs[disturbed] -= math.log(4)
    assert pair(logs).value == pytest.approx(math.log(1.5))


def test_a_small_margin_keeps_its_digits():
    same = Verdict(key("new", 8), State.SAME, "", interval=(0.9999, 1.0001))
    reasons = [state_and_reason(same, 1.0, 1.0, Rules(margin=margin))[1] for margin in (0.03, 0.0025)]
    assert reasons == ["within the margin of 3.0%", "within the margin of 0.25%"]


def test_both_orders_count_alike():
    rounds = pair([0.04 if place else -0.04 for place in ORDER])
    assert rounds.by_order == pytest.approx((-0.04, 0.04))
    assert rounds.value == pytest.approx(0, abs=1e-12)
    assert pair([0.02, 0.04, 0.02], order=[0, 0, 0]).value == pytest.approx(0.02)


def test_quiet_cells_are_the_same_and_others_are_undecided():
    report = screen(interleaved(dice(1), 20, slowdown=lambda i: 0.08 if i == 4 else -0.08 if i == 5 else 0))
    assert {verdict.cell.N for verdict in undecided(report)} == {5, 6}
    assert set(states(report).values()) == {State.SAME, State.AMBIGUOUS}
    verdict = report.verdicts[-1]
    assert verdict.interval[0] < verdict.ratio < verdict.interval[1]
    assert (verdict.n, verdict.covers) == ("20 rounds, 1 process pair", "differences between process pairs")


def test_differences_between_processes_widen_the_interval():
    quiet, noisy = (screen(interleaved(dice(7), 20, process_sd=sd)) for sd in (0.002, 0.02))
    assert len(undecided(quiet)) == 0
    assert len(undecided(noisy)) >= 15
    several = screen(interleaved(dice(7), 20, process_sd=0.01, processes=20))
    assert len(undecided(several)) <= 2  # more pairs have shorter intervals
    known = screen(interleaved(dice(7), 20), process_sds={key("new", 1): 0.02})
    assert {verdict.cell.N for verdict in undecided(known)} == {1}


@pytest.mark.parametrize(("pairs", "found"), [(1, set()), (2, set()), (3, {5}), (10, {5})])
def test_three_pairs_show_faster_cells_and_no_slower_ones(pairs, found):
    report = screen(interleaved(dice(1), 20, processes=pairs, slowdown=lambda i: {4: -0.3, 5: 0.3}.get(i, 0)))
    assert {N for N, state in states(report).items() if state is State.FASTER} == found
    assert {verdict.cell.N for verdict in undecided(report)} == {5, 6} - found
    for verdict in report.verdicts:
        if verdict.state is State.FASTER:
            assert (verdict.n, verdict.covers) == (f"{pairs} process pairs", "differences between process pairs")
            assert 0.68 < verdict.interval[0] < verdict.ratio < verdict.interval[1] < 0.72
            assert verdict.p < 0.05
            assert "faster by more than the margin of 3.0%" in verdict.reason


def test_speed_within_the_noise_is_not_shown_faster():
    """Two cells of one ratio: the pairs of one differ by as much as it is faster."""
    run = interleaved(dice(1), 20, processes=3)
    for N, speeds in ((1, (0.92, 0.92, 0.92)), (2, (0.82, 0.92, 1.02))):
        processes = [tuple(50 * speed + 0.01 * number for number in range(20)) for speed in speeds]
        run.cells[key("new", N)] = cell_samples(*processes, positions=ORDER)
    found = states(screen(run))
    assert (found[1], found[2]) == (State.FASTER, State.AMBIGUOUS)


@pytest.mark.parametrize("processes", [2, 3])
def test_several_pairs_leave_cells_that_are_no_slower(processes):
    """Cell 1 may be the same or faster, cell 2 may be slower or not. Two pairs do not show a cell's spread."""
    run = interleaved(dice(1), 20, processes=processes)
    for N, speeds in ((1, (0.60, 0.70, 0.80)), (2, (0.99, 1.02, 1.08))):
        samples = [tuple(50 * speed + 0.01 * number for number in range(20)) for speed in speeds[:processes]]
        run.cells[key("new", N)] = cell_samples(*samples, positions=ORDER)
    report = screen(run)
    assert (states(report)[1], states(report)[2]) == (State.AMBIGUOUS, State.AMBIGUOUS)
    assert {verdict.cell.N for verdict in undecided(report)} == {1, 2}
    assert {verdict.cell.N for verdict in undecided(report, processes)} == ({2} if processes >= paired.FASTER_PAIRS else {1, 2})


def test_a_faster_cell_counts_all_cells_and_a_small_share(monkeypatch):
    """The order decides the time of cell 1, which counts too."""
    run = interleaved(dice(1), 20, processes=3, process_sd=0.01, slowdown=lambda i: -0.12 if i == 4 else 0)
    run.cells[key("new", 1)] = cell_samples(*[tuple(50 - 15 * place for place in ORDER)] * 3, positions=ORDER)

    def p():
        (found,) = [verdict for verdict in screen(run).verdicts if verdict.state is State.FASTER]
        return found.p

    assert 0 < p() < 0.05
    of_share = p()
    monkeypatch.setattr(paired, "FASTER_SHARE", 1.0)
    of_all = p()
    monkeypatch.setattr("softbench.gate.verdicts.holm", list)
    assert (of_share / of_all, of_all / p()) == pytest.approx((10, 20))


def test_a_cell_faster_in_one_order_stays_undecided():
    run = interleaved(dice(1), 20, processes=3)
    for N, logs in ((1, {0: -0.4, 1: 0.0}), (2, {0: -0.2, 1: -0.2})):
        run.cells[key("new", N)] = cell_samples(*[tuple(50 * math.exp(logs[place]) for place in ORDER)] * 3, positions=ORDER)
    found = {verdict.cell.N: verdict for verdict in screen(run).verdicts}
    assert found[1].ratio == pytest.approx(found[2].ratio, abs=0.01)
    assert (found[1].state, found[2].state) == (State.AMBIGUOUS, State.FASTER)


@pytest.mark.parametrize("noise", sampled(["tau 2 %", "half 10 %", "slow batches"], lambda noise: noise == "half 10 %"))
@pytest.mark.parametrize(
    "speed", [pytest.param(0.0, marks=pytest.mark.slow, id="unchanged"), pytest.param(1 / 1.03 - 1, id="at the margin")]
)
def test_noise_is_not_called_faster(monkeypatch, noise, speed):
    """At most 0.5 % of the families and three standard errors: 2 of 100. The whole error rate for each cell gives more than 15."""
    monkeypatch.setattr("simulate_gate.SLOW_CELLS", 1)
    wrong = 0
    for number in range(100):
        run = SameRun(np.random.default_rng([1, number]), NOISES[noise], 20, speed, rounds=8)
        wrong += State.FASTER in states(screen(run.measure(run.keys, 3))).values()
    assert wrong <= 100 * RULES.alpha * paired.FASTER_SHARE + 3 * math.sqrt(100 * RULES.alpha * paired.FASTER_SHARE)


def test_faster_advisory_cells_stay_out_of_the_test():
    run = interleaved(dice(1), 20, processes=3, slowdown=lambda i: -0.3 if i == 4 else 0)
    run.cells[key("old", 5)] = replace(run.cells[key("old", 5)], host_bound="do_bench measured 70 us")
    found = {verdict.cell.N: verdict for verdict in screen(run).verdicts}
    assert (found[5].gated, found[5].state) == (False, State.AMBIGUOUS)


@pytest.mark.parametrize("processes", [3, 5])
def test_cells_at_the_margin_are_rarely_the_same(processes):
    """At most 2.5 % of the cells, and three standard errors: an interval of 95 % has so much on each side."""
    wrong = total = 0
    for seed in range(30):
        verdicts = screen(interleaved(dice(seed), 20, processes=processes, process_sd=0.007, slowdown=lambda i: 0.03)).verdicts
        wrong, total = wrong + sum(verdict.state is State.SAME for verdict in verdicts), total + len(verdicts)
    assert total == 600
    assert wrong <= 0.025 * total + 3 * math.sqrt(0.025 * total)


def test_one_outlying_process_leaves_an_advisory_cell_advisory():
    """An advisory cell is gated from a slowdown of 25 %. Its ratio has no outlying process."""
    run = interleaved(dice(1), 6, processes=5)
    for N, slow in ((1, (1, 4, 1, 1, 1)), (2, (1.3,) * 5)):
        processes = [tuple(50 * each + number / 100 for number in range(20)) for each in slow]
        run.cells[key("new", N)] = cell_samples(*processes, positions=ORDER)
        run.cells[key("old", N)] = replace(run.cells[key("old", N)], host_bound="do_bench measured 70 us")
    found = {verdict.cell.N: verdict for verdict in screen(run).verdicts}
    assert (found[1].gated, found[2].gated) == (False, True)
    assert found[1].ratio == pytest.approx(1, abs=0.02)


def test_one_pair_of_few_cells_decides_nothing():
    (verdict,) = screen(interleaved(dice(2), 1)).verdicts
    assert (verdict.state, verdict.covers) == (State.AMBIGUOUS, "rounds of one process pair")
    assert "does not show how processes differ" in verdict.reason


def test_a_changing_reference_is_noted_and_cancels():
    report = screen(interleaved(dice(2), 20, drift=0.2))
    assert report.exit_code == 0
    assert report.notes[0].startswith("old itself changed by +1")
    assert screen(interleaved(dice(2), 20, drift=0.04)).notes == ()


def test_an_order_effect_is_ambiguous_only_across_the_margin():
    across = [pair([0.06 if place else 0.0 for place in ORDER])] * 3
    assert "1.000 if the candidate comes first, 1.062 if it comes second" in paired.why_order(across, math.log(1.03))
    assert paired.why_order(across[:2], math.log(1.03)) == ""
    assert paired.why_order([pair([0.09 if place else 0.06 for place in ORDER])] * 3, math.log(1.03)) == ""
    assert paired.why_order([pair([0.033 if place else 0.027 for place in ORDER])] * 3, math.log(1.03)) == ""


def test_nan_and_no_shared_round_are_never_a_success():
    run = interleaved(dice(3), 6)
    run.cells[key("new", 1)] = cell_samples((math.nan,) * 20)
    run.cells[key("new", 2)] = replace(cell_samples(), processes={7: run.cells[key("new", 2)].processes[0]})
    report = screen(run)
    assert (states(report)[1], states(report)[2], report.exit_code) == (State.AMBIGUOUS, State.AMBIGUOUS, 3)


def test_missing_and_broken_candidates_fail_and_short_calls_are_advisory():
    run = interleaved(dice(6), 4)
    del run.cells[key("new", 1)]
    run.cells[key("new", 2)] = cell_samples(status="wrong", reason="zeros")
    del run.cells[key("old", 3)]
    report = screen(run)
    assert {v.cell.N: v.state for v in report.verdicts if v.cell.N < 4} == {1: State.MISSING, 2: State.BROKEN, 3: State.NEW}
    assert report.exit_code == 1
    quick = {k: cell_samples(*[tuple(r.median_us / 10 for r in rounds) for rounds in s.processes.values()]) for k, s in run.cells.items()}
    assert not next(v for v in screen(run_samples({k: quick[k] for k in (key("new", 4), key("old", 4))})).verdicts).gated


def test_backends_that_share_no_case_are_no_success():
    assert screen(run_samples({})).exit_code == 3


def test_only_the_reference_makes_a_cell_launch_bound():
    run = interleaved(dice(1), 6, slowdown=lambda i: 0.2)
    for backend, N in (("new", 1), ("old", 2)):
        run.cells[key(backend, N)] = replace(run.cells[key(backend, N)], host_bound="do_bench measured 70 us")
    found = {verdict.cell.N: verdict for verdict in screen(run).verdicts}
    assert [found[N].gated for N in (1, 2, 3)] == [True, False, True]
    assert "do_bench measured 70 us" in found[2].reason
    assert "advisory" in screen(run).summary.partition(" (")[2]
