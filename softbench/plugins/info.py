"""What a worker reports about a backend."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from softbench.core.validate import NAME, typed
from softbench.plugins.source import PluginSource


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend as its worker describes it."""

    name: str
    origin: PluginSource
    unavailable: str = ""
    """Why it cannot run here, and how to mend it."""
    broken: str = ""
    """Why its plugin could not be loaded at all."""
    broken_status: str = "failed"
    """`failed` or `timeout`."""
    summary: str = ""
    source: str = ""
    """Hash of its source files."""
    advice: str = ""
    """When to pick it."""
    extra: bool = False
    """True when `all` leaves it out: it is taken by name or pattern."""
    reuses_output: bool = False
    """True when its next call overwrites what a call returned."""
    loaded: bool = True
    """False where the plugin was only looked at (`softbench.plugins.static_scan`), not run."""


def info_to_json(offer: BackendInfo) -> dict[str, Any]:
    """For the pipe between worker and parent."""
    return asdict(offer)


def info_from_json(data: dict[str, Any], door: PluginSource) -> BackendInfo:
    """The inverse of `info_to_json`, for what came through `door`: a worker's word is only data.

    Raises:
        KeyError, TypeError, ValueError: it is no offer.
    """
    offer = typed(BackendInfo, {**data, "origin": door, "loaded": True})
    if not NAME.fullmatch(offer.name):
        raise ValueError("an offer without a name")
    return offer
