"""Losses over rows with a target by softbench's Triton kernels: cross entropy, and log-probability with entropy.

All functions take x of (M, N), the logits, in float32, float16 or bfloat16, on a CUDA device. Under the interpreter they also take CPU
tensors. `target` is int64 of shape (M,). Other tensors of a row are float32 of shape (M,), and so are all results but dx. Rows whose
elements are adjacent are read in place. Arithmetic is float32.

With z = x, or softcap * tanh(x / softcap), lse = log(sum_j exp(z_j)), p = exp(z - lse), the target t and e = label_smoothing:

    loss = (1 - e) (lse - z_t) + e (lse - mean(z)) + z_loss lse^2
    dx_i = dloss ((1 + 2 z_loss lse) p_i - (1 - e) [i = t] - e / N) (1 - (z_i / softcap)^2)

Where the target is `ignore_index`, loss and dx are 0. Another target out of range makes the loss, logprob and dx of its row NaN. Nothing is
read or written out of range, and there is no device assertion.

`out` receives dx. It has x's shape, dtype and device, and may be x itself. All functions raise TypeError or ValueError for other arguments.
"""

from __future__ import annotations

import torch

from ..common.loss_rows import logits_and_targets, number_of_rows, result_of_rows
from .generic import INTERPRETED
from .loss_launch import Options, launch

DEVICE_TYPES = ("cuda", "cpu") if INTERPRETED else ("cuda",)
VECTOR_BYTES = 16


def cross_entropy_forward(
    x: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, lse). x is read once. lse is that of z, also in ignored rows."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    loss, lse = result_of_rows(x), result_of_rows(x)
    launch("reduction", (x, target, loss, lse, None), Options(ignore_index, label_smoothing, z_loss, softcap))
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
) -> torch.Tensor:
    """dx from the forward's lse and the gradient of the loss. x is read once and dx is written once."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    x, dx = _with_gradient(x, out)
    given = (x, target, number_of_rows(lse, x, "lse"), None, number_of_rows(dloss, x, "dloss"), None, dx)
    launch("gradient", given, Options(ignore_index, label_smoothing, z_loss, softcap))
    return _result(dx, out)


def cross_entropy_fused(
    x: torch.Tensor,
    target: torch.Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss, dx) for a dloss of 1. x is read once and dx is written once, unless no program or cluster can hold a row."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    x, dx = _with_gradient(x, out)
    loss, options = result_of_rows(x), Options(ignore_index, label_smoothing, z_loss, softcap)
    if not launch("fused", (x, target, dx, loss), options):
        maximum, total = result_of_rows(x), result_of_rows(x)
        launch("reduction", (x, target, loss, maximum, total), options)
        launch("gradient", (x, target, maximum, total, None, None, dx), options)
    return loss, _result(dx, out)


def logprob_forward(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logprob, entropy, lse): x_t - lse, and -sum_j p_j (x_j - lse). x is read once. All are NaN for a row of -inf but lse."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    results = result_of_rows(x), result_of_rows(x), result_of_rows(x)
    launch("reduction", (x, target, *results), Options(logprob=True))
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
) -> torch.Tensor:
    """dx = dlogprob ([i = t] - p_i) - dentropy p_i (x_i - lse + entropy), from the forward's lse and entropy."""
    x, target = logits_and_targets(x, target, DEVICE_TYPES)
    x, dx = _with_gradient(x, out)
    named = {"lse": lse, "entropy": entropy, "dlogprob": dlogprob, "dentropy": dentropy}
    launch("gradient", (x, target, *(number_of_rows(given, x, name) for name, given in named.items()), dx), Options(logprob=True))
    return _result(dx, out)


def _with_gradient(x: torch.Tensor, out: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x, or a contiguous copy of it, and memory for dx whose rows start as far above a vector's boundary as those of x.

    That is `out` if possible.
    """
    M, N = x.shape
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype or out.device != x.device):
        raise TypeError(f"out is {tuple(out.shape)} {out.dtype} on {out.device}; x is {tuple(x.shape)} {x.dtype} on {x.device}")
    if out is not None and (out.stride(1) == 1 or N == 1) and _apart(x, out) == (0, 0):
        return x, out
    size = x.element_size()
    if M > 1 and (x.stride(0) - N) * size % VECTOR_BYTES:
        x = x.contiguous()
    above = x.data_ptr() % VECTOR_BYTES // size
    return x, torch.empty(M * N + above, dtype=x.dtype, device=x.device)[above:].view(M, N)


def _apart(x: torch.Tensor, dx: torch.Tensor) -> tuple[int, int]:
    """Bytes modulo a vector between the starts of their first rows, and between their strides."""
    strides = (x.stride(0) - dx.stride(0)) * x.element_size() if x.shape[0] > 1 else 0
    return (x.data_ptr() - dx.data_ptr()) % VECTOR_BYTES, strides % VECTOR_BYTES


def _result(dx: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return dx if out is None or out is dx else out.copy_(dx)
