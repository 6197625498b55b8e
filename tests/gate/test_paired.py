"""The paired comparison: drift, order, ties, outliers, and confirmation in fresh processes."""

import math
from dataclasses import replace

import pytest
from gating import cell_samples, dice, interleaved, key, run_samples

from softbench.gate import paired
from softbench.gate.verdicts import Rules, State

RULES = Rules(margin=paired.MARGIN)
ORDER = [(turn + turn // 2) % 2 for turn in range(20)]


def screen(run, **options):
    return paired.screen(run, "new", "old", RULES, **options)


def one(logs, *, reference=None, order=ORDER):
    """A single cell with these log ratios."""
    reference = reference or [50.0] * len(logs)
    mine = tuple(us * math.exp(value) for us, value in zip(reference, logs, strict=True))
    cells = {key("new"): cell_samples(mine, positions=order), key("old"): cell_samples(tuple(reference), positions=[1 - p for p in order])}
    return screen(run_samples(cells)).verdicts[0]


def test_a_slowdown_is_flagged_with_interval_and_coverage():
    report = screen(interleaved(dice(1), 20, slowdown=lambda i: 0.08 if i == 4 else 0))
    assert [v.cell.N for v in paired.flagged(report)] == [5]
    worst = report.verdicts[0]
    assert worst.interval[0] < worst.ratio < worst.interval[1]
    assert worst.covers == "rounds within this process pair"
    assert worst.n == "20 rounds, 1 process pair"
    assert report.exit_code == 1


def test_drift_cancels_until_the_reference_changes_too_much():
    assert screen(interleaved(dice(2), 20, drift=0.04)).exit_code == 0
    report = screen(interleaved(dice(2), 20, drift=0.2))
    assert report.exit_code == 3
    assert "the reference itself changed by +" in report.verdicts[0].reason


def test_two_modes_of_rounds_are_ambiguous():
    rng = dice(3)
    modes = [(0.06 if (turn // 4) % 2 else 0.0) + rng.gauss(0, 0.001) for turn in range(20)]
    assert one(modes).state is State.AMBIGUOUS


def test_ties_of_the_timer_are_judged():
    assert one([math.log(1.06)] * 20).state is State.SLOWER
    assert one([0.0] * 20).state is State.SAME
    assert one([math.log1p(0.03)] * 20).state is not State.SLOWER  # at the margin itself


def test_a_cell_that_depends_on_the_order_is_ambiguous():
    rng = dice(4)
    verdict = one([(0.04 if place else -0.04) + rng.gauss(0, 0.001) for place in ORDER])
    assert verdict.state is State.AMBIGUOUS
    assert "AB and BA differ by 8." in verdict.reason


def test_an_order_that_cannot_change_the_verdict_is_ignored():
    rng = dice(4)
    verdict = one([0.08 + (0.006 if place else -0.006) + rng.gauss(0, 0.001) for place in ORDER])
    assert verdict.state is State.SLOWER
    verdict = one([-0.08 + (0.006 if place else -0.006) + rng.gauss(0, 0.001) for place in ORDER])
    assert verdict.state is State.FASTER
    verdict = one([0.033 + (0.006 if place else -0.006) + rng.gauss(0, 0.001) for place in ORDER])  # one order is within the margin
    assert verdict.state is State.AMBIGUOUS
    assert "AB and BA differ by 1." in verdict.reason


def test_nan_is_never_a_success():
    assert one([math.nan] * 20).state is State.AMBIGUOUS


def test_too_few_rounds_name_the_number_needed():
    report = screen(interleaved(dice(5), 300, rounds=12))
    assert report.exit_code == 3
    assert "12 rounds cannot be significant after correction for 300 tests: use --rounds 13 or more" in report.verdicts[0].reason
    assert screen(interleaved(dice(5), 20, rounds=13)).exit_code == 0


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


def test_differences_between_processes_raise_margin_and_interval():
    run = interleaved(dice(7), 3, slowdown=lambda i: 0.05)
    process_sds = {key("new", 1): 0.001, key("new", 2): 0.012, key("new", 3): 0.04}
    found = {v.cell.N: v for v in screen(run, process_sds=process_sds).verdicts}
    assert found[1].margin == 0.03
    assert found[2].margin == pytest.approx(3 * math.sqrt(2) * 0.012)
    assert found[2].state is State.AMBIGUOUS
    assert not found[3].gated
    assert "more than 10%" in found[3].reason
    assert found[1].interval[1] - found[1].interval[0] < found[2].interval[1] - found[2].interval[0]
    assert "widened" in found[2].covers
    several = screen(interleaved(dice(8), 20, processes=3, process_sd=0.01))
    assert all(v.margin > 0.03 for v in several.verdicts)


@pytest.mark.parametrize(("slowdown", "code", "reason"), [(0.5, 1, "beyond"), (0.15, 3, "measure more processes"), (0.05, 3, "not gated")])
def test_a_large_slowdown_does_not_pass_because_its_processes_differ(slowdown, code, reason):
    """A spread of 4 % between processes raises the margin to 17 %: 50 % fails, 15 % is ambiguous, 5 % is reported."""
    run = interleaved(dice(7), 1, slowdown=lambda i: slowdown)
    report = screen(run, process_sds={key("new", 1): 0.04})
    (verdict,) = report.verdicts
    assert report.exit_code == code
    assert verdict.gated == (slowdown > 0.1)
    assert reason in verdict.reason.replace("slower by more than", "beyond")


def test_only_the_reference_makes_a_cell_launch_bound():
    run = interleaved(dice(1), 3, slowdown=lambda i: 0.2)
    for backend, N in (("new", 1), ("old", 2)):
        run.cells[key(backend, N)] = replace(run.cells[key(backend, N)], host_bound="do_bench measured 70 us")
    found = {verdict.cell.N: verdict for verdict in screen(run).verdicts}
    assert [found[N].gated for N in (1, 2, 3)] == [True, False, True]
    assert "do_bench measured 70 us" in found[2].reason
    assert "advisory" in screen(run).summary.partition(" (")[2]


def again(run, cells):
    return replace(run, cells={k: s for k, s in run.cells.items() if k.N in cells})


def test_a_regression_needs_agreement_of_fresh_processes():
    report = screen(interleaved(dice(9), 20, slowdown=lambda i: 0.08 if i < 2 else 0))
    fresh = interleaved(dice(10), 20, processes=2, slowdown=lambda i: 0.08 if i == 0 else 0)
    settled = paired.confirmed(report, again(fresh, {1, 2}), "old")
    assert [v.cell.N for v in settled.verdicts if v.fails] == [1]
    assert "confirmed in 2 fresh process pairs" in settled.verdicts[0].reason
    unstable = next(v for v in settled.verdicts if v.cell.N == 2)
    assert unstable.state is State.AMBIGUOUS
    assert unstable.reason.startswith("unstable: flagged once at 1.07")


def test_only_confirmed_regressions_stay_and_failures_are_broken():
    report = screen(interleaved(dice(9), 20, slowdown=lambda i: 0.08 if i == 0 else 0))
    assert paired.confirmed(report, None, "old").exit_code == 0
    broken = run_samples({key("new", 1): cell_samples(status="failed", reason="crashed"), key("old", 1): cell_samples((1.0,))})
    assert paired.confirmed(report, broken, "old").exit_code == 1


def gated(rng, cells, **noise):
    """Screen and confirm, as the command does."""
    report = screen(interleaved(rng, cells, **noise))
    found = {v.cell.N for v in paired.flagged(report)}
    return paired.confirmed(report, again(interleaved(rng, cells, processes=2, **noise), found), "old") if found else report


@pytest.mark.parametrize(("process_sd", "sigma"), [(0.002, 0.003), (0.005, 0.01)])
def test_simulated_identical_runs_end_with_exit_0(process_sd, sigma):
    rng = dice(11)
    codes = [gated(rng, 60, process_sd=process_sd, sigma=sigma).exit_code for _ in range(30)]
    assert codes.count(1) == 0
    assert codes.count(0) >= 0.95 * len(codes)


@pytest.mark.parametrize(
    ("slowdown", "process_sd", "sigma", "least", "most"),
    [(0.05, 0.002, 0.003, 0.8, 1), (0.08, 0.002, 0.003, 0.95, 1), (0.03, 0.002, 0.003, 0, 0.05), (0.08, 0.005, 0.01, 0.75, 1)],
)
def test_simulated_power_of_the_ratio_gate(slowdown, process_sd, sigma, least, most):
    """Every tenth of 100 cells is slower; the margin is 3 %, so a slowdown of 3 % should pass."""
    rng, found, injected = dice(12), 0, 0
    for _ in range(10):
        report = gated(rng, 100, process_sd=process_sd, sigma=sigma, slowdown=lambda i: slowdown if i % 10 == 0 else 0)
        found += sum(v.fails for v in report.verdicts if (v.cell.N - 1) % 10 == 0)
        injected += 10
        assert not any(v.fails for v in report.verdicts if (v.cell.N - 1) % 10)
    assert least <= found / injected <= most
