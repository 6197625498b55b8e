"""Detects that a plugin replaced a timing or checking function in the process they share. It deters cheating; it is no security boundary.

`bind` records the protected names before the plugin is imported. `TamperGuard.replaced` names the first one that has changed since,
for example a patched `torch.cuda.Event`, `perf_counter` or float64 reference.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
import time
import timeit
from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from softbench import ops
from softbench.ops import registry
from softbench.worker import any_dim, output_checks, persisting_l2, row_sample
from softbench.worker.persisting_l2 import PersistingL2

OPERATIONS = tuple(import_module(found.name) for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."))
"""All modules of `softbench.ops`. Every name that they define or import is protected."""
USED = " ".join(name for module in OPERATIONS for name in getattr(module, "OPERATORS", ()))
"""The operators of torch that operations use, by their own word."""
PROTECTED: dict[ModuleType, str] = {
    time: "perf_counter perf_counter_ns monotonic sleep",
    timeit: "default_timer",
    torch.cuda: "Event Event.record Event.elapsed_time Event.synchronize Event.wait Event.__new__ "
    "synchronize Stream current_stream CUDAGraph graph _sleep",
    torch: "equal full_like randn where empty Tensor.double Tensor.clone Tensor.copy_ Tensor.abs Tensor.amax Tensor.sum "
    f"Tensor.item Tensor.isnan Tensor.data_ptr Tensor.movedim Tensor.reshape {USED}",
    output_checks: "breach misformed poison forms as_tuple same",
    any_dim: "make refill write laid_out rows rows_of rows_of_outputs _rows_of _places Rows.__getitem__ Rows.__setitem__ Rows._moved",
    row_sample: "rows_to_compare suspects",
}
"""Names that timing and checking depend on, by module. Each must exist, unless it is in OPTIONAL."""
PROTECTED_TIMER = "Timer Timer.timeit Timer.blocked_autorange Timer._timeit"
"""Protected names of `torch.utils.benchmark`. Importing that module calls the CUDA driver, and a process forked after that cannot use it.
The forkserver imports this module, so only `bind`, in a worker, imports `torch.utils.benchmark`."""
OPTIONAL = frozenset({"torch.utils.benchmark.Timer._timeit"})
"""Private names, which another version of torch may lack."""


@dataclass(frozen=True, slots=True)
class ProtectedName:
    """A name, and the value it had before any plugin was imported."""

    owner: object
    attribute: str
    label: str
    """Module and dotted name."""
    value: object
    code: object
    """A Python function's code object: a plugin may exchange it and keep the function. None for other values."""


@dataclass(frozen=True, slots=True)
class TamperGuard:
    """The protected names of one process, with their original values."""

    names: tuple[ProtectedName, ...]
    persisting_l2: PersistingL2 | None = None
    """None on the CPU."""

    def replaced(self) -> str:
        """`replaced torch.cuda.Event, which measures or judges it`, or an empty text. A changed setting of L2 is named too."""
        for name in self.names:
            entries = isinstance(name.owner, dict)
            now = name.owner.get(name.attribute) if entries else getattr(name.owner, name.attribute, None)  # type: ignore[attr-defined]
            if now is not name.value or getattr(now, "__code__", None) is not name.code:
                return f"replaced {name.label}, which measures or judges it"
        return self.persisting_l2.changed() if self.persisting_l2 else ""


def bind(device: str) -> TamperGuard:
    """Record the values of all protected names. Call it before a plugin is imported.

    Raises:
        AttributeError: a protected name does not exist; a rename has left this list behind.
    """
    from torch.utils import benchmark

    protected = PROTECTED | {benchmark: PROTECTED_TIMER}
    if device == "cuda":
        from torch.autograd import profiler
        from triton import testing

        protected |= {testing: "do_bench", profiler: "profile"}
    names = (*bound(protected), *_of_operations(), *_of_users())
    return TamperGuard(names, persisting_l2.bind() if device == "cuda" else None)


def _of_operations() -> Iterator[ProtectedName]:
    """The names in OPERATIONS and the members of their classes. A module's own come first, because others may import them."""
    for own in (True, False):
        for module in OPERATIONS:
            for name, value in vars(module).items():
                if name.startswith("__") or (getattr(value, "__module__", module.__name__) == module.__name__) is not own:
                    continue
                yield _protected(module, name, f"{module.__name__}.{name}")
                if own and inspect.isclass(value):
                    yield from _members(value, f"{module.__name__}.{name}")


def _of_users() -> Iterator[ProtectedName]:
    """The users' operations that are loaded: their entries in the registry, the names of their files, classes and instances."""
    for operation in registry.names():
        if operation in registry.NAMES:
            continue
        values = registry.numerics(operation)
        owner, module = type(values), sys.modules.get(type(values).__module__)
        for entries in (registry._added, registry._numerics):
            yield _entry(entries, operation, f"the operation {operation}")
        yield from _members(owner, owner.__name__)
        for name in dir(owner):
            if not name.startswith("__"):
                yield _protected(owner, name, f"{owner.__name__}.{name}")
                yield _entry(vars(values), name, f"{owner.__name__}.{name}")  # would hide the class's
        for name in vars(module) if module else ():
            if not name.startswith("__"):
                yield _protected(module, name, f"{owner.__module__}.{name}")


def _entry(entries: dict[str, Any], name: str, label: str) -> ProtectedName:
    """An entry of a dictionary. It is None if it does not exist."""
    value = entries.get(name)
    return ProtectedName(entries, name, label, value, getattr(value, "__code__", None))


def _members(owner: type, label: str) -> Iterator[ProtectedName]:
    """The methods and properties of a class, inherited ones too."""
    for name in dir(owner):
        value = inspect.getattr_static(owner, name)
        if not name.startswith("__") and (callable(value) or isinstance(value, property | staticmethod)):
            yield _protected(owner, name, f"{label}.{name}")


def _protected(owner: object, name: str, label: str) -> ProtectedName:
    value = getattr(owner, name)
    return ProtectedName(owner, name, label, value, getattr(value, "__code__", None))


def bound(protected: dict[ModuleType, str]) -> tuple[ProtectedName, ...]:
    """The present values of names such as those in PROTECTED.

    Raises:
        AttributeError: a name does not exist and is not in OPTIONAL.
    """
    found = []
    for module, names in protected.items():
        for name in names.split():
            *path, attribute = name.split(".")
            label = f"{module.__name__}.{name}"
            try:
                owner = reduce(getattr, path, module)
                getattr(owner, attribute)
            except AttributeError:
                if label in OPTIONAL:
                    continue
                raise AttributeError(f"the tamper guard protects {label}, which does not exist; correct the list in {__name__}") from None
            found.append(_protected(owner, attribute, label))
    return tuple(found)
