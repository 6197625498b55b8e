"""Wrong kernels are rejected, each by the rule that is meant for it. Honest ones that do unusual things are accepted."""

import csv
import itertools
from fnmatch import fnmatchcase

import pytest
import torch
from sampled import sampled
from wrongs import ARITHMETIC, BUGS, HABITS, HONEST, PLUGINS, TRICKS, VALUES, grade, honest_ones_pass, tried

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.softmax import NUMERICS
from softbench.processes.worker_pool import Pool
from softbench.worker.checking.pre_check import PreCheck, verify_outputs


@pytest.fixture(scope="module")
def pool(forked):
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
    assert honest_ones_pass(bug.item, bug.direction, bug.dtype)


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
        lambda direction, name: (direction, name) == (Direction.BACKWARD, HONEST[-1].name),
    ),
)
def test_correct_implementations_pass_the_check_and_the_timed_batches(pool, name, direction):
    for case in (Case(64, 256, "fp32", direction, "cpu"), Case(1, 4097, "bf16", direction, "cpu"), Case(3, 1, "fp16", direction, "cpu")):
        assert tried(pool, name, "cpu", case, PLUGINS / "correct" / "variants.py")[:2] == ("time", "pass")


CPU = torch.device("cpu")


IN_CHECK = sampled(VALUES, lambda bug: not bug.in_run or VALUES.index(bug) % 6 == 1)
"""By default the bugs that only `check` finds, and a sixth of those that the structured rows of a run find too."""


@pytest.mark.parametrize("bug", IN_CHECK, ids=lambda bug: bug.name)
def test_a_bug_hidden_by_normal_values_is_found_by_check(bug):
    names = [item.name for item in NUMERICS.check_cases("softmax") if item.direction is bug.direction and fnmatchcase(item.name, bug.item)]
    assert names
    reasons = [reason for name in names for verdict, reason in [grade(bug, name, bug.direction, bug.dtype, "cpu")] if verdict == "wrong"]
    assert reasons
    assert all("should be" in reason or "gives NaN in rows that hold -inf" in reason for reason in reasons)


@pytest.mark.parametrize(
    "bug", sampled([bug for bug in VALUES if bug.in_run], lambda bug: VALUES.index(bug) % 4 == 0), ids=lambda bug: bug.name
)
def test_a_bug_hidden_by_normal_values_is_found_before_timing(bug):
    case = Case(96, 4096, bug.dtype, bug.direction, "cpu")
    found = PreCheck(case, bug.function, NUMERICS.make(case, 0, CPU), bug, None).run(3)
    assert found.grade is Grade.WRONG
    assert "(wrong structured rows: " in found.detail


def test_a_kept_output_is_told_from_a_wrong_one():
    case = Case(96, 64, "fp32", Direction.FORWARD, "cpu")
    given = NUMERICS.make(case, 3, CPU)
    for kept, told in ((torch.softmax(given[0], -1), True), (torch.zeros_like(given[0]), False)):
        found = PreCheck(case, lambda x, kept=kept: kept, given, object(), None).run(9, earlier=3)
        assert found.grade is Grade.WRONG
        assert found.detail.startswith("returned the output of an earlier input: ") is told


@pytest.mark.slow
def test_the_bugs_are_right_on_normal_values():
    """Except where a bug is so coarse that normal values show it, too."""
    hidden = 0
    for bug in VALUES:
        case = Case(16, 4096, bug.dtype, bug.direction, "cpu")
        given = NUMERICS.make(case, 0, CPU)
        outputs = bug.function(*given)
        hidden += verify_outputs(bug, case, given, outputs if isinstance(outputs, tuple) else (outputs,)).grade is Grade.PASS
    assert hidden >= 40


OVERFLOW = ("largest and smallest", "all the smallest")
"""Check cases whose maximum times log2(e) overflows float32, and so makes a fused exponent NaN."""
CASES = [
    item
    for item in NUMERICS.check_cases("softmax")
    if not item.gpu_only
    and not item.name.startswith(
        (
            "shape 65",
            "shape 5x",
            "shape 6x",
            "shape 7x",
            "shape 2x",
            "shape 18",
            "shape 1x1",
            "shape 1x5",
            "structured 1310",
            "structured 2x",
        )
    )
]
"""Without those of many rows or long rows."""
OF_CALLS = [item for item in CASES if item.repeat or item.name.startswith("shape 37")]
"""The cases that call a backend in a special way, and small shapes: a habit is about calls, not about values."""


shares = pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(48, id="a few")])


@shares
@pytest.mark.parametrize("plugin", ARITHMETIC, ids=lambda plugin: plugin.name)
def test_honest_arithmetic_gets_its_classes_in_check(plugin, share):
    for item in dict.fromkeys([*CASES[::share], *(item for item in CASES if item.name in OVERFLOW)]):
        found, reason = grade(plugin, item.name, item.direction, "fp32", "cpu")
        if plugin.name == "fused-exponent" and item.name in OVERFLOW:
            assert (found, " is nan " in reason) == ("wrong", True)
        else:
            assert found in plugin.classes, (item.name, reason)


def measured(cli, file, *more):
    """The rows of a run of all backends of a plugin file, without the yardstick."""
    done = cli("run", "--plugin", PLUGINS / "correct" / file, "--device", "cpu", "--quick", "--M", "32", "--N", "513", *more)
    assert done.returncode == 0, done.stdout + done.stderr
    with (cli.folder / "results" / "latest.csv").open() as latest:
        return [row for row in csv.DictReader(latest) if row["backend"] != "copy"], done.stdout


@pytest.mark.slow
def test_run_measures_honest_arithmetic(cli):
    names = ",".join(plugin.name for plugin in ARITHMETIC)
    rows, shown = measured(cli, "arithmetic.py", "--backends", names, "--dtype", "fp32", "--direction", "forward,backward,both")
    classes = {plugin.name: plugin.classes for plugin in ARITHMETIC}
    assert len(rows) == len(ARITHMETIC) * 3
    for row in rows:
        assert row["status"] == "ok", row
        assert float(row["gbps"]) > 0
        assert row["class"] in classes[row["backend"]], row
    fused = [row for row in rows if (row["backend"], row["dtype"], row["direction"]) == ("fused-exponent", "fp32", "forward")]
    assert {row["class"] for row in fused} == {"low-precision"}
    assert "~ low-precision" in shown
    reasons = cli("show", "--long").stdout
    assert "fused-exponent: low-precision (" in reasons
    assert "in a row whose maximum is 1e+07" in reasons


@shares
@pytest.mark.parametrize("plugin", HABITS, ids=lambda plugin: plugin.name)
def test_honest_habits_pass_in_check(plugin, share):
    """By default a habit has all special calls of one direction, and the next habit those of the next one."""
    direction = (Direction.FORWARD, Direction.BACKWARD, Direction.BOTH)[HABITS.index(plugin) % 3]
    special = (item for item in OF_CALLS if item.repeat and item.direction is direction)
    for item in dict.fromkeys([*OF_CALLS[::share], *special]):
        found, reason = grade(plugin, item.name, item.direction, "fp32", "cpu")
        assert found == "pass", (item.name, reason)


def test_a_varying_result_is_a_note_within_the_bound_only():
    varying = next(plugin for plugin in HABITS if plugin.name == "sums-in-varying-order")
    assert grade(varying, "twice the same", Direction.FORWARD, "fp32", "cpu") == ("pass", "varies from call to call, within the bound")
    right = varying.functions[Direction.FORWARD]
    calls = iter((right, lambda x: right(x) * 1.001))
    second_is_wrong = type(varying)("second-is-wrong", forward=lambda x: next(calls)(x))
    verdict, reason = grade(second_is_wrong, "twice the same", Direction.FORWARD, "fp32", "cpu")
    assert (verdict, "should be" in reason) == ("wrong", True)


@pytest.mark.slow  # by default a check has them
def test_run_measures_honest_habits(cli):
    directions = ("forward", "backward", "both")
    names = ",".join(plugin.name for plugin in HABITS)
    rows, _ = measured(cli, "habits.py", "--backends", names, "--dtype", "fp32", "--direction", ",".join(directions))
    assert len(rows) == len(HABITS) * len(directions)
    assert {(row["status"], row["class"], float(row["gbps"]) > 0) for row in rows} == {("ok", "pass", True)}, rows
