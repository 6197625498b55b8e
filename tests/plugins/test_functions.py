"""A plugin file of bare functions is a backend."""

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.plugins import static_scan
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource
from softbench.plugins.traits import info

CODE = '''"""My kernels."""
import torch

def softmax(x):
    """The fast one.

    It is fast."""
    return torch.softmax(x, -1)
'''
BACKWARD = "def softmax_backward(dy, y): return y * (dy - (dy * y).sum(-1, keepdim=True))\n"


def source(tmp_path, code, alias=""):
    file = tmp_path / "mine.py"
    file.write_text(code)
    return PluginSource("file", alias or "mine", str(file), "mine.py", alias)


def case(direction):
    return Case(4, 8, "fp32", direction, "cpu")


def test_functions_are_a_backend_named_as_the_file(tmp_path):
    origin = source(tmp_path, CODE)
    (backend,) = load(origin)
    assert (backend.name, info(backend, origin).summary) == ("mine", "The fast one.")
    assert [backend.supports(case(direction)) for direction in Direction] == [
        None,
        "its file defines no function softmax_backward",
        "its file defines no backend, only functions",
        "its file defines no function softmax_fused",
    ]
    x = torch.randn(4, 8)
    assert torch.equal(backend.prepare(case(Direction.FORWARD))(x), torch.softmax(x, -1))


def test_the_backward_is_taken_and_an_alias_renames(tmp_path):
    (backend,) = load(source(tmp_path, CODE + BACKWARD, "new"))
    assert backend.name == "new"
    assert backend.supports(case(Direction.BACKWARD)) is None
    assert backend.prepare(case(Direction.BACKWARD))(torch.ones(4, 8), torch.ones(4, 8)).shape == (4, 8)


@pytest.mark.parametrize("code", ["from torch import softmax\n", BACKWARD, "softmax = 3\n"])
def test_a_file_without_its_own_softmax_is_refused(tmp_path, code):
    with pytest.raises(UsageError, match="and no function `softmax`"):
        load(source(tmp_path, code))


def test_the_static_scan_names_the_backend_of_functions(tmp_path):
    (found,) = static_scan.at(source(tmp_path, CODE))
    assert (found.name, found.loaded) == ("mine", False)
    assert found.summary.startswith("The fast one. (")
    (found,) = static_scan.at(source(tmp_path, CODE, "new"))
    assert found.name == "new"
    (found,) = static_scan.at(source(tmp_path, CODE + "backend = make()\n"))
    assert "does not state its backends' names" in found.summary
