"""JSON objects: records as JSON, and records from JSON. What another process or a file says is untrusted, so it is validated here."""

from __future__ import annotations

from typing import Any, TypeVar

JsonObject = dict[str, Any]
"""A JSON object. The reader of each field checks its type."""
Made = TypeVar("Made")


def to_json(record: object) -> JsonObject:
    """The fields of a record (a dataclass or a message) by name, and those of the records in it."""
    import msgspec  # not with --help

    found: JsonObject = msgspec.to_builtins(record, enc_hook=_plain)
    return found


def _plain(value: object) -> object:
    """The text or number that a subclass adds to: `torch.__version__` is a subclass of str."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(f"a {type(value).__name__} has no JSON")


def from_json(kind: type[Made], data: object) -> Made:
    """The inverse of `to_json`, of untrusted data.

    Raises:
        ValueError: a field is missing or has another type, or a value is out of range; the message says where.
    """
    import msgspec

    return msgspec.convert(data, kind)
