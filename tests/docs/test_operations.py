"""The operation that docs/operations.md shows: it is the file that the tests load, and its checks find wrong kernels."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import registry, user_file
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.worker.check_case import CheckCaseRunner
from softbench.worker.pre_check import PreCheck

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "tests/plugins/operations"
FILES = (FOLDER / "rms_norm.py", FOLDER / "rms_norm_kernels.py")
EPS = 1e-6


@pytest.fixture(autouse=True)
def rms_norm(monkeypatch):
    monkeypatch.setattr(registry, "_added", {})
    monkeypatch.setattr(registry, "_numerics", {})
    assert user_file.load(str(FILES[0])).name == "rms_norm"


def test_the_page_shows_the_tested_files():
    blocks = re.findall(r"```python\n(.*?)\n```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    assert blocks == [file.read_text().strip() for file in FILES]
    assert sum(len(block.splitlines()) for block in blocks) <= 120


def wide(x, w, *, eps=EPS, mean=lambda square: square.mean(-1, keepdim=True)):
    x32 = x.float()
    return (x32 * torch.rsqrt(mean(x32.square()) + eps) * w.float()).to(x.dtype)


def cached(function=wide):
    kept = {}
    return lambda x, w: kept.setdefault(x.data_ptr(), function(x, w)).clone()


def serial(x, w):
    total = torch.zeros(len(x), 1)
    for column in x.float().split(1, dim=1):
        total += column.square()
    return (x.float() * torch.rsqrt(total / x.shape[1] + EPS) * w.float()).to(x.dtype)


def gradient(dy, x, w, *, less=1.0):
    x, w, dy = x.float(), w.float(), dy.float()
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)
    return r * w * dy - less * r**3 * x * (w * dy * x).mean(-1, keepdim=True)


RIGHT = {
    "F.rms_norm": lambda x, w: torch.nn.functional.rms_norm(x, w.shape, w, EPS),
    "float32": wide,
    "float64": lambda x, w: wide(x.double(), w.double()).to(x.dtype),
    "sums one by one": serial,
    "weight first": lambda x, w: (x.float() * w.float() / (x.float().square().mean(-1, keepdim=True) + EPS).sqrt()).to(x.dtype),
    "a norm": lambda x, w: (x.float() * w.float() / (x.float().norm(dim=-1, keepdim=True) ** 2 / x.shape[1] + EPS).sqrt()).to(x.dtype),
}
WRONG = {
    "zeros": lambda x, w: torch.zeros_like(x),
    "no EPS": lambda x, w: wide(x, w, eps=0),
    "EPS of 1e-5": lambda x, w: wide(x, w, eps=1e-5),
    "EPS outside the root": lambda x, w: (x.float() / (x.float().square().mean(-1, keepdim=True).sqrt() + EPS) * w.float()).to(x.dtype),
    "sum for mean": lambda x, w: wide(x, w, mean=lambda square: square.sum(-1, keepdim=True)),
    "half of the row": lambda x, w: wide(x, w, mean=lambda square: square[:, : x.shape[1] // 2].mean(-1, keepdim=True)),
    "without the last column": lambda x, w: wide(x, w, mean=lambda square: square[:, :-1].sum(-1, keepdim=True) / x.shape[1]),
    "mean removed": lambda x, w: wide(x - x.mean(-1, keepdim=True), w),
    "no weight": lambda x, w: wide(x, torch.ones_like(w)),
    "weight of the next column": lambda x, w: wide(x, w.roll(1)),
    "root missing": lambda x, w: (x.float() / (x.float().square().mean(-1, keepdim=True) + EPS) * w.float()).to(x.dtype),
    "of the row before": lambda x, w: wide(x.roll(1, 0), w),
    "cached": cached(),
    "sum in 16 bits": lambda x, w: wide(x, w, mean=lambda square: square.half().cumsum(-1)[:, -1:].float() / x.shape[1]),
}


def graded(call, dtype="fp32", direction=Direction.FORWARD):
    case = Case(40, 512, dtype, direction, "cpu", "rms_norm")
    given = registry.numerics("rms_norm").make(case, 0, torch.device("cpu"))
    return PreCheck(case, call, given, SimpleNamespace(name="user"), None).run(1)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_of_the_pages_operation_pass(name, dtype):
    found = graded(RIGHT[name], dtype)
    assert found.grade is Grade.PASS, found.detail


@pytest.mark.parametrize("name", WRONG)
def test_wrong_kernels_of_the_pages_operation_are_found(name):
    assert graded(WRONG[name]).grade is Grade.WRONG


def test_the_gradient_is_checked_too():
    assert graded(gradient, direction=Direction.BACKWARD).grade is Grade.PASS
    wrong = graded(lambda dy, x, w: gradient(dy, x, w, less=0.0), direction=Direction.BACKWARD)
    assert (wrong.grade, "structured rows" in wrong.detail) == (Grade.WRONG, True)


def test_the_pages_backend_passes_all_check_cases():
    backend = load(PluginSource("file", "k", str(FILES[1]), "k.py"))[0]
    runner = CheckCaseRunner(backend, "cpu", operation="rms_norm")
    found = [runner.run(name, direction, dtype, 0) for name, direction in runner.items for dtype in ("fp32", "fp16", "bf16")]
    assert len(found) == 84
    assert {one.grade for one in found} == {Grade.PASS}
