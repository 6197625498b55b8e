"""What operators register with PyTorch beside their kernels: gradients of two orders, vmap and flops.

`register_transforms` does so for operators with tensors and options of any number. The rest is for pairs of operators of softmax or
log_softmax. A pair is `forward(x, dim, ...) -> y` and `backward(dy, y, dim, ...) -> dx`. Where y is wider than x, the backward takes
x's dtype after `dim`.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch._ops import OpOverloadPacket

from . import sharding
from .rows import canonical_dim

if TYPE_CHECKING:
    from torch._functorch.autograd_function import VmapInfo
    from torch.library import CustomOpDef

FORWARD_FLOPS = 5  # an element: maximum, subtraction, exponential, sum, and a division or another subtraction
BACKWARD_FLOPS = 4  # an element: product, sum, subtraction, product; or exponential, product, sum, subtraction

Gradients = tuple[Tensor | None, ...]
Inputs = tuple[Any, ...]
"""An operator's inputs: its tensors, `dim`, and others."""


Formula = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, slots=True)
class Formulas:
    """The gradients of a function's backward. Each gets `(g, dy, y, dim)` in at least float32; g is the gradient of dx."""

    of_dy: Formula | None
    """With respect to dy; None if it is the backward itself, with g in place of dy."""
    of_y: Formula
    """With respect to y."""


def _softmax_of_y(g: Tensor, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    dy_dot_y, g_dot_y = ((tensor * y).sum(dim, keepdim=True) for tensor in (dy, g))
    return g * (dy - dy_dot_y) - dy * g_dot_y


def _log_softmax_of_dy(g: Tensor, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return g - (g * y.exp()).sum(dim, keepdim=True)


def _log_softmax_of_y(g: Tensor, dy: Tensor, y: Tensor, dim: int) -> Tensor:
    return -g * y.exp() * dy.sum(dim, keepdim=True)


SOFTMAX = Formulas(None, _softmax_of_y)
"""Of dx = y * (dy - sum(dy * y))."""
LOG_SOFTMAX = Formulas(_log_softmax_of_dy, _log_softmax_of_y)
"""Of dx = dy - exp(y) * sum(dy)."""


class Context(Protocol):
    """The context of autograd, with the attributes that these functions add."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]
    dim: int
    narrow: tuple[torch.dtype, ...]
    """The dtype of x if y is wider."""
    others: tuple[None, ...]
    """The gradients of the inputs after `dim`."""

    def save_for_backward(self, *tensors: Tensor) -> None: ...


def save_output(ctx: Context, inputs: Inputs, output: Tensor) -> None:
    """The forward's `setup_context`."""
    x, ctx.dim, *others = inputs
    ctx.narrow = () if output.dtype == x.dtype else (x.dtype,)
    ctx.others = (None,) * len(others)
    ctx.save_for_backward(output)


def gradient_of_forward(backward: Callable[..., Tensor]) -> Callable[..., Gradients]:
    """The forward's gradient, by the operator `backward`."""

    def dx(ctx: Context, dy: Tensor) -> Gradients:
        (y,) = ctx.saved_tensors
        return backward(dy, y, ctx.dim, *ctx.narrow), None, *ctx.others

    return dx


def save_inputs(ctx: Context, inputs: Inputs, output: Tensor) -> None:
    """The backward's `setup_context`."""
    dy, y, ctx.dim, *others = inputs
    ctx.others = (None,) * len(others)
    ctx.save_for_backward(dy, y)


def gradient_of_backward(backward: Callable[..., Tensor], formulas: Formulas = SOFTMAX) -> Callable[..., Gradients]:
    """The gradients of dx with respect to dy and y. `backward` is the operator whose result is dx."""

    def in_float32(formula: Formula, g: Tensor, dy: Tensor, y: Tensor, dim: int) -> Tensor:
        wide_g, wide_dy, wide_y = (tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in (g, dy, y))
        return formula(wide_g, wide_dy, wide_y, dim).to(y.dtype)

    def of_both(ctx: Context, g: Tensor) -> Gradients:
        dy, y = ctx.saved_tensors
        if ctx.needs_input_grad[0]:
            of_dy = backward(g.to(y.dtype), y, ctx.dim) if formulas.of_dy is None else in_float32(formulas.of_dy, g, dy, y, ctx.dim)
        else:
            of_dy = None
        of_y = in_float32(formulas.of_y, g, dy, y, ctx.dim) if ctx.needs_input_grad[1] else None
        return of_dy, of_y, None, *ctx.others

    return of_both


def register_transforms(operator: CustomOpDef, flops: int, differentiable: Callable[..., Any] | None = None) -> None:
    """Registers an operator's vmap, flops for each element of its first tensor, and gradients.

    `differentiable` takes the operator's arguments and gives its results by torch's operators, whose gradients the operator gets. That of a
    backward computes anew what it takes from the forward. vmap calls the operator for one sample after the other.
    """

    def batched(info: VmapInfo, in_dims: tuple[int | None, ...], *given: Any) -> tuple[Any, Any]:
        pairs = list(zip(given, in_dims, strict=True))
        each = [operator(*(one if at is None else one.select(at, i) for one, at in pairs)) for i in range(info.batch_size)]
        if isinstance(each[0], tuple):
            return tuple(torch.stack(parts) for parts in zip(*each, strict=True)), (0,) * len(each[0])
        return torch.stack(each), 0

    operator.register_vmap(batched)
    _on_import("torch.utils.flop_counter", functools.partial(_register_flops, operator._opoverload.overloadpacket, flops))
    if differentiable is not None:
        operator.register_autograd(functools.partial(_gradient_of_formula, differentiable), setup_context=_save_all)


def _save_all(ctx: Any, inputs: Inputs, output: Any) -> None:
    ctx.others = [None if isinstance(one, Tensor) else one for one in inputs]
    ctx.tensors = [index for index, one in enumerate(inputs) if isinstance(one, Tensor)]
    ctx.save_for_backward(*(inputs[index] for index in ctx.tensors))


def _gradient_of_formula(formula: Callable[..., Any], ctx: Any, *gradients: Tensor | None) -> Gradients:
    given = list(ctx.others)
    with torch.enable_grad():
        for index, tensor in zip(ctx.tensors, ctx.saved_tensors, strict=True):
            given[index] = tensor.view_as(tensor)  # gradients end here, also if one argument was computed from another
        found = formula(*given)
    results = found if isinstance(found, tuple) else (found,)
    pairs = [(one, g) for one, g in zip(results, gradients, strict=True) if g is not None and one.requires_grad]
    wanted = [index for index in ctx.tensors if given[index].requires_grad]
    outputs, seeds = zip(*pairs, strict=True)
    made = torch.autograd.grad(outputs, [given[i] for i in wanted], seeds, create_graph=torch.is_grad_enabled(), allow_unused=True)
    by_index = dict(zip(wanted, made, strict=True))
    return tuple(by_index.get(index) for index in range(len(given)))


def register_vmap_and_flops(forward: OpOverloadPacket, backward: OpOverloadPacket, lib: torch.library.Library | None = None) -> None:
    """Registers both for a pair of operator packets. `lib` is the library that defines them, unless decorators did."""
    for packet, tensors, flops in ((forward, 1, FORWARD_FLOPS), (backward, 2, BACKWARD_FLOPS)):
        torch.library.register_vmap(packet.default, functools.partial(_call_batched, packet.default, tensors), lib=lib)
        register_sharding(sharding.over_dim(tensors), packet)
        _on_import("torch.utils.flop_counter", functools.partial(_register_flops, packet, flops))


def register_sharding(strategy: sharding.Strategy, *packets: OpOverloadPacket) -> None:
    """Registers how operators take DTensor, as soon as `torch.distributed.tensor` is imported, which few programs do."""

    def act() -> None:
        from torch.distributed.tensor.experimental import register_sharding as register

        register([packet.default for packet in packets])(strategy)

    _on_import("torch.distributed.tensor", act)


def _call_batched(
    operator: Callable[..., Tensor], tensors: int, info: VmapInfo, in_dims: tuple[int | None, ...], *given: Any
) -> tuple[Tensor, int]:
    """One call over all samples. The batch dimension goes first, so that a negative `dim` needs no change."""
    dim, *others = given[tensors:]
    stacked = [
        tensor.expand(info.batch_size, *tensor.shape) if at is None else tensor.movedim(at, 0)
        for tensor, at in zip(given[:tensors], in_dims[:tensors], strict=True)
    ]
    dimensions = stacked[0].dim() - 1
    axis = canonical_dim(dim, dimensions)
    if dimensions == 0:
        return operator(*(tensor.unsqueeze(-1) for tensor in stacked), 1, *others).squeeze(-1), 0
    return operator(*stacked, axis + 1, *others), 0


def _register_flops(packet: OpOverloadPacket, flops_per_element: int) -> None:
    """Registers a flop formula; an exponential and a comparison count as one operation each."""
    from torch.utils.flop_counter import register_flop_formula

    @register_flop_formula(packet)
    def formula(shape: torch.Size, *_: object, **__: object) -> int:
        return flops_per_element * shape.numel()


def _on_import(name: str, act: Callable[[], None]) -> None:
    """Calls `act()` as soon as the module `name` is imported.

    torch's flop counter imports Triton, which the CUDA kernels do not need. Code that counts flops has imported it already.
    """
    if name in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _ImportHook(name, act))


class _ImportHook:
    """A finder that delegates to the other finders, and calls `act()` once the module has been executed."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self.name, self.act, self.searching = name, act, False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            sys.meta_path.remove(self)
            self.act()

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
