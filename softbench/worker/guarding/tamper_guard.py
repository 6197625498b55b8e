"""Detects that a plugin replaced a timing or checking function in the process they share, or left a mode or hook active there.

It deters cheating; it is no security boundary.

`bind` records the protected names before the plugin is imported. `TamperGuard.replaced` names the first one that has changed since,
for example a patched `torch.cuda.Event`, `perf_counter` or float64 reference.
"""

from __future__ import annotations

import builtins
import gc
import inspect
import json
import math
import os
import pkgutil
import random
import statistics
import sys
import time
import timeit
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import reduce
from importlib import import_module
from itertools import repeat
from operator import is_
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import torch

from softbench import ops
from softbench.ops import registry
from softbench.worker.guarding import active
from softbench.worker.timing import persisting_l2
from softbench.worker.timing.persisting_l2 import PersistingL2

OPERATIONS = tuple(import_module(found.name) for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."))
"""All modules of `softbench.ops`."""
CHECKS = tuple(
    import_module(f"softbench.{name}")
    for name in (
        "core.case",
        "problems.layout",
        "problems.problem",
        "problems.replay",
        "problems.values",
        "core.channel",
        "core.json",
        "core.messages",
        "worker.callables",
        "worker.guarding.active",
        "worker.guarding.async_work",
        "worker.guarding.caller_state",
        "worker.guarding.triton_interpreter",
        "worker.checking.any_dim",
        "worker.checking.check_case",
        "worker.checking.contract_cases",
        "worker.checking.growth",
        "worker.checking.output_checks",
        "worker.checking.pre_check",
        "worker.checking.probes",
        "worker.checking.row_sample",
        "worker.cuda_driver",
        "worker.timing.batches",
        "worker.timing.call_queue",
        "worker.timing.device_timer",
        "worker.timing.rotating_inputs",
        "worker.timing.timers",
    )
)
"""The modules that time, and those that choose what is compared. A case's parameters, shape and rows are properties of
`softbench.core.case`."""
ANSWERS = ("softbench.worker.guarding.tamper_guard", "softbench.worker.serve", "softbench.worker.server")
"""Modules that import this one, and answer requests."""
USED = " ".join(name for module in OPERATIONS for name in getattr(module, "OPERATORS", ()))
"""The operators of torch that operations use, by their own word."""
FREE = {"print", "input", "open", "help", "exit", "quit", "copyright", "credits", "license"}
"""Names of builtins that decide nothing: libraries replace some of them."""
PROTECTED: dict[ModuleType, str] = {
    builtins: " ".join(name for name in vars(builtins) if not name.startswith("_") and name not in FREE),
    time: "perf_counter perf_counter_ns monotonic monotonic_ns sleep time time_ns process_time process_time_ns thread_time thread_time_ns",
    timeit: "default_timer Timer Timer.__init__ Timer.timeit",
    json: "dumps loads JSONEncoder JSONEncoder.encode JSONEncoder.iterencode encoder.c_make_encoder encoder.encode_basestring_ascii",
    statistics: "median",
    random: "Random Random.random Random.randrange Random.uniform Random.sample Random.choice Random.choices Random.getrandbits",
    math: "exp log ceil",
    os: "urandom",
    gc: "enable disable isenabled collect freeze",
    sys: "gettrace getprofile addaudithook",
    torch.cuda: "Event Event.record Event.elapsed_time Event.synchronize Event.wait Event.__new__ "
    "synchronize Stream current_stream CUDAGraph graph _sleep manual_seed",
    torch: "default_generator random.fork_rng equal full_like randn where empty Tensor.double Tensor.clone Tensor.copy_ Tensor.abs "
    f"Tensor.all Tensor.amin Tensor.amax Tensor.sum Tensor.item Tensor.isnan Tensor.data_ptr Tensor.movedim Tensor.reshape {USED}",
}
"""Names outside softbench that timing and checking depend on, by module. Each must exist, unless it is in OPTIONAL.
Every name that a module of OPERATIONS or CHECKS defines or imports is protected too."""
PROTECTED_TIMER = (
    "Timer Timer.__init__ Timer.timeit Timer.blocked_autorange Timer._timeit Timer._timer_cls Timer._threaded_measurement_loop Measurement "
    "Measurement.times Measurement.median utils.timer.timer utils.timer.timeit utils.common.set_torch_threads"
)
"""Protected names of `torch.utils.benchmark`. Importing that module calls the CUDA driver, and a process forked after that cannot use it.
The forkserver imports this module, so only `bind`, in a worker, imports `torch.utils.benchmark`."""
LAZY = ("torch", "numpy")
"""Packages that `softbench.ops.lazy` looks up in `sys.modules` at each use."""
OPTIONAL = frozenset(
    f"torch.utils.benchmark.{name}"
    for name in (
        "Timer._timeit",
        "Timer._timer_cls",
        "Timer._threaded_measurement_loop",
        "utils.timer.timeit",
        "utils.common.set_torch_threads",
    )
)
"""Private names, which another version of torch may lack."""
_all, _any, _map, _getattr, _isinstance = all, any, map, getattr, isinstance
_remembered: list[ProtectedName] = []
"""In a process that the forkserver forked: what `remember` found."""


@dataclass(frozen=True, slots=True)
class ProtectedName:
    """A name, and the value it had before any plugin was imported."""

    owner: object
    """An object with the name as an attribute, or a dictionary with it as a key."""
    attribute: str
    label: str
    """Module and dotted name."""
    value: object
    code: object
    """The code object of a function or of a property's function: a plugin may exchange it and keep these. None for other values."""

    def replaced(self) -> bool:
        """True if it has another value or code now."""
        owner: Any = self.owner
        now = owner.get(self.attribute) if _isinstance(owner, dict) else _getattr(owner, self.attribute, None)
        return now is not self.value or _getattr(_function(now), "__code__", None) is not self.code


class TamperGuard:
    """The protected names of one process, with their original values."""

    __slots__ = ("_columns", "_entries", "active", "names", "persisting_l2")

    def __init__(self, names: Sequence[ProtectedName], persisting_l2: PersistingL2 | None = None) -> None:
        """`persisting_l2` is None on the CPU."""
        self.names, self.persisting_l2, self.active = tuple(names), persisting_l2, active.watch()
        self._entries = [name for name in self.names if isinstance(name.owner, dict)]
        attributes = {(id(name.owner), name.attribute): name for name in self.names if not isinstance(name.owner, dict)}.values()
        coded = {id(_function(name.value)): name for name in attributes if name.code is not None}.values()
        owners, values = [name.owner for name in attributes], [name.value for name in attributes]
        self._columns = (
            (owners, [name.attribute for name in attributes], values),
            ([_function(name.value) for name in coded], ["__code__"] * len(coded), [name.code for name in coded]),
        )
        """Objects, their attributes and the values of these, which `map` compares in a tenth of the time of a loop. Each batch does it."""

    def replaced(self) -> str:
        """`replaced torch.cuda.Event, which measures or judges it`, or an empty text.

        What is left active and a changed setting of L2 are named too.
        """
        if left := self.active():
            return left
        same = True
        for owners, names, values in self._columns:
            same = same and _all(_map(is_, _map(_getattr, owners, names, repeat(None)), values))
        if not same or _any([entry.replaced() for entry in self._entries]):
            label = next((name.label for name in self.names if name.replaced()), "a name for a moment")
            return f"replaced {label}, which measures or judges it"
        return self.persisting_l2.changed() if self.persisting_l2 else ""


def _function(value: Any) -> Any:
    """The function of a property, else the value itself."""
    return value.fget if _isinstance(value, property) else value


def remember() -> None:
    """Record the names of softbench's modules in the forkserver, where no plugin runs, so that its workers start sooner."""
    if not _remembered:
        _remembered.extend(_of_modules())


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
    lazy = (_entry(sys.modules, name, f"sys.modules[{name!r}]") for name in LAZY)
    names = (*bound(protected), *lazy, *(_remembered or _of_modules()), *_of_users())
    return TamperGuard(names, persisting_l2.bind() if device == "cuda" else None)


def _of_modules() -> Iterator[ProtectedName]:
    """The names in OPERATIONS and CHECKS and the members of their classes. A module's own come first, because others may import them."""
    for own in (True, False):
        for module in (*OPERATIONS, *CHECKS, *map(import_module, ANSWERS)):
            for name, value in vars(module).items():
                if name.startswith("__") or (getattr(value, "__module__", module.__name__) == module.__name__) is not own:
                    continue
                yield _protected(module, name, f"{module.__name__}.{name}")
                if own and inspect.isclass(value):
                    yield from _members(value, f"{module.__name__}.{name}")
                yield from _parts(value, f"{module.__name__}.{name}")


def _of_users() -> Iterator[ProtectedName]:
    """The users' operations that are loaded: their entries in the registry, the names of their files, classes and instances."""
    for operation in registry.names():
        if operation in registry.NAMES:
            continue
        values = registry.numerics(operation)
        owner, module = type(values), sys.modules.get(type(values).__module__)
        for entries in (registry._added, registry._numerics):
            yield _entry(entries, operation, f"the operation {operation}")
        yield from _parts(registry.declared(operation), f"the operation {operation}")
        yield from _members(owner, owner.__name__)
        for name in dir(owner):
            if not name.startswith("__"):
                yield _protected(owner, name, f"{owner.__name__}.{name}")
                if hasattr(values, "__dict__"):  # an entry would hide the class's
                    yield _entry(vars(values), name, f"{owner.__name__}.{name}")
        for name in vars(module) if module else ():
            if not name.startswith("__"):
                yield _protected(module, name, f"{owner.__module__}.{name}")


def _entry(entries: dict[str, Any], name: str, label: str) -> ProtectedName:
    """An entry of a dictionary. It is None if it does not exist."""
    value = entries.get(name)
    return ProtectedName(entries, name, label, value, getattr(value, "__code__", None))


def _parts(value: object, label: str) -> Iterator[ProtectedName]:
    """The fields of a record such as OPERATION, and of the records in it: `object.__setattr__` changes a frozen one too."""
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield _protected(value, field.name, f"{label}.{field.name}")
            yield from _parts(getattr(value, field.name), f"{label}.{field.name}")
    elif isinstance(value, Mapping | tuple):
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _parts(part, f"{label}[{key}]")


def _members(owner: type, label: str) -> Iterator[ProtectedName]:
    """The methods, properties and slots of a class, inherited ones too, and its own special methods."""
    for name in dir(owner):
        value = inspect.getattr_static(owner, name)
        if name.startswith("__"):
            kept = isinstance(value, FunctionType) and name in vars(owner)
        else:
            kept = callable(value) or isinstance(value, property | staticmethod | MemberDescriptorType)
        if kept:
            yield _protected(owner, name, f"{label}.{name}")


def _protected(owner: object, name: str, label: str) -> ProtectedName:
    value = getattr(owner, name)
    return ProtectedName(owner, name, label, value, getattr(_function(value), "__code__", None))


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
