"""Base of softbench's own kernels as backends: `softbench.backends.triton` and `softbench.backends.cuda`.

Without a GPU the Triton kernels run in Triton's interpreter: a few rows are checked, nothing is timed. Importing this module selects
the interpreter, as Triton reads TRITON_INTERPRET when it is imported; only the worker of such a backend imports this module.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from softbench.backends.calls import EMPTY, TensorCall, by_direction, parameters
from softbench.core.case import OPERATION, Case, Direction, Value, parse_op
from softbench.ops.dtypes import DTYPES
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

if TYPE_CHECKING:
    from softbench.kernels.common.softmax import Softmax

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

LOSSES = ("cross_entropy", "logprob")
LINEAR = "linear_cross_entropy"
SCORES = "masked_softmax"
OF_SCORES = {Direction.FORWARD: {"causal", "sink", "mask"}, Direction.BACKWARD: {"causal", "sink"}}
"""The parameters with which a pass of SCORES needs its own kernels; without them it is that of softmax with a scale."""


class Kernels:
    """A backend of a package of `softbench.kernels`.

    A module for softmax has a `softmax`, and perhaps a `log_softmax`. A module for losses has a function for each operation and pass, such
    as `cross_entropy_forward` and `logprob_backward`. It takes the tensors of the pass, and the operation's parameters by name. The
    package's module `masked_softmax` has a function of that name and `MAX_COLUMNS`.
    """

    name: str
    module: str
    """The module for softmax."""
    losses = ""
    """The module for losses, if there is one."""
    losses_of_columns = ""
    """That for cross entropy over another dimension than the last."""
    operations: tuple[str, ...] = (OPERATION,)
    compiles = True

    def available(self) -> str | None:
        raise NotImplementedError

    def supports(self, case: Case) -> str | None:
        if case.operation == LINEAR and case.M * case.N == 0:
            return EMPTY
        if case.operation == "cross_entropy" and case.shape and case.dim < len(case.sizes) - 1 and not self.losses_of_columns:
            return "its kernels of cross_entropy take classes in the last dimension only"
        if case.operation != SCORES:
            return None
        columns, needs = self._scores().MAX_COLUMNS, special(case)
        return f"with {' and '.join(needs)} N is at most {columns}" if needs and columns < case.N else None

    def function(self, operation: str = OPERATION) -> Softmax:
        """The module's function of that name, differentiable and over any dimension."""
        found: Softmax = getattr(_kernels(self.module), operation)
        return found

    def sources(self) -> list[Path]:
        """The kernels' files; preparing a case imports them."""
        return sources_of(self._package)

    def prepare(self, case: Case) -> Call:
        if case.operation == SCORES:
            return self._prepare_scores(case)
        if case.operation in LOSSES:
            return self._prepare_loss(case)
        if case.operation == LINEAR:
            return self._prepare_linear(case)
        function = self.function(case.operation)
        if case.direction is Direction.BOTH:
            forward, backward = function.__call__, function.backward
        elif case.M == 0 or case.N == 0:
            forward, backward = function.forward, function.backward
        else:
            forward, backward = function.forward_rows, function.backward_rows
        return by_direction(case, given(forward, 1, case.parameters), given(backward, 2, case.parameters, DTYPES[case.dtype]))

    def over_dim(self, direction: Direction, op: str = OPERATION) -> TensorCall:
        """`f(x, dim)`, differentiable, or `f(dy, y, dim)`, on tensors of any shape and strides."""
        operation, parameters = parse_op(op)
        if operation in LOSSES:
            return functools.partial(self._loss_over_dim, direction, self._options_of_loss(op))
        function = self.function(operation)
        if direction is not Direction.FORWARD:
            return given(function.backward, 2, parameters)
        forward, differentiable = (given(call, 1, parameters) for call in (function.forward, function.__call__))
        return lambda x, *others: (differentiable if x.requires_grad else forward)(x, *others)

    @property
    def _package(self) -> str:
        return self.module.partition(".")[0]

    def _scores(self) -> ModuleType:
        return _kernels(f"{self._package}.{SCORES}")

    def _prepare_loss(self, case: Case) -> Call:
        """The module's function. It may return more than the pass has, such as lse of logprob."""
        function = getattr(_kernels(self.losses), f"{case.operation}_{case.direction.value}")
        call = functools.partial(function, **self._options_of_loss(case.op))
        outputs = len(operation(case.op).passes[case.direction].outputs)
        if outputs == 1:
            return call

        def all_of_the_pass(*tensors: Any) -> tuple[Any, ...]:
            results: tuple[Any, ...] = call(*tensors)
            return results[:outputs]

        return all_of_the_pass

    def _options_of_loss(self, op: str) -> dict[str, Any]:
        """The values of the parameters that the module's functions take."""
        name = op.partition("(")[0]
        (names,) = (one.removesuffix(")").partition("(")[2].split(",") for one in self.operations if one.partition("(")[0] == name)
        return {name: value for name, value in operation(op).parameter_values.items() if name in names}

    def _loss_over_dim(self, direction: Direction, options: dict[str, Any], x: torch.Tensor, *given: Any) -> Any:
        """Cross entropy over a dimension, the last argument. The other tensors have an element for each row."""
        *of_rows, dim = given
        last = dim in (-1, x.dim() - 1)
        call = getattr(_kernels(self.losses if last else self.losses_of_columns), f"cross_entropy_{direction.value}")
        rows = x.reshape(-1, x.shape[-1]) if last else _kernels("common.rows").around(x, dim % x.dim())
        results = call(rows, *(tensor.reshape(-1) for tensor in of_rows), **options)
        shaped = [one.view((of_rows[0] if one.dim() == 1 else x).shape) for one in (results if isinstance(results, tuple) else (results,))]
        return shaped[0] if len(shaped) == 1 else tuple(shaped)

    def _prepare_linear(self, case: Case) -> Call:
        """The products of `torch.mm`, and the package's kernels of the loss."""
        given = parameters(case)
        del given["hidden"]
        call = functools.partial(_kernels(f"common.{LINEAR}").linear_cross_entropy, _kernels(self.losses).PASSES, **given)
        if case.direction is Direction.FORWARD:
            return lambda *tensors: call(*tensors, gradients=False)[0]
        return functools.partial(call, gradients=True)

    def _prepare_scores(self, case: Case) -> Call:
        function, given = self._scores().masked_softmax, parameters(case)
        scale, causal, masked = given["scale"], given["causal"], given["mask"] != "none"

        def forward(x: torch.Tensor, *others: torch.Tensor) -> Any:
            mask, sink = others[0] if masked else None, others[-1] if given["sink"] else None
            return function.forward(x, scale=scale, mask=mask, causal=causal, sink=sink)[0]

        def backward(dy: torch.Tensor, y: torch.Tensor, *share: torch.Tensor) -> Any:
            dx, dsink = function.backward(dy, y, *share, scale=scale, causal=causal)
            return (dx, dsink) if share else dx

        return forward if case.direction is Direction.FORWARD else backward


class Invariant(Kernels):
    """The functions of a package's module `invariant`, whose results have the same bits in every batch."""

    extra = True  # its kernels are those of the package, and mostly slower
    advice = "if a row's bits must not depend on the other rows: softbench check --invariance"

    def _scores(self) -> ModuleType:
        return _kernels(self.module)


def without_linear(operations: tuple[str, ...]) -> tuple[str, ...]:
    """The operations but for LINEAR, whose matrix product is torch's."""
    return tuple(one for one in operations if not one.startswith(LINEAR))


def _kernels(module: str) -> ModuleType:
    return importlib.import_module(f"softbench.kernels.{module}")


def special(case: Case) -> list[str]:
    """The parameters for which a case of SCORES needs its own kernels, sorted."""
    return sorted(OF_SCORES[case.direction] & set(case.parameters))


def given(call: TensorCall, tensors: int, parameters: Mapping[str, Value], narrow: torch.dtype | None = None) -> TensorCall:
    """`call` with the parameters of a case: the first `tensors` arguments are its tensors, and a scale of rows is the next one.

    `narrow` is the dtype of a gradient if results are wider; None for a forward.
    """
    if not parameters:
        return call
    settings: dict[str, Any] = {}
    if "out_dtype" in parameters:
        settings["dtype"] = narrow or torch.float32
    if (scale := parameters.get("scale")) != "row":
        return functools.partial(call, scale=scale, **settings)

    def scaled(*arguments: Any) -> torch.Tensor:
        return call(*arguments[:tensors], *arguments[tensors + 1 :], scale=arguments[tensors], **settings)

    return scaled


def sources_of(package: str) -> list[Path]:
    """The files of a package of `softbench.kernels` and of the shared one, and the tables that decide what is launched."""
    files = [Path(str(entry)) for name in (package, "common") for entry in resources.files(f"softbench.kernels.{name}").iterdir()]
    tables = [table for folder in files for table in folder.glob("*.json")]
    return sorted([file for file in files if file.suffix in (".py", ".cu", ".cuh")] + tables)
