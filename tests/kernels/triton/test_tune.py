"""Measuring a table: which plans are tried, and what a table keeps if cells fail or the measurement is interrupted."""

import json
from dataclasses import replace

import pytest
import torch
from softbench.kernels.triton import heuristics, tune
from softbench.kernels.triton.launch_plan import Plan, Problem, plan_to_json

PROBLEM = Problem(False, 4096, 65536, 4, 16, True, 132, True)
SPLIT = Plan("split", 8, 256, 4, 4, 0, 8, 64, smem_tiles=11)
CELL = (False, torch.float32, 4096, 65536)


@pytest.fixture
def without_gpu(monkeypatch):
    monkeypatch.setattr(tune, "operands", lambda *_: (torch.randn(2, 8), torch.empty(2, 8)))
    monkeypatch.setattr(tune, "is_right", lambda *_: True)
    monkeypatch.setattr(tune, "time_ms", lambda _: 1.0)
    monkeypatch.setattr(tune.dispatch, "problem_of", lambda _: PROBLEM)
    monkeypatch.setattr(tune.dispatch, "compiled_call", lambda _problem, plan, _tensors: plan)


def test_with_few_plans_the_tables_plan_is_tried_too(without_gpu, monkeypatch):
    """Otherwise the best of too few plans would replace it: a cluster plan was once replaced by split plans of half its speed."""
    plans = list(heuristics.candidates(PROBLEM))
    known = next(plan for plan in plans[3:] if plan.tier == "cluster")
    monkeypatch.setattr(tune, "_try", lambda *_: None)
    monkeypatch.setattr(tune, "time_ms", lambda call: 0.5 if call == known else 1.0)
    line = (*heuristics.bucket(PROBLEM), plan_to_json(known))
    assert tune.measure_cell(*CELL, 2)[3] == plan_to_json(plans[0])
    assert tune.measure_cell(*CELL, 2, {line[:3]: line})[3] == plan_to_json(known)
    assert tune.measure_cell(*CELL)[3] == plan_to_json(known)


@pytest.mark.parametrize(("N", "warps"), [(8, [8]), (48, [])])
def test_only_plans_that_a_table_may_give_are_tried(without_gpu, monkeypatch, N, warps):
    """A tile of 64 columns for 48 is never taken from a table. Programs of eight warps are for one row a thread."""
    problem = replace(PROBLEM, M=(1 << 26) // N, N=N)
    tried = []
    monkeypatch.setattr(tune.dispatch, "problem_of", lambda _: problem)
    monkeypatch.setattr(tune, "_try", lambda _, plan: tried.append(plan))
    tune.measure_cell(False, torch.float32, problem.M, N)
    assert tried[0] == heuristics.by_heuristics(problem)
    assert all(heuristics.fit(problem, plan) == plan for plan in tried)
    assert "tile" in {plan.tier for plan in heuristics.candidates(problem)}
    assert "tile" not in {plan.tier for plan in tried}
    assert [plan.warps for plan in tried if plan.warps > 4] == warps


@pytest.mark.parametrize("only", ["some", ""])
def test_a_cell_without_a_working_plan_keeps_its_line(without_gpu, monkeypatch, tmp_path, capsys, only):
    monkeypatch.setattr(tune, "_try", lambda *_: "out of resources")
    monkeypatch.setattr(tune, "cells", lambda _: [CELL])
    file = tmp_path / "mine.json"
    line = [*heuristics.bucket(PROBLEM), {"tier": "rows", "tiles": 4}]
    file.write_text(json.dumps([line]))
    assert tune.measure(file, only, 2) == (0, 1)
    assert json.loads(file.read_text()) == [line]
    assert "forward float32 4096x65536: no plan ran and was right" in capsys.readouterr().err


def test_an_interrupted_tune_keeps_new_and_old_lines(monkeypatch, tmp_path):
    file = tmp_path / "tables" / "mine.json"
    old = [["forward 4 16", 80, 12, {"tier": "rows", "tiles": 2}], ["forward 4 16", 88, 12, {"tier": "rows", "tiles": 3}]]
    new = ("forward 4 16", 88, 12, {"tier": "rows", "tiles": 4})

    def measure_cell(cell, _most, table):
        assert len(table) == 2
        if cell == "broken":
            raise KeyboardInterrupt
        return new

    monkeypatch.setattr(tune, "measure_cell", measure_cell)
    monkeypatch.setattr(tune, "cells", lambda only: [("cell",), ("broken",)] if only == "cut" else [("cell",)])
    file.parent.mkdir()
    file.write_text(json.dumps(old))
    with pytest.raises(KeyboardInterrupt):
        tune.measure(file, "cut")
    assert json.loads(file.read_text()) == [old[0], list(new)]
    assert tune.measure(file, "some") == (1, 2)
    assert tune.measure(file) == (1, 1)  # the whole grid: lines of no cell are removed
    assert json.loads(file.read_text()) == [list(new)]


def test_no_cells_share_a_line():
    problems = []
    for backward, dtype, M, N in tune._grid():
        row = N * dtype.itemsize
        problems.append(Problem(backward, M, N, dtype.itemsize, min(16, row & -row), True, 132, True, contiguous=True))
    assert len({heuristics.bucket(problem) for problem in problems}) == len(problems)
