"""Losses over rows with a target by softbench's CUDA C++ kernels: cross entropy, and log-probability with entropy.

All functions take x of (M, N), the logits, in float32, float16 or bfloat16, on a CUDA device. `target` is int64 of shape (M,). Other
tensors of a row are float32 of shape (M,), and so are all results but dx. Rows whose elements are adjacent are read in place. Arithmetic is
float32.

With z = x, or softcap * tanh(x / softcap), lse = log(sum_j exp(z_j)), p = exp(z - lse), the target t and e = label_smoothing:

    loss = (1 - e) (lse - z_t) + e (lse - mean(z)) + z_loss lse^2
    dx_i = dloss ((1 + 2 z_loss lse) p_i - (1 - e) [i = t] - e / N) (1 - (z_i / softcap)^2)

Where the target is `ignore_index`, loss and dx are 0. Another target out of range makes loss and logprob of its row NaN, and dx too. No
address out of range is read or written. `cross_entropy_fused` sees the lower 32 bits of a target only.

`out` receives dx. It has x's shape, dtype and device, adjacent elements in each row, and may be x itself. All functions raise TypeError or
ValueError for other arguments, BuildError if the kernels cannot be compiled, and RuntimeError if a launch fails.
"""

from __future__ import annotations

from typing import Any

import torch

from ..common.loss_rows import logits_and_targets, number_of_rows, result_of_rows
from .launch import launch_function
from .launch_plan import Plan

NOT_SUPPORTED = 801
"""cudaErrorNotSupported: the kernels of one pass do not take these rows."""


def cross_entropy_forward(
    x: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, lse). x is read once. lse is that of z, also in ignored rows."""
    x, target = logits_and_targets(x, target)
    loss, lse = result_of_rows(x), result_of_rows(x)
    _forward(x, target, loss, lse, None, (ignore_index, label_smoothing, z_loss, softcap), plan)
    return loss, lse


def cross_entropy_backward(
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    dloss: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
    plan: Plan | None = None,
) -> torch.Tensor:
    """dx from the forward's lse and the gradient of the loss. x is read once and dx is written once."""
    x, target = logits_and_targets(x, target)
    dx = _gradient(x, out)
    lse, dloss = number_of_rows(lse, x, "lse"), number_of_rows(dloss, x, "dloss")
    _backward(x, target, lse, None, dloss, dx, (ignore_index, label_smoothing, z_loss, softcap), plan)
    return dx


def cross_entropy_fused(
    x: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
    plan: Plan | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, dx), where dx is the gradient for a dloss of 1.

    x is read once and dx is written once. With label smoothing or a softcap, x is read twice: first for the sums of each row. It is also
    where no cluster of CTAs has room for a row that is written in place.
    """
    x, target = logits_and_targets(x, target)
    loss, dx = result_of_rows(x), _gradient(x, out)
    if not (label_smoothing or softcap):
        tensors = x.data_ptr(), target.data_ptr(), loss.data_ptr(), dx.data_ptr(), ignore_index, z_loss, x.stride(0), dx.stride(0)
        if _launch("cross_entropy", "fused", tensors, x, plan) != NOT_SUPPORTED:
            return loss, dx
    options = ignore_index, label_smoothing, z_loss, softcap
    statistics = torch.empty((x.shape[0], 2), dtype=torch.float32, device=x.device)
    _forward(x, target, loss, None, statistics, options, None)
    _backward(x, target, None, statistics, None, dx, options, None)
    return loss, dx


def logprob_forward(x: torch.Tensor, target: torch.Tensor, *, plan: Plan | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, entropy, lse): x_t - lse, -sum_j p_j log(p_j) and lse. x is read once. An element of -inf adds nothing to the entropy."""
    x, target = logits_and_targets(x, target)
    results = result_of_rows(x), result_of_rows(x), result_of_rows(x)
    tensors = x.data_ptr(), target.data_ptr(), *(result.data_ptr() for result in results), x.stride(0)
    _launch("logprob", "forward", tensors, x, plan)
    return results


def logprob_backward(
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    entropy: torch.Tensor,
    dlogprob: torch.Tensor,
    dentropy: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    plan: Plan | None = None,
) -> torch.Tensor:
    """dx = dlogprob ([i = t] - p_i) - dentropy p_i (log(p_i) + entropy). x is read once and dx is written once."""
    x, target = logits_and_targets(x, target)
    dx = _gradient(x, out)
    named = {"lse": lse, "entropy": entropy, "dlogprob": dlogprob, "dentropy": dentropy}
    of_rows = [number_of_rows(tensor, x, name) for name, tensor in named.items()]
    tensors = x.data_ptr(), target.data_ptr(), *(tensor.data_ptr() for tensor in of_rows), dx.data_ptr(), x.stride(0), dx.stride(0)
    _launch("logprob", "backward", tensors, x, plan)
    return dx


def _forward(
    x: torch.Tensor,
    target: torch.Tensor,
    loss: torch.Tensor,
    lse: torch.Tensor | None,
    statistics: torch.Tensor | None,
    options: tuple[int, float, float, float],
    plan: Plan | None,
) -> None:
    """Writes the loss, and lse or the maximum and the sum of exp(z - maximum) of each row, (M, 2)."""
    tensors = x.data_ptr(), target.data_ptr(), loss.data_ptr(), _pointer(lse), _pointer(statistics), *options, x.stride(0)
    _launch("cross_entropy", "forward", tensors, x, plan)


def _backward(
    x: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor | None,
    statistics: torch.Tensor | None,
    dloss: torch.Tensor | None,
    dx: torch.Tensor,
    options: tuple[int, float, float, float],
    plan: Plan | None,
) -> None:
    """Writes dx from lse or from the statistics of `_forward`; without dloss, for a dloss of 1."""
    pointers = x.data_ptr(), target.data_ptr(), _pointer(lse), _pointer(statistics), _pointer(dloss), dx.data_ptr()
    _launch("cross_entropy", "backward", (*pointers, *options, x.stride(0), dx.stride(0)), x, plan)


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
