"""The pace of a run: cells, the time that is left, and what runs now."""

from dataclasses import replace

import pytest
from pretended import info, make

from softbench.core.case import Case, Direction
from softbench.core.outcome import Failed, Record, Skipped, Status
from softbench.plan import estimate
from softbench.processes.activity import Activity
from softbench.run.pace import Pace, working

FAILED = Failed(Status.FAILED, "build", "why")


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def activity(clock):
    return Activity(clock)


def pace_of(activity, cases=4, stored=lambda *_: False, names=("copy", "a", "b"), **settings):
    plan = make(names, **settings)
    sizes = range(1, cases + 1)
    return Pace(replace(plan, cases=tuple(replace(plan.cases[0], N=N) for N in sizes)), activity, stored)


def begun(pace, rounds=int):
    """Begin the first case; returns its backends. `rounds`: those that are over."""
    [names] = pace.plan.groups
    pace.begin(0, names, pace.plan.cases[0], rounds)
    return names


def measure(pace, clock, i, outcome=FAILED, process=0, **seconds):
    """Measure case i; each request takes these seconds."""
    [names] = pace.plan.groups
    case = pace.plan.cases[i]
    pace.begin(process, names, case, int)
    for op, taken in seconds.items():
        with pace.activity.waiting(op, names):
            clock.now += taken
    pace.end([Record(name, case, outcome) for name in names])


def test_a_slow_first_build_says_nothing_about_later_ones(activity, clock):
    pace = pace_of(activity, cases=100)
    before = pace.seconds_left()
    first = estimate.set_seconds(pace.plan)[0][2]
    measure(pace, clock, 0, build=60.0, check=first["check"], time=first["time"], profile=first["profile"])
    assert pace.seconds_left() == pytest.approx(before, rel=0.7)


@pytest.mark.parametrize("factor", [0.2, 5])
def test_finished_cases_correct_the_estimate(activity, clock, factor):
    """Of a machine that is five times as fast or slow, the estimate is within a factor of two after a third of the run."""
    pace = pace_of(activity, cases=30, rounds=20)
    truth = [{phase: factor * s for phase, s in seconds.items()} for _, _, seconds in estimate.set_seconds(pace.plan)]
    for i in range(10):
        measure(pace, clock, i, build=sum(s for p, s in truth[i].items() if "build" in p), **{p: truth[i][p] for p in ("check", "time")})
    left = sum(sum(seconds.values()) for seconds in truth[10:])
    assert left / 2 < pace.seconds_left() < left * 2


def test_time_passes_while_one_case_is_measured(activity, clock):
    pace = pace_of(activity, cases=1, rounds=1000)
    before = pace.seconds_left()
    begun(pace)
    clock.now += before / 2
    assert pace.seconds_left() == pytest.approx(before / 2, rel=0.1)
    clock.now += 10 * before
    assert pace.seconds_left() > before  # an overdue case is not about to end


def test_finished_rounds_say_what_their_case_has_left(activity, clock):
    pace = pace_of(activity, cases=1, rounds=10)
    rounds = 0
    names = begun(pace, lambda: rounds)
    for name in (*names, *names):
        with activity.waiting("time", [name]):
            clock.now += 1
        with activity.waiting("verify", [name]):
            clock.now += 9
    rounds = 2
    with activity.waiting("renew", names):
        assert pace.seconds_left() == pytest.approx(8 * 3 * 10, rel=0.3)


def test_a_slow_check_makes_its_own_case_longer(activity, clock):
    pace = pace_of(activity, cases=1, rounds=1000)
    before = pace.seconds_left()
    names = begun(pace)
    with activity.waiting("check", names):
        clock.now += 1.0
    with activity.waiting("time", names):
        assert pace.seconds_left() > 1.2 * before


def test_cells_that_are_never_measured_are_not_counted(activity, clock):
    pace = pace_of(activity, names=("copy", "a", info("b", unavailable="no GPU"), info("c", broken="no file")), processes=2)
    assert pace.cells == 2 * 4 * 2
    measure(pace, clock, 0)
    assert (pace.done, pace.cells) == (2, 16)
    before = pace.seconds_left()
    measure(pace, clock, 1, Skipped("only fp16"))
    assert (pace.done, pace.cells) == (2, 12)  # in the second process set too
    of_one_set = sum(estimate.case_seconds(pace.plan, pace.plan.cases[1], ("copy", "a"), first=False).values())
    assert before - pace.seconds_left() > 1.5 * of_one_set
    measure(pace, clock, 1, Skipped("only fp16"), process=1)
    assert (pace.done, pace.cells) == (2, 12)
    huge = Case(2**20, 2**20, "fp32", Direction.FORWARD, "cuda")
    plan = make(cases=1)
    assert Pace(replace(plan, cases=(*plan.cases, huge)), activity, lambda *_: False).cells == 3


def test_skips_that_are_known_beforehand_are_not_counted(activity):
    plan = make(cases=2, processes=3)
    skipped = [("a", plan.cases[1]), ("b", plan.cases[1])]
    known, unknown = (Pace(plan, activity, lambda *_: False, cells) for cells in (skipped, []))
    assert (known.cells, unknown.cells) == (3 * 4, 3 * 6)
    assert known.seconds_left() < unknown.seconds_left()


def test_stored_cells_are_done_and_take_no_time(activity):
    pace = pace_of(activity, stored=lambda process, _, case: case.N < 3, processes=2)
    assert (pace.done, pace.cells) == (2 * 2 * 3, 2 * 4 * 3)
    assert pace.seconds_left() < 0.7 * pace_of(activity, processes=2).seconds_left()


def test_the_present_phase_names_its_backends_and_case(activity, clock):
    pace = pace_of(activity, cases=1)
    [names] = pace.plan.groups
    with activity.waiting("load", ["torch"]):
        assert pace.doing() == "import of torch"
    pace.begin(0, names, pace.plan.cases[0], int)
    with activity.waiting("check", names):
        clock.now += 12
        assert pace.doing() == "check of copy, a, b on forward-fp32-8x1, for 12 s"
    with activity.waiting("renew", ["a"]):
        assert pace.doing() == "time of a on forward-fp32-8x1"
    with activity.waiting("build", "abcd"):
        assert working(activity) == "build of 4 backends"
