"""What a backend's call owes its caller besides right values, and the optional parts of a backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from softbench import registry
from softbench.units import one_line

SHARED = "two outputs that are both alive share their memory; a backend that does so on purpose declares reuses_output = True"


def offer(backend: Any, door: registry.Origin) -> registry.Offer:
    """A backend as its worker describes it to the parent."""
    summary = getattr(backend, "summary", None) or (type(backend).__doc__ or "").strip().partition("\n")[0]
    return registry.Offer(
        name=backend.name,
        origin=door,
        unavailable=why_not(backend.available(), "available"),
        summary=one_line(str(summary)),
        source=registry.source_hash(backend, door),
        advice=one_line(str(getattr(backend, "advice", None) or "")),
        extra=bool(getattr(backend, "extra", False)),
        reuses_output=bool(getattr(backend, "reuses_output", False)),
    )


def why_not(answer: Any, method: str) -> str:
    """The reason that `available` or `supports` gives, in a line; empty where it gives none.

    Raises:
        TypeError: it answered otherwise: True, say, of which nobody can tell what it means.
    """
    if answer is None or isinstance(answer, str):
        return one_line(answer or "")
    raise TypeError(f"{method}() returned {one_line(repr(answer), 40)}; it must return None for yes, or a text that says why not")


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


def reuses_output(backend: Any) -> bool:
    """A declared trait: the next call overwrites what the last one returned, as CUDA graphs do. The yardstick does too."""
    return bool(getattr(backend, "reuses_output", False)) or getattr(backend, "computes", "softmax") == "copy"


def interpreted(backend: Any) -> tuple[str, int] | None:
    """Why a backend is only checked here and never timed, and on how many rows; None for one that runs for real."""
    ask = getattr(backend, "interpreted", None)
    return ask() if callable(ask) else None


def same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Bit by bit the same values; NaN is NaN."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())
