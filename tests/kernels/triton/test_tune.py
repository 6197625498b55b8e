"""Measuring a table: which plans are tried, and what a table keeps if cells fail or the measurement is interrupted."""

import itertools
import json
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

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


@pytest.mark.parametrize("backward", [False, True])
def test_few_rows_compile_the_kernels_of_all_rows(backward):
    many = Problem(backward, 4096, 65536, 4, 16, True, 132, True, hopper=True)
    others = (
        replace(many, N=781, element_size=2),
        replace(many, hopper=False),
        *(replace(many, M=M) for M in (1, 2, 64, 4097)),
        replace(many, M=167773, N=100),
        replace(many, M=2, N=1 << 22),
        *(replace(many, M=M, N=1 << 17) for M in (31, 45, 100)),
    )
    for problem in (many, *others):
        few = replace(problem, M=tune.rows_to_compile(problem))
        assert few.keep_in_l2 == problem.keep_in_l2
        for plan in (Plan("rows"), *(replace(SPLIT, split_ctas=ctas) for ctas in (2, 16, 40, 512))):
            assert few.policy(plan) == problem.policy(plan)
        assert (few.M % 16 == 0, few.M == 1) == (problem.M % 16 == 0, problem.M == 1)  # Triton specializes these
        assert 1 <= few.M <= problem.M
        assert few.input_bytes <= 64 << 20


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


def test_no_cells_share_a_line():
    problems = []
    for backward, dtype, M, N in tune._grid():
        row = N * dtype.itemsize
        problems.append(Problem(backward, M, N, dtype.itemsize, min(16, row & -row), True, 132, True, contiguous=True))
    assert len({heuristics.bucket(problem) for problem in problems}) == len(problems)


def test_all_parts_together_compile_each_kernel_once(monkeypatch):
    """A kernel is a plan for a dtype and N, with Triton's specialization on the number of rows, and with its policies for L2."""
    launched: list[list[tuple[object, ...]]] = []

    def problem_of(backward, dtype, M, N):
        return replace(PROBLEM, backward=backward, M=M, N=N, hopper=True)

    def kernel(problem, rows, plan):
        return problem.backward, problem.N, problem.policy(plan), rows % 16 == 0, rows == 1, plan

    monkeypatch.setattr(tune, "_problem", problem_of)
    rows: list[int] = []
    monkeypatch.setattr(tune, "operands", lambda *cell: (rows.append(cell[2]), cell)[1])
    monkeypatch.setattr(tune, "_try", lambda cell, plan: launched[-1].append(kernel(problem_of(*cell), cell[2], plan)))
    chosen = [(False, torch.float32, M, N) for M in (1, 2, 8, 16, 4096) for N in (4096, 65536)]
    for part in range(3):
        launched.append([])
        tune.compile_part(part, 3, chosen, 5)
    every = [one for part in launched for one in part]
    problems = [problem_of(*cell) for cell in chosen]
    measured = [kernel(one, one.M, plan) for one in problems for plan in itertools.islice(heuristics.candidates(one), 5)]
    assert sorted(map(str, every)) == sorted(map(str, set(measured)))
    assert len(every) < len(measured)
    assert len({one[2:5] for one in every}) == 4
    assert max(rows) < 4096  # few rows take little memory
    assert max(map(len, launched)) - min(map(len, launched)) <= 1


class Compiler:
    """A process that compiles; `started` has the arguments of all, and `ended` those that were ended."""

    started: ClassVar[list[list[str]]] = []
    ended: ClassVar[list[list[str]]] = []

    def __init__(self, line, **_):
        self.line = line
        self.started.append(line)

    def wait(self):
        return int(self.line[-1] == "1")

    def terminate(self):
        self.ended.append(self.line)


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_command_line_starts_and_ends_compilers_of_each_chunk(monkeypatch, tmp_path, capsys, interrupted):
    monkeypatch.setattr(tune, "__spec__", SimpleNamespace(name="tune"))
    monkeypatch.setattr(tune.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(tune.torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(tune.subprocess, "Popen", Compiler)
    monkeypatch.setattr(tune, "cells", lambda _: [(number,) for number in range(tune.CHUNK + 1)])
    monkeypatch.setattr(tune, "measure_cell", lambda number, *_: ("forward 4 16", number, 12, {"tier": "rows"}))
    monkeypatch.setenv("SOFTBENCH_TRITON_TABLE", "")
    monkeypatch.setattr(sys, "argv", ["tune", "--only", "few", "--parts", "2", "--most", "3", f"--output={tmp_path / 'mine.json'}"])
    Compiler.started, Compiler.ended = [], []
    if interrupted:
        monkeypatch.setattr(Compiler, "wait", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(SystemExit, match="130"):
            tune.main()
        file = tmp_path / "mine.json"
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith(f"interrupted; {file} keeps the plans of all cells measured so far; ")
    else:
        tune.main()
        told = capsys.readouterr()
        assert f"cells {tune.CHUNK + 1} to {tune.CHUNK + 1} of {tune.CHUNK + 1}: compiling" in told.out
        assert "1 of 2 compilers failed" in told.err
    begins = ["0"] if interrupted else ["0", str(tune.CHUNK)]
    expected = [["--parts", "2", "--only", "few", "--most", "3", "--begin", at, "--part", part] for at in begins for part in "01"]
    assert [line[3:] for line in Compiler.started] == expected
    assert sorted(Compiler.ended) == sorted(Compiler.started)


def test_kernels_are_compiled_before_each_chunk_of_cells(monkeypatch, tmp_path):
    events: list[object] = []
    monkeypatch.setattr(tune, "cells", lambda _: [(number,) for number in range(tune.CHUNK + 1)])
    monkeypatch.setattr(tune, "measure_cell", lambda number, *_: events.append(number) or ("forward 4 16", number, 12, {"tier": "rows"}))
    assert tune.measure(tmp_path / "mine.json", "some", None, lambda begin: events.append(f"compile {begin}")) == (tune.CHUNK + 1,) * 2
    assert events == ["compile 0", *range(tune.CHUNK), f"compile {tune.CHUNK}", tune.CHUNK]
