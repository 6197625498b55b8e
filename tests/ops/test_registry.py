"""Adding an operation touches its file and the registry: no other module names one, and a new one is measured, stored and shown."""

import ast
import csv
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softbench.core.case import OPERATION
from softbench.ops import registry

ROOT = Path(__file__).parents[2]
NAMED = re.compile("|".join(registry.NAMES))
MAY_NAME = {
    "core/case.py": "the operation of older files, which name none",
    "ops/registry.py": "the names of all operations",
    "worker/guarding/caller_state.py": "torch's settings of matrix products",
    "worker/timing/matrix_products.py": "torch's settings of matrix products",
}
"""Modules that name an operation in code, with the reason. `backends` and `kernels` compute operations, and `ops/NAME.py` is one."""


def in_code(tree: ast.AST) -> Iterator[str]:
    """The identifiers and strings of a module that name an operation, without docstrings."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)}
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, str) and id(node) not in texts and NAMED.search(value):
                yield f"{getattr(node, 'lineno', 0)}: {value}"


def elsewhere() -> dict[str, list[str]]:
    """What names an operation outside the files of operations, of backends and of kernels."""
    found = {}
    for path in sorted((ROOT / "softbench").rglob("*.py")):
        parts = path.relative_to(ROOT / "softbench").parts
        if parts[0] in ("backends", "kernels") or (parts[0] == "ops" and path.stem in registry.NAMES):
            continue
        if lines := list(in_code(ast.parse(path.read_text()))):
            found["/".join(parts)] = lines
    return found


def test_no_other_module_names_an_operation():
    found = elsewhere()
    assert set(found) == set(MAY_NAME), found
    assert len(found["core/case.py"]) == 1  # OPERATION itself


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


def test_other_packages_import_no_module_of_an_operation():
    for path in (ROOT / "softbench").rglob("*.py"):
        if path.is_relative_to(ROOT / "softbench" / "ops"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not any(node.module.startswith(f"softbench.ops.{name}") for name in registry.NAMES), path


def test_names_in_docstrings_are_not_code():
    named = "from softbench.ops.softmax import spec", "def softmax(): 'softmax'", "y = torch.log_softmax(x, f'a softmax')"
    assert len(list(in_code(ast.parse("'softmax'\nx = 1\n'softmax'\n" + "\n".join(named))))) == 4


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
