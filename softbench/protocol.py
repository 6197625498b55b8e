"""How parent and workers talk: JSON lines over a socket. Never pickle: what a plugin's process says is data."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from softbench.units import one_line, printable

Message = dict[str, Any]
Made = TypeVar("Made")
CHUNK = 1 << 16
LONGEST = 2000  # of a text that a worker sends
CODE = "text"  # the key of what has lines: generated code


def harmless(value: Any) -> Any:
    """What a plugin's process sent, its texts (keys too) cut to one line without control characters; those called `text` keep their lines.

    Raises:
        RecursionError: it is nested too deeply.
    """
    if isinstance(value, str):
        return one_line(value, LONGEST)
    if isinstance(value, dict):
        lines = {key: printable(item) for key, item in value.items() if key == CODE and isinstance(item, str)}
        return {one_line(key, LONGEST): harmless(item) for key, item in value.items()} | lines
    return [harmless(item) for item in value] if isinstance(value, list) else value


def typed(cls: Callable[..., Made], data: dict[str, Any]) -> Made:
    """A dataclass of texts, numbers and truths from what a worker sent, which may be anything.

    Raises:
        TypeError, ValueError: a field is missing, unknown or of another type, or a number is not finite.
    """
    made = cls(**data)
    for item in fields(made):  # type: ignore[arg-type]
        value, kinds = getattr(made, item.name), str(item.type).split(" | ")
        if value is None and "None" in kinds:
            continue
        kind = "float" if type(value) is int and "int" not in kinds else type(value).__name__
        if kind not in kinds or (kind == "float" and not math.isfinite(value)):
            raise TypeError(f"{item.name} is no {item.type}")
    return made


class Channel:
    """One end of a worker's pipe."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message) -> None:
        """Raises OSError when the other end is gone."""
        self.socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> Message | None:
        """The next message, waiting for it; None when the other end is closed."""
        while (message := self.take()) is None:
            if not self.fill():
                return None
        return message

    def fill(self) -> bool:
        """Read what has arrived (waits for something); False when the other end is closed."""
        try:
            data = self.socket.recv(CHUNK)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def take(self) -> Message | None:
        """A whole message that has been read already, or None.

        Raises:
            ValueError: what arrived is not a JSON object.
        """
        end = self._buffer.find(b"\n")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            message = json.loads(line)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return message

    def close(self) -> None:
        self.socket.close()
