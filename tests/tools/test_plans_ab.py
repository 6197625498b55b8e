"""tools/plans_ab.py and .toml: the kernels are those of the other checkout, and the cells are all of frontier and 400 random ones."""

import sys
from pathlib import Path

import pytest

from softbench.core.case import Case, Direction
from softbench.plan import config_file
from softbench.plan.sweep import cases
from softbench.plugins.source import import_file

TOOL = Path(__file__).parents[2] / "tools" / "plans_ab.py"
DISPATCH = "from types import SimpleNamespace\nsoftmax = SimpleNamespace(forward_rows='forwards of it', backward_rows='backwards of it')\n"


@pytest.mark.parametrize(("direction", "found"), [("forward", "forwards of it"), ("backward", "backwards of it")])
def test_the_kernels_are_those_of_the_other_checkout(direction, found, tmp_path, monkeypatch):
    folder = tmp_path / "kernels" / "triton"
    folder.mkdir(parents=True)
    for name, text in (("__init__", "raise AssertionError"), ("dispatch", DISPATCH)):
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("BEFORE", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # without a GPU the kernels need it
    monkeypatch.setenv("SOFTBENCH_PLANS", "of this checkout")
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "before"]:
        monkeypatch.delitem(sys.modules, name)
    other, backend = import_file(TOOL).backends
    assert other.available() == f"there is no {tmp_path}/kernels/cuda/launch.py; run: git worktree add before COMMIT"
    assert (backend.name, backend.available()) == ("triton-before", None)
    assert backend.prepare(Case(4, 5, "fp32", Direction(direction), "cuda")) == found


def test_the_cells_are_all_of_frontier_and_400_random_shapes():
    every, frontier = (cases(config_file.load(name)["sweep"], "cuda") for name in (str(TOOL.with_suffix(".toml")), "frontier"))
    known = {case for case in frontier if case.dtype != "fp16"}
    assert known < {*every}
    drawn = [case for case in every if case not in known]
    assert len({(case.M, case.N) for case in drawn}) == len(drawn) == 400
    assert all(48 <= case.N <= 300_000 and 8e6 - case.N < case.M * case.N < 1e8 for case in drawn)
    assert len({(case.dtype, case.direction) for case in drawn}) == 4
