"""Detects that a plugin replaced a timing or checking function in the process they share. It deters cheating; it is no security boundary.

`bind` records the protected names before the plugin is imported. `TamperGuard.replaced` names the first one that has changed since,
for example a patched `torch.cuda.Event`, `perf_counter` or float64 reference.
"""

from __future__ import annotations

import time
import timeit
from dataclasses import dataclass
from functools import reduce
from types import ModuleType

import torch

from softbench.ops import operation, registry, rows, traffic, values
from softbench.ops.log_softmax import (
    independent as log_independent,
    inputs as log_inputs,
    numerics as log_numerics,
    reference as log_reference,
    spec as log_spec,
    structured_rows as log_structured_rows,
    tolerance as log_tolerance,
)
from softbench.ops.rowwise import (
    independent as rowwise_independent,
    inputs as rowwise_inputs,
    reference as rowwise_reference,
    structured_rows as rowwise_structured_rows,
    tolerance as rowwise_tolerance,
)
from softbench.ops.softmax import independent, inputs, numerics, reference, spec, structured_rows, tolerance
from softbench.worker import output_checks, persisting_l2, row_sample
from softbench.worker.persisting_l2 import PersistingL2


def methods(owner: str, names: str) -> str:
    """The names of an object's methods."""
    return " ".join(f"{owner}.{name}" for name in names.split())


NUMERICS = "make refill drawn kinds make_structured forward gradient estimate check check_cases"
"""The methods of an operation's numerics."""
TOLERANCE = "bound_forward bound_backward bound_both again_forward again_backward check _check _again _rows"
"""The methods of an operation's tolerance."""
PROTECTED: dict[ModuleType, str] = {
    time: "perf_counter perf_counter_ns monotonic sleep",
    timeit: "default_timer",
    torch.cuda: "Event Event.record Event.elapsed_time Event.synchronize Event.wait Event.__new__ "
    "synchronize Stream current_stream CUDAGraph graph _sleep",
    torch: "softmax equal full_like randn where empty Tensor.double Tensor.clone Tensor.copy_ Tensor.abs Tensor.amax Tensor.sum "
    "Tensor.item Tensor.isnan Tensor.data_ptr log_softmax",
    rowwise_tolerance: "excess summing Bounded.loosest",
    rowwise_reference: "by_numpy reference",
    rowwise_independent: "chosen wide drawn compare",
    rowwise_inputs: "make refill",
    rowwise_structured_rows: "make_structured",
    tolerance: "TOLERANCE check FusedExponent.loosest " + methods("SoftmaxTolerance", TOLERANCE),
    reference: "forward backward softmax gradient",
    independent: "forward backward again_forward again_backward",
    output_checks: "breach misformed poison forms as_tuple same",
    inputs: "make",
    structured_rows: "kinds make_structured",
    numerics: "NUMERICS " + methods("SoftmaxNumerics", NUMERICS),
    log_tolerance: "TOLERANCE check " + methods("LogSoftmaxTolerance", TOLERANCE),
    log_reference: "forward backward log_softmax gradient",
    log_independent: "forward backward again_forward again_backward",
    log_inputs: "make",
    log_structured_rows: "kinds make_structured",
    log_numerics: "NUMERICS " + methods("LogSoftmaxNumerics", NUMERICS),
    log_spec: "OPERATION",
    registry: "NAMES names numerics operation declared _own",
    operation: "Operation.at Operation.inputs Operation.outputs TensorSpec.at "
    "TensorSpec.shape TensorSpec.dtype_of TensorSpec.has_rows TensorSpec.has_columns",
    spec: "OPERATION",
    rows: "row_chunks",
    traffic: "check steps add read_bytes",
    values: "excess",
    row_sample: "rows_of rows_to_compare suspects",
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
            now = getattr(name.owner, name.attribute, None)
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
        return TamperGuard((*bound(protected), *_of_users()), persisting_l2.bind())
    return TamperGuard((*bound(protected), *_of_users()))


def _of_users() -> tuple[ProtectedName, ...]:
    """The methods of the users' operations that are loaded."""
    owners = {type(registry.numerics(name)) for name in registry.names() if name not in registry.NAMES}
    methods = ((owner, name) for owner in owners for name in dir(owner) if not name.startswith("__") and callable(getattr(owner, name)))
    return tuple(
        ProtectedName(owner, name, f"{owner.__name__}.{name}", value := getattr(owner, name), getattr(value, "__code__", None))
        for owner, name in methods
    )


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
                value = getattr(owner, attribute)
            except AttributeError:
                if label in OPTIONAL:
                    continue
                raise AttributeError(f"the tamper guard protects {label}, which does not exist; correct the list in {__name__}") from None
            found.append(ProtectedName(owner, attribute, label, value, getattr(value, "__code__", None)))
    return tuple(found)
