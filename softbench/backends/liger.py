"""The backends `liger`, `liger:cutedsl` and `liger:cutile`: softmax, cross entropy and norms of LinkedIn's Liger-Kernel.

Liger's users choose the language by LIGER_KERNEL_IMPL. Source: the project's public functions, and those that their autograd calls.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch

from softbench.backends.calls import EMPTY, Tensors, by_direction, parameters
from softbench.backends.third_party import ThirdParty
from softbench.core.case import DTYPES, Case, Direction
from softbench.core.toolchain import missing_compiler
from softbench.plugins.backend import Call

MAX_COLUMNS = 65536  # MAX_FUSED_SIZE: Liger's `calculate_settings` raises for a longer row
CUTE_COLUMNS = 32768  # _MAX_TILE_CUTEDSL: from there on, Liger's softmax in CuTe DSL calls the one in Triton


class Liger(ThirdParty):
    """LinkedIn's Liger-Kernel: Triton, one block per row; its 16-bit backward multiplies in 16 bits."""

    name, package, module = "liger", "liger-kernel", "liger_kernel.ops.softmax"
    install = "pip install liger-kernel"
    operators = "liger_kernel.ops"
    """The package of the modules that are named as their operators."""
    chunks = extra = False
    """`chunks`: its softmax takes a row of any length."""
    operations: tuple[str, ...] = (
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
        if case.M * case.N == 0 and (case.N == 0 or case.operation != "softmax" or self.extra):
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
        if case.N > MAX_COLUMNS and not (self.chunks and case.operation == "softmax"):
            return f"a row must fit one block: N is at most {MAX_COLUMNS}"
        return None

    def prepare(self, case: Case) -> Call:
        """The softmax's forward returns y only. Its backward gets the launch settings that Liger's autograd would save."""
        if make := MAKERS.get(case.operation):
            return make(case, self.operators)
        return self._softmax(self._module(), case)

    def user_call(self, case: Case) -> Call | None:
        """Its differentiable functions. The one of the loss is measured beside the pass that Liger has."""
        if self.extra:  # the function of another language is chosen by the environment
            return None
        functional: Any = importlib.import_module("liger_kernel.transformers.functional")
        if case.operation == "softmax" and case.direction is Direction.FORWARD:
            call: Call = functional.liger_softmax
            return call
        if case.operation != "cross_entropy":
            return None
        given = parameters(case)
        options = {name: given[name] for name in ("ignore_index", "label_smoothing", "reduction")}
        return partial(functional.liger_cross_entropy, lse_square_scale=given["z_loss"], softcap=given["softcap"] or None, **options)

    def _softmax(self, liger: Any, case: Case) -> Call:
        settings = liger.calculate_settings(case.N)

        def forward(x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = liger._softmax_forward(x)[0]
            return y

        def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            dx: torch.Tensor = liger._softmax_backward(dy, y, *settings, False)  # False: one block per row
            return dx

        return by_direction(case, liger.LigerSoftmaxFunction.apply if case.direction is Direction.BOTH else forward, backward)


class LigerCute(Liger):
    """LinkedIn's Liger-Kernel with LIGER_KERNEL_IMPL=cutedsl: CuTe DSL, compiled for each N."""

    name, module = "liger:cutedsl", "liger_kernel.ops.backends._cutedsl.softmax"
    operators = "liger_kernel.ops.cutedsl.ops"
    install = "pip install 'liger-kernel[cutedsl]'"
    operations = ("softmax", "cross_entropy(ignore_index,label_smoothing,z_loss,softcap,reduction)", "rms_norm(eps)")
    advice = "if Liger's other kernels are in use, on Hopper or newer"
    only_nvidia = extra = True

    def supports(self, case: Case) -> str | None:
        vector = 16 // DTYPES[case.dtype]
        if case.N % vector and case.operation != "rms_norm":
            return f"it reads rows in 16-byte vectors: N must be a multiple of {vector} in {case.dtype}"
        if case.operation == "softmax" and case.N > CUTE_COLUMNS:
            return f"for a longer row it calls Liger's Triton kernel: N is at most {CUTE_COLUMNS}"
        return super().supports(case)

    def _softmax(self, liger: Any, case: Case) -> Call:
        softmax: Any = importlib.import_module("liger_kernel.functional").softmax
        return by_direction(case, partial(softmax, impl="nvidia-cutedsl"), liger._softmax_cutedsl_backward)


class LigerTile(Liger):
    """LinkedIn's Liger-Kernel with LIGER_KERNEL_IMPL=cutile: cuTile, autotuned; long rows in chunks."""

    name, module = "liger:cutile", "liger_kernel.ops.cutile.ops.softmax"
    operators = "liger_kernel.ops.cutile.ops"
    install = "pip install 'liger-kernel[cutile-tileiras]'"
    operations = LigerCute.operations
    advice = "to compare cuTile with Triton: the same operators by the same project"
    only_nvidia = extra = True
    chunks = True

    def _softmax(self, liger: Any, case: Case) -> Call:
        return by_direction(case, liger.LigerSoftmaxFunction.apply, liger._softmax_backward_ct)


def _cross_entropy(case: Case, operators: str) -> Call:
    """Liger's kernel with its gradient, which it writes over the logits. The call copies them first, since softbench uses them again.

    The kernel computes the gradient if the logits require one.
    """
    liger: Any = importlib.import_module(f"{operators}.cross_entropy")
    values = parameters(case)
    ignore, z_loss, smoothing = values["ignore_index"], values["z_loss"], values["label_smoothing"]
    cap = values["softcap"] or None

    def fused(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        logits = x.clone().requires_grad_()
        loss, *_, dx = liger.cross_entropy_forward(logits, target, None, ignore, z_loss, smoothing, values["reduction"], cap, False)
        return loss.float(), dx.detach()

    return fused


def _linear_cross_entropy(case: Case, operators: str) -> Call:
    """The function that Liger's autograd calls, with its defaults: dw of parts of the rows is added up in the dtype of the weight."""
    liger: Any = importlib.import_module(f"{operators}.fused_linear_cross_entropy")
    given = parameters(case)
    options = {name: given[name] for name in ("ignore_index", "label_smoothing")}
    options |= {"lse_square_scale": given["z_loss"], "softcap": given["softcap"] or None}
    fused = case.direction is Direction.FUSED

    def call(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> torch.Tensor | Tensors:
        leaves = [one.detach().requires_grad_(fused) for one in (x, w)]  # it computes the gradients of those that require one
        with torch.no_grad():
            loss, *_, dx, dw, _ = liger.fused_linear_cross_entropy_forward(*leaves, target, **options)
        return (loss, dx, dw) if fused else loss

    return call


def _rms_norm(case: Case, operators: str) -> Call:
    """Liger's autograd function with its default casts, those of Llama. It also stores rstd, as its backward takes it."""
    liger: Any = importlib.import_module(f"{operators}.rms_norm")
    eps = parameters(case)["eps"]

    def forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = liger.LigerRMSNormFunction.apply(x, w, eps)
        return y

    return forward


def _layer_norm(case: Case, operators: str) -> Call:
    """The functions that Liger's autograd calls."""
    liger: Any = importlib.import_module(f"{operators}.layer_norm")
    given = parameters(case)

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor | Tensors:
        y, _, mean, rstd, *_ = liger.layer_norm_forward(x, w, b, given["eps"])
        return (y, mean, rstd) if given["saved"] else y

    def backward(dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> Tensors:
        dx, dw, db = liger.layer_norm_backward(dy, x, w, w, mean, rstd)  # it reads no bias
        return dx, dw, db

    return forward if case.direction is Direction.FORWARD else backward


def _add_rms_norm(case: Case, operators: str) -> Call:
    """The functions that Liger's autograd calls, with the casts of Llama."""
    liger: Any = importlib.import_module(f"{operators}.fused_add_rms_norm")
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
backend, cutedsl, cutile = backends = Liger(), LigerCute(), LigerTile()
