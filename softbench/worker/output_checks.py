"""What a backend's call owes its caller besides right values, and the optional parts of a backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

import torch

SHARED = "two outputs that are both alive share their memory; a backend that does so on purpose declares reuses_output = True"


def poison(given: tuple[torch.Tensor, ...], device: str) -> None:
    """Leave NaN in the memory that the next allocations of the inputs' size will get, so that stale results cannot pass for new."""
    for _ in range(2):
        spare = [torch.full_like(tensor, float("nan"), requires_grad=False) for tensor in given]
        del spare
    if device == "cuda":
        torch.cuda.synchronize()


def as_tuple(results: Any, due: int) -> Any:
    """The results of a call as a tuple. A call with one output returns the tensor itself."""
    return results if due > 1 else (results,)


def versions(given: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """torch's count of writes to each tensor."""
    return tuple(tensor._version for tensor in given)


def breach(
    given: tuple[torch.Tensor, ...],
    kept: tuple[torch.Tensor, ...],
    results: Any,
    *,
    expected: int = 1,
    written: tuple[int, ...] | None = None,
) -> str:
    """How a call broke its contract, or an empty text. `kept` are copies of the inputs `given` and `written` their `versions` before the
    call; `expected` outputs like them are due."""
    if reason := misformed(given, results, expected=expected):
        return reason
    if any(not same(tensor.detach(), copy) for tensor, copy in zip(given, kept, strict=True)):
        return "changed its input"
    if written is not None and versions(given) != written:
        return "wrote to its input (and put back what was there)"
    return ""


def misformed(given: tuple[torch.Tensor, ...], results: Any, *, expected: int = 1) -> str:
    """What is off with outputs whatever their values are: type, shape, dtype, device, memory that is not their own."""
    if not isinstance(results, tuple | list) or len(results) != expected:
        return "must return (y, dx)"
    for out in results:
        if type(out) is not torch.Tensor:
            return f"returned {type(out).__name__}, not a torch.Tensor"
        for what, got, want in (
            ("shape", tuple(out.shape), tuple(given[0].shape)),
            ("dtype", out.dtype, given[0].dtype),
            ("device", out.device, given[0].device),
            ("layout", out.layout, torch.strided),
        ):
            if got != want:
                return f"returned {what} {got}, not {want}"
        if out.is_neg() or out.is_conj():
            return "returned a lazy view that the next reader has to compute"
        if not out.numel():
            continue
        if any(_in_storage(out, tensor) for tensor in given):
            return "returned its input's memory"
        if not _distinct_elements(out):
            return "returned an expanded tensor: its elements share their memory"
    if len(results) > 1 and shared(results):
        return "returned outputs that share their memory"
    return ""


def shared(outputs: Iterable[torch.Tensor]) -> bool:
    """True when two of these outputs, all alive, have an element in the same memory. Slices of one allocation may be distinct."""
    return any(_overlap(one, other) for one, other in combinations([out for out in outputs if out.numel()], 2))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Exact for equal strides that nest; for other strides true when the tensors' ranges of bytes overlap."""
    start, end = _range(one)
    other_start, other_end = _range(other)
    if end <= other_start or other_end <= start:
        return False
    apart, rest = divmod(other_start - start, one.element_size())
    if rest or one.shape != other.shape or one.stride() != other.stride() or not _distinct_elements(one):
        return True
    return _reaches(apart, sorted(zip(one.stride(), one.shape, strict=True), reverse=True))


def _reaches(apart: int, axes: Sequence[tuple[int, int]]) -> bool:
    """True if two elements of a tensor can be `apart` elements from each other. `axes` are (stride, size), which nest, largest first."""
    axes = [(stride, size) for stride, size in axes if size > 1]
    if not axes:
        return apart == 0
    (stride, size), *inner = axes
    steps = apart // stride
    return any(abs(step) < size and _reaches(apart - step * stride, inner) for step in (steps, steps + 1))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte of a tensor with elements, and of the first byte after it."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def _in_storage(out: torch.Tensor, given: torch.Tensor) -> bool:
    """True if `out` is a view of `given`'s storage, or lies in its memory."""
    storage = given.untyped_storage()
    start, end = _range(out)
    same_storage = storage.data_ptr() == out.untyped_storage().data_ptr()
    return same_storage or (start < storage.data_ptr() + storage.nbytes() and storage.data_ptr() < end)


def _distinct_elements(tensor: torch.Tensor) -> bool:
    """True if the strides nest: a step along an axis is larger than all that the smaller axes reach."""
    reach = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride <= reach:
                return False
            reach += (size - 1) * stride
    return True


def same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Bit by bit the same values; NaN is NaN."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())
