"""Without a GPU each file of this folder is one test, which collects the file's tests and skips.

A file that cannot be imported or collected fails. pytest would collect a thousand tests in each process, only to skip them one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def memory_goes_back() -> Iterator[None]:
    """Processes that run tests at once share the card, and torch's allocator keeps what a test has used."""
    yield
    import torch

    if torch.cuda.is_initialized():
        with contextlib.suppress(torch.AcceleratorError):  # a test may leave the device with an error
            torch.cuda.empty_cache()


@pytest.fixture(params=["triton", "cuda"])
def kernels(request, monkeypatch) -> str:
    """The kernels that the functions of `choice.py` take. Otherwise these depend on what an earlier test has built."""
    import torch
    from softbench.kernels.automatic import choice
    from softbench.kernels.common import extension
    from softbench.kernels.cuda import build

    functions = [name for name in choice.SUBJECTS if name not in (*choice.OF_ROWS, "masked_softmax")]
    monkeypatch.setattr(choice, "_choices", {})
    extension.forget_choices()
    if request.param == "triton":
        monkeypatch.setattr(choice, "without_cuda", lambda device, function: "this test wants Triton's")
    elif build.nvcc() is None:
        pytest.skip("no nvcc on this machine")
    else:
        for function in functions:
            build.load(torch.cuda.get_device_capability(), function)
    x = torch.empty(1, 2, device="cuda", dtype=torch.bfloat16)
    assert {choice.which(x, function=function).kernels for function in functions} == {request.param}
    return request.param


class WithoutGPU(pytest.File):
    def collect(self):
        yield CollectedOnly.from_parent(self, name="gpu")


class CollectedOnly(pytest.Item):
    """A file's tests, which need a GPU."""

    def __init__(self, **given) -> None:
        super().__init__(**given)
        self.add_marker("gpu")

    def runtest(self) -> None:
        import torch

        module = pytest.Module.from_parent(self.parent.parent, path=self.path)
        count = sum(1 for _ in tests_of(module))
        pytest.skip(f"{self.path.name}: its {count} tests need a CUDA GPU; torch {torch.__version__} sees none")

    def reportinfo(self):
        return self.path, 0, self.nodeid


def tests_of(node: pytest.Item | pytest.Collector) -> Iterator[pytest.Item]:
    """The tests of a file or class. Raises what is wrong in the file."""
    if isinstance(node, pytest.Item):
        yield node
    else:
        for child in node.collect():
            yield from tests_of(child)


def pytest_pycollect_makemodule(module_path, parent):
    import torch

    return None if torch.cuda.is_available() else WithoutGPU.from_parent(parent, path=module_path)
