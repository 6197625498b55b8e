"""Names of the backends of a call: each is unique, and selects what the caller gave."""

from pathlib import Path

import pytest
import torch

from softbench.api.backends import given
from softbench.api.functions import shown
from softbench.core.errors import UsageError

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
