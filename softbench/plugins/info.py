"""What a worker reports about a backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from softbench.core.case import NAME, OPERATION, parse_op
from softbench.core.json import JsonObject, from_json, to_json
from softbench.core.outcome import Finite
from softbench.core.text import few
from softbench.plugins.source import PluginSource


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A backend, as its worker reports it."""

    name: str
    origin: PluginSource
    unavailable: str = ""
    """Why it cannot run here, and how to fix that."""
    broken: str = ""
    """Why it cannot be used: its plugin could not be loaded, or its `available` or one of its traits raised an error."""
    broken_status: str = "failed"
    """`failed` or `timeout`."""
    summary: str = ""
    source: str = ""
    """Hash of its source files."""
    advice: str = ""
    """When to pick it."""
    extra: bool = False
    """True if `all` leaves it out; names and patterns select it."""
    operations: tuple[str, ...] = (OPERATION,)
    """The operations that it has, each with the parameters that it takes: `softmax(scale,out_dtype)`."""
    reuses_output: bool = False
    """True if its next call overwrites the last output."""
    facts: dict[str, dict[str, str]] = field(default_factory=dict, compare=False)
    """Of functions in an environment of their own: by operation its `file`, and its `signature` or the `error`; by "" the versions."""
    build_seconds: Finite = 0.0
    """Rough seconds to build one shape, for the estimate of `--dry-run`."""
    loaded: bool = True
    """False after a static scan (`softbench.plugins.static_scan`)."""

    @property
    def able(self) -> bool:
        """True if the backend was loaded and can run here."""
        return not (self.broken or self.unavailable)


def lacking(operations: Sequence[str], op: str) -> str:
    """Why a backend that declares these operations lacks an operation or one of its parameters; empty if it has them.

    `op` is a case's: `softmax(scale=0.7)`. A declared operation names the parameters that it takes: `softmax(scale,out_dtype)`.
    """
    taken: dict[str, set[str]] = {}
    for declared in operations:
        name, _, inner = declared.removesuffix(")").partition("(")
        taken.setdefault(name, set()).update(part.strip() for part in inner.split(","))
    name, parameters = parse_op(op)
    if name not in taken:
        return f"it has no {name}" + (f", only {few(list(operations))}" if operations else "")
    missing = [parameter for parameter in parameters if parameter not in taken[name]]
    return f"its {name} has no parameter {missing[0]}" if missing else ""


def info_to_json(info: BackendInfo) -> JsonObject:
    """The info as JSON, for the reply of a worker."""
    return to_json(info)


def info_from_json(data: JsonObject, source: PluginSource) -> BackendInfo:
    """The inverse of `info_to_json` for a backend of `source`; a worker's reply is untrusted data.

    Raises:
        ValueError: it is invalid.
    """
    info = from_json(BackendInfo, {**data, "origin": to_json(source), "loaded": True})
    if not NAME.fullmatch(info.name):
        raise ValueError("an info without a name")
    return info
