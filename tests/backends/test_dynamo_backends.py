"""Dynamo's other backends: registered ones, and those of packages."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from compiling import case, grade

from softbench.backends import dynamo_backends
from softbench.core.outcome import Grade
from softbench.ops.registry import operation


@pytest.fixture(scope="module")
def by_name():
    return {backend.name: backend for backend in dynamo_backends.backends}


@pytest.mark.slow  # each compiles
def test_every_registered_backend_passes_or_gives_a_reason(by_name):
    for name in (*dynamo_backends.OF_USERS, *torch._dynamo.list_backends()):
        if (backend := by_name.get(f"compile:{name}")) is None:
            continue
        why = backend.available() or backend.supports(case())
        if why is None and name not in ("inductor", "cudagraphs"):
            assert grade(backend, case()) == (Grade.PASS, ""), name
        else:
            assert why is None or len(why) > 10


@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_log_softmax_is_compiled_in_every_direction(by_name, direction):
    assert grade(by_name["compile:aot_eager"], case(direction=direction, op="log_softmax")) == (Grade.PASS, "")


def test_what_serves_dynamos_own_tests_is_no_backend(by_name):
    assert {
        "compile",
        "compile:eager",
        "compile:aot_eager",
        "compile:cudagraphs",
        "compile:tensorrt",
        "compile:max-autotune",
    } <= by_name.keys()
    assert not {"compile:eager_noexcept", "compile:relu_compile_error_TESTING_ONLY", "compile:tvm"} & by_name.keys()


@pytest.mark.parametrize("name", sorted(dynamo_backends.PACKAGES))
def test_a_missing_package_is_named_with_the_fix(name, by_name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    backend = dynamo_backends.DynamoBackend(name, registered=False)
    assert (
        backend.available()
        == f"{dynamo_backends.PACKAGES[name].module.partition('.')[0]} is not installed: {dynamo_backends.PACKAGES[name].advice}"
    )


def test_a_registering_package_is_imported_before_compiling(monkeypatch):
    from torch._dynamo.backends import registry as theirs

    module = ModuleType("hidet")
    monkeypatch.setitem(sys.modules, "hidet", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace())
    monkeypatch.setitem(theirs._BACKENDS, "hidet", None)
    monkeypatch.setitem(theirs._COMPILER_FNS, "hidet", theirs._COMPILER_FNS["eager"])
    backend = dynamo_backends.DynamoBackend("hidet", registered=False)
    assert backend.available() is None
    assert grade(backend, case()) == (Grade.PASS, "")
    torch._dynamo.reset()


def test_a_failing_import_is_reported_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "hidet.py").write_text("raise OSError('libhidet.so: not\\nfound')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "hidet", raising=False)
    reason = dynamo_backends.DynamoBackend("hidet", registered=False).available()
    assert reason == "hidet cannot be imported (OSError: libhidet.so: not found): pip install hidet"


def test_a_backend_that_cannot_compile_is_tried_once(monkeypatch):
    def compiled(function, backend):
        tried.append(backend)
        raise TypeError("it is not\nwhat it was")

    tried = []
    monkeypatch.setattr(torch, "compile", compiled)
    backend = dynamo_backends.DynamoBackend("other", registered=True)
    for _ in range(2):
        assert backend.supports(case()) == (
            f"it fails in torch {torch.__version__} on every function; instead: compile (it is not what it was)"
        )
    assert tried == ["other"]
