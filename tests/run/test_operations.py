"""Operations from a user's file on the command line."""

import shutil
import sys
from pathlib import Path

import pytest
from sampled import sampled

from softbench.core.case import Direction
from softbench.core.errors import UsageError
from softbench.core.text import LONGEST
from softbench.ops import registry, user_file
from softbench.ops.declaration import from_json, to_json
from softbench.plan.sweep import Sweep, cases
from softbench.plugins.source import PluginSource
from softbench.processes import worker_pool
from softbench.run import operations
from softbench.worker.failures import user_line
from softbench.worker.guarding import tamper_guard

FOLDER = Path(__file__).parents[1] / "plugins" / "operations"
TEXT = (FOLDER / "standardize.py").read_text()
ZEROS = """
import torch

def standardize(x, w):
    return torch.zeros_like(x)
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="layer.py"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_a_file_stands_for_the_name_of_its_operation(file):
    path = file(TEXT)
    assert operations.names([f"{path},softmax", path]) == ["standardize", "softmax", "standardize"]
    assert registry.files() == (path,)
    assert registry.operation("standardize").summary.startswith("(x - mean(x))")
    assert operations.names(None) is None


def test_the_session_after_a_file_was_read_has_its_forkserver(file, monkeypatch):
    operations.names([file(TEXT)])
    [(kept, _)] = worker_pool._kept
    assert worker_pool.opened() is kept and "operation" in kept.activity.seconds and kept.activity.before > 0
    worker_pool.keep(kept)
    monkeypatch.setenv("SOFTBENCH_TEST", "1")  # a forkserver has the variables that it started with
    with worker_pool.opened() as other:
        assert other is not kept and kept._closed


def test_a_problem_may_have_many_cases(tmp_path):
    text = "import torch\n\ndef inputs(N=8):\n    return torch.randn(4, N)\n\ndef reference(x):\n    return x * 2\n"
    (tmp_path / "double.py").write_text(text)
    many = operations.cases_of({"N": ["1:41:1"]})
    assert operations.names([str(tmp_path / "double.py")], cases=many) == ["double"]
    assert len(registry.declared("double").cases) == len(many) > 30
    assert len(registry.layouts()[str(tmp_path / "double.py")]) > LONGEST


BAD = {
    "an error": ("1 / 0", "ZeroDivisionError: division by zero (in <module>, layer.py:1: 1 / 0)"),
    "a syntax error": ("def", "SyntaxError: "),
    "no operation": ("x = 1", "defines no OPERATION"),
    "no values": (TEXT.replace("NUMERICS =", "OTHERS ="), "defines no NUMERICS"),
    "no bound": (TEXT.replace("def bound", "def bund"), "abstract method"),
    "a bound of everything": (TEXT.replace("+ ETA,)", "+ ETA + 1.5 * exact.abs(),)"), "the bound of y accepts zeros in normal rows"),
    "a bound of nothing": (
        TEXT.replace("(U_OUT[case.dtype] * exact.abs() + ", "(0 * exact + 0 * "),
        "the bound rejects the reference itself",
    ),
    "rows that stay": (TEXT.replace("given[-2].mul_(100)", "given[-2].mul(100)"), "structured_rows: 'large' changes no row"),
    "an unknown axis": (TEXT.replace('("M", "N")', '("M", "K")'), "tensor x has axes ('M', 'K')"),
    "an unknown dtype": (TEXT.replace('TensorSpec(("N",))', 'TensorSpec(("N",), "fp8")'), "tensor w has dtype fp8"),
    "an unknown pass": (TEXT.replace('"forward": Pass', '"forwards": Pass'), "pass forwards: the name must be one of"),
    "an unknown tensor": (TEXT.replace('outputs=("y",)', 'outputs=("z",)'), "pass forward: outputs has z"),
    "a taken name": (TEXT.replace('name="standardize"', 'name="softmax"'), "softbench has an operation softmax"),
    "another input": (TEXT.replace('TensorSpec(("N",))', 'TensorSpec(("N",), "int64")'), "TypeError: draw of standardize returns"),
    "no inputs": (
        TEXT.replace("        return *rows, 1 +", "        return\n        _ = *rows, 1 +"),
        "draw of standardize returns NoneType",
    ),
    "two results": (TEXT.replace("+ ETA,)", "+ ETA, exact)"), "reference gives 1 tensors and bound 2"),
    "a negative bound": (
        TEXT.replace("U_OUT[case.dtype] * exact.abs() +", "U_OUT[case.dtype] * exact +").replace("+ ETA,)", "* exact.sign(),)"),
        "the bound",
    ),
    "a second bound of another form": (
        TEXT.replace(
            "    def structured", "    def low_precision(self, *given):\n        return self.bound(*given)[0]\n\n    def structured"
        ),
        "give a tuple with a bound of each output: (32, 48)",
    ),
    "no structured rows": (TEXT.replace("        return {\n", "        return {}\n        return {\n"), "structured_rows gives no rows"),
    "rows that mix": (
        TEXT.replace("mean(below.square()) + EPS", "below.square().mean() + EPS"),
        "depends on other rows",
    ),
    "a reference that changes": (
        TEXT.replace("mean(below.square()) + EPS", 'mean(below.square()) + __import__("random").random()'),
        "NUMERICS: forward in fp32: the reference disagrees with itself: it gives other results for the same inputs",
    ),
    "a reference that counts rows": (
        TEXT.replace("mean(below.square()) + EPS", "mean(below.square()) + torch.arange(len(below))[:, None]"),
        "the reference disagrees with itself: it gives other results for the same rows in reverse order",
    ),
    "a read that counts twice": (TEXT.replace('reads=("x", "w")', 'reads=("x", "x", "w")'), "reads must be a tuple of names, each once"),
    "an exit": ("import os\nos._exit(3)", "exited with code 3"),
}


@pytest.mark.parametrize(
    "what", sampled(["an error", "a syntax error", "a bound of everything", "an exit"], lambda what: what == "an exit")
)
def test_an_invalid_file_is_one_line_and_adds_nothing(file, what):
    text, message = BAD[what]
    path = file(text)
    with pytest.raises(UsageError) as error:
        operations.names([path])
    assert str(error.value).startswith(f"--op {path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert registry.files() == ()


@pytest.mark.parametrize("what", [what for what in BAD if what not in ("an error", "a syntax error", "an exit")])
def test_a_worker_names_what_is_invalid_in_a_file(file, what):
    text, message = BAD[what]
    with pytest.raises((UsageError, TypeError)) as error:
        user_file.load(file(text))
    assert message.removeprefix("TypeError: ") in str(error.value)


def test_a_path_that_is_no_file_of_an_operation_is_one_line(tmp_path):
    with pytest.raises(UsageError, match=r"is neither an operation nor a file of one \(.py, .json, .yml\); write kernelbot:"):
        operations.names([str(tmp_path)])


@pytest.mark.slow
def test_a_file_that_hangs_is_ended_by_its_deadline(file):
    with pytest.raises(UsageError, match=r"took longer than 3 s \(in <module>, layer.py:1: while True: pass\)"):
        operations.names([file("while True: pass")], seconds=3)


def test_a_direction_that_the_operation_lacks_is_one_line(main, file):
    given = ("--op", file(TEXT), "--device", "cpu", "--direction", "both")
    for command in (("run", *given, "--M", "8", "--N", "8", "--dry-run"), ("check", *given, "--backends", "torch")):
        code, _, err = main(*command)
        assert (code, err) == (2, "softbench: --direction both: standardize has only forward, backward\n")
    mixed = Sweep((8,), (4,), direction=(Direction.FORWARD, Direction.BOTH), op=("standardize", "softmax"))
    assert [case.key.split("-fp32")[0] for case in cases([mixed], "cpu")] == ["standardize-forward", "forward", "both"]


ADD = """
import torch
from softbench.ops.operation import Operation, Pass, TensorSpec
from softbench.ops.values import Values

ROWS = TensorSpec(("M", "N"))
OPERATION = Operation("sums", dict(a=ROWS, b=ROWS, y=ROWS, z=ROWS), {"forward": Pass(("a", "b"), ("y", "z"), ("a", "b"))}, "a + b, a b")

class Sums(Values):
    def draw(self, case, random): return random.normal(case.M, case.N), random.normal(case.M, case.N)
    def reference(self, case, a, b): return a + b, a * b
    def bound(self, case, a, b): return 2**-8 * (a + b).abs() + 1e-6, BOUND
    def structured_rows(self, case): return {"large": lambda a, b: a.mul_(100)}

NUMERICS = Sums()
"""
HONEST = """
class B:
    name, operations = "honest", ("sums",)
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case): return lambda a, b: (a + b, a * b)

class Guarded(B):
    name = "replaces-the-check"
    def prepare(self, case):
        from softbench.ops import registry, user_file
        registry.numerics("sums").check = lambda *a, **k: None
        return super().prepare(case)

backends = [B(), Guarded()]
"""


@pytest.mark.slow
def test_an_operation_with_two_arguments_and_two_results_is_measured(cli, file):
    """Its yardstick takes both arguments, and its values are read-only."""
    (cli.folder / "sums.py").write_text(ADD.replace("BOUND", "2**-8 * (a * b).abs() + 1e-6"))
    (cli.folder / "plug.py").write_text(HONEST)
    given = ("--op", "sums.py", "--plugin", "plug.py", "--backends", "honest,replaces-the-check")
    done = cli("run", *given, "--device", "cpu", "--M", 8, "--N", 64, "--quick")
    outcomes = {cell["backend"]: cell["outcome"]["kind"] for cell in cli.document()["cells"]}
    assert outcomes == {"copy": "measured", "honest": "measured", "replaces-the-check": "failed"}
    assert "check is read-only" in done.stdout
    assert cli("show", "results/latest.csv", "--op", "sums").returncode == 0
    with pytest.raises(UsageError, match="the bound of z accepts zeros"):
        operations.names([file(ADD.replace("BOUND", "torch.full_like(a, 1e9)"))])


def test_an_operation_survives_json(file):
    operations.names([file(TEXT)])
    found = registry.operation("standardize")
    assert from_json(to_json(found)) == found
    with pytest.raises(ValueError, match="pass forward"):
        from_json({**to_json(found), "tensors": {}})


@pytest.mark.slow
def test_a_run_measures_and_rejects_backends_of_the_operation(cli):
    for name in ("standardize.py", "standardize_kernels.py"):
        shutil.copy(FOLDER / name, cli.folder)
    (cli.folder / "zeros.py").write_text(ZEROS)
    given = ("--op", "standardize.py", "--plugin", "standardize_kernels.py", "--plugin", "zeros.py", "--device", "cpu")
    done = cli("run", *given, "--backends", "layer-torch,zeros,torch", "--M", 8, "--N", "16,64", "--quick")
    assert done.returncode == 1
    assert "standardize forward fp32, M=8" in done.stdout
    cells = {(cell["backend"], cell["case"]["N"]): (cell["case"]["op"], cell["outcome"]["kind"]) for cell in cli.document()["cells"]}
    assert {cells[name, 64] for name in ("copy", "layer-torch")} == {("standardize", "measured")}
    assert cells["zeros", 64] == ("standardize", "failed")
    assert cells["torch", 64] == ("standardize", "skipped")
    assert "it has no standardize, only softmax" in done.stdout
    done = cli("check", *given, "--backends", "zeros", "--case", "normal 1x7", "--dtype", "fp32")
    assert "--op standardize.py" in done.stderr
    for command in ("show", "plot"):
        assert cli(command, "results/latest.csv").returncode == 0
    assert cli("compare", "results/latest.csv", "results/latest.csv").returncode == 0
    done = cli("baseline", "save", "results/latest.csv", "--name", "layer")  # one process is too few, and the operation is no error
    assert (done.returncode, "processes" in done.stderr) == (3, True)


def test_an_error_in_an_operations_file_has_its_line(file):
    """Also where a backend of softbench is loaded or checked, and not the file itself."""
    path = file(TEXT.replace("    def bound(self", "    def bound(self, *_):\n        raise ValueError('late')\n\n    def other(self"))
    line = Path(path).read_text().splitlines().index("        raise ValueError('late')") + 1
    with pytest.raises(ValueError, match="late") as error:
        user_file.load(path)
    for source in (None, PluginSource("entry point", "torch", "softbench.backends.torch_eager:backend", "softbench")):
        assert user_line(error.value, source) == f"in bound, layer.py:{line}"


CHANGES = {
    "its bound": "object.__setattr__(values, 'bound', lambda *_: ())",
    "a constant of its file": "module.ETA = 1e9",
    "its entry": "registry._numerics['standardize'] = registry.numerics('softmax')",
    "its tensors": "registry._added['standardize'] = registry._added['standardize'][:1] + ('other',)",
    "an axis of a tensor": "object.__setattr__(registry.declared('standardize').tensors['w'], 'axes', ('M',))",
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_operation_of_a_user_is_noticed(file, what):
    user_file.load(file(TEXT))
    values = registry.numerics("standardize")
    guard = tamper_guard.bind("cpu")
    assert guard.replaced() == ""
    exec(CHANGES[what], {"values": values, "module": sys.modules[type(values).__module__], "registry": registry})
    assert guard.replaced().endswith(", which measures or judges it")
