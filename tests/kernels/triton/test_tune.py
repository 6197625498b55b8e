"""Measuring a table: which plans are tried, and what a table keeps if cells fail or the measurement is interrupted."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from softbench.kernels.triton import heuristics, tune
from softbench.kernels.triton.launch_plan import Problem, plan_to_json

PROBLEM = Problem(False, 4096, 65536, 4, 16, True, 132, True)
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


@pytest.mark.parametrize("backward", [False, True])
def test_few_rows_compile_the_kernels_of_all_rows(backward):
    many = Problem(backward, 4096, 65536, 4, 16, True, 132, True, hopper=True)
    others = (
        replace(many, N=781, element_size=2),
        replace(many, hopper=False),
        *(replace(many, M=M) for M in (1, 2, 64, 4097)),
        replace(many, M=167773, N=100),
        replace(many, M=2, N=1 << 22),
    )
    for problem in (many, *others):
        few = replace(problem, M=tune.rows_to_compile(problem))
        assert few.keep_in_l2 == problem.keep_in_l2
        assert (few.M % 16 == 0, few.M == 1) == (problem.M % 16 == 0, problem.M == 1)  # Triton specializes these
        assert 1 <= few.M <= problem.M
        assert few.M * few.N * few.element_size < 40 << 20


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


def test_only_selects_cells_by_the_words_of_their_names():
    everything = {tune.cell_name(cell) for cell in tune.cells()}
    few = {tune.cell_name(cell) for cell in tune.cells("forward few, backward float32 50257")}
    assert few and few < everything
    assert all(("forward" in name and "few" in name) or ("backward float32" in name and "50257" in name) for name in few)


def test_all_parts_together_compile_each_kernel_once(monkeypatch):
    launched: list[list[tuple[object, ...]]] = []
    monkeypatch.setattr(tune, "_problem", lambda backward, dtype, M, N: replace(PROBLEM, backward=backward, M=M, N=N))
    monkeypatch.setattr(tune, "operands", lambda *cell: cell)
    monkeypatch.setattr(tune, "_try", lambda cell, plan: launched[-1].append((*cell[:2], cell[3], plan)))
    chosen = [(False, torch.float32, M, N) for M in (2, 8, 16, 4096) for N in (4096, 65536)]
    for part in range(3):
        launched.append([])
        tune.compile_part(part, 3, chosen, 5)
    every = [kernel for part in launched for kernel in part]
    plans = [(*cell[:2], cell[3], plan) for cell in chosen for plan in itertools.islice(heuristics.candidates(tune._problem(*cell)), 5)]
    assert set(every) == set(plans)
    assert len(every) < len(plans)
    assert max(map(len, launched)) - min(map(len, launched)) <= 1


def test_kernels_are_compiled_before_each_chunk_of_cells(monkeypatch, tmp_path):
    events: list[object] = []
    monkeypatch.setattr(tune, "cells", lambda _: [(number,) for number in range(tune.CHUNK + 1)])
    monkeypatch.setattr(tune, "measure_cell", lambda number, *_: events.append(number) or ("forward 4 16", number, 12, {"tier": "rows"}))
    assert tune.measure(tmp_path / "mine.json", "some", None, lambda begin: events.append(f"compile {begin}")) == (tune.CHUNK + 1,) * 2
    assert events == ["compile 0", *range(tune.CHUNK), f"compile {tune.CHUNK}", tune.CHUNK]
