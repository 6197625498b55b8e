"""softbench's own kernels of attention scores as the calls of a case, for the backends `triton` and `cuda`.

`softbench.kernels.<package>.masked_softmax` has the function `masked_softmax` and `MAX_COLUMNS`.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

NAME = "masked_softmax"
SPECIAL = {Direction.FORWARD: {"causal", "sink", "mask"}, Direction.BACKWARD: {"causal", "sink"}}
"""The parameters with which a pass needs these kernels; without them it is that of softmax with a scale."""


def _kernels(package: str) -> ModuleType:
    return importlib.import_module(f"softbench.kernels.{package}.{NAME}")


def special(case: Case) -> list[str]:
    """The parameters of a case for which it needs these kernels, sorted."""
    return sorted(SPECIAL[case.direction] & set(case.parameters))


def refused(package: str, case: Case) -> str | None:
    """Why the kernels do not take a case; None if they do."""
    columns, needs = _kernels(package).MAX_COLUMNS, special(case)
    return f"with {' and '.join(needs)} N is at most {columns}" if needs and columns < case.N else None


def prepare(package: str, case: Case) -> Call:
    """The call of a case."""
    function = _kernels(package).masked_softmax
    given: dict[str, Any] = dict(operation(case.op).values)
    scale, causal, masked = given["scale"], given["causal"], given["mask"] != "none"

    def forward(x: torch.Tensor, *others: torch.Tensor) -> Any:
        mask, sink = others[0] if masked else None, others[-1] if given["sink"] else None
        return function.forward(x, scale=scale, mask=mask, causal=causal, sink=sink)[0]

    def backward(dy: torch.Tensor, y: torch.Tensor, *share: torch.Tensor) -> Any:
        dx, dsink = function.backward(dy, y, *share, scale=scale, causal=causal)
        return (dx, dsink) if share else dx

    return forward if case.direction is Direction.FORWARD else backward
