"""Log-probability, entropy and their gradient in the dtype of x, for the float64 reference and for estimates in float32.

With y = x - lse, p = exp(y) and the target t:

    logprob  = y_t
    entropy  = -sum_j p_j y_j
    dx_i     = dlogprob ([i = t] - p_i) - dentropy p_i (y_i + entropy)

An element of -inf has p = 0 and adds nothing to the entropy or the gradient.
"""

from __future__ import annotations

import torch

from softbench.ops.rowwise.logsumexp import weighted

OPERATORS = ("logsumexp", "exp", "Tensor.gather", "Tensor.scatter_add_")
"""What the tamper guard protects of torch for this reference."""


def of_target(rows: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The element of each row at its target."""
    return rows.gather(1, target[:, None])[:, 0]


def forward(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """logprob and entropy."""
    y = x - torch.logsumexp(x, dim=-1, keepdim=True)
    return of_target(y, target), entropy(y)


def entropy(y: torch.Tensor) -> torch.Tensor:
    """The entropy of rows of log-probabilities."""
    return weighted(torch.exp(y), -y)


def backward(
    x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, entropy: torch.Tensor, dlogprob: torch.Tensor, dentropy: torch.Tensor
) -> torch.Tensor:
    """dx; lse and entropy are those of the row, as the forward rounded them."""
    y = x - lse[:, None]
    p = torch.exp(y)
    dx = -p * dlogprob[:, None] - torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
    return dx.scatter_add_(1, target[:, None], dlogprob[:, None])
