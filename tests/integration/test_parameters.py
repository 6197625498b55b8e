"""An operation from a file with integer inputs, one result a row, parameters, and half of a tensor read: through all commands."""

import csv
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
    with (cli.folder / "results" / "latest.csv").open() as file:
        status = {(row["backend"], row["op"]): (row["status"], row["reason"]) for row in csv.DictReader(file)}
    assert status["right", HALF] == status["right", BIASED] == status["ignores-cap", BIASED] == ("ok", "")
    assert status["ignores-cap", HALF][0] == "wrong"
    assert status["lacks", HALF] == ("skipped", "its masked_pick has no parameter causal")
    assert {cell["case"]["op"] for cell in cli.document()["cells"]} == {HALF, BIASED}
    shown = cli("show", "results/latest.csv", "--op", HALF).stdout
    assert (HALF in shown, BIASED in shown) == (True, False)
    assert cli("compare", "results/latest.csv", "results/latest.csv").returncode == 0
    assert (
        cli("plot", "results/latest.csv", "-o", "p.png").stdout.splitlines()[0].startswith("p-masked_pick-causal-true-cap-2-forward-fp32")
    )
    case = ("--set", "cap=2", "--case", "normal 1x7", "--dtype", "fp32")
    checked = cli("check", *GIVEN, "--backends", "right,ignores-cap", *case, "--json", "check.json", "--junit", "check.xml")
    assert (checked.returncode, "ignores-cap is wrong" in checked.stderr, "right is" in checked.stderr) == (1, True, False)
    assert "--op masked_pick.py --set cap=2 " in checked.stderr
    assert "masked_pick(cap=2) forward: fp32" in checked.stdout
    findings = json.loads((cli.folder / "check.json").read_text())["findings"]
    assert {finding["op"] for finding in findings} == {"masked_pick(cap=2)"}
    assert 'name="masked_pick(cap=2) forward fp32 normal 1x7"' in (cli.folder / "check.xml").read_text()


def test_half_a_tensor_is_half_its_bytes(monkeypatch):
    monkeypatch.setattr(registry, "_added", {})
    monkeypatch.setattr(registry, "_numerics", {})
    user_file.load(str(FOLDER / FILES[0]))
    case = Case(8, 64, "fp32", Direction.FORWARD, "cpu", HALF)
    assert registry.operation(HALF).bytes_moved(case) == 8 * 64 * 4 // 2 + 8 * 8 + 8 * 4
    assert registry.operation("masked_pick").bytes_moved(case) == 8 * 64 * 4 + 8 * 8 + 8 * 4
    words = ["softbench", "gate", "--op", str(FOLDER / FILES[0])]
    assert _operation(HALF, words) == ["--op", str(FOLDER / FILES[0]), "--set", "causal=true,cap=2"]
    assert _operation("softmax(scale=0.7)", words) == ["--set", "scale=0.7"]
