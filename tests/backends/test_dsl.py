"""Availability and limits of the backends in other GPU languages."""

import importlib.util

import pytest
from compiling import case

from softbench.backends import cudnn, dsl
from softbench.backends.calls import EMPTY
from softbench.backends.flaggems import backend as flaggems
from softbench.plugins.load import load
from softbench.plugins.source import origins

LANGUAGES = [dsl.helion, dsl.cupy, dsl.numba]
languages = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


def test_entry_points_load_the_backends():
    sources = {source.label: source for source in origins([])}
    for backend in (*LANGUAGES, cudnn.backend, flaggems):
        assert load(sources[backend.name]) == (backend,)


@pytest.mark.parametrize("backend", [*LANGUAGES, flaggems], ids=lambda backend: backend.name)
def test_a_missing_package_is_named_with_the_fix(backend, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    reason = backend.available()
    assert reason == f"{backend.package} is not installed; where there is a CUDA GPU: {backend.install}"
    assert "pip install" in reason


@languages
def test_empty_tensors_are_refused(language):
    for empty in (case(0), case(8, M=0)):
        assert language.supports(empty) == EMPTY
    assert language.supports(case()) is None


def test_numba_refuses_other_dtypes_than_fp32():
    assert "written for fp32" in dsl.numba.supports(case(dtype="bf16"))


def test_numba_cuda_for_an_older_numpy_is_unavailable(monkeypatch):
    def load(name):
        assert name == "numba.cuda.cudaimpl"
        raise trouble

    trouble = AttributeError("module 'numpy' has no attribute 'row_stack'")
    monkeypatch.setattr(dsl.ThirdParty, "available", lambda self: None)
    monkeypatch.setattr(dsl.importlib, "import_module", load)
    assert dsl.numba.available() == (
        "numba-cuda does not load (AttributeError: module 'numpy' has no attribute 'row_stack'): "
        "install a version that fits the other packages: pip install 'numba-cuda[cu13]' (for CUDA 12: 'numba-cuda[cu12]')"
    )
    trouble = ModuleNotFoundError("No module named 'llvmlite'", name="llvmlite")
    assert "does not load (ModuleNotFoundError: No module named 'llvmlite')" in dsl.numba.available()
    trouble = ModuleNotFoundError("No module named 'numba.cuda.cudaimpl'", name="numba.cuda.cudaimpl")
    assert dsl.numba.available() is None
