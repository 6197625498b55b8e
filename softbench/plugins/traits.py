"""Optional traits of a backend, and what it answers."""

from __future__ import annotations

from typing import Any

from softbench.core.text import one_line
from softbench.plugins.info import BackendInfo
from softbench.plugins.load import source_hash
from softbench.plugins.source import PluginSource


def info(backend: Any, source: PluginSource) -> BackendInfo:
    """The info that a worker reports about a backend."""
    summary = getattr(backend, "summary", None) or (type(backend).__doc__ or "").strip().partition("\n")[0]
    return BackendInfo(
        name=backend.name,
        origin=source,
        unavailable=why_not(backend.available(), "available"),
        summary=one_line(str(summary)),
        source=source_hash(backend, source),
        advice=one_line(str(getattr(backend, "advice", None) or "")),
        extra=bool(getattr(backend, "extra", False)),
        reuses_output=bool(getattr(backend, "reuses_output", False)),
        build_seconds=float(getattr(backend, "build_seconds", 0.0)),
    )


def why_not(answer: Any, method: str) -> str:
    """The reason from `available` or `supports` as one line; empty for None.

    Raises:
        TypeError: another value, such as True, whose meaning is unclear.
    """
    if answer is None or isinstance(answer, str):
        return one_line(answer or "")
    raise TypeError(f"{method}() returned {one_line(repr(answer), 40)}; it must return None for yes, or a text that says why not")


def reuses_output(backend: Any) -> bool:
    """True if the next call overwrites the last output, as CUDA graphs and the yardstick do."""
    return bool(getattr(backend, "reuses_output", False)) or getattr(backend, "computes", "softmax") == "copy"


def interpreted(backend: Any) -> tuple[str, int] | None:
    """Why a backend is only checked here, and on how many rows; None for a backend that can be timed."""
    ask = getattr(backend, "interpreted", None)
    return ask() if callable(ask) else None
