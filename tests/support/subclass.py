"""A minimal tensor subclass for the operators' tests."""

import torch


class Wrapped(torch.Tensor):
    """A tensor that wraps another tensor and records the operators called on it."""

    calls: list = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device, requires_grad=inner.requires_grad
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self, *, tensor_contents=None):  # torch logs the tensor while it traces
        return f"Wrapped({tuple(self.shape)})"

    def __tensor_flatten__(self):
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(tensors, meta, size, stride):
        return Wrapped(tensors["inner"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.calls.append(function)
        unwrap = lambda value: value.inner if isinstance(value, Wrapped) else value  # noqa: E731
        wrap = lambda value: Wrapped(value) if isinstance(value, torch.Tensor) else value  # noqa: E731
        given = torch.utils._pytree.tree_map(unwrap, (args, kwargs or {}))
        return torch.utils._pytree.tree_map(wrap, function(*given[0], **given[1]))
