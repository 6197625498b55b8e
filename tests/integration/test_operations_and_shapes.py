"""Shapes, and an operation from a file with integer inputs and parameters, through all commands."""

import json
import shutil
from pathlib import Path

import pytest

from softbench.core.case import Case, Direction
from softbench.gate.next_step import _operation
from softbench.ops import registry, user_file

FOLDER = Path(__file__).parents[1] / "plugins" / "operations"
FILES = ("masked_pick.py", "masked_pick_kernels.py")
HALF, BIASED = "masked_pick(causal=true,cap=2)", "masked_pick(K=8,bias=true)"
GIVEN = ("--op", FILES[0], "--plugin", FILES[1], "--device", "cpu")


@pytest.mark.slow
def test_parameters_of_a_file_go_through_all_commands(cli):
    for file in FILES:
        shutil.copy(FOLDER / file, cli.folder)
    sets = ("--set", "cap=2,causal=true", "--set", "bias=true,K=8")
    done = cli("run", *GIVEN, "--backends", "right,ignores-cap,lacks", *sets, "--M", 8, "--N", 64, "--quick")
    assert done.returncode == 1
    assert f"{HALF} forward fp32, M=8" in done.stdout
    status = {(row["backend"], row["op"]): (row["status"], row["reason"]) for row in cli.rows()}
    assert status["right", HALF] == status["right", BIASED] == status["ignores-cap", BIASED] == ("ok", "")
    assert status["ignores-cap", HALF][0] == "wrong"
    assert status["lacks", HALF] == ("skipped", "its masked_pick has no parameter causal")
    assert {cell["case"]["op"] for cell in cli.document()["cells"]} == {HALF, BIASED}
    shown = cli("show", "results/latest.csv", "--op", HALF).stdout
    assert (HALF in shown, BIASED in shown) == (True, False)
    assert cli("compare", "results/latest.csv", "results/latest.csv").returncode == 0
    assert cli("plot", "results/latest.csv", "-o", "p.png").stdout.startswith("p.png")
    case = ("--set", "cap=2", "--case", "normal 1x7", "--dtype", "fp32")
    checked = cli("check", *GIVEN, "--backends", "right,ignores-cap", *case, "--json", "check.json", "--junit", "check.xml")
    assert (checked.returncode, "ignores-cap is wrong" in checked.stderr, "right is" in checked.stderr) == (1, True, False)
    assert "--op masked_pick.py --set cap=2 " in checked.stderr
    assert "masked_pick(cap=2) forward: fp32" in checked.stdout
    findings = json.loads((cli.folder / "check.json").read_text())["findings"]
    assert {finding["op"] for finding in findings} == {"masked_pick(cap=2)"}
    assert 'name="masked_pick(cap=2) forward fp32 normal 1x7"' in (cli.folder / "check.xml").read_text()


def test_half_a_tensor_is_half_its_bytes():
    user_file.load(str(FOLDER / FILES[0]))
    case = Case(8, 64, "fp32", Direction.FORWARD, "cpu", HALF)
    assert registry.operation(HALF).bytes_moved(case) == 8 * 64 * 4 // 2 + 8 * 8 + 8 * 4
    assert registry.operation("masked_pick").bytes_moved(case) == 8 * 64 * 4 + 8 * 8 + 8 * 4
    words = ["softbench", "gate", "--op", str(FOLDER / FILES[0])]
    assert _operation(HALF, words) == ["--op", str(FOLDER / FILES[0]), "--set", "causal=true,cap=2"]
    assert _operation("softmax(scale=0.7)", words) == ["--set", "scale=0.7"]


SWEEP = """
backends = "torch,naive,rough"
rounds = 1
batch_ms = 1
[[sweep]]
shape = ["2x3x8x16", "9x8"]
dim = [-1, 1, 0]
op = ["softmax", "log_softmax"]
"""
PLUGIN = """
import torch

class Rough:
    name, operations = "rough", ("softmax", "log_softmax")
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case): return lambda x: getattr(torch, case.op)(x, -1)
    def over_dim(self, direction, op="softmax"): return lambda x, dim: getattr(torch, op)(x, -1)

backend = Rough()
"""
SHAPES = ["2x3x8x16", "2x3x8x16@dim1", "2x3x8x16@dim0", "9x8", "9x8@dim0"]


@pytest.mark.slow
def test_a_sweep_of_shapes_is_measured_shown_and_compared(cli):
    (cli.folder / "shapes.toml").write_text(SWEEP)
    (cli.folder / "rough.py").write_text(PLUGIN)
    done = cli("run", "--config", "shapes.toml", "--plugin", "rough.py", "--device", "cpu")
    assert done.returncode == 1, done.stdout + done.stderr  # rough is wrong
    rows = cli.rows()
    assert [row["shape"] or f"{row['M']}x{row['N']}" for row in rows if row["backend"] == "torch"] == 2 * SHAPES
    assert {row["status"] for row in rows if row["backend"] in ("copy", "torch", "naive")} == {"ok"}
    wrong = {row["shape"]: row["status"] for row in rows if row["backend"] == "rough"}
    assert wrong == {"": "ok", "2x3x8x16": "ok", "2x3x8x16@dim1": "wrong", "2x3x8x16@dim0": "wrong", "9x8@dim0": "wrong"}
    document = cli.document()
    assert {cell["case"]["shape"] for cell in document["cells"]} == {"", *SHAPES} - {"9x8"}
    shown = cli("show", "--shape", "2x3x8x16@dim1", "--long").stdout
    assert "3 (2x3x8x16@dim1)" in shown
    same = ("compare", "results/latest.csv", "results/latest.csv")
    compared = cli(*same, "--all").stdout
    assert "forward-fp32-2x3x8x16@dim0" in compared
    assert "\n0 faster, 0 slower, " in compared
    assert ", 6 without a result in either; geometric mean without drift 1.000" in compared
    cells = json.loads(cli(*same, "--json", "-").stdout)["cells"]
    assert [cell["ratio"] for cell in cells] == 34 * [1]
    assert sum(cell["verdict"] == "same" for cell in cells) > len(cells) / 4
    for cell in cells:  # on a busy host a cell may have too few batches for an interval
        assert cell["verdict"] == ("yardstick" if cell["backend"] == "copy" else "doubtful" if cell["low"] is None else "same"), cell
