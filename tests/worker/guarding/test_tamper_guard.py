"""The tamper guard: every protected name exists, and a missing or replaced one is reported."""

import ast
import builtins
import pkgutil
import re
import sys
import time
from pathlib import Path

import numpy
import pytest
import torch

from softbench.core import case
from softbench.ops import lazy
from softbench.ops.softmax import OPERATION
from softbench.worker.checking import any_dim, output_checks, pre_check
from softbench.worker.guarding import tamper_guard
from softbench.worker.guarding.tamper_guard import OPTIONAL, PROTECTED, PROTECTED_TIMER, bind, bound
from softbench.worker.timing import timers
from softbench.worker.timing.call_queue import CallQueue

LABELS = {f"{module.__name__}.{name}" for module, names in PROTECTED.items() for name in names.split()} | {
    f"torch.utils.benchmark.{name}" for name in PROTECTED_TIMER.split()
}
ROOT = Path(__file__).parents[3]
DOTTED = re.compile(r"softbench(?:\.[A-Za-z_]\w*)+")


def test_guard_binds_every_protected_name():
    assert {name.label for name in bind("cpu").names} >= LABELS - OPTIONAL


@pytest.mark.parametrize("missing", ["no_such_name", "NoClass.method"])
def test_missing_protected_name_raises(missing):
    with pytest.raises(AttributeError, match=rf"protects time\.{missing}, which does not exist"):
        bound({time: f"perf_counter {missing}"})


def test_optional_name_may_be_missing(monkeypatch):
    monkeypatch.setattr(tamper_guard, "OPTIONAL", frozenset({"time.no_such_name"}))
    assert bound({time: "no_such_name"}) == ()


def test_optional_names_are_protected_names():
    assert LABELS >= OPTIONAL


def test_what_the_forkserver_remembers_is_what_a_worker_would_record(monkeypatch):
    from softbench.ops import softmax

    monkeypatch.setattr(tamper_guard, "_remembered", [])
    recorded = bind("cpu").names
    tamper_guard.remember()
    assert bind("cpu").names == recorded
    monkeypatch.setattr(softmax, "forward", lambda x: x)  # by the file of a user's operation, which is loaded before the guard is bound
    assert bind("cpu").replaced() == "replaced softbench.ops.softmax.forward, which measures or judges it"


def test_replaced_function_is_named(monkeypatch):
    guard = bind("cpu")
    assert guard.replaced() == ""
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    assert guard.replaced() == "replaced time.perf_counter, which measures or judges it"


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_an_exchanged_package_is_noticed(name, monkeypatch):
    """Operations look it up in `sys.modules`."""
    guard = bind("cpu")
    monkeypatch.setitem(sys.modules, name, object())
    replaced = guard.replaced()
    monkeypatch.undo()
    assert replaced == f"replaced sys.modules['{name}'], which measures or judges it"


def test_operations_do_not_ask_the_import_statement_for_their_packages(monkeypatch):
    """A plugin that replaced it gave the check another torch."""
    monkeypatch.setattr(builtins, "__import__", lambda *_, **__: None)
    found = lazy.torch.where, lazy.numpy.exp
    monkeypatch.undo()
    assert found == (torch.where, numpy.exp)


@pytest.mark.parametrize(("owner", "name"), [(timers._Queued, "_batch"), (timers._Queued, "__call__"), (CallQueue, "start")])
def test_the_queued_timer_is_protected(owner, name, monkeypatch):
    guard = bind("cpu")
    monkeypatch.setattr(owner, name, lambda *_: [0.001])
    assert guard.replaced() == f"replaced {owner.__module__}.{owner.__name__}.{name}, which measures or judges it"


def test_exchanged_code_is_noticed(monkeypatch):
    from softbench.ops import softmax

    guard = bind("cpu")
    monkeypatch.setattr(softmax.forward, "__code__", (lambda x: x).__code__)
    assert guard.replaced() == "replaced softbench.ops.softmax.forward, which measures or judges it"


def test_an_operation_can_be_changed_in_no_unguarded_way(monkeypatch):
    from softbench.ops import softmax
    from softbench.ops.operation import TensorSpec

    with pytest.raises(AttributeError):
        softmax.NUMERICS.check = lambda *_: None
    with pytest.raises(TypeError):
        OPERATION.tensors["x"] = TensorSpec(("M",))
    with pytest.raises(TypeError):
        OPERATION.passes["forward"] = None
    guard = bind("cpu")
    monkeypatch.setattr(TensorSpec, "has_columns", False)
    assert guard.replaced() == "replaced softbench.ops.operation.TensorSpec.has_columns, which measures or judges it"
    monkeypatch.undo()
    monkeypatch.setattr(softmax.Softmax, "kinds", lambda self, case: [])
    assert guard.replaced() == "replaced softbench.ops.softmax.Softmax.kinds, which measures or judges it"


CHOOSERS = [
    (case.Case, "parameters"),
    (case.Case, "op"),
    (case.Case, "of_rows"),
    (case.Shape, "columns"),
    (case, "parse_op"),
    (pre_check, "numerics"),
    (pre_check, "verify_outputs"),
    (any_dim.Rows, "__getitem__"),
    (output_checks, "breach"),
    (torch.cuda, "Event"),
]


@pytest.mark.parametrize(("owner", "name"), CHOOSERS)
def test_what_chooses_the_comparison_is_protected(owner, name, monkeypatch):
    guard = bind("cpu")
    monkeypatch.setattr(owner, name, property(lambda self: {}))
    label = f"{owner.__module__}.{owner.__name__}" if isinstance(owner, type) else owner.__name__
    assert guard.replaced() == f"replaced {label}.{name}, which measures or judges it"


def test_exchanged_code_of_a_property_is_noticed(monkeypatch):
    guard = bind("cpu")
    monkeypatch.setattr(case.Case.parameters.fget, "__code__", (lambda self: {}).__code__)
    assert guard.replaced() == "replaced softbench.core.case.Case.parameters, which measures or judges it"


@pytest.mark.parametrize(
    ("record", "field", "label"),
    [
        (OPERATION, "any_dim", "OPERATION.any_dim"),
        (OPERATION.passes["forward"], "reads", "OPERATION.passes[forward].reads"),
        (OPERATION.parameters[0], "least", "SCALE.least"),
    ],
)
def test_a_changed_field_of_a_frozen_record_is_noticed(record, field, label):
    guard, before = bind("cpu"), getattr(record, field)
    object.__setattr__(record, field, None)
    try:
        assert guard.replaced() == f"replaced softbench.ops.softmax.{label}, which measures or judges it"
    finally:
        object.__setattr__(record, field, before)
    assert guard.replaced() == ""


def dotted_names(path: Path) -> set[str]:
    """Names such as `softbench.ops.softmax` in a file's strings: also docstrings."""
    strings = [
        node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {name for text in strings for name in DOTTED.findall(text)}


def resolves(name: str) -> bool:
    try:
        return bool(pkgutil.resolve_name(name))
    except (AttributeError, ImportError):
        return False


NO_MODULES = {"softbench.backends"}
"""An entry-point group; it is also a package, but `softbench.backends` does not mean it there."""


@pytest.mark.parametrize("folder", ["worker", "ops", "plugins"])
def test_every_module_in_a_string_resolves(folder):
    paths = list((ROOT / "softbench" / folder).rglob("*.py"))
    assert paths
    for path in paths:
        assert {name for name in dotted_names(path) - NO_MODULES if not resolves(name)} == set(), path
