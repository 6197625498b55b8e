"""Adding an operation touches its file and the registry: a new one is measured, stored and shown."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from softbench.core.case import OPERATION
from softbench.ops import registry

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", registry.NAMES)
def test_an_operation_has_its_numerics_under_its_name(name):
    assert registry.operation(name).name == name
    assert registry.numerics(name).check_cases(name)


def test_the_default_operation_exists():
    assert OPERATION in registry.NAMES


def test_an_unknown_operation_is_a_key_error():
    with pytest.raises(KeyError, match="layernorm"):
        registry.operation("layernorm")


def test_an_operation_needs_no_torch():
    code = "import sys; from softbench.ops.registry import operation; operation('softmax'); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


FILE = '''
from softbench.core.case import Direction
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.values import Values

ROWS, EACH = TensorSpec(("M", "N")), TensorSpec(("M",), "fp32")
OPERATION = Operation(
    "row_mean", {"x": ROWS, "mean": EACH}, {Direction.FORWARD: Pass(("x",), ("mean",), ("x",))}, "the mean of each row"
)


class RowMean(Values):
    """Means."""

    __slots__ = ()

    def draw(self, case, random):
        return (random.normal(case.M, case.N),)

    def reference(self, case, x):
        return (x.mean(dim=-1),)

    def bound(self, case, x):
        return (2.0**-24 * (8 + x.shape[1] ** 0.5) * x.abs().mean(dim=-1),)

    def structured_rows(self, case):
        return {"constant": lambda x: x.fill_(3), "large": lambda x: x.mul_(100).add_(7)}


NUMERICS = RowMean()
'''
STARTED = """
import softbench.ops
from softbench.core.case import OPERATION
from softbench.ops import registry

softbench.ops.__path__.append({folder!r})
registry.NAMES = (*registry.NAMES, "row_mean")
"""
"""What adding the file and its line in the registry do, for each process that Python starts."""
BACKENDS = '''
def row_mean(x):
    """The mean, by torch."""
    return x.float().mean(dim=-1)
'''


@pytest.mark.slow
def test_a_new_operation_is_measured_stored_and_shown(cli):
    added, started = cli.folder / "added", cli.folder / "started"
    for folder in (added, started):
        folder.mkdir(parents=True)
    (added / "row_mean.py").write_text(FILE)
    (started / "sitecustomize.py").write_text(STARTED.format(folder=str(added)))
    (cli.folder / "mean.py").write_text(BACKENDS)
    cli.env["PYTHONPATH"] = str(started)
    shape = ("--M", "8,16", "--N", "64", "--quick", "--device", "cpu")
    done = cli.alone("run", "--op", "row_mean", "--plugin", "mean.py", "--backends", "mean,torch", *shape)
    assert done.returncode == 0, done.stdout + done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        rows = {(row["backend"], row["M"]): row for row in csv.DictReader(file)}
    assert {key: (row["op"], row["status"], row["class"]) for key, row in rows.items()} == {
        **{("copy", M): ("row_mean", "ok", "yardstick") for M in ("8", "16")},
        **{("mean", M): ("row_mean", "ok", "pass") for M in ("8", "16")},
        **{("torch", M): ("row_mean", "skipped", "") for M in ("8", "16")},
    }
    row = rows["mean", "16"]
    assert float(row["gbps"]) * float(row["median_us"]) == pytest.approx(1e-3 * 4 * (16 * 64 + 16), rel=1e-3)
    assert "row_mean forward fp32, N=64" in done.stdout
    shown = cli.alone("show", "results/latest.csv")
    assert "row_mean forward fp32, N=64" in shown.stdout
    listed = cli.alone("list", "--ops").stdout
    assert "the mean of each row" in listed
    assert "--shape attention: 4 shapes: scores of ViT-B/16" in " ".join(listed.split())
