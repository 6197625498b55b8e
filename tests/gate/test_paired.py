"""The paired comparison: the values of a process pair, and what several pairs show. Fresh pairs are tested in test_fresh_pairs."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from gating import cell_samples, clocked, dice, interleaved, key, run_samples
from sampled import sampled
from simulate_gate import NOISES, PAIRED, Noise, SameRun

from softbench.gate import paired
from softbench.gate.fresh_pairs import undecided
from softbench.gate.verdicts import Rules, State, Verdict, state_and_reason

RULES = Rules(margin=paired.MARGIN)
ORDER = [(turn + turn // 2) % 2 for turn in range(20)]


def judge(run, **options):
    return paired.compare(run, "new", "old", RULES, **options)


def measured(noise, pairs=6, cells=20, slowdown=0.0, seed=1):
    """Process pairs of this noise, in every second of which the reference starts first."""
    run = SameRun(np.random.default_rng(seed), noise, cells, slowdown)
    return run.measure(run.keys, pairs)


def pair(logs, *, order=ORDER):
    """One process pair with these log ratios."""
    mine = cell_samples(tuple(50 * math.exp(value) for value in logs), positions=order)
    return paired.pair(mine, cell_samples((50.0,) * len(logs), positions=[1 - place for place in order]))[0]


def states(report):
    return {verdict.cell.N: verdict.state for verdict in report.verdicts}


def test_a_few_disturbed_rounds_change_no_pair_value():
    """Three rounds of twenty in which the reference took four times as long hid a slowdown of 50 %. All six here began in one order."""
    logs = [math.log(1.5)] * 20
    for disturbed in (0, 3, 4, 7, 8, 11):
        logs[disturbed] -= math.log(4)
    assert pair(logs).value() == pytest.approx(math.log(1.5))


def test_a_small_margin_keeps_its_digits():
    same = Verdict(key("new", 8), State.SAME, "", interval=(0.9999, 1.0001))
    reasons = [state_and_reason(same, 1.0, 1.0, Rules(margin=margin))[1] for margin in (0.03, 0.0025)]
    assert reasons == ["within the margin of 3.0%", "within the margin of 0.25%"]


def test_both_orders_count_alike():
    rounds = pair([0.04 if place else -0.04 for place in ORDER])
    assert rounds.by_order == pytest.approx((-0.04, 0.04))
    assert rounds.value(-0.08) == pytest.approx(0, abs=1e-12)
    assert pair([0.02, 0.04, 0.02], order=[0, 0, 0]).value() == pytest.approx(0.02)


def test_quiet_cells_are_the_same_and_others_are_not():
    report = judge(measured(Noise(), slowdown=0.08))
    assert {verdict.cell.N for verdict in report.verdicts if verdict.state is State.SLOWER} == {1, 11}
    assert set(states(report).values()) == {State.SLOWER, State.SAME}
    verdict = report.verdicts[-1]
    assert verdict.interval[0] < verdict.ratio < verdict.interval[1]
    assert (verdict.n, verdict.covers) == ("6 process pairs", "differences between process pairs")


@pytest.mark.parametrize("pairs", [1, paired.MIN_PAIRS - 1])
def test_few_pairs_decide_nothing(pairs):
    report = judge(measured(Noise(), pairs, slowdown=0.3))
    assert set(states(report).values()) == {State.AMBIGUOUS}
    assert len(undecided(report)) == 20
    assert "do not show how processes differ" in report.verdicts[0].reason
    assert report.exit_code == 3


def test_a_cell_keeps_its_own_spread():
    """Its neighbours are quiet. Once their interval was its own, and it was the same."""
    reports = [judge(measured(Noise(first_tau=0.06), seed=seed)) for seed in range(8)]
    for report in reports:
        widths = {verdict.cell.N: verdict.interval[1] - verdict.interval[0] for verdict in report.verdicts}
        assert widths[1] > 5 * max(width for N, width in widths.items() if N > 1)
    assert sum(undecided(report) == [key("new", 1)] for report in reports) >= 7  # one may be faster by chance


def test_a_baseline_widens_the_interval():
    known = judge(measured(Noise()), sds={key("new", 1): 0.03})
    assert undecided(known) == [key("new", 1)]


def test_a_fixed_difference_between_the_starts_cancels():
    found = judge(measured(Noise(starts_first=0.2)))
    assert set(states(found).values()) == {State.SAME}
    assert max(verdict.interval[1] for verdict in found.verdicts) < 1.01


def test_a_slower_mean_is_found_and_named():
    """Two of five calls take twice as long, which the median does not show."""
    report = judge(measured(Noise(slower_calls=0.4, slow_calls=0.02)))
    assert set(states(report).values()) == {State.SLOWER}
    assert 1.3 < report.verdicts[0].ratio < 1.5
    assert re.search(r"the mean of its calls is slower .* that of the medians is (1\.0|0\.99)", report.verdicts[0].reason)


def test_speed_within_the_noise_is_not_shown_faster():
    """Two cells of one ratio: the pairs of one differ by as much as it is faster."""
    run = interleaved(dice(1), 20, processes=6)
    for N, speeds in ((1, (0.92,) * 6), (2, (0.82, 0.92, 1.02, 0.8, 1.04, 0.92))):
        processes = [tuple(50 * speed + 0.01 * number for number in range(20)) for speed in speeds]
        run.cells[key("new", N)] = cell_samples(*processes, positions=ORDER)
    found = states(judge(run))
    assert (found[1], found[2]) == (State.FASTER, State.AMBIGUOUS)


def test_a_cell_that_is_no_slower_is_not_measured_again():
    """Cell 1 may be the same or faster, cell 2 may be slower or not."""
    run = interleaved(dice(1), 20, processes=6)
    for N, speeds in ((1, (0.60, 0.98, 0.70, 0.98, 0.98, 0.60)), (2, (0.99, 1.02, 1.08, 0.99, 1.0, 1.07))):
        samples = [tuple(50 * speed + 0.01 * number for number in range(20)) for speed in speeds]
        run.cells[key("new", N)] = cell_samples(*samples, positions=ORDER)
    report = judge(run)
    assert (states(report)[1], states(report)[2]) == (State.AMBIGUOUS, State.AMBIGUOUS)
    assert undecided(report) == [key("new", 2)]


def test_p_counts_all_cells_and_the_share_of_the_look(monkeypatch):
    run = measured(Noise(tau=0.01), slowdown=0.08)

    def p(**options):
        return next(verdict.p for verdict in judge(run, **options).verdicts if verdict.cell.N == 1)

    assert p(share=0.1) / p() == pytest.approx(10)
    assert p(only=[key("new", 1)]) / p() == pytest.approx(1, abs=0.1)  # the others still count
    of_all = p()
    monkeypatch.setattr("softbench.gate.verdicts.holm", list)
    assert of_all / p() == pytest.approx(20, abs=1)


def test_a_cell_faster_in_one_order_stays_undecided():
    run = interleaved(dice(1), 20, processes=6)
    for N, logs in ((1, {0: -0.4, 1: 0.0}), (2, {0: -0.2, 1: -0.2})):
        run.cells[key("new", N)] = cell_samples(*[tuple(50 * math.exp(logs[place]) for place in ORDER)] * 6, positions=ORDER)
    found = {verdict.cell.N: verdict for verdict in judge(run).verdicts}
    assert found[1].ratio == pytest.approx(found[2].ratio, abs=0.01)
    assert (found[1].state, found[2].state) == (State.AMBIGUOUS, State.FASTER)


@pytest.mark.parametrize("noise", sampled(["tau 2 %", "half 10 %", "slow batches"], lambda noise: noise == "half 10 %"))
@pytest.mark.parametrize(
    "speed", [pytest.param(0.0, marks=pytest.mark.slow, id="unchanged"), pytest.param(1 / 1.03 - 1, id="at the margin")]
)
def test_noise_is_not_called_faster(monkeypatch, noise, speed):
    """At most 5 % of the families and three standard errors: 12 of 100."""
    monkeypatch.setattr("simulate_gate.SLOW_CELLS", 1)
    wrong = sum(State.FASTER in states(judge(measured(NOISES[noise], slowdown=speed, seed=[1, seed]))).values() for seed in range(100))
    assert wrong <= 12


@pytest.mark.parametrize("noise", ["tau 1 %", "unequal"])
def test_cells_at_the_margin_are_rarely_the_same(noise):
    """At most 2.5 % of the cells, and three standard errors: an interval of 95 % has so much on each side."""
    wrong = total = 0
    for seed in range(30):
        verdicts = judge(measured({**NOISES, **PAIRED}[noise], slowdown=0.03, seed=seed)).verdicts
        at_margin = [verdict for verdict in verdicts if verdict.cell.N % 10 == 1]
        wrong, total = wrong + sum(verdict.state is State.SAME for verdict in at_margin), total + len(at_margin)
    assert total == 60
    assert wrong <= 5


def test_an_advisory_cell_is_gated_from_a_slowdown_of_25_percent():
    run = interleaved(dice(1), 6, processes=6)
    for N, slow in ((1, (1.2,) * 6), (2, (1.3,) * 6)):
        processes = [tuple(50 * each + number / 100 for number in range(20)) for each in slow]
        run.cells[key("new", N)] = cell_samples(*processes, positions=ORDER)
        run.cells[key("old", N)] = replace(run.cells[key("old", N)], host_bound="do_bench measured 70 us")
    found = {verdict.cell.N: verdict for verdict in judge(run).verdicts}
    assert (found[1].gated, found[2].gated) == (False, True)
    assert "do_bench measured 70 us" in found[1].reason
    assert "advisory" in judge(run).summary.partition(" (")[2]


def test_a_changing_reference_is_noted_and_cancels():
    report = judge(interleaved(dice(2), 20, drift=0.2, processes=6))
    assert report.exit_code == 0
    assert report.notes[0].startswith("the time of old changed by +1")
    assert judge(interleaved(dice(2), 20, drift=0.04, processes=6)).notes == ()


def test_an_order_effect_is_ambiguous_only_across_the_margin():
    across = [pair([0.06 if place else 0.0 for place in ORDER])] * 3
    assert "1.000 if the candidate comes first, 1.062 if it comes second" in paired.why_order(across, math.log(1.03))
    assert paired.why_order(across[:2], math.log(1.03)) == ""
    assert paired.why_order([pair([0.09 if place else 0.06 for place in ORDER])] * 3, math.log(1.03)) == ""
    assert paired.why_order([pair([0.033 if place else 0.027 for place in ORDER])] * 3, math.log(1.03)) == ""


def test_nan_and_no_shared_round_are_never_a_success():
    run = interleaved(dice(3), 6, processes=6)
    run.cells[key("new", 1)] = cell_samples((math.nan,) * 20)
    run.cells[key("new", 2)] = replace(cell_samples(), processes={7: run.cells[key("new", 2)].processes[0]})
    report = judge(run)
    assert (states(report)[1], states(report)[2], report.exit_code) == (State.AMBIGUOUS, State.AMBIGUOUS, 3)


def test_missing_and_broken_candidates_fail_and_short_calls_are_advisory():
    run = interleaved(dice(6), 4, processes=6)
    del run.cells[key("new", 1)]
    run.cells[key("new", 2)] = cell_samples(status="wrong", reason="zeros")
    del run.cells[key("old", 3)]
    report = judge(run)
    assert {v.cell.N: v.state for v in report.verdicts if v.cell.N < 4} == {1: State.MISSING, 2: State.BROKEN, 3: State.NEW}
    assert report.exit_code == 1
    quick = {k: cell_samples(*[tuple(r.median_us / 10 for r in rounds) for rounds in s.processes.values()]) for k, s in run.cells.items()}
    assert not next(v for v in judge(run_samples({k: quick[k] for k in (key("new", 4), key("old", 4))})).verdicts).gated


def test_backends_that_share_no_case_are_no_success():
    assert judge(run_samples({})).exit_code == 3


def test_only_the_reference_makes_a_cell_launch_bound():
    run = interleaved(dice(1), 6, processes=6, slowdown=lambda i: 0.2)
    for backend, N in (("new", 1), ("old", 2)):
        run.cells[key(backend, N)] = replace(run.cells[key(backend, N)], host_bound="do_bench measured 70 us")
    found = {verdict.cell.N: verdict for verdict in judge(run).verdicts}
    assert [found[N].gated for N in (1, 2, 3)] == [True, False, True]
    assert "do_bench measured 70 us" in found[2].reason
    assert "advisory" in judge(run).summary.partition(" (")[2]


@pytest.mark.parametrize(
    ("new_mhz", "state"), [(1980, State.SLOWER), (1980 / 1.08, State.CLOCK), (1980 / 1.04, State.SLOWER), (0, State.SLOWER)]
)
def test_a_slowdown_that_the_clock_explains_is_no_regression(new_mhz, state):
    report = judge(clocked(measured(Noise(), slowdown=0.08), {"new": new_mhz, "old": 1980}))
    assert {one.state for one in report.verdicts if one.ratio > 1.05} == {state}
    for change in ({"every": 2}, {"mean": 1.4}):  # every second round's clock is unknown; it explains no slower mean
        other = judge(clocked(measured(Noise(), slowdown=0.08), {"new": new_mhz, "old": 1980}, **change))
        assert {one.state for one in other.verdicts if one.ratio > 1.05} == {State.SLOWER}
    if state is State.CLOCK:
        assert report.exit_code == 3
        assert "slower by the SM clock (new forward-bf16-4096x1" in report.summary
        assert "the SM clock was 7.4% lower; time x clock is within the margin of 3.0%" in report.verdicts[0].reason
