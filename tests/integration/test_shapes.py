"""N-D cases on the command line: a sweep of shapes and dimensions from a file, its results, and what reads them."""

import csv

import pytest

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
    with (cli.folder / "results" / "latest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["shape"] or f"{row['M']}x{row['N']}" for row in rows if row["backend"] == "torch"] == 2 * SHAPES
    assert {row["status"] for row in rows if row["backend"] in ("copy", "torch", "naive")} == {"ok"}
    wrong = {row["shape"]: row["status"] for row in rows if row["backend"] == "rough"}
    assert wrong == {"": "ok", "2x3x8x16": "ok", "2x3x8x16@dim1": "wrong", "2x3x8x16@dim0": "wrong", "9x8@dim0": "wrong"}
    document = cli.document()
    assert {cell["case"]["shape"] for cell in document["cells"]} == {"", *SHAPES} - {"9x8"}
    shown = cli("show", "--shape", "2x3x8x16@dim1", "--long").stdout
    assert "3 (2x3x8x16@dim1)" in shown
    compared = cli("compare", "results/latest.csv", "results/latest.csv")
    assert "forward-fp32-2x3x8x16@dim0" in compared.stdout
    assert "0 faster, 0 slower, 34 within noise" in compared.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--shape", "8x0"), "--shape: '8x0' is out of range"),
        (("--shape", "8x4", "--M", "3"), "--shape gives all sizes of the tensor; leave out --M and --N"),
        (("--shape", "8x4x2", "--dim", "3"), "dim 3: 8x4x2 has the dimensions 0 to 2, or -3 to -1"),
        (("--dim", "-1"), "--dim is a dimension of --shape; without a shape the rows are along N"),
    ],
)
def test_a_wrong_shape_is_one_line_and_exit_code_2(main, flags, message):
    code, out, err = main("run", "--device", "cpu", "--dry-run", *flags)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
