"""Softmax of attention scores with scale, mask, causal order and sink, as users write it in eager PyTorch.

`naive` takes one operation after the other, in the dtype of x. `torch` is what Transformers does: softmax in float32, and for a sink one
more column. Makers are those of `softbench.backends.losses`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from softbench.backends.losses import Maker, Wrap, as_it_is, parameters
from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call

Tensors = tuple[torch.Tensor, ...]


def later_keys(case: Case) -> torch.Tensor | None:
    """(S, N), True at the keys that a query does not see; None if it sees all. Models keep it from call to call."""
    if not parameters(case)["causal"]:
        return None
    S, N = case.sizes[-2:]
    return torch.ones(S, N, dtype=torch.bool, device=case.device).triu(1 + max(0, N - S))


def _arguments(given: dict[str, Any], others: Tensors) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Bias or mask, and sink, from the inputs behind x."""
    mask = others[0] if given["mask"] != "none" else None
    return mask, others[-1][:, None, None] if given["sink"] else None


def _logits(x: torch.Tensor, given: dict[str, Any], mask: torch.Tensor | None, later: torch.Tensor | None) -> torch.Tensor:
    z = x * given["scale"] if given["scale"] != 1 else x
    if mask is not None:
        z = z + mask if given["mask"] == "additive" else z.masked_fill(~mask, -torch.inf)
    return z if later is None else z.masked_fill(later, -torch.inf)


def _naive_softmax(z: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    high = z.amax(dim=-1, keepdim=True)
    if sink is None:
        e = torch.exp(z - high)
        return e / e.sum(dim=-1, keepdim=True)
    high = torch.maximum(high, sink.to(z.dtype))
    e = torch.exp(z - high)
    return e / (e.sum(dim=-1, keepdim=True) + torch.exp(sink - high).to(z.dtype))


def _softmax(z: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """As `eager_attention_forward` of gpt-oss in Transformers, or of its other models without a sink."""
    if sink is None:
        return torch.nn.functional.softmax(z, dim=-1, dtype=torch.float32).to(z.dtype)
    combined = torch.cat([z, sink.to(z.dtype).expand(*z.shape[:-1], 1)], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    return torch.nn.functional.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1]


def _naive_gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y * (dy - (dy * y).sum(dim=-1, keepdim=True))


def _gradient(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)
    return found


def _made(case: Case, wrap: Wrap, softmax: Callable[..., torch.Tensor], gradient: Callable[..., torch.Tensor]) -> Call:
    given, later = parameters(case), later_keys(case)
    scale = given["scale"]

    def forward(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        mask, sink = _arguments(given, others)
        return softmax(_logits(x, given, mask, later), sink)

    def backward(dy: torch.Tensor, y: torch.Tensor, *share: torch.Tensor) -> torch.Tensor | Tensors:
        dx = gradient(dy, y)
        if later is not None:
            dx = dx.masked_fill(later, 0)  # as autograd does
        dx = dx * scale if scale != 1 else dx
        return (dx, -share[0] * (dy.float() * y.float()).sum(dim=-1)) if share else dx

    return wrap(forward if case.direction is Direction.FORWARD else backward)


def naive_masked_softmax(case: Case, wrap: Wrap = as_it_is) -> Call:
    """Eager operations in the dtype of x."""
    return _made(case, wrap, _naive_softmax, _naive_gradient)


def torch_masked_softmax(case: Case, wrap: Wrap = as_it_is) -> Call:
    """F.softmax, and the operator that autograd calls for its gradient."""
    return _made(case, wrap, _softmax, _gradient)


OF_MASKED_SOFTMAX = "masked_softmax(scale,mask,mask_axes,causal,sink)"
NAIVE: dict[str, Maker] = {"masked_softmax": naive_masked_softmax}
TORCH: dict[str, Maker] = {"masked_softmax": torch_masked_softmax}
"""The makers by operation."""
OPERATIONS = (OF_MASKED_SOFTMAX,)
