"""The backend `torch`: the functions of `torch.nn.functional`, eager. And `torch:native`, `torch:aten`: with and without torch's overrides.

From torch 2.12 on, torch's own package `torch._native` replaces kernels of aten by some in CuTe DSL, Triton and others, where those
languages are installed. `torch` calls what torch calls by default; the run document lists the overrides, as `overrides`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch

from softbench.backends import naive
from softbench.backends.calls import Eager, Tensors, Wrap, as_it_is, by_autograd, parameters, with_parameters
from softbench.core.case import Case, Direction
from softbench.plugins.backend import Call

LOWEST = torch.finfo(torch.float32).min
FEWEST_ROWS = 128
"""Rows of a chunk of logits, at least."""
OPERATORS = {
    "softmax": ("_softmax", "_softmax_backward_data"),
    "log_softmax": ("_log_softmax", "_log_softmax_backward_data"),
    "rms_norm": ("_fused_rms_norm", "_fused_rms_norm_backward"),
    "layer_norm": ("native_layer_norm", "native_layer_norm_backward"),
    "add_rms_norm": ("_fused_rms_norm", "_fused_rms_norm_backward"),
    "matmul": ("mm",),
}
"""The operators of aten that compute most of an operation. torch's overrides replace kernels of operators."""


def _forward(x: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.nn.functional.softmax(x, dim=dim, dtype=dtype)


def _backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1, dtype: torch.dtype | None = None) -> torch.Tensor:
    """dx as autograd computes it: of a float32 result, only the CUDA kernel gives a narrower gradient, and only float16."""
    fused = dtype is torch.float16 and y.dtype is torch.float32 and y.is_cuda
    dx = torch.ops.aten._softmax_backward_data(dy, y, dim, torch.float16 if fused else y.dtype)
    return dx if dtype is None else dx.to(dtype)


def _log_forward(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.nn.functional.log_softmax(x, dim=dim)


def _log_backward(dy: torch.Tensor, y: torch.Tensor, dim: int = -1) -> torch.Tensor:
    return torch.ops.aten._log_softmax_backward_data(dy, y, dim, y.dtype)


def cross_entropy(case: Case, wrap: Wrap = as_it_is) -> Call:
    """F.cross_entropy of float32 logits, and torch.logsumexp where lse is a result. `fused` is its gradient by autograd.

    The backward computes the softmax from lse, as no function of torch takes lse.
    """
    given = parameters(case)

    def forward(x: torch.Tensor, target: torch.Tensor, dim: int = 1) -> Tensors:
        z = naive.capped(x, given["softcap"])
        lse = torch.logsumexp(z, dim=dim)
        return _loss_of(z.movedim(dim, 1), target, lse if given["z_loss"] else None, given, given["reduction"]), lse

    if case.direction is Direction.FUSED:
        loss = wrap(_loss_of_rows(given, given["reduction"]))
        return lambda x, target, dim=1: by_autograd(partial(loss, dim=dim), x, target)
    return wrap(forward) if case.direction is Direction.FORWARD else naive.cross_entropy(case, wrap)


def _loss_of(z: torch.Tensor, target: torch.Tensor, lse: torch.Tensor | None, given: dict[str, Any], reduction: str) -> torch.Tensor:
    """F.cross_entropy, and the z-loss if there is lse."""
    ignore, smoothing = given["ignore_index"], given["label_smoothing"]
    found = torch.nn.functional.cross_entropy(z, target, ignore_index=ignore, label_smoothing=smoothing, reduction=reduction)
    if lse is None:
        return found
    more = torch.where(target == ignore, 0.0, given["z_loss"] * lse.square())
    return found + (more.sum() / (target != ignore).sum() if reduction == "mean" else more)


def _loss_of_rows(given: dict[str, Any], reduction: str) -> Callable[..., torch.Tensor]:
    """The loss of float32 logits with these parameters, as a function of logits, target and the dimension of the classes."""

    def loss(x: torch.Tensor, target: torch.Tensor, dim: int = 1) -> torch.Tensor:
        z = naive.capped(x, given["softcap"])
        return _loss_of(z.movedim(dim, 1), target, torch.logsumexp(z, dim=dim) if given["z_loss"] else None, given, reduction)

    return loss


def linear_cross_entropy(case: Case, wrap: Wrap = as_it_is) -> Call:
    """F.linear_cross_entropy in chunks, which PyTorch 2.13 has. Without it, or with parameters that it lacks, the loss of each chunk.

    The chunks of rows are those that PyTorch's heuristic gives for CUDA.
    """
    given = parameters(case)
    ignore, hidden = given["ignore_index"], given.pop("hidden")
    forward = case.direction is Direction.FORWARD
    if hasattr(torch.nn, "LinearCrossEntropyOptions") and not any(given[name] for name in ("label_smoothing", "z_loss", "softcap")):
        options = torch.nn.LinearCrossEntropyOptions()

        def chunked(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear_cross_entropy(x, w, target, ignore_index=ignore, options=options)

        of_all = wrap(chunked)
        return (lambda *tensors: of_all(*tensors).float()) if forward else partial(by_autograd, of_all)
    of_logits = wrap(_loss_of_rows(given, "none"))
    rows = max(FEWEST_ROWS, 2 ** math.ceil(math.log2(max(1, case.M / math.ceil(case.N / hidden)))) // 2)

    def loss(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        parts = zip(x.split(rows), target.split(rows), strict=True)
        losses = torch.cat([of_logits(torch.nn.functional.linear(part, w), targets) for part, targets in parts])
        return losses.sum() / (target != ignore).sum()

    def fused(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> Tensors:
        count, total, dx, dw = (target != ignore).sum(), x.new_zeros((), dtype=torch.float32), torch.empty_like(x), torch.zeros_like(w)
        for part, targets, out in zip(x.split(rows), target.split(rows), dx.split(rows), strict=True):
            of_rows, dz = by_autograd(lambda *tensors: of_logits(*tensors).sum() / count, torch.nn.functional.linear(part, w), targets)
            total += of_rows
            torch.mm(dz, w, out=out)
            dw.addmm_(dz.T, part)
        return total, dx, dw

    return loss if forward else fused


def logprob(case: Case, wrap: Wrap = as_it_is) -> Call:
    """log_softmax and gather of float32 logits, and -sum(p log p), with the clamp of `torch.distributions.Categorical`.

    Without the clamp, as TRL has it, the entropy is NaN beside -inf. The backward is that of `naive`.
    """

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        y = torch.nn.functional.log_softmax(x.float(), dim=-1)
        return y.gather(1, target[:, None])[:, 0], -(torch.exp(y) * y.clamp(min=LOWEST)).sum(dim=-1)

    return wrap(forward) if case.direction is Direction.FORWARD else naive.logprob(case, wrap)


def _softmax_with_sink(z: torch.Tensor, sink: torch.Tensor | None) -> torch.Tensor:
    """As `eager_attention_forward` of gpt-oss in Transformers, or of its other models without a sink."""
    if sink is None:
        return torch.nn.functional.softmax(z, dim=-1, dtype=torch.float32).to(z.dtype)
    combined = torch.cat([z, sink.to(z.dtype).expand(*z.shape[:-1], 1)], dim=-1)
    combined = combined - combined.max(dim=-1, keepdim=True).values
    return torch.nn.functional.softmax(combined, dim=-1, dtype=combined.dtype)[..., :-1]


def masked_softmax(case: Case, wrap: Wrap = as_it_is) -> Call:
    """F.softmax, and the operator that autograd calls for its gradient."""
    return naive.masked_softmax_by(case, wrap, _softmax_with_sink, _backward)


def rms_norm(case: Case, wrap: Wrap = as_it_is) -> Call:
    """F.rms_norm, and the operator that autograd calls for its gradient. The CPU lacks it and uses the formula of `naive`."""
    eps, shape = parameters(case)["eps"], [case.N]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, shape, w, eps)

    def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        dx: torch.Tensor = torch.ops.aten._fused_rms_norm_backward(dy, x, shape, rstd[:, None], w, [True, False])[0]
        return dx

    if case.direction is Direction.FORWARD:
        return wrap(forward)
    return wrap(backward) if case.device == "cuda" else naive.rms_norm(case, wrap)


def layer_norm(case: Case, wrap: Wrap = as_it_is) -> Call:
    """The operators that F.layer_norm and autograd call. On the CPU they keep 16-bit statistics of 16-bit tensors, so these are widened."""
    given, shape, narrow = parameters(case), [case.N], case.device == "cpu"
    functional = torch.nn.functional.layer_norm

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor | Tensors:
        if not given["saved"]:
            return functional(x, shape, w, b, given["eps"])
        rows, weight, bias = (one.float() if narrow else one for one in (x, w, b))
        y, mean, rstd = torch.native_layer_norm(rows, shape, weight, bias, given["eps"])
        return y.to(x.dtype), mean[:, 0], rstd[:, 0]

    def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Tensors:
        wide = [one.float() if narrow else one for one in (dy, x, w)]
        found = torch.ops.aten.native_layer_norm_backward(
            wide[0], wide[1], shape, mean[:, None], rstd[:, None], wide[2], torch.zeros_like(wide[2]), [True] * 3
        )
        return tuple(one.to(x.dtype) for one in found)

    if case.direction is Direction.FORWARD:
        return wrap(forward)
    return wrap(backward) if given["saved"] else naive.layer_norm(case, wrap)


def add_rms_norm(case: Case, wrap: Wrap = as_it_is) -> Call:
    """A sum, and F.rms_norm of it or the operators that this and autograd call on a GPU. The CPU lacks them, as in `rms_norm`."""
    given, shape = parameters(case), [case.N]

    def forward(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Tensors:
        s = x + residual
        if not given["saved"]:
            return torch.nn.functional.rms_norm(s, shape, w, given["eps"]), s
        y, rstd = torch.ops.aten._fused_rms_norm(s, shape, w, given["eps"])
        return y, s, rstd[:, 0]

    def backward(dy: torch.Tensor, ds: torch.Tensor, s: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Tensors:
        dx, dw = torch.ops.aten._fused_rms_norm_backward(dy, s, shape, rstd[:, None], w, [True, True])
        return dx + ds, dw

    if case.direction is Direction.FORWARD and (case.device == "cuda" or not given["saved"]):
        return wrap(forward)
    return wrap(backward) if case.device == "cuda" and given["saved"] else naive.add_rms_norm(case, wrap)


def matmul(case: Case, wrap: Wrap = as_it_is) -> Call:
    """torch.matmul with its defaults."""
    return wrap(lambda a, b: torch.matmul(a, b))


def user_call(case: Case, wrap: Wrap = as_it_is) -> Call | None:
    """What users of torch call for the forward of a case: the loss without lse, the log-probability without entropy.

    None where torch has no such function: a backward, a z-loss or a softcap.
    """
    given, functional = parameters(case), torch.nn.functional
    if case.direction is not Direction.FORWARD:
        return None
    if case.operation == "cross_entropy":
        options = {name: given[name] for name in ("ignore_index", "label_smoothing", "reduction")}
        return None if given["z_loss"] or given["softcap"] else wrap(partial(functional.cross_entropy, **options))
    if case.operation == "logprob":
        return wrap(lambda x, target: functional.log_softmax(x, dim=-1).gather(1, target[:, None]))
    if case.operation in Functional.pairs:
        return wrap(with_parameters(case.op, Functional.pairs[case.operation])[0])
    return masked_softmax(case, wrap) if case.operation == "masked_softmax" else None


class Functional(Eager):
    """torch.nn.functional.softmax, eager; backward is the operator that autograd calls."""

    name = "torch"
    operations: tuple[str, ...] = (
        "softmax(scale,out_dtype)",
        "log_softmax",
        "cross_entropy(ignore_index,label_smoothing,z_loss,softcap,reduction)",
        "logprob",
        "masked_softmax(scale,mask,mask_axes,causal,sink)",
        "rms_norm(eps)",
        "layer_norm(eps,saved)",
        "add_rms_norm(eps,saved)",
        "matmul(K)",
        "linear_cross_entropy(hidden,ignore_index,label_smoothing,z_loss,softcap)",
    )
    advice = "if softmax is not the hot spot: no build, float32 arithmetic for 16-bit inputs"
    pairs: ClassVar = {"softmax": (_forward, _backward), "log_softmax": (_log_forward, _log_backward)}
    makers: ClassVar = {
        **{"cross_entropy": cross_entropy, "logprob": logprob, "masked_softmax": masked_softmax},
        **{"rms_norm": rms_norm, "layer_norm": layer_norm, "add_rms_norm": add_rms_norm, "matmul": matmul},
        "linear_cross_entropy": linear_cross_entropy,
    }

    def user_call(self, case: Case) -> Call | None:
        """As the function of this name."""
        return user_call(case)


class Native(Functional):
    """torch.nn.functional with the overrides of `torch._native` on, for the operations that they change."""

    name, on = "torch:native", True
    advice = "to see what torch's own overrides gain or cost"
    extra = True
    operations = (
        "softmax(scale,out_dtype)",
        "log_softmax",
        "rms_norm(eps)",
        "layer_norm(eps,saved)",
        "add_rms_norm(eps,saved)",
        "matmul(K)",
    )

    def available(self) -> str | None:
        if not torch.cuda.is_available():
            return "no CUDA GPU here, and torch overrides kernels of GPUs only"
        if _switches() is None:
            return f"torch {torch.__version__} overrides none of its own kernels; torch 2.12 and later do: pip install -U torch"
        return None if _overridden() else "torch overrides no kernel here: most overrides need pip install 'nvidia-cutlass-dsl[cu13]'"

    def supports(self, case: Case) -> str | None:
        found = _overridden()
        if set(OPERATORS[case.operation]).isdisjoint(found):
            return f"torch {torch.__version__} overrides no kernel of {case.operation}, only: {', '.join(sorted(found))}"
        return super().supports(case)

    def prepare(self, case: Case) -> Call:
        """It turns all overrides on or off, in this process. Each backend has a process of its own."""
        switches = _switches()
        for language in switches.available_dsls:
            switch = getattr(switches, language)
            if switch.enabled != self.on:
                (switch.enable if self.on else switch.disable)()
        return super().prepare(case)


class Aten(Native):
    """torch.nn.functional with the overrides of `torch._native` off: aten's kernels, as before torch 2.12."""

    name, on = "torch:aten", False
    advice = "to see what torch computed before it had overrides"


def _switches() -> Any:
    """The module that turns torch's overrides on and off; None before torch 2.12."""
    try:
        return importlib.import_module("torch.backends.python_native")
    except ImportError:
        return None


def _overridden() -> set[str]:
    """The operators of aten with an override whose language is installed, without their overloads. They stay in the list when off."""
    switches = _switches()
    return {name.partition(".")[0] for language in switches.available_dsls for name in switches.get_dsl_operations(language)}


backend = Functional()
backends = (backend, Native(), Aten())
