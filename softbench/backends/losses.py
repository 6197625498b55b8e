"""Losses over rows with a target, as users write them in eager PyTorch: `naive` in operations, `torch` by its functions.

Each maker takes a case and returns the function of its pass. `wrap` is applied to the part that computes: `torch.compile` is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Maker = Callable[[Case, Wrap], Call]
Tensors = tuple[torch.Tensor, ...]
LOWEST = torch.finfo(torch.float32).min


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The eager function."""
    return function


def parameters(case: Case) -> dict[str, Any]:
    """The values of all parameters of a case's operation."""
    return dict(operation(case.op).values)


def _capped(x: torch.Tensor, softcap: float) -> torch.Tensor:
    """The logits in float32, as Transformers upcasts them before its loss."""
    wide = x.float()
    return softcap * torch.tanh(wide / softcap) if softcap else wide


def _log_sum(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each row, and the logarithm of the sum of exp(z - maximum); a row of -inf has a finite maximum."""
    high = z.amax(dim=-1)
    high = torch.where(high == -torch.inf, 0.0, high)
    return high, torch.log(torch.exp(z - high[:, None]).sum(dim=-1))


def _loss(
    z: torch.Tensor, target: torch.Tensor, high: torch.Tensor, log: torch.Tensor, ignore_index: int, smoothing: float, z_loss: float
) -> torch.Tensor:
    ignored = target == ignore_index
    at_target = z.gather(1, torch.where(ignored, 0, target)[:, None])[:, 0]
    loss = (1 - smoothing) * ((high - at_target) + log)
    if smoothing:
        loss = loss + smoothing * ((high[:, None] - z).mean(dim=-1) + log)
    if z_loss:
        loss = loss + z_loss * (high + log).square()
    return torch.where(ignored, 0.0, loss)


def _gradient(
    x: torch.Tensor,
    p: torch.Tensor,
    target: torch.Tensor,
    lse: torch.Tensor,
    dloss: torch.Tensor | None,
    *,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float,
) -> torch.Tensor:
    columns = torch.arange(p.shape[1], device=p.device)
    dz = p * (1 + 2 * z_loss * lse)[:, None] if z_loss else p
    dz = dz - torch.where(columns == target[:, None], 1 - label_smoothing, 0.0)
    if label_smoothing:
        dz = dz - label_smoothing / p.shape[1]
    if softcap:
        dz = dz * (1 - torch.tanh(x.float() / softcap).square())
    if dloss is not None:
        dz = dz * dloss[:, None]
    return torch.where((target == ignore_index)[:, None], 0.0, dz).to(x.dtype)


def naive_cross_entropy(case: Case, wrap: Wrap = as_it_is) -> Call:
    """The formulas in float32, one operation after the other."""
    given = parameters(case)
    cap, of_loss = given["softcap"], (given["ignore_index"], given["label_smoothing"], given["z_loss"])

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        z = _capped(x, cap)
        high, log = _log_sum(z)
        return _loss(z, target, high, log, *of_loss), high + log

    def backward(x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
        return _gradient(x, torch.exp(_capped(x, cap) - lse[:, None]), target, lse, dloss, **given)

    def fused(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        z = _capped(x, cap)
        high, log = _log_sum(z)
        p = torch.exp((z - high[:, None]) - log[:, None])
        return _loss(z, target, high, log, *of_loss), _gradient(x, p, target, high + log, None, **given)

    calls: dict[Direction, Call] = {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.FUSED: fused}
    return wrap(calls[case.direction])


def torch_cross_entropy(case: Case, wrap: Wrap = as_it_is) -> Call:
    """F.cross_entropy of float32 logits, and torch.logsumexp where lse is a result. `fused` is its gradient by autograd.

    The backward computes the softmax from lse, as no function of torch takes lse.
    """
    given = parameters(case)
    functional, cap, z_loss = torch.nn.functional.cross_entropy, given["softcap"], given["z_loss"]

    def loss(z: torch.Tensor, target: torch.Tensor, lse: torch.Tensor | None) -> torch.Tensor:
        found = functional(z, target, ignore_index=given["ignore_index"], label_smoothing=given["label_smoothing"], reduction="none")
        return found if lse is None else found + torch.where(target == given["ignore_index"], 0.0, z_loss * lse.square())

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        z = _capped(x, cap)
        lse = torch.logsumexp(z, dim=-1)
        return loss(z, target, lse if z_loss else None), lse

    def of_rows(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        z = _capped(x, cap)
        return loss(z, target, torch.logsumexp(z, dim=-1) if z_loss else None)

    if case.direction is Direction.FUSED:
        return partial(_by_autograd, wrap(of_rows))
    return wrap(forward) if case.direction is Direction.FORWARD else naive_cross_entropy(case, wrap)


def _by_autograd(loss_of: Callable[..., torch.Tensor], x: torch.Tensor, target: torch.Tensor) -> Tensors:
    """The loss and its gradient, as a training step takes them."""
    leaf = x.detach().requires_grad_()
    loss = loss_of(leaf, target)
    (dx,) = torch.autograd.grad(loss, leaf, torch.ones_like(loss))
    return loss.detach(), dx


def naive_logprob(case: Case, wrap: Wrap = as_it_is) -> Call:
    """x_t - max - L and L + sum(p (max - x)) in float32, one operation after the other; no term of this entropy is negative."""

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        wide = x.float()
        high, log = _log_sum(wide)
        below = high[:, None] - wide
        p = torch.exp(-below - log[:, None])
        entropy = log + torch.where(p == 0, 0.0, p * below).sum(dim=-1)
        return -below.gather(1, target[:, None])[:, 0] - log, entropy

    def backward(
        x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, entropy: torch.Tensor, dlogprob: torch.Tensor, dentropy: torch.Tensor
    ) -> torch.Tensor:
        y = x.float() - lse[:, None]
        p = torch.exp(y)
        hot = torch.arange(x.shape[1], device=x.device) == target[:, None]
        of_entropy = torch.where(p == 0, 0.0, p * (y + entropy[:, None])) * dentropy[:, None]
        return ((hot.float() - p) * dlogprob[:, None] - of_entropy).to(x.dtype)

    return wrap(forward if case.direction is Direction.FORWARD else backward)


def torch_logprob(case: Case, wrap: Wrap = as_it_is) -> Call:
    """log_softmax and gather of float32 logits, and -sum(p log p), with the clamp of `torch.distributions.Categorical`.

    Without the clamp, as TRL has it, the entropy is NaN beside -inf. The backward is that of `naive`.
    """

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        y = torch.nn.functional.log_softmax(x.float(), dim=-1)
        return y.gather(1, target[:, None])[:, 0], -(torch.exp(y) * y.clamp(min=LOWEST)).sum(dim=-1)

    return wrap(forward) if case.direction is Direction.FORWARD else naive_logprob(case, wrap)


OF_CROSS_ENTROPY = "cross_entropy(ignore_index,label_smoothing,z_loss,softcap)"
NAIVE: dict[str, Maker] = {"cross_entropy": naive_cross_entropy, "logprob": naive_logprob}
TORCH: dict[str, Maker] = {"cross_entropy": torch_cross_entropy, "logprob": torch_logprob}
"""The makers by operation."""
OPERATIONS = (OF_CROSS_ENTROPY, "logprob")
"""The operations that both have, with their parameters."""
