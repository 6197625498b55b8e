"""The backend `liger`: softmax, cross entropy and norms of LinkedIn's Liger-Kernel, in Triton. Source: the project's public functions."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from softbench.backends.calls import EMPTY, Tensors, by_direction, parameters
from softbench.backends.third_party import ThirdParty
from softbench.core.case import Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call

MAX_COLUMNS = 65536  # MAX_FUSED_SIZE: Liger's `calculate_settings` raises for a longer row


class Liger(ThirdParty):
    """LinkedIn's Liger-Kernel: Triton, one block per row; its 16-bit backward multiplies in 16 bits."""

    name, package, module = "liger", "liger-kernel", "liger_kernel.ops.softmax"
    install = "pip install liger-kernel"
    operations = (
        "softmax",
        "cross_entropy(ignore_index,label_smoothing,z_loss,softcap,reduction)",
        "rms_norm(eps)",
        "layer_norm(eps,saved)",
        "add_rms_norm(eps,saved)",
        "linear_cross_entropy(hidden,ignore_index,label_smoothing,z_loss,softcap)",
    )
    advice = "if Liger's other kernels are in use; N up to 65536"

    def available(self) -> str | None:
        return super().available() or missing_compiler(cuda=True)

    def supports(self, case: Case) -> str | None:
        if case.M * case.N == 0 and (case.N == 0 or case.operation != "softmax"):
            return EMPTY
        if case.operation == "rms_norm" and case.direction is not Direction.FORWARD:
            return "its backward computes the gradient of the weight too: --direction forward"
        if case.operation in ("layer_norm", "add_rms_norm") and case.direction is not Direction.FORWARD and not parameters(case)["saved"]:
            return "its backward takes saved statistics"
        if case.operation == "layer_norm" and case.dtype != "fp32" and parameters(case)["saved"] and case.direction is Direction.FORWARD:
            return "it saves statistics in 16 bits: --set saved=false"
        if case.operation == "cross_entropy":
            # its one kernel of a loss returns no lse without a gradient, and the gradient with it
            return None if case.direction is Direction.FUSED else "its kernel computes loss and gradient at once: --direction fused"
        if case.operation == "linear_cross_entropy":
            return None
        return f"a row must fit one block: N is at most {MAX_COLUMNS}" if case.N > MAX_COLUMNS else None

    def prepare(self, case: Case) -> Call:
        """The forward returns y only. The backward gets the launch settings that Liger's autograd would save.

        The functions come from the module: the package can select another implementation by LIGER_KERNEL_IMPL.
        """
        if make := MAKERS.get(case.operation):
            return make(case)
        liger = self._module()
        settings = liger.calculate_settings(case.N)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = liger._softmax_forward(x)[0]
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = liger._softmax_backward(dy, y, *settings, False)  # False: one block per row
            return dx

        return by_direction(case, liger.LigerSoftmaxFunction.apply if case.direction is Direction.BOTH else forward, backward)


def _cross_entropy(case: Case) -> Call:
    """Liger's kernel with its gradient, which it writes over the logits. The call copies them first, since softbench uses them again.

    The kernel computes the gradient if the logits require one.
    """
    liger: Any = importlib.import_module("liger_kernel.ops.cross_entropy")
    values = parameters(case)
    ignore, z_loss, smoothing = values["ignore_index"], values["z_loss"], values["label_smoothing"]
    cap = values["softcap"] or None

    def fused(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        logits = x.clone().requires_grad_()
        loss, *_, dx = liger.cross_entropy_forward(logits, target, None, ignore, z_loss, smoothing, values["reduction"], cap, False)
        return loss.float(), dx.detach()

    return fused


def _linear_cross_entropy(case: Case) -> Call:
    """The function that Liger's autograd calls, with its defaults: dw of parts of the rows is added up in the dtype of the weight."""
    liger: Any = importlib.import_module("liger_kernel.ops.fused_linear_cross_entropy")
    given = parameters(case)
    options = {name: given[name] for name in ("ignore_index", "label_smoothing")}
    options |= {"lse_square_scale": given["z_loss"], "softcap": given["softcap"] or None}
    fused = case.direction is Direction.FUSED

    def call(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor | Tensors:
        with torch.no_grad():
            loss, *_, dx, dw, _ = liger.fused_linear_cross_entropy_forward(
                x, w, target, compute_gradients=fused, weight_requires_grad=fused, **options
            )
        return (loss, dx, dw) if fused else loss

    return call


def _rms_norm(case: Case) -> Call:
    """Liger's autograd function with its default casts, those of Llama. It also stores rstd, as its backward takes it."""
    liger: Any = importlib.import_module("liger_kernel.ops.rms_norm")
    eps = parameters(case)["eps"]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = liger.LigerRMSNormFunction.apply(x, w, eps)
        return y

    return forward


def _layer_norm(case: Case) -> Call:
    """The functions that Liger's autograd calls."""
    liger: Any = importlib.import_module("liger_kernel.ops.layer_norm")
    given = parameters(case)

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor | Tensors:
        y, _, mean, rstd, *_ = liger.layer_norm_forward(x, w, b, given["eps"])
        return (y, mean, rstd) if given["saved"] else y

    def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Tensors:
        dx, dw, db = liger.layer_norm_backward(dy, x, w, w, mean, rstd)  # it reads no bias
        return dx, dw, db

    return forward if case.direction is Direction.FORWARD else backward


def _add_rms_norm(case: Case) -> Call:
    """The functions that Liger's autograd calls, with the casts of Llama."""
    liger: Any = importlib.import_module("liger_kernel.ops.fused_add_rms_norm")
    given = parameters(case)
    settings = liger.calculate_settings(case.N)

    def forward(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Tensors:
        y, s, rstd, *_ = liger.fused_add_rms_norm_forward(x, residual, w, given["eps"], 0.0, "llama")
        return (y, s, rstd) if given["saved"] else (y, s)

    def backward(dy: torch.Tensor, ds: torch.Tensor, s: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor) -> Tensors:
        llama = liger._str_to_casting_mode["llama"]
        dx, _, dw = liger.fused_add_rms_norm_backward(dy, ds, s, w, rstd, 0.0, llama, *settings, False)
        return dx, dw

    return forward if case.direction is Direction.FORWARD else backward


MAKERS = {
    **{"cross_entropy": _cross_entropy, "linear_cross_entropy": _linear_cross_entropy},
    **{"rms_norm": _rms_norm, "layer_norm": _layer_norm, "add_rms_norm": _add_rms_norm},
}
"""What makes the calls of an operation other than softmax."""
backend = Liger()
