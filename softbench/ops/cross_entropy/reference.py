"""Cross entropy and its gradient in the dtype of x, for the float64 reference and for estimates in float32.

With z = x, or softcap * tanh(x / softcap), lse = log(sum_j exp(z_j)), p = exp(z - lse), the target t, and e = label_smoothing:

    loss = (1 - e) (lse - z_t) + e (lse - mean_j z_j) + z_loss lse^2
    dx_i = dloss ((1 + 2 z_loss lse) p_i - (1 - e) [i = t] - e / N) (1 - (z_i / softcap)^2)

Without softcap the last factor is 1. Where the target is ignore_index, loss and dx are 0, and lse is that of the row. Label smoothing is
that of `torch.nn.functional.cross_entropy`, and the z-loss that of PaLM (https://arxiv.org/abs/2204.02311, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from softbench.core.case import Case
from softbench.ops.cross_entropy.spec import IGNORE_INDEX, LABEL_SMOOTHING, SOFTCAP, Z_LOSS
from softbench.ops.registry import operation

OPERATORS = ("logsumexp", "tanh", "exp", "Tensor.gather", "Tensor.mean", "Tensor.scatter_add_")
"""What the tamper guard protects of torch for this reference."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The parameters of a case."""

    ignore_index: int
    smoothing: float
    z_loss: float
    cap: float
    """0 without softcap."""


def settings(case: Case) -> Settings:
    """The values of a case's parameters."""
    values = operation(case.op).values
    smoothing, z_loss, cap = (float(values[parameter.name]) for parameter in (LABEL_SMOOTHING, Z_LOSS, SOFTCAP))
    return Settings(int(values[IGNORE_INDEX.name]), smoothing, z_loss, cap)


def capped(x: torch.Tensor, cap: float) -> torch.Tensor:
    """The logits z of x."""
    return cap * torch.tanh(x / cap) if cap else x


def logsumexp(x: torch.Tensor, cap: float) -> torch.Tensor:
    """lse of each row, in the dtype of x; -inf for a row of -inf."""
    return torch.logsumexp(capped(x, cap), dim=-1)


def of_target(rows: torch.Tensor, target: torch.Tensor, given: Settings) -> torch.Tensor:
    """The element of each row at its target, and any element where the target is ignored."""
    return rows.gather(1, torch.where(target == given.ignore_index, 0, target)[:, None])[:, 0]


def loss(z: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, given: Settings) -> torch.Tensor:
    """The loss of each row of logits z."""
    found = (1 - given.smoothing) * (lse - of_target(z, target, given))
    if given.smoothing:
        found = found + given.smoothing * (lse - z.mean(dim=-1))
    if given.z_loss:
        found = found + given.z_loss * lse.square()
    return torch.where(target == given.ignore_index, 0.0, found)


def gradient(z: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor | float, given: Settings) -> torch.Tensor:
    """dx of logits z, whose loss has the gradient dloss."""
    ignored = target == given.ignore_index
    dz = torch.exp(z - lse[:, None]) * (1 + 2 * given.z_loss * lse[:, None]) - given.smoothing / z.shape[1]
    ones = torch.full_like(lse, given.smoothing - 1)[:, None]
    dz.scatter_add_(1, torch.where(ignored, 0, target)[:, None], ones)
    if given.cap:
        dz *= 1 - (z / given.cap).square()
    scale = torch.where(ignored, 0.0, torch.as_tensor(dloss, dtype=lse.dtype, device=lse.device))
    return torch.where(ignored[:, None], 0.0, dz * scale[:, None])
