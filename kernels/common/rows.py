"""Converts tensors of any shape, strides and `dim` to (M, N) rows for the kernels, and results back."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch.autograd import forward_ad

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PLAIN = (torch.Tensor, torch.nn.Parameter)
AUTOCASTS = frozenset(kind for kind in ("cpu", "cuda", "xpu", "mps", "hpu") if torch.amp.is_autocast_available(kind))
"""Kinds of devices that have autocast. torch.compile of torch 2.11 cannot trace the question."""

Launch = Callable[..., None]
"""`forward(x, y)` or `backward(dy, y, dx)` on (M, N) tensors whose last stride is 1. The kernels write the last of these tensors.

A launcher of scaled rows takes one more argument, `scale`."""
LaunchColumns = Callable[..., bool]
"""`launch(x, y, scale=None)` or `launch(dy, y, dx, scale=None)` on (outer, R, inner) tensors, along R. False if it wrote nothing."""
Scale = float | torch.Tensor
"""A positive finite number, or a contiguous float32 tensor (M,) of such numbers, one a row."""


def as_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    """`x` as (M, N) with `dim` last and stride 1 there: `x` itself, a view where the strides allow it, else a copy."""
    if x.dim() == 2 and dim == 1 and x.stride(1) == 1:
        return x
    if x.dim() == 0:
        return x.reshape(1, 1)
    moved = x.movedim(dim, -1)
    rows = moved.reshape(-1, moved.shape[-1])  # a view where the leading dimensions collapse
    return rows if rows.stride(-1) == 1 or rows.shape[-1] == 1 else rows.contiguous()


def from_rows(out: torch.Tensor, like: torch.Tensor, axis: int) -> torch.Tensor:
    """A fresh contiguous (M, N) result along `axis` of `like`, contiguous in the shape of `like`: the inverse of `as_rows`."""
    if axis == max(1, like.dim()) - 1:
        return out.view(like.shape)
    result = out.view(like.movedim(axis, -1).shape).movedim(-1, axis)
    # With at most one dimension above 1, `is_contiguous` holds for any strides of the others: the view has the usual ones.
    return out.view(like.shape) if result.is_contiguous() else result.clone(memory_format=torch.contiguous_format)


def apply_to_rows(
    launch: Launch,
    inputs: tuple[torch.Tensor, ...],
    axis: int,
    dtype: torch.dtype | None = None,
    columns: LaunchColumns | None = None,
    scale: Scale | None = None,
) -> torch.Tensor:
    """The result of `launch` on the inputs' rows along `axis`, or that of `columns` if `axis` is not the last.

    The inputs share one shape, which the result has. The result is fresh and contiguous, of the inputs' dtype or of `dtype`.
    """
    like = inputs[-1]
    if like.numel() == 0:
        return like.new_empty(like.shape, dtype=dtype)
    if columns is not None and (result := apply_to_columns(columns, inputs, axis, dtype, scale)) is not None:
        return result
    given = [as_rows(tensor, axis) for tensor in inputs]
    out = given[-1].new_empty(given[-1].shape, dtype=dtype)
    launch_scaled(launch, (*given, out), scale)
    return out if given[-1] is like else from_rows(out, like, axis)


def launch_scaled(launch: Launch, tensors: tuple[torch.Tensor, ...], scale: Scale | None) -> None:
    """Launches, with `scale` unless it is None, which not every launcher takes."""
    if scale is None:
        launch(*tensors)
    else:
        launch(*tensors, scale)


def apply_to_columns(
    columns: LaunchColumns, inputs: tuple[torch.Tensor, ...], axis: int, dtype: torch.dtype | None = None, scale: Scale | None = None
) -> torch.Tensor | None:
    """As `apply_to_rows`, along another axis than the last; None for the last one, for adjacent elements, and where the launch cannot."""
    like = inputs[-1]
    if axis >= like.dim() - 1 or any(tensor.stride(axis) == 1 for tensor in inputs):
        return None
    out = torch.empty(like.shape, dtype=dtype or like.dtype, device=like.device)
    return out if columns(*(around(tensor, axis) for tensor in (*inputs, out)), scale=scale) else None


def around(x: torch.Tensor, axis: int) -> torch.Tensor:
    """`x` as (outer, R, inner), where R is the size of `axis`: a view where the strides allow it, else a copy."""
    shape = x.shape
    return x.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))


def canonical_dim(dim: int, dimensions: int) -> int:
    """`dim` as a non-negative index into a tensor's `dimensions`.

    Raises:
        IndexError: there is no such dimension.
    """
    most = max(1, dimensions)  # a scalar counts as a row of one element, as in torch
    if not -most <= dim < most:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-most}, {most - 1}], but got {dim})")
    return dim % most


def check_same(dy: torch.Tensor, y: torch.Tensor) -> None:
    """Raises TypeError unless `dy` and `y` have one shape, dtype and device."""
    if dy.shape != y.shape or dy.dtype != y.dtype or dy.device != y.device:
        raise TypeError(
            f"dy is {tuple(dy.shape)} {dy.dtype} on {dy.device}, y is {tuple(y.shape)} {y.dtype} on {y.device}; they must agree"
        )


def is_strided(x: object) -> bool:
    """Whether x is a tensor with strides, which nested and sparse ones lack."""
    return isinstance(x, torch.Tensor) and x.layout is torch.strided and not x.is_nested


def transformed() -> bool:
    """Whether a transform of `torch.func` or forward mode is active. Operators with a formula for these take the place of our kernels."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether nothing but autograd would act on an operator's call with these: no mode, transform, tracer or tensor of another kind."""
    if torch.compiler.is_compiling() or transformed() or torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    if torch._C._get_tracing_state() is not None:
        return False
    # Gradients that autograd computes in batches have the type of a plain tensor.
    return all(one is None or (type(one) in PLAIN and not torch._C._functorch.is_legacy_batchedtensor(one)) for one in tensors)


def check_no_transform(function: str, *tensors: torch.Tensor | None) -> None:
    """Raises NotImplementedError in transforms of `torch.func`, and for a tangent, which an operator without a rule would lose."""
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        raise NotImplementedError(f"{function} has no torch.func transforms; its gradients are those of backward")
    if forward_ad._current_level >= 0:  # otherwise no tensor has one
        for tensor in tensors:
            if tensor is not None and forward_ad.unpack_dual(tensor).tangent is not None:
                raise NotImplementedError(f"{function} has no forward mode; its gradients are those of backward")


ONCE = "this gradient has no gradient: the call is differentiable once; torch's own functions have gradients of any order"


def once(gradient: torch.Tensor, *of: torch.Tensor | None) -> torch.Tensor:
    """A gradient whose own gradient in these tensors raises. By torch's `once_differentiable` it may be 0 instead."""
    if torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled():
        return gradient
    given = [gradient, *(one for one in of if one is not None)]
    error = torch._C._functions.DelayedError(ONCE.encode(), len(given))
    refusing: torch.Tensor = error(*given)[0]
    return refusing
