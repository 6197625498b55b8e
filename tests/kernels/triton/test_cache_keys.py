"""A kernel has one key in Triton's cache, whatever was compiled before."""

import importlib.util

import pytest
from softbench.kernels.triton import cache_keys
from softbench.kernels.triton.cache_keys import with_stable_key
from triton.runtime.jit import JITFunction

SOURCE = """
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)

@triton.jit
def innermost(x):
    return x * FACTOR

@triton.jit
def inner(x):
    return innermost(x) + 1

@triton.jit
def first(pointer):
    tl.store(pointer, inner(tl.load(pointer)))

@triton.jit
def second(pointer):
    tl.store(pointer, inner(tl.load(pointer)) + innermost(2))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.setattr(cache_keys, "_done", {})
    file = tmp_path / "some_kernels.py"
    file.write_text(SOURCE)

    def load():
        spec = importlib.util.spec_from_file_location("some_kernels", file)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        return found

    return load


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first"), ("inner", "second", "first")])
def test_the_order_of_kernels_does_not_matter(module, names):
    def keys(names):
        found = module()
        stable = {name: with_stable_key(getattr(found, name)).cache_key for name in names}
        return stable["first"], stable["second"]

    assert keys(names) == keys(("innermost", "inner", "first", "second"))


def test_the_keys_of_called_functions_come_first(module, monkeypatch):
    order, original = [], JITFunction.cache_key

    def recorded(function):
        if function.hash is None:
            order.append(function.__name__)
        return original.fget(function)

    monkeypatch.setattr(JITFunction, "cache_key", property(recorded))
    kernel = module().second
    assert with_stable_key(kernel) is kernel
    assert order == ["innermost", "inner", "second"]


def test_what_has_no_key_stays_as_it_is():
    def interpreted(pointer):
        pass

    assert with_stable_key(interpreted) is interpreted
