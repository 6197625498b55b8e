"""Code that pages show is that of files which tests load, or runs: README's plugin, docs/operations.md and docs/problems.md."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from layer_norms import RIGHT, RIGHT_BACKWARD, WRONG, WRONG_BACKWARD
from problem_files import cases, judged, problem

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry, second_opinion, user_file
from softbench.ops.check_case import Draw
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/plugins/operations"
FILES = (FOLDER / "standardize.py", FOLDER / "standardize_kernels.py")


@pytest.fixture(autouse=True)
def standardize():
    assert user_file.load(str(FILES[0])).name == "standardize"


def test_the_page_shows_the_tested_files():
    blocks = re.findall(r"```python\n(.*?)\n```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    assert blocks == [FILES[0].read_text().strip()]
    assert sum(len(block.splitlines()) for block in blocks) <= 120


def test_the_problem_of_the_page_accepts_its_solution(tmp_path):
    text, solution = re.findall(r"```python\n(.*?)\n```", (ROOT / "docs/problems.md").read_text(), re.DOTALL)
    operation, found = problem(tmp_path, text), {}
    exec(solution, found)
    case = replace(cases(operation)[0], dtype="bf16")
    assert judged(operation, found["solution"], case)[0] == "sampled"
    assert judged(operation, lambda x, w, eps: found["solution"](x, w, 0.1), case)[0] == "wrong"


LIBRARY = """
#include <math.h>
#include <stdint.h>
void launch(const float* x, float* y, int64_t M, int64_t N, void* stream) {
    for (; M--; x += N, y += N) {
        float sum = 0;
        for (int i = 0; i < N; i++) sum += expf(x[i]);
        for (int i = 0; i < N; i++) y[i] = expf(x[i]) / sum;
    }
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_the_page_calls_a_compiled_library(tmp_path, monkeypatch):
    (tmp_path / "softmax.c").write_text(LIBRARY)
    subprocess.run(["gcc", "-shared", "-fPIC", "softmax.c", "-o", "libsoftmax.so", "-lm"], cwd=tmp_path, check=True)
    (text,) = [
        block for block in re.findall(r"```python\n(.*?)\n```", (ROOT / "docs/plugins.md").read_text(), re.DOTALL) if "ctypes" in block
    ]
    (tmp_path / "compiled.py").write_text(text)
    (backend,) = load(PluginSource("file", "compiled", str(tmp_path / "compiled.py"), "compiled.py"))
    call = backend.prepare(Case(4, 9, "fp32", Direction.FORWARD, "cpu"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    for shape in ((4, 9), (0, 9), (9, 0)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), torch.softmax(x, -1))


def graded(call, dtype="fp32", direction=Direction.FORWARD):
    case = Case(40, 512, dtype, direction, "cpu", "standardize")
    given = registry.numerics("standardize").make(case, 0, torch.device("cpu"))
    return PreCheck(case, call, given, SimpleNamespace(name="user"), None).run(1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_of_the_pages_operation_pass(name, dtype):
    found = graded(RIGHT[name], dtype)
    assert found.grade is Grade.PASS, found.detail


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_of_the_pages_operation_are_found(name):
    assert graded(WRONG[name]()).grade is Grade.WRONG


def test_the_gradient_is_checked_too():
    for dtype in ("fp32", "bf16"):
        assert [graded(call, dtype, Direction.BACKWARD).grade for call in RIGHT_BACKWARD.values()] == [Grade.PASS] * len(RIGHT_BACKWARD)
    for name, call in WRONG_BACKWARD.items():
        wrong = graded(call, direction=Direction.BACKWARD)
        assert (wrong.grade, "structured rows" in wrong.detail) == (Grade.WRONG, True), name


def test_the_pages_backend_passes_all_check_cases():
    backend = load(PluginSource("file", "k", str(FILES[1]), "k.py"))[0]
    runner = CheckCaseRunner(backend, "cpu", operation="standardize")
    found = [runner.run(name, direction, "fp32", 0) for name, direction in runner.items]
    assert len(found) == 28
    assert {one.grade for one in found} == {Grade.PASS}
    draw = Draw(torch.Generator(), "fp32", torch.device("cpu"), None)
    normal = [item for item in registry.numerics("standardize").check_cases("standardize") if item.name.startswith("normal ")]
    assert normal and all(second_opinion.drawn(item.make(draw)) for item in normal)


PLUGIN = ROOT / "tests/plugins/functions/logsumexp.py"
CLASS = ROOT / "tests/plugins/correct/logsumexp.py"


def test_pages_show_tested_plugins():
    for page, shown in (("README.md", PLUGIN.read_text()), ("docs/plugins.md", CLASS.read_text().partition("\n\n\nclass")[2])):
        assert shown.removeprefix("class").strip() in (ROOT / page).read_text()


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_the_readme_plugin_passes_empty_and_shifted_cases(direction):
    (backend,) = load(PluginSource("file", "logsumexp", str(PLUGIN), "logsumexp.py"))
    runner = CheckCaseRunner(backend, "cpu")
    names = ["shape 0x16", "shape 16x0", *(["shifted", "a row of -inf", "one +inf"] if direction is Direction.FORWARD else ["dy = 1"])]
    for name in names:
        found = runner.run(name, direction, "fp32", 0)
        assert found.grade is Grade.PASS, (name, found)
