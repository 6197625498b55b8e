"""The backend `softbench`: the functions of `softbench.kernels`, as a program calls them, with the gradients of autograd.

It has the kernels of `cuda` or `triton`, so the difference is what the library takes on the host.
"""

from __future__ import annotations

import importlib
from functools import partial
from pathlib import Path
from typing import Any

import torch

from softbench import kernels
from softbench.backends.calls import EMPTY, TensorCall, by_autograd, by_direction, parameters
from softbench.backends.own_kernels import sources_of
from softbench.core.case import OPERATION, Case, Direction, parse_op
from softbench.ops.registry import operation
from softbench.plugins.backend import Call


class Library:
    """The functions of softbench.kernels with their autograd, by the fastest kernels that work here."""

    name = "softbench"
    operations = (
        "softmax(out_dtype)",
        "log_softmax",
        "cross_entropy(ignore_index,label_smoothing,z_loss,softcap,reduction)",
        "logprob",
        "masked_softmax(scale,mask,mask_axes,causal,sink)",
        "linear_cross_entropy(hidden,ignore_index,label_smoothing,z_loss,softcap)",
    )
    advice = "to see what a program pays that calls softbench.kernels: --timer host"
    compiles = True
    extra = True  # its kernels are those of cuda or triton

    def available(self) -> str | None:
        return None

    def supports(self, case: Case) -> str | None:
        if case.direction is Direction.BACKWARD:
            return "autograd calls its backward: --direction both or fused, or --timer host"
        return EMPTY if case.M * case.N == 0 and case.operation == "linear_cross_entropy" else None

    def sources(self) -> list[Path]:
        """The files of all kernels."""
        return sources_of("automatic") + [file for name in ("cuda", "triton") for file in sources_of(name)]

    def prepare(self, case: Case) -> Call:
        call = self.user_call(case)
        if case.direction is Direction.FUSED:
            return partial(by_autograd, call)
        if case.direction is Direction.FORWARD and case.operation == "cross_entropy":
            return _with_lse(case)
        return by_direction(case, call, call)

    def user_call(self, case: Case) -> TensorCall:
        """The function with the case's parameters."""
        given = parameters(case)
        if case.operation == "masked_softmax":
            return _masked_softmax(case)
        if case.operation == OPERATION:
            return partial(kernels.softmax, dtype=torch.float32 if "out_dtype" in case.parameters else None)
        if case.operation == "cross_entropy":
            return partial(kernels.cross_entropy, dtype=torch.float32, **given)  # results of rows are float32
        given.pop("hidden", None)
        return partial(getattr(kernels, case.operation), **given)

    def over_dim(self, direction: Direction, op: str = OPERATION) -> Call:
        """`f(x, dim)`, differentiable, or `f(x, target, dim)`. `supports` refuses a backward."""
        name, given = parse_op(op)
        if name == "cross_entropy":
            call = partial(kernels.cross_entropy, dtype=torch.float32, **operation(op).parameter_values)
            if direction is Direction.FUSED:
                return lambda x, target, dim: by_autograd(partial(call, dim=dim), x, target)
            return lambda x, target, dim: call(x, target, dim=dim, return_lse=True)
        return partial(getattr(kernels, name), dtype=torch.float32) if "out_dtype" in given else getattr(kernels, name)


def _with_lse(case: Case) -> Call:
    """The operator behind `cross_entropy`, since the pass has lse too."""
    options, reductions = parameters(case), ("none", "mean")
    reduction = reductions.index(options.pop("reduction"))
    operators: Any = importlib.import_module("softbench.kernels.automatic.loss_operators")

    def forward(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss, statistics, _ = operators._cross_entropy(x, target, **options, reduction=reduction)
        return loss, operators._lse(statistics)

    return forward


def _masked_softmax(case: Case) -> TensorCall:
    given = parameters(case)

    def call(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        mask, sink = others[0] if given["mask"] != "none" else None, others[-1] if given["sink"] else None
        return kernels.masked_softmax(x, scale=given["scale"], mask=mask, causal=given["causal"], sink=sink)

    return call


backend = Library()
