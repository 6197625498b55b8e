"""JSON objects, and dataclasses as JSON."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

JsonObject = dict[str, Any]
"""A JSON object. The reader of each field checks its type."""


def to_json(record: object) -> JsonObject:
    """The fields of a dataclass by name. Unlike `dataclasses.asdict`, it does not copy samples."""
    return {item.name: _plain(getattr(record, item.name)) for item in fields(record)}  # type: ignore[arg-type]


def _plain(value: object) -> object:
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, tuple) and value and is_dataclass(value[0]):
        return [to_json(item) for item in value]
    return value
