"""What a backend's call owes its caller besides right values, and the optional parts of a backend."""

from __future__ import annotations

from collections.abc import Iterable
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
        if any(out.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for tensor in given):
            return "returned its input's memory"
        if out.untyped_storage().nbytes() < out.numel() * out.element_size():
            return "returned an expanded tensor: its elements share their memory"
    if len(results) > 1 and shared(results):
        return "returned outputs that share their memory"
    return ""


def shared(outputs: Iterable[torch.Tensor]) -> bool:
    """True when two of these outputs, all alive, are in the same memory."""
    where = [out.untyped_storage().data_ptr() for out in outputs if out.numel()]
    return len(set(where)) < len(where)


def same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Bit by bit the same values; NaN is NaN."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())
