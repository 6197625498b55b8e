"""What a backend's call owes its caller besides right values, and the optional parts of a backend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, islice
from typing import Any

import torch

from softbench.core.case import Case
from softbench.ops.dtypes import TENSOR_DTYPES
from softbench.ops.registry import is_whole, operation

CHANGED = "changed its input, which a call may only read"
LONG_REFERENCE = 2**42
"""Operations of a float64 reference that takes long: half a second on an H200, with its bound."""
NO_RESULT = 3e4
"""No result of a check case. An exponential of a distance from it is 0."""
BESIDE = "wrote to memory beside its input"
SHARED = "two outputs that are both alive share their memory; a backend that does so on purpose declares reuses_output = True"


@dataclass(frozen=True, slots=True)
class Form:
    """What an output must be like, whatever its values are."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    becomes: int | None = None
    """The number of the input that the call changes into it; None if the call returns it."""


def forms(case: Case) -> tuple[Form, ...]:
    """The outputs that a call of this case returns."""
    op = operation(case.op)
    due, one = op.outputs(case), op.pass_of(case)
    places = [None] * (len(due) - len(one.in_place)) + [one.inputs.index(name) for name in one.in_place]
    return tuple(
        Form(name, spec.shape(case), TENSOR_DTYPES[spec.dtype_of(case)], place)
        for (name, spec), place in zip(due.items(), places, strict=True)
    )


def long_reference(case: Case) -> bool:
    """True if the float64 reference of a case takes far longer than its calls, and compares all of it."""
    return is_whole(case) and operation(case.op).flops(case) > LONG_REFERENCE


def _changed(due: Sequence[Form]) -> set[int]:
    """The numbers of the inputs that a call has to change."""
    return {form.becomes for form in due if form.becomes is not None}


def settled(given: tuple[torch.Tensor, ...], kept: tuple[torch.Tensor, ...], results: Any, due: Sequence[Form]) -> tuple[torch.Tensor, ...]:
    """The results of a call without the memory of its inputs, which get their values of before the call again."""
    if not (changed := _changed(due)):
        return tuple(results)
    found = tuple(out if form.becomes is None else out.clone() for out, form in zip(results, due, strict=True))
    for place in changed:
        given[place].data.copy_(kept[place])
    return found


def like(given: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[Form, ...]:
    """One output of the shape of this input, and of its dtype without another."""
    return (Form("y", tuple(given.shape), dtype or given.dtype),)


def poison(due: Sequence[Form], given: tuple[torch.Tensor, ...], value: float = math.nan) -> None:
    """Leave this value, or the largest integer, in the memory that the next outputs will get, so that stale results cannot pass for new.

    As many tensors as inputs are poisoned at least, because a call may allocate a temporary before its output. NaN hides what is not
    written where NaN is right, and what takes the larger of it and a number; NO_RESULT does not.
    """
    device, count = given[0].device, max(len(due), len(given))
    for _ in range(2):
        spare = [torch.full(form.shape, _poison(form.dtype, value), dtype=form.dtype, device=device) for form in islice(cycle(due), count)]
        del spare
    if device.type == "cuda":
        torch.cuda.synchronize()


def _poison(dtype: torch.dtype, value: float) -> float | int | bool:
    if dtype.is_floating_point:
        limits = torch.finfo(dtype)
        return value if math.isnan(value) else max(limits.min, min(value, limits.max))
    return True if dtype is torch.bool else torch.iinfo(dtype).max


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a tensor's storage, before, between and behind its own."""
    return torch.as_strided(tensor.detach(), (tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)


def as_tuple(results: Any, due: Sequence[object]) -> Any:
    """The results of a call as a tuple. A call with one output returns the tensor itself."""
    if len(due) == 1:
        return (results,)
    # A subclass could give other elements to each reader.
    if isinstance(results, tuple):
        return tuple(tuple.__iter__(results))
    return tuple(list.__iter__(results)) if isinstance(results, list) else results


def versions(given: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """torch's count of writes to each tensor."""
    return tuple(tensor._version for tensor in given)


def breach(
    given: tuple[torch.Tensor, ...],
    kept: tuple[torch.Tensor, ...],
    results: Any,
    due: Sequence[Form],
    *,
    written: tuple[int, ...] | None = None,
) -> str:
    """How a call broke its contract, or an empty text.

    Args:
        given: the inputs.
        kept: copies of them from before the call.
        results: what the call returned, as a tuple.
        due: the outputs that it has to return.
        written: the inputs' `versions` before the call.
    """
    if reason := misformed(given, results, due):
        return reason
    rest = [place for place in range(len(given)) if place not in _changed(due)]
    if any(not same(given[place].detach(), kept[place]) for place in rest):
        return CHANGED
    if written is not None and any(given[place]._version != written[place] for place in rest):
        return "wrote to its input (and put back what was there)"
    return ""


def misformed(given: tuple[torch.Tensor, ...], results: Any, due: Sequence[Form]) -> str:
    """What is off with outputs whatever their values are: type, shape, dtype, device, memory that is not their own."""
    if not isinstance(results, tuple | list) or len(results) != len(due):
        return f"must return ({', '.join(form.name for form in due)})"
    if name := next(filter(None, map(_hidden, given)), ""):
        return f"hid {name} of its input behind an attribute of the same name"
    for out, form in zip(results, due, strict=True):
        if type(out) is not torch.Tensor:
            return f"returned {type(out).__name__}, not a torch.Tensor"
        if name := _hidden(out):
            return f"hid {name} of its output behind an attribute of the same name"
        for what, got, want in (
            ("shape", tuple(out.shape), form.shape),
            ("dtype", out.dtype, form.dtype),
            ("device", out.device, given[0].device),
            ("layout", out.layout, torch.strided),
        ):
            if got != want:
                return f"returned {what} {got}, not {want}"
        if out.is_inference():
            return "returned an inference tensor, which autograd cannot save; use torch.no_grad()"
        if out.requires_grad and not any(tensor.requires_grad for tensor in given):
            return "returned a tensor that requires a gradient; no input does"
        if out.is_neg() or out.is_conj():
            return "returned a lazy view that the next reader has to compute"
        if not out.numel():
            continue
        if form.becomes is None and any(_in_storage(out, tensor) for tensor in given):
            return "returned its input's memory"
        if not _distinct_elements(out):
            return "returned an expanded tensor: its elements share their memory"
    if len(results) > 1 and shared(results):
        return "returned outputs that share their memory"
    return ""


def _hidden(tensor: torch.Tensor) -> str:
    """The method of a tensor that an attribute of this one hides, such as `is_neg`; an empty text if none does."""
    return next((str(name) for name in torch.Tensor.__dict__["__dict__"].__get__(tensor) if hasattr(torch.Tensor, name)), "")


def shared(outputs: Iterable[torch.Tensor]) -> bool:
    """True when two of these outputs, all alive, have an element in the same memory. Slices of one allocation may be distinct."""
    return any(_overlap(one, other) for one, other in combinations([out for out in outputs if out.numel()], 2))


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Exact for equal strides that nest; for other strides true when the tensors' ranges of bytes overlap."""
    start, end = span(one)
    other_start, other_end = span(other)
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


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of the first byte of a tensor with elements, and of the first byte after it."""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def _in_storage(out: torch.Tensor, given: torch.Tensor) -> bool:
    """True if `out` is a view of `given`'s storage, or lies in its memory."""
    storage = given.untyped_storage()
    start, end = span(out)
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
