"""Losses over rows with a target by softbench's CUDA C++ kernels: cross entropy, and log-probability with entropy.

`softbench.kernels.common.losses` says what they compute. x is on a CUDA device. `cross_entropy_fused` sees
the lower 32 bits of a target only.

`options` are those of `softbench.kernels.common.losses.Options`.

`out` receives dx. It has x's shape, dtype and device, adjacent elements in each row, and may be x itself. All functions raise TypeError or
ValueError for other arguments, BuildError if the kernels cannot be compiled, and RuntimeError if a launch fails.

The passes are also PyTorch operators, so that compilers see one opaque call. They record no gradient. Arguments and results are those of
the functions, without `out` and `plan`. Results are fresh.

- `softbench::cuda_cross_entropy_forward`, `softbench::cuda_cross_entropy_backward` and `softbench::cuda_cross_entropy_fused`
- `softbench::cuda_logprob_forward` and `softbench::cuda_logprob_backward`

`invariant`: the bits of a row's results do not depend on the other rows (`invariant.py`). Those of a backward never do.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..common.invariance import placed
from ..common.linear_cross_entropy import Losses
from ..common.losses import (
    NO_CLASS,
    Options,
    base_of_rows,
    check_output_of_rows,
    logits_and_targets,
    number_of_rows,
    result_of_rows,
    statistics_of_rows,
)
from .launch import INVARIANT, Plan, launch_function

NOT_SUPPORTED = 801
"""cudaErrorNotSupported: the kernels of one pass do not take these rows."""
SETTINGS = "int ignore_index=-100, float label_smoothing=0.0, float z_loss=0.0, float softcap=0.0, float logit_scale=1.0"
OF_LOGPROB = f"int ignore_index={NO_CLASS}, float logit_scale=1.0"
SCHEMAS = {
    "cross_entropy_forward": f"(Tensor x, Tensor target, {SETTINGS}) -> (Tensor, Tensor)",
    "cross_entropy_backward": f"(Tensor x, Tensor target, Tensor lse, Tensor dloss, {SETTINGS}) -> Tensor",
    "cross_entropy_fused": f"(Tensor x, Tensor target, {SETTINGS}) -> (Tensor, Tensor)",
    "logprob_forward": f"(Tensor x, Tensor target, {OF_LOGPROB}) -> (Tensor, Tensor, Tensor)",
    "logprob_backward": f"(Tensor x, Tensor target, Tensor lse, Tensor entropy, Tensor dlogprob, Tensor dentropy, {OF_LOGPROB}) -> Tensor",
}
"""Arguments and results of the operators, by the name of the function."""


def cross_entropy_forward(
    x: torch.Tensor, target: torch.Tensor, *, invariant: bool = False, plan: Plan | None = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, lse). x is read once. lse is that of z, also in ignored rows."""
    x, target, plan = _given(x, target, invariant, plan)
    loss, lse = result_of_rows(x), result_of_rows(x)
    _forward(x, target, loss, lse, None, Options(**options), plan)
    return loss, lse


def cross_entropy_statistics(
    x: torch.Tensor, target: torch.Tensor, *, invariant: bool = False, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, statistics), as `cross_entropy_forward`."""
    x, target, plan = _given(x, target, invariant, None)
    loss, statistics = result_of_rows(x), statistics_of_rows(x)
    _forward(x, target, loss, None, statistics, Options(**options), plan)
    return loss, statistics


def cross_entropy_backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, *, classes: int = 0, out: torch.Tensor | None = None,
    plan: Plan | None = None, **options: Any,
) -> torch.Tensor:  # fmt: skip
    """dx from the forward's lse or statistics and the gradient of the loss. x is read once and dx is written once.

    `classes`: of the whole vocabulary, over which labels are smoothed, if x has a part of it.
    """
    x, target = logits_and_targets(x, target)
    dx = _gradient(x, out)
    dloss = number_of_rows(dloss, x, "dloss")
    _backward(x, target, *base_of_rows(lse, x), dloss, dx, Options(**options), plan, classes)
    return dx


def cross_entropy_fused(
    x: torch.Tensor, target: torch.Tensor, *, out: torch.Tensor | None = None, lse: torch.Tensor | None = None, invariant: bool = False,
    plan: Plan | None = None, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(loss, dx), where dx is the gradient for a dloss of 1. `lse`, float32 of (M,), receives that of z.

    x is read once and dx is written once. With label smoothing, a softcap or a scale, x is read twice: first for the sums of each row. It
    is also where no cluster of CTAs has room for a row that is written in place.
    """
    given = Options(**options)
    x, target, plan = _given(x, target, invariant, plan)
    loss, dx = result_of_rows(x), _gradient(x, out)
    if lse is not None:
        check_output_of_rows(lse, x, "lse")
    if not (given.label_smoothing or given.softcap or given.logit_scale != 1.0 or (invariant and out is not None)):
        pointers = x.data_ptr(), target.data_ptr(), loss.data_ptr(), _pointer(lse), dx.data_ptr()
        tensors = *pointers, given.ignore_index, given.z_loss, x.stride(0), dx.stride(0)
        if _launch("cross_entropy", "fused", tensors, x, plan) != NOT_SUPPORTED:
            return loss, dx
    statistics = statistics_of_rows(x)
    _forward(x, target, loss, lse, statistics, given, Plan(INVARIANT) if invariant else None)
    _backward(x, target, None, statistics, None, dx, given, None)
    return loss, dx


PASSES = Losses(cross_entropy_forward, cross_entropy_backward)  # its fused kernel has no dloss


def logprob_forward(
    x: torch.Tensor, target: torch.Tensor, *, ignore_index: int = NO_CLASS, logit_scale: float = 1.0, invariant: bool = False,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """(logprob, entropy, lse): z_t - lse, -sum_j p_j log(p_j) and lse. x is read once. An element of -inf adds nothing to the entropy."""
    x, target, plan = _given(x, target, invariant, plan)
    results = result_of_rows(x), result_of_rows(x), result_of_rows(x)
    tensors = x.data_ptr(), target.data_ptr(), *(result.data_ptr() for result in results), None, ignore_index, logit_scale, x.stride(0)
    _launch("logprob", "forward", tensors, x, plan)
    return results


def logprob_statistics(
    x: torch.Tensor, target: torch.Tensor, *, ignore_index: int = NO_CLASS, logit_scale: float = 1.0, invariant: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, entropy, statistics), as `logprob_forward`."""
    x, target, plan = _given(x, target, invariant, None)
    found, entropy, statistics = result_of_rows(x), result_of_rows(x), statistics_of_rows(x)
    pointers = x.data_ptr(), target.data_ptr(), found.data_ptr(), entropy.data_ptr(), None, statistics.data_ptr()
    _launch("logprob", "forward", (*pointers, ignore_index, logit_scale, x.stride(0)), x, plan)
    return found, entropy, statistics


def logprob_backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, entropy: torch.Tensor, dlogprob: torch.Tensor, dentropy: torch.Tensor,
    *, ignore_index: int = NO_CLASS, logit_scale: float = 1.0, out: torch.Tensor | None = None, plan: Plan | None = None,
) -> torch.Tensor:  # fmt: skip
    """dx = (dlogprob ([i = t] - p_i) - dentropy p_i (log(p_i) + entropy)) logit_scale, from lse or statistics.

    x is read once and dx is written once.
    """
    x, target = logits_and_targets(x, target)
    dx = _gradient(x, out)
    named = {"entropy": entropy, "dlogprob": dlogprob, "dentropy": dentropy}
    of_rows = [*base_of_rows(lse, x), *(number_of_rows(tensor, x, name) for name, tensor in named.items())]
    pointers = x.data_ptr(), target.data_ptr(), *map(_pointer, of_rows), dx.data_ptr()
    tensors = *pointers, ignore_index, logit_scale, x.stride(0), dx.stride(0), 1, 1
    _launch("logprob", "backward", tensors, x, plan)
    return dx


def _given(x: torch.Tensor, target: torch.Tensor, invariant: bool, plan: Plan | None) -> tuple[torch.Tensor, torch.Tensor, Plan | None]:
    """Checked logits and targets, and the plan of a forward or a fused pass."""
    x, target = logits_and_targets(x, target)
    return (placed(x), target, Plan(INVARIANT)) if invariant else (x, target, plan)


def _forward(
    x: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, lse: torch.Tensor | None, statistics: torch.Tensor | None, options: Options,
    plan: Plan | None,
) -> None:  # fmt: skip
    """Writes the loss, and lse or the statistics of each row."""
    tensors = x.data_ptr(), target.data_ptr(), loss.data_ptr(), _pointer(lse), _pointer(statistics), *options, x.stride(0)
    _launch("cross_entropy", "forward", tensors, x, plan)


def _backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor | None, statistics: torch.Tensor | None, dloss: torch.Tensor | None,
    dx: torch.Tensor, options: Options, plan: Plan | None, classes: int = 0,
) -> None:  # fmt: skip
    """Writes dx from lse or from the statistics of `_forward`; without dloss, for a dloss of 1."""
    pointers = x.data_ptr(), target.data_ptr(), _pointer(lse), _pointer(statistics), _pointer(dloss), None, dx.data_ptr()
    _launch("cross_entropy", "backward", (*pointers, *options, x.stride(0), dx.stride(0), 1, classes or x.shape[1]), x, plan)


def _launch(function: str, which: str, tensors: tuple[Any, ...], x: torch.Tensor, plan: Plan | None) -> int:
    """0, or NOT_SUPPORTED of a fused launch. `tensors`: the arguments before the shape."""
    M, N = x.shape
    if M == 0:
        return 0
    return launch_function(function, which, (*tensors, M, N), x, plan, accepted=NOT_SUPPORTED if which == "fused" else 0)


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _gradient(x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """Where dx goes."""
    if out is None:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if out.shape != x.shape or out.dtype != x.dtype or out.device != x.device or (out.stride(1) != 1 and out.shape[1] > 1):
        got = f"{tuple(out.shape)} {out.dtype} on {out.device} with strides {out.stride()}"
        raise TypeError(f"out is {got}; it must be {tuple(x.shape)} {x.dtype} on {x.device} with adjacent elements in each row")
    return out


def _kernel(name: str) -> Callable[..., Any]:
    """The function with its options by position, as an operator passes them."""
    function: Callable[..., Any] = globals()[name]
    tensors, options = SCHEMAS[name].count("Tensor "), re.findall(r"(\w+)=", SCHEMAS[name])

    def kernel(*arguments: Any) -> Any:
        return function(*arguments[:tensors], **dict(zip(options, arguments[tensors:], strict=False)))

    return kernel


def _fake(name: str) -> Callable[..., Any]:
    """The results' shapes: numbers of rows come first, and dx is the only or the second result of a pass with a gradient."""
    results = SCHEMAS[name].partition(" -> ")[2].count("Tensor")

    def fake(x: Tensor, *arguments: Any) -> Any:
        of_rows = tuple(x.new_empty(x.shape[:1], dtype=torch.float32) for _ in range(results))
        dx = x.new_empty(x.shape)
        return of_rows if name.endswith("forward") else (of_rows[0], dx) if name.endswith("fused") else dx

    return fake


_library = torch.library.Library("softbench", "FRAGMENT")
for _name, _schema in SCHEMAS.items():
    _library.define(f"cuda_{_name}{_schema}", tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl(f"cuda_{_name}", _kernel(_name), "CUDA")
    torch.library.register_fake(f"softbench::cuda_{_name}", _fake(_name), lib=_library)
