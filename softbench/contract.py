"""What a backend's call owes its caller besides right values, and the optional parts of a backend."""

from __future__ import annotations

from typing import Any

import torch

from softbench import registry
from softbench.units import one_line


def offer(backend: Any, door: registry.Origin) -> registry.Offer:
    """A backend as its worker describes it to the parent."""
    summary = getattr(backend, "summary", None) or (type(backend).__doc__ or "").strip().partition("\n")[0]
    return registry.Offer(
        name=backend.name,
        origin=door,
        unavailable=one_line(backend.available() or ""),
        summary=one_line(str(summary)),
        source=registry.source_hash(backend, door),
        advice=one_line(str(getattr(backend, "advice", None) or "")),
        extra=bool(getattr(backend, "extra", False)),
        reuses_output=reuses_output(backend),
    )


def reuses_output(backend: Any) -> bool:
    """True when a backend says that its next call overwrites what a call returned, as CUDA graphs do."""
    return bool(getattr(backend, "reuses_output", False))


def poison(given: tuple[torch.Tensor, ...], device: str) -> None:
    """Leave NaN in the memory that the next allocations of the inputs' size will get, so that stale results cannot pass for new."""
    for _ in range(2):
        spare = [torch.full_like(tensor, float("nan"), requires_grad=False) for tensor in given]
        del spare
    if device == "cuda":
        torch.cuda.synchronize()


def breach(given: tuple[torch.Tensor, ...], kept: tuple[torch.Tensor, ...], results: Any, expected: int = 1) -> str:
    """How a call broke its contract, or an empty text. `kept` are copies of the inputs `given`; `expected` outputs like them are due."""
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
        if out.numel() and any(out.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for tensor in given):
            return "returned its input's memory"
    if any(not _same(tensor.detach(), copy) for tensor, copy in zip(given, kept, strict=True)):
        return "changed its input"
    return ""


def interpreted(backend: Any) -> tuple[str, int] | None:
    """Why a backend is only checked here and never timed, and on how many rows; None for one that runs for real."""
    ask = getattr(backend, "interpreted", None)
    return ask() if callable(ask) else None


def _same(now: torch.Tensor, before: torch.Tensor) -> bool:
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())
