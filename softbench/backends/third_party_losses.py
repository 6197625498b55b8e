"""Losses of quack and Liger-Kernel, for the backends of `softbench.backends.third_party`. Sources: the projects' public functions."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from softbench.core.case import Case, Direction
from softbench.ops.registry import operation
from softbench.plugins.backend import Call

QUACK, LIGER = "cross_entropy(ignore_index)", "cross_entropy(ignore_index,label_smoothing,z_loss,softcap)"
"""The operation with the parameters that each takes."""
Tensors = tuple[torch.Tensor, ...]


def quack_cross_entropy(case: Case) -> Call:
    """quack's forward with lse, its backward, or its forward with `return_dx`, each one kernel."""
    quack: Any = importlib.import_module("quack.cross_entropy")
    ignore = {"ignore_index": operation(case.op).values["ignore_index"]}

    def forward(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        loss, lse = quack.cross_entropy_fwd(x, target, return_lse=True, **ignore)
        return loss, lse

    def fused(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        loss, dx = quack.cross_entropy_fwd(x, target, return_dx=True, **ignore)
        return loss, dx

    def backward(x: torch.Tensor, target: torch.Tensor, lse: torch.Tensor, dloss: torch.Tensor) -> torch.Tensor:
        dx: torch.Tensor = quack.cross_entropy_bwd(x, target, dloss, lse, **ignore)
        return dx

    calls: dict[Direction, Call] = {Direction.FORWARD: forward, Direction.BACKWARD: backward, Direction.FUSED: fused}
    return calls[case.direction]


def liger_refuses(case: Case) -> str | None:
    """Why Liger's loss cannot compute a case: its one kernel returns a loss without lse, and the gradient with it."""
    return None if case.direction is Direction.FUSED else "its kernel computes loss and gradient at once: --direction fused"


def liger_cross_entropy(case: Case) -> Call:
    """Liger's kernel with its gradient, which it writes over the logits. The call copies them first, since softbench uses them again.

    The kernel computes the gradient if the logits require one.
    """
    liger: Any = importlib.import_module("liger_kernel.ops.cross_entropy")
    values = operation(case.op).values
    ignore, z_loss, smoothing = values["ignore_index"], values["z_loss"], values["label_smoothing"]
    cap = values["softcap"] or None

    def fused(x: torch.Tensor, target: torch.Tensor) -> Tensors:
        logits = x.clone().requires_grad_()
        loss, *_, dx = liger.cross_entropy_forward(logits, target, None, ignore, z_loss, smoothing, "none", cap, False)
        return loss.float(), dx.detach()

    return fused
