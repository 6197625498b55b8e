"""Names of the backends of a call: each is unique, and selects what the caller gave."""

import functools
import importlib
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from softbench import kernels
from softbench.api.backends import given, place, shown
from softbench.core.errors import UsageError
from softbench.plugins.source import origins

HERE = shown(Path(__file__))


def naive(x):
    return torch.softmax(x, -1)


def mine(x):
    return torch.softmax(x, -1)


def test_names_and_patterns_stay():
    assert given(["torch", "compile:*", "all"]) == (("torch", "compile:*", "all"), ("torch", "compile:*", "all"), ())


def test_a_file_is_selected_by_its_path_or_its_alias(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = str(tmp_path.resolve() / "my kernels.py")
    found = given(["my kernels.py", Path("new=my kernels.py"), "my kernels.py:fast"])
    assert found.names == (whole, "new", "fast")
    assert found.labels == ("my-kernels", "new", "fast")
    assert found.plugins == tuple(map(Path, ("my kernels.py", "new=my kernels.py", "my kernels.py:fast")))


def test_a_files_one_backend_has_the_files_name():
    assert given(["a/k.py", "b/k.py"], one_each=True) == (("k", "k-2"), ("k", "k-2"), (Path("k=a/k.py"), Path("k-2=b/k.py")))


def test_a_function_has_its_name_unless_that_is_taken():
    """`naive` is a backend of softbench. The same function twice is an A/A comparison."""
    found = given([mine, mine, mine, naive])
    assert found.names == ("mine", "test_backends.mine", "mine-2", "test_backends.naive")
    assert found.plugins[:2] == (Path(f"{HERE}:mine"), Path(f"test_backends.mine={HERE}:mine"))


def test_functions_of_one_name_in_two_files_are_told_apart():
    found = given(["old/a.py:fast", "new/b.py:fast", "torch.py:softmax"])
    assert found.names == found.labels == ("fast", "b.fast", "softmax")
    assert found.plugins == tuple(map(Path, ("old/a.py:fast", "b.fast=new/b.py:fast", "torch.py:softmax")))


def test_another_object_is_refused():
    with pytest.raises(UsageError, match="3 is no backend; give a name, a file, or a function"):
        given([3])


def plain(x):
    return torch.softmax(x, -1)


class Kernels:
    @staticmethod
    def inner(x):
        return torch.softmax(x, -1)


partial = functools.partial(torch.softmax, dim=-1)


@functools.wraps(plain)
def decorated(x):
    return plain(x)


HERE = shown(Path(__file__))


def test_a_function_of_a_file_is_found_by_the_file():
    assert place(plain) == f"{HERE}:plain"
    assert place(Kernels.inner) == f"{HERE}:Kernels.inner"
    (source,) = [source for source in origins([Path(place(plain))]) if source.given]
    assert (source.kind, source.label, source.target, source.function) == ("file", "plain", str(Path(__file__).resolve()), "plain")


def test_a_function_of_a_package_is_found_by_the_module():
    assert place(torch.nn.functional.softmax) == "torch.nn.functional:softmax"
    assert place(torch.softmax).startswith("torch:") or ":softmax" in place(torch.softmax)


@pytest.mark.parametrize("packed", [False, True])
def test_packages_without_init_and_archives_are_found_by_module(tmp_path, monkeypatch, packed):
    (tmp_path / "spaced").mkdir()
    (tmp_path / "spaced" / "one.py").write_text(("" if packed else "from .other import kernel\n") + "def fast(x):\n    return x\n")
    (tmp_path / "spaced" / "other.py").write_text(CODE)
    place_of = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path, "spaced") if packed else str(tmp_path)
    monkeypatch.syspath_prepend(place_of)
    found = place(importlib.import_module("spaced.one").fast)
    for name in [name for name in sys.modules if name.partition(".")[0] == "spaced"]:
        del sys.modules[name]
    assert found == "spaced.one:fast"
    (source,) = [source for source in origins([Path(found)]) if source.given]
    assert (source.kind, source.target) == ("module", "spaced.one")


def test_a_function_of_softbenchs_kernels_is_found():
    found = place(kernels.softmax)
    assert found == "softbench.kernels.automatic.softmax:softmax"
    assert [source.kind for source in origins([Path(found)]) if source.given] == ["module"]


def test_another_object_of_that_name_is_not_taken():
    """`functools.wraps` gives a function the name of the one that it calls."""
    assert place(decorated) == f"{HERE}:decorated"
    assert place(partial) == f"{HERE}:partial"


def nested():
    def kernel(x):
        return x

    return kernel


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x, "a lambda cannot be imported by a worker; write it as a function with def, at the top level of a file"),
        (nested(), "kernel is defined inside nested, so a worker cannot import it; define it at the top level of a file"),
        (functools.partial(plain), "an object of partial has no name in a module, so a worker cannot import it"),
    ],
)
def test_a_function_without_a_name_is_refused(function, message):
    with pytest.raises(UsageError, match=message):
        place(function)


def in_main(code, monkeypatch, file=None):
    module = ModuleType("__main__")
    if file is not None:
        module.__file__ = str(file)
    exec(compile(code, str(file or "<ipython-input-1>"), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module.kernel


CODE = "def kernel(x):\n    return x\n"


def test_a_scripts_function_is_found_and_a_cells_is_refused(monkeypatch, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CODE)
    assert place(in_main(CODE, monkeypatch, script)) == f"{script.resolve()}:kernel"
    decorated = "import torch\n@torch.no_grad()\n" + CODE  # the code of the wrapper is in a file of torch
    assert place(in_main(decorated, monkeypatch, script)) == f"{script.resolve()}:kernel"
    with pytest.raises(
        UsageError, match=r"kernel is defined in a notebook cell or an interpreter.*begin the cell with %%softbench FILE.py"
    ):
        place(in_main(CODE, monkeypatch))
