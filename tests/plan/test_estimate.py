"""Estimates of a run's time: sizes, phases, directions and machines count."""

from dataclasses import replace

import pytest
from pretended import info, make

from softbench.core.case import Case, Direction
from softbench.plan import estimate
from softbench.plan.plan import nothing_stored


def plan_of(*cases, names=("copy", "a"), device="cpu", **settings):
    return replace(make(names, **settings), cases=cases, device=device)


def profile_of(plan):
    """The seconds of the profiles, which only the first process set takes."""
    return sum(seconds["profile"] for _, _, seconds in estimate.set_seconds(plan))


def case(M, N, direction=Direction.FORWARD, dtype="fp32", device="cpu"):
    return Case(M, N, dtype, direction, device)


@pytest.mark.parametrize(("device", "times"), [("cpu", 5), ("cuda", 1.001)])
def test_a_large_case_takes_longer_than_a_small_one(device, times):
    small, large = (plan_of(case(1, N, device=device), device=device) for N in (100, 10_000_000))
    assert estimate.run_seconds(large) > times * estimate.run_seconds(small)
    both = plan_of(case(1, 10_000_000, Direction.BOTH, device=device), device=device)
    assert estimate.run_seconds(both) > estimate.run_seconds(large)


def test_products_of_matrices_take_their_time():
    loss = replace(case(8192, 128256, Direction.FUSED, "bf16", "cuda"), op="linear_cross_entropy")
    assert 60 < estimate.run_seconds(plan_of(loss, names=[f"b{i}" for i in range(9)], device="cuda", rounds=3, max_rounds=3)) < 240


def test_a_declared_build_counts_once_if_workers_build_at_once():
    slow = info("slow", build_seconds=100.0), info("slower", build_seconds=200.0)
    ample = plan_of(case(8, 8), names=slow)
    assert 200 < estimate.run_seconds(ample) < 210
    one_by_one = replace(ample, free_bytes=2**30)
    assert one_by_one.takes_turns(case(8, 8), 2)
    assert 300 < estimate.run_seconds(one_by_one) < 310


def test_the_first_build_of_a_dtype_or_direction_differs():
    plan = plan_of(case(8, 8), case(8, 16), case(8, 8, Direction.BACKWARD), case(8, 8, dtype="bf16"))
    builds = [[phase for phase in seconds if "build" in phase] for _, _, seconds in estimate.set_seconds(plan)]
    assert builds == [["first build"], ["build"], ["first build"], ["first build"]]


def test_what_cannot_be_measured_takes_no_time():
    huge = case(2**20, 2**20)
    plan = plan_of(huge, names=("copy", info("a", unavailable="no GPU")))
    assert plan.too_large(huge)
    assert estimate.case_seconds(plan, huge, ("copy", "a"), first=True) == {}
    assert estimate.case_seconds(plan, case(8, 8), ("a",), first=True) == {}


def test_process_sets_and_rounds_multiply_the_time():
    once, thrice = (estimate.run_seconds(plan_of(case(8, 8), processes=processes)) for processes in (1, 3))
    assert thrice == pytest.approx(3 * once - 2 * profile_of(plan_of(case(8, 8))))
    few, many = (plan_of(case(8, 8), rounds=rounds) for rounds in (1, 100))
    assert estimate.run_seconds(many) > 1.5 * estimate.run_seconds(few)


def test_the_judge_takes_time_in_the_first_process_set():
    """Measured with one thread: torch on 16 x 96 took 0.55 s after 3.6 s of start, and 9.2 s on 4096 x 4096."""
    small, large = case(16, 96), case(4096, 4096)
    for cases, most in (((small,), 4.7), ((small, small), 5.5), ((small, large), 15)):
        alone, judged = (estimate.run_seconds(plan_of(*cases, judge=judge)) for judge in ("worker", "separate"))
        assert 0.8 * most < judged - alone < most
    once, thrice = (estimate.run_seconds(plan_of(small, processes=n, judge="separate")) for n in (1, 3))
    assert thrice - once == pytest.approx(2 * (estimate.run_seconds(plan_of(small)) - profile_of(plan_of(small))))
    only_copy = estimate.case_seconds(plan_of(small, judge="separate"), small, ("copy",), first=True)
    assert only_copy["judge"] == 0


def test_on_a_gpu_later_process_sets_start_quickly():
    """Their forkserver starts while the set before them is measured; on a CPU each waits for its own."""
    for device, least, most in (("cuda", 3, 8), ("cpu", 0, 0)):
        plans = [plan_of(case(8, 8, device=device), device=device, processes=n) for n in (1, 2)]
        once, twice = (estimate.run_seconds(plan) - profile_of(plan) for plan in plans)
        assert least <= 2 * once - twice + 1e-9 and 2 * once - twice <= most + 1e-9


def test_loaded_backends_take_no_load_in_the_first_process_set():
    plan = plan_of(case(8, 8), case(8, 16), processes=2)
    load = sum(estimate.load_seconds(plan, ("copy", "a"), later=False).values())
    assert estimate.run_seconds(plan) - estimate.run_seconds(plan, loaded=True) == pytest.approx(load)
    apart = replace(plan, groups=(("copy",), ("a",)))  # not all alive at once, so each group loads when it is its turn
    assert estimate.run_seconds(apart) == estimate.run_seconds(apart, loaded=True)
    judged = plan_of(case(8, 8), judge="separate")
    assert estimate.set_seconds(judged, loaded=True)[0][2]["load"] == estimate.JUDGE_START


def test_stored_cells_take_no_time():
    plan = plan_of(case(8, 8), case(8, 16), processes=2)
    whole, left = (estimate.run_seconds(plan, stored=stored) for stored in (nothing_stored, lambda process, *_: process == 0))
    assert left == pytest.approx((whole - profile_of(plan)) / 2)
    [(only, _, seconds)] = estimate.set_seconds(plan, stored=lambda process, names, one: one == plan.cases[0])
    assert only == plan.cases[1]
    assert {"load", "first build"} < {*seconds}  # its workers are started, too
    assert estimate.run_seconds(plan, stored=lambda *_: True) == 0
    assert plan.left() == dict.fromkeys(plan.cases, 4)
    assert plan.left(lambda process, names, one: process == 0 or one == plan.cases[0]) == {plan.cases[1]: 2}


def test_no_phase_is_longer_than_its_deadline():
    """A check that is too slow ends its cells, and so does the first verification."""
    for N, most in ((10**10, 140), (10**8, 2 * 130 + 100)):
        found = estimate.case_seconds(plan_of(case(1, N)), case(1, N), ("copy", "a"), first=False)
        assert found["check"] + found["time"] < most
