"""Checks on data that another process sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from softbench.core.case import NAME as NAME
from softbench.core.json_types import JsonObject
from softbench.core.text import one_line, printable

Made = TypeVar("Made")
LONGEST = 2000  # of a text from a worker
CODE = "text"  # the key of generated code, whose lines stay


def harmless(value: Any) -> Any:
    """A worker's message with every text and key cut to one line without control characters; a `text` keeps its lines.

    Raises:
        RecursionError: the message is nested too deeply.
        ValueError: an integer has more than 64 bits. Such an integer is no count, and it may not fit a float.
    """
    if isinstance(value, int) and abs(value) >= 2**64:
        raise ValueError("an integer of more than 64 bits")
    if isinstance(value, str):
        return one_line(value, LONGEST)
    if isinstance(value, dict):
        lines = {key: printable(item) for key, item in value.items() if key == CODE and isinstance(item, str)}
        return {one_line(key, LONGEST): harmless(item) for key, item in value.items()} | lines
    return [harmless(item) for item in value] if isinstance(value, list) else value


def typed(cls: Callable[..., Made], data: JsonObject) -> Made:
    """A dataclass of texts, numbers and booleans from untrusted data.

    Raises:
        TypeError, ValueError: a field is missing, unknown or has another type, or a number is not finite.
    """
    made = cls(**data)
    for item in fields(made):  # type: ignore[arg-type]
        value, kinds = getattr(made, item.name), [kind.partition("[")[0] for kind in str(item.type).split(" | ")]
        if value is None and "None" in kinds:
            continue
        kind = "float" if type(value) is int and "int" not in kinds else type(value).__name__
        if kind not in kinds or (kind == "float" and not math.isfinite(value)):
            raise TypeError(f"{item.name} is no {item.type}")
    return made
