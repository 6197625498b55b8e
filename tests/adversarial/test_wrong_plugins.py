"""Each wrong plugin fails by the rule that is meant for it. Correct plugins pass."""

import itertools

import pytest
from sampled import sampled
from wrongs import BUGS, CALLS, HONEST, PLUGINS, TRICKS, VALUES, grade, tried

from softbench.core.case import Case, Direction
from softbench.processes.pool import Pool


@pytest.fixture(scope="module")
def pool():
    with Pool() as pool:
        yield pool


@pytest.mark.parametrize(
    "bug", sampled([bug for bug in BUGS if not bug.gpu_only], lambda bug: BUGS.index(bug) % 2 == 0), ids=lambda bug: bug.name
)
def test_a_bug_is_wrong_where_correct_implementations_pass(bug):
    verdict, reason = grade(bug, bug.item, bug.direction, bug.dtype, "cpu")
    assert verdict == "wrong", (verdict, reason)
    assert bug.rule in reason, reason
    if bug.seems_right:
        assert grade(bug, bug.seems_right, bug.direction, bug.dtype, "cpu") == ("pass", "")
    for honest in HONEST:
        assert grade(honest, bug.item, bug.direction, bug.dtype, "cpu") == ("pass", ""), honest.name


TRIED = [trick for trick in TRICKS if not trick.cuda]
FIRST = list({(trick.stage, str(trick.rule)): trick for trick in reversed(TRIED)}.values())
"""The first trick of each stage and rule that finds it."""


@pytest.mark.parametrize("trick", sampled(TRIED, lambda trick: trick in FIRST), ids=lambda trick: trick.name)
def test_a_trick_is_detected_by_its_stage_and_rule(pool, trick):
    stage, verdict, reason = tried(pool, trick.name, "cpu", pause=0.05)
    assert (stage, verdict) == (trick.stage, "wrong"), reason
    assert any(rule in reason for rule in ([trick.rule] if isinstance(trick.rule, str) else trick.rule)), reason


@pytest.mark.parametrize(
    ("direction", "name"),
    sampled(
        itertools.product((Direction.FORWARD, Direction.BACKWARD), [honest.name for honest in HONEST]),
        lambda direction, name: (direction, name) in ((Direction.FORWARD, HONEST[0].name), (Direction.BACKWARD, HONEST[-1].name)),
    ),
)
def test_correct_implementations_pass_the_check_and_the_timed_batches(pool, name, direction):
    for case in (Case(64, 256, "fp32", direction, "cpu"), Case(1, 4097, "bf16", direction, "cpu"), Case(3, 1, "fp16", direction, "cpu")):
        assert tried(pool, name, "cpu", case, PLUGINS / "correct" / "variants.py")[:2] == ("time", "pass")


def test_there_are_enough_tricks_and_bugs_with_unique_names():
    assert len(TRICKS) >= 20
    assert len(BUGS) >= 25
    assert len(VALUES) >= 40
    every = (*TRICKS, *BUGS, *VALUES, *CALLS, *HONEST)
    assert len({(plugin.name, type(plugin).__module__) for plugin in every}) == len(every)
