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
    build_seconds: float = 0.0
    """Rough seconds to build one shape, for the estimate of `--dry-run`."""
    loaded: bool = True
    """False where the plugin was only looked at (`softbench.plugins.static_scan`), not run."""

    @property
    def able(self) -> bool:
        """True if the backend was loaded and can run here."""
        return not (self.broken or self.unavailable)


def info_to_json(info: BackendInfo) -> dict[str, Any]:
    """For the pipe between worker and parent."""
    return asdict(info)


def info_from_json(data: dict[str, Any], source: PluginSource) -> BackendInfo:
    """The inverse of `info_to_json`, for what came through `source`: a worker's word is only data.

    Raises:
        KeyError, TypeError, ValueError: it is no info.
    """
    info = typed(BackendInfo, {**data, "origin": source, "loaded": True})
    if not NAME.fullmatch(info.name):
        raise ValueError("an info without a name")
    return info
