"""The command that a report names repeats what was asked, and the shell takes it as it is printed."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from gating import dice, key, run_samples, stored

from softbench.gate import next_step
from softbench.gate.verdicts import GateReport, Rules, State, Verdict

GIVEN = ["/opt/my env/softbench", "gate", "--N", "8", "--N=16", "--plugin", "ours=/my data/a.py", "--device", "cpu", "--margin", "4"]
BASE = stored(dice(1), 10, cells=2)


def report(state):
    """A report of one cell. If it is ambiguous, it is inconclusive."""
    return GateReport("x", (Verdict(key("ours", 8), state, "why"),), Rules(margin=0.05))


def command_in(step):
    return shlex.split(step.partition(": ")[2])


def test_more_pairs_and_processes_keep_every_option():
    pairs = next_step.after_pairs(report(State.AMBIGUOUS), shlex.join(GIVEN), 1)
    assert command_in(pairs) == [*GIVEN, "--processes", "10"]
    processes = next_step.after_new_processes(report(State.AMBIGUOUS), shlex.join([*GIVEN, "--processes=3"]), BASE, 3)
    assert command_in(processes) == [*GIVEN, "--processes", "6"]


@pytest.mark.parametrize(("given", "candidate"), [([], "softmax"), (["--candidate", "a:f"], "a:f"), (["--candidate", "x"], "softmax")])
def test_the_worst_target_is_measured_alone(given, candidate):
    step = next_step.after_packages(report(State.SLOWER), shlex.join(["softbench", "gate", *given]), 6)
    words = command_in(step)
    assert words[words.index("--candidate") + 1] == candidate and words.count("--candidate") == 1


def test_a_command_replaces_no_file_of_the_report():
    given = [*GIVEN[:2], "--json", "/runner/gate.json", "--output=/runner/out", "--junit", "gate.xml"]
    step = next_step.after_pairs(report(State.AMBIGUOUS), shlex.join(given), 1)
    assert command_in(step) == [*GIVEN[:2], "--processes", "10"]


def test_stored_runs_are_measured_again_with_every_option(tmp_path, monkeypatch):
    new = run_samples({}, command="softbench run --plugin 'a b.py' --plugin=c.py")
    typed = "softbench gate --margin 4 ./a.csv 'b c.csv' --baseline a.csv --json report.json"
    step = next_step.after_files(report(State.AMBIGUOUS), typed, [Path("a.csv"), Path("b c.csv")], new, BASE)
    assert command_in(step) == shlex.split("softbench gate --margin 4 --baseline a.csv --plugin 'a b.py' --plugin=c.py")
    assert "(add the folder of a b.py, c.py, which results do not store): " in step
    (tmp_path / "c.py").touch()
    monkeypatch.chdir(tmp_path)
    step = next_step.after_files(report(State.AMBIGUOUS), typed, [], new, BASE)
    assert "(add the folder of a b.py, which results do not store): " in step
    new = run_samples({}, command="softbench run --plugin new=gone.py:fast --plugin=old=c.py:fast --plugin torch.nn.functional:softmax")
    step = next_step.after_files(report(State.AMBIGUOUS), typed, [], new, BASE)
    assert "(add the folder of gone.py, which results do not store): " in step


def test_a_new_baseline_names_plugins_as_they_were_typed():
    base = run_samples(BASE.cells, command="softbench run --M 4096 --plugin ours=a.py")
    step = next_step.after_new_processes(report(State.SLOWER), shlex.join(GIVEN), base, 3)
    assert command_in(step) == ["softbench", "run", "--M", "4096", "--processes", "10", "--plugin", "ours=/my data/a.py"]


@pytest.mark.parametrize("state", [State.SAME, State.FASTER, State.NEW])
def test_a_report_that_passes_needs_no_step(state):
    passed = GateReport("x", (Verdict(key("ours", 8), State.SAME, ""), Verdict(key("ours", 9), state, "")), Rules(margin=0.05))
    assert next_step.after_pairs(passed, "", 1) == next_step.after_new_processes(passed, "", BASE, 3) == ""
    assert next_step.after_files(passed, "", [], BASE, BASE) == ""


def test_a_broken_cell_is_checked_before_it_is_measured_again():
    step = next_step.after_pairs(report(State.BROKEN), shlex.join(GIVEN), 1)
    options = shlex.join(["--dtype", "bf16", "--direction", "forward", "--plugin", "ours=/my data/a.py", "--device", "cpu"])
    check, inspect = f"check --backends ours {options}", f"inspect ours --M 4096 --N 8 {options}"
    assert step.startswith("1 cell of ours broke, so find the error before you measure again: ")
    assert step.endswith(f": '/opt/my env/softbench' {check}; or look at the code of that case: '/opt/my env/softbench' {inspect}")
    assert next_step.after_new_processes(report(State.BROKEN), shlex.join(GIVEN), BASE, 3) == step
    new = run_samples({}, command="softbench run --plugin ours.py")
    step = next_step.after_files(report(State.BROKEN), "softbench gate a.csv --baseline b", [Path("a.csv")], new, BASE)
    assert "softbench check --backends ours --dtype bf16 --direction forward --plugin ours.py" in step


def test_a_cell_of_a_problem_is_named_as_the_problem_was_typed():
    given = ["softbench", "gate", "--problem", "kernelbench:p.py,new.py", "--N=8,16", "--reference", "reference"]
    cell = key("new", 8)._replace(op="p(K=64)")
    found = GateReport("x", (Verdict(cell, State.SLOWER, "why"), Verdict(cell, State.BROKEN, "why")), Rules(margin=0.05))
    alone = "--reference reference --problem kernelbench:p.py,new.py --set K=64 --N 8 --dtype bf16 --direction forward --processes 10"
    slower = replace(found, verdicts=found.verdicts[:1])
    assert next_step.after_pairs(slower, shlex.join(given), 6).endswith(f": softbench gate {alone}")
    problem = "--dtype bf16 --direction forward --problem kernelbench:p.py,new.py --set K=64"
    broken = next_step.after_pairs(found, shlex.join(given), 6)
    assert f": softbench check --backends new {problem}; " in broken
    assert broken.endswith(f": softbench inspect new --N 8 {problem}")
    new = run_samples({}, command="softbench run --problem p.py --M 8")
    step = next_step.after_files(report(State.AMBIGUOUS), "softbench gate a.csv --baseline b", [Path("a.csv")], new, BASE)
    assert command_in(step) == shlex.split("softbench gate --baseline b --problem p.py")


def test_a_cell_that_is_right_on_neither_side_is_checked():
    step = next_step.after_pairs(report(State.FAILED), shlex.join(GIVEN), 1)
    assert step.startswith("1 cell of ours failed, so find the error, or leave the case out, before you measure again: ")


def test_one_cell_of_a_configuration_replaces_its_sweeps():
    """`--shape` excludes `--M`, and parameters of the configuration would stay without an operation."""
    slower = GateReport("x", (Verdict(key("ours", 8), State.SLOWER, "why"),), Rules(margin=0.05))
    step = next_step.after_pairs(slower, "softbench gate --config c.toml --shape 4x8,9x8 --dim -1 --set scale=2", 1)
    shape = ["--M", "4096", "--N", "8", "--dtype", "bf16", "--direction", "forward"]
    assert command_in(step) == ["softbench", "gate", "--config", "c.toml", "--op", "softmax", *shape, "--processes", "10"]


def test_a_missing_cell_has_no_command_that_measures_it_again():
    assert next_step.after_pairs(report(State.MISSING), shlex.join(GIVEN), 1).startswith("column why has the reason of each missing cell")


@pytest.mark.parametrize(("shape", "dim"), [("64x8x64@dim1", "1"), ("64x64x8", "-1")])
def test_the_command_for_an_nd_case_gives_its_shape(shape, dim):
    cell = key("ours", 8)._replace(shape=shape)
    broken = GateReport("x", (Verdict(cell, State.BROKEN, "why"),), Rules(margin=0.05))
    typed = "softbench gate --shape 64x8x64,64x64x8 --dim -1,1"
    extents = f"--shape {shape.partition('@')[0]} --dim {dim} --dtype bf16 --direction forward"
    assert f"softbench inspect ours {extents}" in next_step.after_pairs(broken, typed, 1)
    slower = replace(broken, verdicts=(Verdict(cell, State.SLOWER, "why"),))
    assert command_in(next_step.after_pairs(slower, typed, 1)) == shlex.split(f"softbench gate {extents} --processes 10")
