"""The Python API on a GPU: comparisons of functions, the fixture of pytest, the choice of kernels, and the notebook."""

import importlib
import re
import subprocess
import sys

import pytest
import torch
from notebooks import run_the_notebook
from softbench.kernels.automatic import choice, softmax
from softbench.kernels.common.cuda_toolkit import nvcc
from softbench.kernels.cuda.build import OF_LIBRARY

import softbench
from softbench import kernels

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

DEVICE, M = "cuda", 16384
"""In a test's session too. A call of M x 4096 takes longer on the device than on the host."""
POSITIVE = ["device_us", "host_us", "gbps"]
KERNELS = """
import torch

def by_exp(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)

def by_log(x):
    return torch.log_softmax(x, -1).exp()
"""
SUITE = f"""
import torch

GIVEN = {{"M": {M}, "N": 4096, "device": "{DEVICE}"}}

def right(x):
    return torch.softmax(x, -1)

def wrong(x):
    return torch.softmax(x, 0)

def thrice(x):
    return [torch.softmax(x, -1) for _ in range(3)][-1]

def test_correct_passes(softbench):
    softbench.assert_correct("torch", dtype="bf16", case="shape 37x*", device="{DEVICE}")

def test_correct_fails(softbench):
    softbench.assert_correct(wrong, dtype="bf16", case="shape 37x*", device="{DEVICE}")

def test_bandwidth_passes(softbench):
    softbench.assert_bandwidth(right, 0.05, quick=True, **GIVEN)

def test_bandwidth_fails(softbench):
    softbench.assert_bandwidth(right, 5, quick=True, **GIVEN)

def test_not_slower_passes(softbench):
    softbench.assert_not_slower(right, right, 0.5, rounds=10, **GIVEN)

def test_not_slower_fails(softbench):
    softbench.assert_not_slower(thrice, right, 0.5, rounds=10, **GIVEN)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file of two functions, which can be imported there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "api_kernels.py").write_text(KERNELS)
    yield tmp_path
    sys.modules.pop("api_kernels", None)


@pytest.mark.parametrize("imported", [False, True], ids=["file", "functions"])
def test_two_functions_and_torch_are_compared(here, imported):
    names = ("by_exp", "by_log")
    module = importlib.import_module("api_kernels") if imported else None
    pytest.importorskip("pandas", reason="frame() needs pandas")
    backends = [getattr(module, name) if imported else f"api_kernels.py:{name}" for name in names]
    result = softbench.compare(*backends, "torch", M=M, N=4096, device=DEVICE, quick=True)
    assert result.ok, result.table()
    frame = result.frame()
    assert [*frame["backend"]] == ["copy", *names, "torch"]
    assert (frame[POSITIVE] > 0).all(axis=None), frame[POSITIVE]
    assert all(name in str(result.table()) for name in frame["backend"])
    page = result.report(here / "page.html").read_text()
    assert "<html" in page and all(name in page for name in names)


@pytest.mark.alone
@pytest.mark.parametrize(
    ("assertion", "message"),
    [
        ("correct", r"wrong wrong in 'shape 37x1' forward bf16: .*repeat it: softbench check --backends wrong "),
        ("bandwidth", r"1 cell below 500% of copy.*repeat it: softbench run --plugin test_kernels.py:right "),
        ("not_slower", r"1 cell slower.*new/old (2\.[5-9]|3\.[0-5]).*repeat it: softbench gate --plugin test_kernels.py:thrice "),
    ],
    ids=["correct", "bandwidth", "not slower"],
)
def test_the_fixture_passes_and_fails_as_it_should(tmp_path, assertion, message):
    (tmp_path / "test_kernels.py").write_text(SUITE)
    options = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:warnings", "--tb=short", "-k"]
    command = [sys.executable, *options, assertion, "test_kernels.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert pytest.RunResult.parse_summary_nouns(done.stdout.splitlines()) == {"passed": 1, "failed": 1, "deselected": 4}, done.stdout
    assert f"FAILED test_kernels.py::test_{assertion}_fails" in done.stdout
    assert re.search(message, done.stdout, re.DOTALL), done.stdout


def test_the_notebook_of_the_docs_runs(tmp_path):
    assert {row.timer for row in run_the_notebook(tmp_path, DEVICE) if row.status == "ok"} == {"queued"}


FUNCTIONS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


def agrees(name, x, **given):
    return torch.allclose(getattr(kernels, name)(x, **given), FUNCTIONS[name](x, -1, **given), atol=1e-2 if name == "log_softmax" else 1e-3)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_class_of_calls_computes_the_function(name):
    x = torch.randn(64, 1000, device="cuda")
    assert agrees(name, x)
    assert agrees(name, x.bfloat16(), dtype=torch.float32)
    assert agrees(name, x.double())
    assert torch.allclose(getattr(kernels, name)(x, 0), FUNCTIONS[name](x, 0), atol=1e-4)


def test_a_build_is_taken_by_later_calls_only(monkeypatch, tmp_path):
    if nvcc() is None:
        pytest.skip("needs nvcc")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(tmp_path))
    for function in (softmax._SOFTMAX, softmax._LOG_SOFTMAX):
        monkeypatch.setattr(function, "calls", {})
    monkeypatch.setattr(choice, "_choices", {})
    x = torch.randn(64, 1000, device="cuda", dtype=torch.bfloat16)
    kernels.softmax(x)
    assert kernels.which(x).kernels == "triton"
    assert not list(tmp_path.rglob("*.so"))
    architectures = {torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())}
    assert len({*kernels.build()}) == len(OF_LIBRARY) * len(architectures)
    for name in choice.SUBJECTS:
        scores = "triton", "masked_softmax has Triton kernels only"
        assert kernels.which(x, function=name) == (scores if name == choice.SCORES else ("cuda", "the CUDA kernels are built"))
    assert all(agrees(name, x) for name in FUNCTIONS)
