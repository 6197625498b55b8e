"""tools/use_ab.py: its cells and commands, without a GPU."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import use_ab as ab
from softbench.kernels.automatic import override

import softbench
from softbench.core.case import Case, Direction
from softbench.gate import paired
from softbench.gate.verdicts import GateReport


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_the_gate_judges_two_hundred_cells_around_the_rule(l2):
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    cells = [
        (op, way, dtypes[dtype], M, N)
        for sweep in tomllib.loads(ab.config_of(l2))["sweep"]
        for op in listed(sweep.get("op", "softmax"))
        for M in listed(sweep["M"])
        for N in listed(sweep["N"])
        for dtype in listed(sweep["dtype"])
        for way in listed(sweep["direction"])
    ]
    assert len(cells) == len(set(cells)) == 200
    rules = [(override.FORWARD if way == "forward" else override.BACKWARD)[dtype] for _, way, dtype, _, _ in cells]
    ours = [least.elements <= M * N or least.columns <= N for least, (*_, M, N) in zip(rules, cells, strict=True)]
    assert 50 <= sum(ours) <= 150
    sizes = [M * N * dtype.itemsize for _, _, dtype, M, N in cells]
    assert max(sizes) < 2**30
    assert sum(size <= 2**20 for size in sizes) >= 30
    assert min(sizes) < 2**10
    autograd = [M * N for _, way, _, M, N in cells if way == "both"]
    assert all(elements >= 2**26 or elements < 2**20 for elements in autograd)
    near = [M * N / least.elements for least, (*_, M, N) in zip(rules, cells, strict=True)]
    assert sum(0.5 < each < 1 for each in near) >= 5
    assert sum(1 <= each < 2 for each in near) >= 10


def listed(value):
    return value if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    ("given", "expected"), [([], (6, 6, 6)), (["--processes", "3"], (3, 6, 6)), (["--rounds", "12", "--processes", "1"], (1, 12, 12))]
)
def test_options_of_the_user_replace_those_of_the_tool(main, monkeypatch, tmp_path, given, expected):
    """The command of the tool reaches the gate, which judges a request with these settings."""
    asked = []
    monkeypatch.setattr(ab.subprocess, "run", lambda command, check: SimpleNamespace(returncode=main(*command[3:])[0]))
    monkeypatch.setattr(
        "softbench.gate.ab_run.compare", lambda measure, request, *_: asked.append(request.settings()) or GateReport("", (), _[2])
    )
    assert ab.main(["--l2", "cold", "--output", str(tmp_path), *given]) == 3
    (settings,) = asked
    assert (settings.processes, settings.rounds, settings.max_rounds) == expected
    assert settings.rounds >= paired.MIN_ROUNDS
    assert (settings.batch_ms, settings.l2, settings.backends) == (2, "cold", ("torch-use", "torch"))


@pytest.mark.parametrize(("codes", "code"), [((0, 0), 0), ((1, 3), 1), ((3, 0), 3), ((0, 1), 1), ((0, 2), 2), ((0, -9), -9), ((-9, 1), 1)])
def test_the_worse_of_both_gates_is_the_exit_code(monkeypatch, tmp_path, codes, code):
    asked, answers = [], iter(codes)

    def run(command, check):
        asked.append(command)
        return SimpleNamespace(returncode=next(answers))

    monkeypatch.setattr(ab.subprocess, "run", run)
    assert ab.main(["--output", str(tmp_path), "--M", "64"]) == code
    assert [tomllib.loads(Path(line[line.index("--config") + 1]).read_text())["l2"] for line in asked] == ["cold", "warm"]
    assert all(line[-2:] == ["--M", "64"] for line in asked)


def test_the_backend_enters_the_block_once(monkeypatch):
    entered = []
    monkeypatch.setattr(softbench, "enable", lambda: entered.append(1))
    monkeypatch.setattr(ab.InsideUse, "entered", False)
    case = Case(4, 8, "fp32", Direction.FORWARD, "cpu")
    for _ in range(2):
        assert torch.equal(ab.backend.prepare(case)(torch.ones(4, 8)), torch.full((4, 8), 1 / 8))
    assert entered == [1]
