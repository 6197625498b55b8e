"""`softbench bisect`: the search on simulated commits, each comparison judged by the gate's own code."""

import math

import numpy as np
import pytest
from gating import key
from simulate_gate import Noise, SameRun

from softbench.gate import bisect, paired
from softbench.gate.bisect import Decision, Search, Step
from softbench.gate.verdicts import GateReport, Rules, State, Verdict

COMMITS = [f"c{number}" for number in range(31)]
"""The start and 30 commits."""


def slowed(planted, place):
    """How much slower a commit is than the first one."""
    return math.prod(1 + by for where, by in planted.items() if where <= place)


class Measured:
    """Compares two commits by the gate on simulated process pairs of two cells. Some commits cannot be decided."""

    def __init__(self, planted, seed, undecided=(), tau=0.003):
        self.planted, self.rng, self.undecided, self.tau = planted, np.random.default_rng(seed), undecided, tau

    def __call__(self, commit, against, cells):
        if commit in self.undecided:
            return Step(commit, against, Decision.UNDECIDED, "it does not build")
        new, old = (slowed(self.planted, COMMITS.index(one)) for one in (commit, against))
        run = SameRun(self.rng, Noise(tau=self.tau, slower=new / old - 1), 2)
        return bisect.decided(run.judge(6, paired.MARGIN), commit, against, cells)


def search(planted, seed=1, commits=COMMITS, **given):
    found = Search(commits, Measured(planted, seed, **given))
    return [*found.run()], found.steps


@pytest.mark.parametrize("seed", range(4))
def test_three_slowdowns_in_thirty_commits_are_each_named_in_seven_steps(seed):
    rng = np.random.default_rng(seed)
    planted = {int(place): 0.06 + 0.04 * rng.random() for place in rng.choice(np.arange(1, 31), 3, replace=False)}
    found, _ = search(planted, seed, tau=0.006)
    assert [(one.commit, one.before) for one in found] == [(COMMITS[place], COMMITS[place - 1]) for place in sorted(planted)]
    assert all(one.named and one.steps <= 7 for one in found)
    assert bisect.steps_at_most(30) == 7


def test_undecided_commits_are_walked_around():
    """Commits at the middle do not build. Those beside the slow one leave a range that is named."""
    found, steps = search({20: 0.08}, undecided={"c15", "c14", "c7"})
    assert [(one.commit, one.undecided) for one in found] == [("c20", ())]
    assert {step.commit for step in steps if step.decision is Decision.UNDECIDED} <= {"c15", "c14", "c7"}
    ((one,), _) = search({20: 0.08}, undecided={"c19", "c20"})
    assert (one.commit, one.before, one.undecided, one.named) == ("c21", "c18", ("c19", "c20"), False)


def test_a_machine_too_noisy_to_decide_ends_the_search_after_a_few_commits():
    """The ends differ by enough; what lies between is measured at most MOST_UNDECIDED times, and the rest is in the range."""

    def compare(commit, against, cells):
        if (commit, against) == ("c30", "c0"):
            return step(verdict(1, State.SLOWER, 1.2, 1.15))
        return step(verdict(1, State.SAME), verdict(2, State.AMBIGUOUS, 1.2, 1.02))

    search = Search(COMMITS, compare)
    (one,) = list(search.run())[:1]
    assert (one.commit, one.before, len(one.undecided), one.named) == ("c30", "c0", 29, False)
    assert one.steps == 1 + bisect.MOST_UNDECIDED


def test_a_large_slowdown_is_sought_by_its_half():
    """An interval that excludes the slowdown but not the margin is decided; one with the half is not, nor a small one."""

    def of_half(low, high, size):
        open_one = Verdict(key("new", 1), State.AMBIGUOUS, "why", math.sqrt(low * high), (low, high), margin=0.03)
        worst = Verdict(key("new", 1), State.SLOWER, "why", size, (size, size), margin=0.03)
        return bisect.of_half(step(open_one), step(worst)).decision

    assert of_half(0.900, 1.103, 27.0) is Decision.WITHIN
    assert of_half(1.02, 40.0, 27.0) is of_half(0.9, 1.103, 1.08) is of_half(1.1, 2.0, 27.0) is Decision.UNDECIDED
    assert of_half(6.0, 40.0, 27.0) is Decision.SLOWER


def test_more_process_pairs_are_measured_only_if_they_may_decide():
    def open_step(ratio, high):
        return step(verdict(1, State.SAME), Verdict(key("new", 2), State.AMBIGUOUS, "why", ratio, (ratio**2 / high, high), margin=0.03))

    assert bisect.more_may_decide(open_step(1.06, 1.10), 4)  # 1.04 is beyond the margin
    assert bisect.more_may_decide(open_step(1.00, 1.05), 4)
    assert not bisect.more_may_decide(open_step(1.02, 1.2), 4)
    assert not bisect.more_may_decide(Step("b", "a", Decision.UNDECIDED, "it does not build"), 4)


def test_noise_never_leads_the_wrong_way():
    """Processes differ so much that many comparisons decide nothing. What is named is right, or a range has it."""
    for seed in range(6):
        found, _ = search({11: 0.08}, seed, tau=0.03)
        for one in found:
            assert one.commit == "c11" or "c11" in one.undecided or COMMITS.index(one.before) < 11 <= COMMITS.index(one.commit)


def test_a_range_that_is_not_slower_takes_one_step():
    assert search({})[0] == []
    assert len(search({})[1]) == 1
    ((one,), steps) = search({1: 0.1}, commits=COMMITS[:2])
    assert (one.commit, one.steps, len(steps)) == ("c1", 1, 1)


def test_many_small_slowdowns_have_no_single_cause():
    found, _ = search(dict.fromkeys(range(1, 31), 0.002))
    assert found and not any(one.named for one in found)


def step(*verdicts):
    return bisect.decided(GateReport("x", verdicts, Rules(margin=0.03)), "new", "old", [key("new", 1), key("new", 2)])


def verdict(N, state, high=1.01, ratio=1.0):
    return Verdict(key("new", N), state, "why", ratio, (0.99, high), margin=0.03)


def test_what_a_report_decides():
    same, open_one = verdict(1, State.SAME), verdict(2, State.AMBIGUOUS, 1.2, 1.02)
    assert step(same, verdict(2, State.SLOWER, 1.2, 1.1), verdict(3, State.AMBIGUOUS, 1.2)).text == (
        "slower: new forward-bf16-4096x2 1.100 [0.990, 1.200]"
    )
    assert step(same, open_one).decision is Decision.UNDECIDED
    assert step(same, verdict(2, State.AMBIGUOUS, 1.02), verdict(3, State.SLOWER)).decision is Decision.WITHIN
    assert step(same, Verdict(key("new", 2), State.BROKEN, "is wrong")).decision is Decision.SLOWER
    assert step(same, Verdict(key("new", 2), State.FAILED, "wrong on both sides")).decision is Decision.UNDECIDED
    assert step().decision is Decision.UNDECIDED
