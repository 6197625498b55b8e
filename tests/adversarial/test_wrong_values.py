"""Bugs that normal values hide are found by structured rows, in `check` and before timing."""

from fnmatch import fnmatchcase

import pytest
import torch
from sampled import sampled
from wrongs import VALUES, grade

from softbench.core.case import Case
from softbench.core.outcome import Grade
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking.pre_check import PreCheck, verify_outputs

CPU = torch.device("cpu")


IN_CHECK = sampled(VALUES, lambda bug: not bug.in_run or VALUES.index(bug) % 6 == 1)
"""By default the bugs that only `check` finds, and a sixth of those that the structured rows of a run find too."""


@pytest.mark.parametrize("bug", IN_CHECK, ids=lambda bug: bug.name)
def test_a_bug_hidden_by_normal_values_is_found_by_check(bug):
    names = [item.name for item in NUMERICS.check_cases("softmax") if item.direction is bug.direction and fnmatchcase(item.name, bug.item)]
    assert names
    reasons = [reason for name in names for verdict, reason in [grade(bug, name, bug.direction, bug.dtype, "cpu")] if verdict == "wrong"]
    assert reasons
    assert all("x the bound" in reason for reason in reasons)


@pytest.mark.parametrize(
    "bug", sampled([bug for bug in VALUES if bug.in_run], lambda bug: VALUES.index(bug) % 2 == 0), ids=lambda bug: bug.name
)
def test_a_bug_hidden_by_normal_values_is_found_before_timing(bug):
    case = Case(96, 4096, bug.dtype, bug.direction, "cpu")
    found = PreCheck(case, bug.function, NUMERICS.make(case, 0, CPU), bug, None).run(3)
    assert found.grade is Grade.WRONG
    assert "(structured rows: " in found.detail


def test_the_bugs_are_right_on_normal_values():
    """Except where a bug is so coarse that normal values show it, too."""
    hidden = 0
    for bug in VALUES:
        case = Case(16, 4096, bug.dtype, bug.direction, "cpu")
        given = NUMERICS.make(case, 0, CPU)
        outputs = bug.function(*given)
        hidden += verify_outputs(bug, case, given, outputs if isinstance(outputs, tuple) else (outputs,)).grade is Grade.PASS
    assert hidden >= 40
