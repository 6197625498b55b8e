"""The backend `naive`: the formulas in eager operations, one kernel each.

Each maker takes a case and returns the function of its pass. `wrap` is applied to the part that computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from softbench.backends.calls import Eager, Tensors, Wrap, as_it_is, parameters
from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call


def naive_forward(x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Numerically stable softmax over `dim`. It moves about 8MN + 4M elements; the algorithmic count is 2MN.

    The maximum is detached. Softmax does not change under a shift, so the gradient of the maximum is exactly zero. Autograd would
    compute that zero with rounding errors. Source of the five steps: Triton's fused-softmax tutorial.
    """
    x = x if dtype is None else x.to(dtype)
    if x.numel() == 0:
        return torch.empty_like(x)  # no maximum to take
    row_max = x.amax(dim=dim, keepdim=True).detach()
    shifted = x - row_max
    numerator = torch.exp(shifted)
    denominator = numerator.sum(dim=dim, keepdim=True)
    return numerator / denominator


def naive_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """dx = y * (dy - sum(dy * y)) over `dim`."""
    dot = (dy * y).sum(dim=dim, keepdim=True)
    dx = y * (dy - dot)
    return dx if dtype is None else dx.to(dtype)


def naive_log_forward(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """x - max - log(sum(exp(x - max))) over `dim`, in float32. The maximum is detached as in `naive_forward`.

    In 16 bits each element of exp would be rounded, and their sum is wrong in long rows.
    """
    if x.numel() == 0:
        return torch.empty_like(x)
    wide = x.float()
    shifted = wide - wide.amax(dim=dim, keepdim=True).detach()
    return (shifted - torch.exp(shifted).sum(dim=dim, keepdim=True).log()).to(x.dtype)


def naive_log_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """dx = dy - exp(y) * sum(dy) over `dim`, in float32."""
    wide = dy.float()
    return (wide - torch.exp(y.float()) * wide.sum(dim=dim, keepdim=True)).to(dy.dtype)


def capped(x: torch.Tensor, softcap: float) -> torch.Tensor:
    """The logits in float32, as Transformers upcasts them before its loss."""
    wide = x.float()
    return softcap * torch.tanh(wide / softcap) if softcap else wide


def _log_sum(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The maximum of each row, and the logarithm of the sum of exp(z - maximum); a row of -inf has a finite maximum."""
    high = z.amax(dim=-1)
    high = torch.where(high == -torch.inf, 0.0, high)
    return high, torch.log(torch.exp(z - high[..., None]).sum(dim=-1))


def _loss(
    z: torch.Tensor, target: torch.Tensor, high: torch.Tensor, log: torch.Tensor, ignore_index: int, smoothing: float, z_loss: float
) -> torch.Tensor:
    ignored = target == ignore_index
    at_target = z.gather(-1, torch.where(ignored, 0, target)[..., None])[..., 0]
    loss = (1 - smoothing) * ((high - at_target) + log)
    if smoothing:
        loss = loss + smoothing * ((high[..., None] - z).mean(dim=-1) + log)
    if z_loss:
        loss = loss + z_loss * (high + log).square()
    return torch.where(ignored, 0.0, loss)


def _loss_gradient(
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
    columns = torch.arange(p.shape[-1], device=p.device)
    dz = p * (1 + 2 * z_loss * lse)[..., None] if z_loss else p
    dz = dz - torch.where(columns == target[..., None], 1 - label_smoothing, 0.0)
    if label_smoothing:
        dz = dz - label_smoothing / p.shape[-1]
    if softcap:
        dz = dz * (1 - torch.tanh(x.float() / softcap).square())
    if dloss is not None:
        dz = dz * (dloss[..., None] if dloss.dim() else dloss)
    return torch.where((target == ignore_index)[..., None], 0.0, dz).to(x.dtype)


def cross_entropy(case: Case, wrap: Wrap = as_it_is) -> Call:
    """The formulas in float32, one operation after the other. The functions take the dimension of the classes as their last argument."""
    given = parameters(case)
    mean = given.pop("reduction") == "mean"
    cap, of_loss = given["softcap"], (given["ignore_index"], given["label_smoothing"], given["z_loss"])

    def counted(target: torch.Tensor) -> torch.Tensor:
        return (target != given["ignore_index"]).sum()

    def forward(x: torch.Tensor, target: torch.Tensor, dim: int = -1) -> Tensors:
        z = capped(x.movedim(dim, -1), cap)
        high, log = _log_sum(z)
        loss = _loss(z, target, high, log, *of_loss)
        return loss.sum() / counted(target) if mean else loss, high + log

    def backward(x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor, dim: int = -1) -> torch.Tensor:
        x = x.movedim(dim, -1)
        dloss = dloss / counted(target) if mean else dloss
        dx = _loss_gradient(x, torch.exp(capped(x, cap) - lse[..., None]), target, lse, dloss, **given)
        return dx.movedim(-1, dim)

    def fused(x: torch.Tensor, target: torch.Tensor, dim: int = -1) -> Tensors:
        x = x.movedim(dim, -1)
        z = capped(x, cap)
        high, log = _log_sum(z)
        p = torch.exp((z - high[..., None]) - log[..., None])
        loss, each = _loss(z, target, high, log, *of_loss), 1 / counted(target) if mean else None
        dx = _loss_gradient(x, p, target, high + log, each, **given)
        return loss if each is None else loss.sum() * each, dx.movedim(-1, dim)

    calls: dict[Direction, Call] = {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.FUSED: fused}
    return wrap(calls[case.direction])


def linear_cross_entropy(case: Case, wrap: Wrap = as_it_is) -> Call:
    """All logits in memory, and the formulas of `cross_entropy` in float32."""
    given = parameters(case)
    del given["hidden"]
    cap, of_loss = given["softcap"], (given["ignore_index"], given["label_smoothing"], given["z_loss"])

    def forward(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        z = capped(torch.nn.functional.linear(x, w), cap)
        return _loss(z, target, *_log_sum(z), *of_loss).sum() / (target != given["ignore_index"]).sum()

    def fused(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Tensors:
        logits = torch.nn.functional.linear(x, w)
        z = capped(logits, cap)
        high, log = _log_sum(z)
        p, each = torch.exp((z - high[:, None]) - log[:, None]), 1 / (target != given["ignore_index"]).sum()
        dz = _loss_gradient(logits, p, target, high + log, each, **given)
        return _loss(z, target, high, log, *of_loss).sum() * each, dz @ w, dz.T @ x

    return wrap(forward if case.direction is Direction.FORWARD else fused)


def logprob(case: Case, wrap: Wrap = as_it_is) -> Call:
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


def masked_softmax_by(case: Case, wrap: Wrap, softmax: Callable[..., torch.Tensor], gradient: Callable[..., torch.Tensor]) -> Call:
    """The pass by a softmax of logits and sink, and a gradient of (dy, y)."""
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


def _softmax_with_sink(z: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    high = z.amax(dim=-1, keepdim=True)
    if sink is None:
        e = torch.exp(z - high)
        return e / e.sum(dim=-1, keepdim=True)
    high = torch.maximum(high, sink.to(z.dtype))
    e = torch.exp(z - high)
    return e / (e.sum(dim=-1, keepdim=True) + torch.exp(sink - high).to(z.dtype))


def masked_softmax(case: Case, wrap: Wrap = as_it_is) -> Call:
    """Eager operations in the dtype of x."""
    return masked_softmax_by(case, wrap, _softmax_with_sink, naive_backward)


def rms_norm(case: Case, wrap: Wrap = as_it_is) -> Call:
    """As LlamaRMSNorm of Transformers: in float32 up to x * rstd, which is rounded before its product with w; dx in float32."""
    eps = parameters(case)["eps"]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return w * (wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)).to(x.dtype)

    def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        weighted, h = dy.float() * w.float(), x.float() * rstd[:, None]
        return (rstd[:, None] * (weighted - h * (weighted * h).mean(dim=-1, keepdim=True))).to(x.dtype)

    return wrap(forward if case.direction is Direction.FORWARD else backward)


def layer_norm(case: Case, wrap: Wrap = as_it_is) -> Call:
    """The formulas in float32, and the last rounding."""
    given = parameters(case)
    eps = given["eps"]

    def statistics(wide: torch.Tensor) -> Tensors:
        mean = wide.mean(dim=-1)
        return mean, torch.rsqrt((wide - mean[:, None]).square().mean(dim=-1) + eps)

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor | Tensors:
        wide = x.float()
        mean, rstd = statistics(wide)
        y = ((wide - mean[:, None]) * rstd[:, None] * w.float() + b.float()).to(x.dtype)
        return (y, mean, rstd) if given["saved"] else y

    def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, *saved: torch.Tensor) -> Tensors:
        mean, rstd = saved or statistics(x.float())
        wide, r = dy.float(), rstd[:, None]
        h, g = (x.float() - mean[:, None]) * r, wide * w.float()
        dx = r * (g - g.mean(dim=-1, keepdim=True) - h * (g * h).mean(dim=-1, keepdim=True))
        return dx.to(x.dtype), (wide * h).sum(dim=0).to(w.dtype), wide.sum(dim=0).to(w.dtype)

    return wrap(forward if case.direction is Direction.FORWARD else backward)


def add_rms_norm(case: Case, wrap: Wrap = as_it_is) -> Call:
    """As a decoder layer of Transformers: the sum, and LlamaRMSNorm of it; the gradients in float32."""
    given = parameters(case)
    eps = given["eps"]

    def rstd_of(s: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(s.float().square().mean(dim=-1) + eps)

    def forward(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Tensors:
        s = x + residual
        rstd = rstd_of(s)
        y = w * (s.float() * rstd[:, None]).to(x.dtype)
        return (y, s, rstd) if given["saved"] else (y, s)

    def backward(dy: torch.Tensor, ds: torch.Tensor, s: torch.Tensor, w: torch.Tensor, *saved: torch.Tensor) -> Tensors:
        (rstd,) = saved or (rstd_of(s),)
        wide, r = dy.float(), rstd[:, None]
        h, g = s.float() * r, wide * w.float()
        dx = ds.float() + r * (g - h * (g * h).mean(dim=-1, keepdim=True))
        return dx.to(s.dtype), (wide * h).sum(dim=0).to(w.dtype)

    return wrap(forward if case.direction is Direction.FORWARD else backward)


class Naive(Eager):
    """Five eager operations, numerically stable; 16-bit inputs are rounded after each operation."""

    name = "naive"
    operations = (
        "softmax(scale,out_dtype)",
        "log_softmax",
        "cross_entropy(ignore_index,label_smoothing,z_loss,softcap,reduction)",
        "logprob",
        "masked_softmax(scale,mask,mask_axes,causal,sink)",
        "rms_norm(eps)",
        "layer_norm(eps,saved)",
        "add_rms_norm(eps,saved)",
        "linear_cross_entropy(hidden,ignore_index,label_smoothing,z_loss,softcap)",
    )
    advice = "never for use; the compilers fuse this function"
    pairs: ClassVar = {"softmax": (naive_forward, naive_backward), "log_softmax": (naive_log_forward, naive_log_backward)}
    makers: ClassVar = {
        **{"cross_entropy": cross_entropy, "logprob": logprob, "masked_softmax": masked_softmax},
        **{"rms_norm": rms_norm, "layer_norm": layer_norm, "add_rms_norm": add_rms_norm},
        "linear_cross_entropy": linear_cross_entropy,
    }


backend = Naive()
