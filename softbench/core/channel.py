"""How parent and workers talk: JSON lines over a socket. Never pickle: what a plugin's process says is data."""

from __future__ import annotations

import json
import socket
from typing import Any

Message = dict[str, Any]
CHUNK = 1 << 16


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
