"""What a worker asks of a backend: its info, and the callable of a case, which `prepare` or `over_dim` returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.ops.registry import is_whole, numerics, operation
from softbench.plugins.backend import Backend, Call
from softbench.plugins.info import BackendInfo
from softbench.plugins.source import PluginSource
from softbench.plugins.traits import info, over_dim, unsupported
from softbench.worker.failures import failure


def info_of(backend: Backend, source: PluginSource) -> BackendInfo:
    """What a worker reports about a backend; a broken info if `available` or a trait raises, so that the file's other backends can run."""
    try:
        return info(backend, source)
    except Exception as error:
        return BackendInfo(backend.name, source, broken=f"import: {failure('import', error, source).reason}")


class NoGradientError(Exception):
    """`over_dim` of a backend gives a forward without a gradient, so that `both` cannot be measured."""


def prepared(backend: Backend, case: Case) -> Call:
    """The callable of a case: what `prepare` returns, or for an N-D case what `over_dim` returns, at the case's dimension.

    The backend gets a copy of the case, because it can write to a frozen object, and outputs are compared with what the case says.

    Raises:
        TypeError: the backend gives no callable.
    """
    along = over_dim(backend, case.op) if by_dim(case) else None
    if along is None:
        return numerics(case.op).adapted(case, _callable(backend.prepare(replace(case)), "prepare"), backend)
    if case.direction is Direction.BOTH:
        return _through_autograd(_callable(along(Direction.FORWARD), "over_dim"), case.dim)
    function, dim = _callable(along(case.direction), "over_dim"), case.dim
    return lambda *given: function(*given, dim)


def by_dim(case: Case) -> bool:
    """True if a backend needs `over_dim` for the case: the operation takes rows, and they lie along a dimension."""
    return bool(case.shape) and not operation(case.op).scores and not is_whole(case)


def refused(backend: Backend, case: Case) -> str:
    """Why a backend cannot compute a case; empty if it can. Raises as `softbench.plugins.traits.unsupported`."""
    return unsupported(backend, case, by_dim=by_dim(case))


def _callable(found: object, method: str) -> Call:
    if not callable(found):
        raise TypeError(f"{method}() returned {type(found).__name__}, not a callable")
    return found


def _through_autograd(forward: Callable[..., Any], dim: int) -> Call:
    """`(x, dy) -> (y, dx)` of a differentiable `forward(x, dim)`."""

    def both(x: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = forward(x, dim)
        if not y.requires_grad:
            raise NoGradientError("the forward of its over_dim has no gradient")
        (dx,) = torch.autograd.grad(y, x, dy)
        return y.detach(), dx

    return both
