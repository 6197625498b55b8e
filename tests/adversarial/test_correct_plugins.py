"""Honest plugins that do unusual things are accepted by `check` and by `run`, with results."""

import csv

import pytest
from wrongs import ARITHMETIC, HABITS, PLUGINS, grade

from softbench.core.case import Direction
from softbench.ops.softmax import NUMERICS

OVERFLOW = ("largest and smallest", "all the smallest")
"""Check cases whose maximum times log2(e) overflows float32, and so makes a fused exponent NaN."""
CASES = [
    item
    for item in NUMERICS.check_cases("softmax")
    if not item.gpu_only and not item.name.startswith(("shape 65", "shape 5x", "shape 3x", "shape 18", "shape 1x13"))
]
"""Without those of many rows or long rows."""
OF_CALLS = [item for item in CASES if item.repeat or item.name.startswith("shape 37")]
"""The cases that call a backend in a special way, and small shapes: a habit is about calls, not about values."""


shares = pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow, id="all"), pytest.param(12, id="every twelfth")])


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
    assert "fused-exponent: low-precision (" in shown
    assert "in a row whose maximum is 1e+07" in shown


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
    assert (verdict, "x the bound" in reason) == ("wrong", True)


@pytest.mark.slow  # by default a check has them
def test_run_measures_honest_habits(cli):
    directions = ("forward", "backward", "both")
    names = ",".join(plugin.name for plugin in HABITS)
    rows, _ = measured(cli, "habits.py", "--backends", names, "--dtype", "fp32", "--direction", ",".join(directions))
    assert len(rows) == len(HABITS) * len(directions)
    assert {(row["status"], row["class"], float(row["gbps"]) > 0) for row in rows} == {("ok", "pass", True)}, rows
