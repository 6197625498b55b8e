"""A plugin file of bare functions is a backend."""

import sys
from pathlib import Path

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.errors import UsageError
from softbench.ops.registry import declarations
from softbench.plugins import static_scan
from softbench.plugins.load import load
from softbench.plugins.source import PluginSource, origins
from softbench.plugins.traits import info, unsupported

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
        "mine.py defines no function softmax_backward",
        "mine.py has functions only, and direction both needs a backend: see docs/plugins.md",
        "mine.py defines no function softmax_fused",
    ]
    x = torch.randn(4, 8)
    assert torch.equal(backend.prepare(case(Direction.FORWARD))(x), torch.softmax(x, -1))


def test_a_file_of_functions_may_skip_cases_and_one_of_gluon_needs_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    skips = "def supports(case):\n    return 'short' if case.N < 9 else None\n"
    (backend,) = load(source(tmp_path, CODE + skips + "class GluonJITFunction: pass\nkernel = GluonJITFunction()\n"))
    assert (
        backend.supports(case(Direction.FORWARD)) == "short"
        and backend.available() == "no GPU here, and Triton's interpreter takes no Gluon"
    )
    (solution,) = load(source(tmp_path, CODE + skips), solutions={"softmax": "softmax"})
    assert solution.supports(case(Direction.FORWARD)) is None
    (named,) = load(given(f"{tmp_path}/mine.py:softmax"))
    assert named.supports(case(Direction.FORWARD)) == "short"


def test_the_backward_is_taken_and_an_alias_renames(tmp_path):
    (backend,) = load(source(tmp_path, CODE + BACKWARD, "new"))
    assert backend.name == "new"
    assert backend.supports(case(Direction.BACKWARD)) is None
    assert backend.prepare(case(Direction.BACKWARD))(torch.ones(4, 8), torch.ones(4, 8)).shape == (4, 8)


def test_backends_of_a_file_with_an_alias_keep_its_name_and_theirs(tmp_path):
    one = "class B:\n    available = supports = prepare = lambda self, *_: None\n    def __init__(self, name): self.name = name\n"
    (renamed,) = load(source(tmp_path, f"{one}backend = B('mine')", "new"))
    assert renamed.name == "new"
    assert [backend.name for backend in load(source(tmp_path, f"{one}backends = [B('a'), B('b')]", "new"))] == ["new.a", "new.b"]


@pytest.mark.parametrize("code", ["from torch import softmax\n", BACKWARD, "softmax = 3\n"])
def test_a_file_without_its_own_softmax_is_refused(tmp_path, code):
    with pytest.raises(UsageError, match="and it has no function `softmax`"):
        load(source(tmp_path, code))


def test_a_fused_function_needs_no_forward(tmp_path):
    (backend,) = load(source(tmp_path, "def loss_fused(x, target):\n    return x\n"), ("softmax", "loss(softcap)"))
    fused, forward = (Case(4, 8, "fp32", direction, "cpu", "loss") for direction in (Direction.FUSED, Direction.FORWARD))
    assert (backend.operations, backend.supports(fused)) == (("loss",), None)
    assert backend.supports(forward) == "mine.py defines no function loss"


def test_a_named_function_takes_all_parameters(tmp_path):
    """The functions of a file do not know the parameters, and are skipped for them. A named function is what the user asks about."""
    (tmp_path / "mine.py").write_text(CODE)
    (named,), (whole,) = (load(given(f"{tmp_path}/mine.py{function}"), declarations()) for function in (":softmax", ""))
    assert [unsupported(backend, Case(4, 8, "fp32", "forward", "cpu", "softmax(scale=0.7)")) for backend in (named, whole)] == [
        "",
        "its softmax has no parameter scale",
    ]


def test_the_static_scan_names_the_backend_of_functions(tmp_path):
    (found,) = static_scan.at(source(tmp_path, CODE))
    assert (found.name, found.loaded) == ("mine", False)
    assert found.summary.startswith("The fast one. (")
    (found,) = static_scan.at(source(tmp_path, CODE, "new"))
    assert found.name == "new"
    (found,) = static_scan.at(source(tmp_path, CODE + "backend = make()\n"))
    assert "does not state its backends' names" in found.summary


def given(text):
    (source,) = [source for source in origins([Path(text)]) if source.given]
    return source


@pytest.mark.parametrize("direction", list(Direction))
def test_a_named_function_is_taken_for_any_case(tmp_path, direction):
    (tmp_path / "mine.py").write_text(CODE + "def fast(x):\n    'Fast.'\n    return softmax(x)\n")
    origin = given(f"new={tmp_path}/mine.py:fast")
    (backend,) = load(origin, ("softmax", "log_softmax"))
    assert (backend.name, backend.supports(case(direction)), info(backend, origin).operations) == ("new", None, ("softmax", "log_softmax"))
    assert torch.equal(backend.prepare(case(direction))(torch.ones(4, 8)), torch.full((4, 8), 0.125))
    assert [(one.name, one.summary) for one in static_scan.at(origin)] == [("new", f"Fast. ({static_scan.LOAD})")]


def test_a_function_of_a_module_keeps_its_package(tmp_path, monkeypatch):
    folder = tmp_path / "some_kernels"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('the parent process imports no package of a user')\n")
    (folder / "fast.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    origin = given("some_kernels.fast:softmax")
    assert (origin.kind, origin.label, origin.file, "some_kernels" in sys.modules) == ("module", "softmax", folder / "fast.py", False)
    (folder / "__init__.py").write_text("")
    (backend,) = load(origin)
    hashed = info(backend, origin).source
    (folder / "fast.py").write_text(CODE + "\n")
    assert (backend.name, hashed == info(backend, origin).source) == ("softmax", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no_such_module:softmax", "Python finds no module no_such_module; give its file: FILE.py:softmax"),
        ("no_such_file.py:softmax", "no_such_file.py:softmax: no such file"),
    ],
)
def test_a_function_of_nothing_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        given(text)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("slow", "has no function slow$"),
        ("softmx", r"has no function softmx; did you mean 'softmax'\?"),
        ("torch", "torch is no function, but of module"),
    ],
)
def test_a_name_that_is_no_function_is_refused(tmp_path, function, message):
    (tmp_path / "mine.py").write_text(CODE)
    with pytest.raises(UsageError, match=message):
        load(given(f"{tmp_path}/mine.py:{function}"))


def test_a_file_whose_name_has_a_colon_is_a_file(tmp_path):
    (tmp_path / "a.py:b").write_text(CODE)
    assert (given(tmp_path / "a.py:b").function, given(tmp_path / "a.py:b").target) == ("", str((tmp_path / "a.py:b").resolve()))
