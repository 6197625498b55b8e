"""A reason names the line of the user's code, or the first error line of a compiler."""

import os
import subprocess
import sys

import pytest

from softbench.plugins.load import load
from softbench.plugins.source import PluginSource, source_of
from softbench.worker import failures
from softbench.worker.failures import compiler_error, user_line

PLUGIN = """
import torch
import helper

class Mine:
    name = "mine"
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case):
        if case.N == 16:
            return lambda x: torch.softmax(x, 7)
        if case.N == 17:
            raise ValueError("x" * 1000)
        return helper.call

backend = Mine()
"""
HELPER = """
def call(x):
    return x @ x
"""
NVCC = """Error building extension 'mine': [1/2] nvcc -c /tmp/build/mine.cu
FAILED: mine.o
/tmp/build/mine.cu(12): error: identifier "sum" is undefined
/tmp/build/mine.cu(13): error: expected a ";"
"""
GCC = "ninja: error\n/tmp/build/mine.cpp:7:5: fatal error: torch.h: No such file or directory\n"


def source(file):
    return PluginSource("file", file.stem, str(file), file.name)


def raised(call) -> Exception:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


@pytest.mark.slow
def test_every_phase_names_the_line_of_the_plugin(cli):
    (cli.folder / "mine.py").write_text(PLUGIN)
    (cli.folder / "helper.py").write_text(HELPER)
    (cli.folder / "torn.py").write_text("import torch\nimport torn_helper\n")
    (cli.folder / "torn_helper.py").write_text("\nbackend = (\n")
    (cli.folder / "empty.py").write_text("\n")
    files = [part for name in ("mine", "torn", "empty") for part in ("--plugin", f"{name}.py")]
    done = cli("run", *files, "--backends", "mine,torch", "--device", "cpu", "--M", "8", "--N", "16,17,18", "--quick")
    assert done.returncode == 1, done.stderr
    reasons = {(row["backend"], row["N"]): row["reason"] for row in cli.rows()}
    assert reasons["mine", "16"].startswith("build: IndexError: Dimension out of range")
    assert reasons["mine", "16"].endswith("(in <lambda>, mine.py:11: return lambda x: torch.softmax(x, 7))")
    assert reasons["mine", "17"].endswith("x... (in prepare, mine.py:13)")
    assert "(in call, helper.py:3: " in reasons["mine", "18"]
    assert reasons["torn", "16"] == "import: SyntaxError: '(' was never closed (torn_helper.py:2)"
    assert reasons["empty", "16"].endswith("and it has no function `softmax`; name a function as FILE:FUNCTION (empty.py)")


def test_modules_of_a_plugins_package_are_user_code(tmp_path, monkeypatch):
    package = tmp_path / "mypackage"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "bench.py").write_text("import json\ndef broken(): json.loads('{')\nbackend = broken()\n")
    monkeypatch.syspath_prepend(tmp_path)
    origin = PluginSource("entry point", "mine", "mypackage.bench:backend", "mypackage 1.0")
    assert user_line(raised(lambda: load(origin)), origin) == "in broken, bench.py:2: def broken(): json.loads('{')"
    own = PluginSource("entry point", "torch", "softbench.backends.torch_eager:backend", "softbench 0.1.0")
    assert user_line(raised(lambda: load(origin)), own) == ""
    assert user_line(raised(lambda: load(origin)), None) == ""


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (NVCC, 'mine.cu:12: identifier "sum" is undefined'),
        (GCC, "mine.cpp:7: torch.h: No such file or directory"),
        ("default_program(3): error: expected a declaration\n1 error", "default_program:3: expected a declaration"),
        (
            "ptxas /tmp/mine.ptx, line 23; error   : Not a name of any known instruction: 'bogus'",
            "mine.ptx:23: Not a name of any known instruction: 'bogus'",
        ),
        ("ptxas error   : Entry function 'f' uses too much shared data", "ptxas: Entry function 'f' uses too much shared data"),
        ("RuntimeError: in mine.cu: error: no line", ""),
        ("a normal message: error: none", ""),
    ],
)
def test_the_first_error_line_of_a_compiler_is_found(log, expected):
    assert compiler_error(RuntimeError(log)) == expected
    assert compiler_error(subprocess.CalledProcessError(1, "nvcc", stderr=log.encode())) == expected
    assert compiler_error(subprocess.CalledProcessError(1, "nvcc", output=log)) == expected


KERNELS = """
import triton
import triton.language as tl


@triton.jit
def callee(x):
    return x + unknown_name


@triton.jit
def kernel(pointer):
    tl.store(pointer, callee(1.0))
"""
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kernels_of_mine import kernel
from softbench.worker.failures import compiler_error

try:
    triton.compile(ASTSource(kernel, {"pointer": "*fp32"}, {}), target=GPUTarget("cuda", 90, 32))
except Exception as error:
    print(compiler_error(error))
"""


def test_an_error_of_triton_names_the_line_of_the_kernel(tmp_path, forks):
    (tmp_path / "kernels_of_mine.py").write_text(KERNELS)
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = forks().run_code(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{COMPILE}", env, 120)
    assert done.stdout == "kernels_of_mine.py:8: NameError('unknown_name is not defined')\n"


LAUNCH = """class InterpreterError(Exception):
    pass

def kernel():
    return 1 / 0

def launch():
    try:
        kernel()
    except Exception as error:
        raise InterpreterError(repr(error)) from error
"""


def test_an_error_of_tritons_interpreter_names_the_line_of_the_kernel(tmp_path):
    file = tmp_path / "launches.py"
    file.write_text(LAUNCH)
    found: dict = {}
    exec(compile(file.read_text(), file, "exec"), found)
    with pytest.raises(found["InterpreterError"]) as raised:
        found["launch"]()
    reason = failures.failure("build", raised.value, source_of(file)).reason
    assert reason == "ZeroDivisionError: division by zero (in kernel, launches.py:5: return 1 / 0)"


def test_a_failing_search_leaves_the_plain_reason(monkeypatch):
    monkeypatch.setattr(failures, "compiler_error", lambda error: 1 / 0)
    assert failures.failure("build", ValueError("no luck"), None).reason == "ValueError: no luck"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",
        "CUDA driver error: out of memory",
        "HIP error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_an_error_of_cuda_about_memory_is_out_of_memory(text):
    found = failures.failure("build", RuntimeError(text), None)
    assert (found.status, found.reason) == (failures.Status.OOM, f"RuntimeError: {text.splitlines()[0]}")


def test_other_errors_are_not_out_of_memory():
    for text in ("CUDA error: an illegal memory access was encountered", "out of shared memory", "Triton Error [CUDA]: invalid argument"):
        assert failures.failure("build", RuntimeError(text), None).status is failures.Status.FAILED


def test_blocked_modules_do_not_end_the_search(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setitem(sys.modules, "blocked", None)
    assert failures._kernel_of("no kernel") is None


@pytest.mark.slow
def test_an_error_in_available_costs_one_backend(cli):
    """The others of its file are checked, and the check fails with the line of the error."""
    (cli.folder / "mine.py").write_text(
        "import torch\nclass A:\n    name = 'right'\n    def available(self): return None\n    def supports(self, case): return None\n"
        "    def prepare(self, case): return lambda x: torch.softmax(x, -1)\n"
        "class B(A):\n    name = 'typo'\n    def available(self):\n        return none\nbackends = [A(), B()]\n"
    )
    given = ("check", "--plugin", "mine.py", "--device", "cpu", "--case", "shape 37x2", "--dtype", "fp32", "--direction", "forward")
    done = cli(*given, "--backends", "right")
    assert (done.returncode, "right: 1 pass" in done.stdout) == (0, True), done.stderr
    done = cli(*given, "--backends", "right,t*o")
    assert done.returncode == 1
    assert "typo: import: NameError: name 'none' is not defined" in done.stderr and "(in available, mine.py:10: return none)" in done.stderr
