"""The strategies of the gallery: their files, what is missing here, and their kernels where they can run or be compiled without a GPU."""

import importlib.util
import json
import re
import shutil
import subprocess

import pytest
import torch
from compiling import assert_passes, case, python

from softbench.backends import gallery
from softbench.core.case import Direction
from softbench.plugins.load import load
from softbench.plugins.source import origins
from softbench.report.gallery import strategies

EVERY = [one for one in vars(gallery).values() if isinstance(one, gallery.Strategy)]
PACKAGES = [one for one in EVERY if isinstance(one, gallery.OfPackage)]
by_name = {"ids": lambda strategy: strategy.name}


@pytest.mark.parametrize("strategy", EVERY, **by_name)
def test_a_strategy_is_one_short_file_that_is_a_plugin(strategy):
    text = strategy.file.read_text()
    assert load({source.label: source for source in origins([])}[strategy.name]) == (strategy,)
    assert len(text.splitlines()) <= 150
    assert re.search(rf"^softbench run --plugin (mine=)?{strategy.file.name}( |$)", text, re.MULTILINE)
    assert "from ." not in text and "from softbench" not in text
    parts = re.findall(r"^(?:MAX_COLUMNS|def supports|    return None if case).*\n", text, re.MULTILINE)
    exec("".join(parts), defined := {})  # without the import of its package
    assert all(defined["supports"](one) for one in (case(0), case(8, M=0), *([case(8, dtype="bf16")] if strategy.name == "numba" else [])))
    assert defined["supports"](case(8)) is None


@pytest.mark.parametrize("strategy", PACKAGES, **by_name)
@pytest.mark.parametrize("card", [True, False])
def test_a_missing_package_is_named_with_the_fix(strategy, card, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: card)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert strategy.available() == f"{strategy.package} is not installed; where there is a CUDA GPU: {strategy.install}"
    assert "pip install" in strategy.install


def test_numba_refuses_a_package_for_an_older_numpy(monkeypatch):
    def importing(name):
        raise trouble

    monkeypatch.setattr(gallery.ThirdParty, "available", lambda self: None)
    monkeypatch.setattr(gallery.importlib, "import_module", importing)
    trouble = AttributeError("module 'numpy' has no attribute 'row_stack'")
    assert gallery.numba_row.available() == (
        "numba-cuda does not load (AttributeError: module 'numpy' has no attribute 'row_stack'): "
        f"install a version that fits the other packages: {gallery.NUMBA}"
    )
    trouble = ModuleNotFoundError("No module named 'numba.cuda.cudaimpl'", name="numba.cuda.cudaimpl")
    assert gallery.numba_row.available() is None


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_eager_code_is_right(direction, dtype):
    if direction is not Direction.FUSED:
        assert_passes(gallery.eager, case(dtype=dtype, direction=direction))


TRITON = """
import itertools
import torch
from softbench.plugins.source import origins
from softbench.worker import triton_on_cpu
assert triton_on_cpu.prepare(next(source for source in origins([]) if source.label == "triton-tile"))
from softbench.kernels.gallery import triton_row, triton_tile
for strategy, N, dtype in itertools.product((triton_row, triton_tile), (1, 130, 16390), (torch.float32, torch.bfloat16)):
    x, dy = torch.randn(2, 5, N).to(dtype).unbind()
    x[0, : N // 2] = -float("inf")
    y = strategy.softmax(x)
    torch.testing.assert_close(y, torch.softmax(x.float(), -1).to(dtype))
    dx = torch.ops.aten._softmax_backward_data(dy.float(), y.float(), -1, torch.float32)
    torch.testing.assert_close(strategy.softmax_backward(dy, y), dx.to(dtype))
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU they are not interpreted")
def test_triton_kernels_are_right_in_the_interpreter():
    python(TRITON)


EMBEDDED = '''"""Doc.

More."""

import a  # why
# a comment
SOURCE = r"""
// a comment of C++
int x;

"""


def f():
    """Doc."""
    return (
        1,
    )
'''


@pytest.mark.slow
def test_triton_kernels_pass_check_cases_in_the_interpreter(cli):
    done = cli("check", "--backends", "triton-row,triton-tile", "--dtype", "bf16", "--case", "!*x262145", "--device", "cpu", "--json", "-")
    found = json.loads(done.stdout)["findings"]
    assert {finding["verdict"] for finding in found} == {"pass", "skipped"}
    assert sum(finding["verdict"] == "pass" for finding in found) > 100


def test_lines_of_code_are_those_that_hold_code():
    from softbench.report.gallery import code_lines

    assert code_lines(EMBEDDED) == 1 + 3 + 4
    assert code_lines("// a\n\n#include <a>\nint x;  // b\n", ".cu") == 2
    lines = {one.name: one.lines for one in strategies()}
    assert lines["eager"] < lines["triton-row"] < lines["cuda-online"] < lines["cuda"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on PATH")
@pytest.mark.parametrize("stem", ["cuda_row", "cuda_online", "cupy_row"])
def test_cuda_sources_compile(stem, tmp_path):
    text = (gallery.eager.file.with_name(f"{stem}.py")).read_text()
    (tmp_path / "softmax.cu").write_text(text.partition('SOURCE = r"""')[2].partition('"""')[0])
    kinds = [(f"-DKIND={kind}", "-DCOLUMNS=1000", "-DTHREADS=512") for kind in range(3)] if stem == "cupy_row" else [()]
    for options in kinds:
        command = ["nvcc", "-std=c++17", "--ptx", "-arch=sm_90", *options, "-o", tmp_path / "softmax.ptx", tmp_path / "softmax.cu"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


GLUON = """
import triton
from softbench.kernels.gallery import gluon_row
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon._runtime import GluonASTSource
for kernel, tensors in ((gluon_row.forward_rows, 2), (gluon_row.backward_rows, 3)):
    names = kernel.arg_names
    for dtype, vector, copies in (("fp32", 4, True), ("bf16", 8, True), ("bf16", 1, False)):
        signature = {name: f"*{dtype}" if i < tensors else "i32" if name in "MN" else "constexpr" for i, name in enumerate(names)}
        constants = {(names.index(name),): value for name, value in dict(BLOCK=4096, VECTOR=vector, WARPS=8, COPIES=copies).items()}
        aligned = {(i,): [["tt.divisibility", 16]] for i in (*range(tensors), *([tensors + 1] if copies else []))}
        source = GluonASTSource(kernel, signature, constants, aligned)
        text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 8}).asm["ptx"]
        assert ("cp.async.cg.shared.global" in text and "0x10" in text) == copies, (kernel, dtype)
"""


@pytest.mark.slow
def test_gluon_compiles_with_copies_of_16_bytes():
    python(GLUON)


HELION = """
import torch
from softbench.kernels.gallery import helion_row as h
for N in (1, 7, 1000):
    for dtype in (torch.float32, torch.bfloat16):
        x, dy = torch.randn(2, 5, N).to(dtype).unbind()
        y = h.softmax(x)
        torch.testing.assert_close(y, torch.softmax(x.float(), -1).to(dtype))
        dx = torch.ops.aten._softmax_backward_data(dy.float(), y.float(), -1, torch.float32)
        torch.testing.assert_close(h.softmax_backward(dy, y), dx.to(dtype))
"""
NUMBA = """
import torch
from softbench.kernels.gallery import numba_row as n
for N in (1, 7, 300):
    x, dy = torch.randn(2, 2, N).unbind()
    y, dx = torch.empty_like(x), torch.empty_like(x)
    n.forward_row[2, n.THREADS](x.numpy(), y.numpy())
    torch.testing.assert_close(y, torch.softmax(x, -1))
    n.backward_row[2, n.THREADS](dy.numpy(), y.numpy(), dx.numpy())
    torch.testing.assert_close(dx, torch.ops.aten._softmax_backward_data(dy, y, -1, torch.float32))
"""


@pytest.mark.parametrize(
    ("module", "code", "variable"), [("helion", HELION, "HELION_INTERPRET"), ("numba_cuda", NUMBA, "NUMBA_ENABLE_CUDASIM")]
)
def test_kernels_of_packages_are_right_in_their_simulators(module, code, variable):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    python(code, **{variable: "1"})
