"""The channel between parent and worker: JSON lines over a socket. Pickle is never used, as a worker is untrusted."""

from __future__ import annotations

import json
import socket

from softbench.core.json_types import JsonObject

CHUNK = 1 << 16


class Channel:
    """One end of a worker's socket."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._buffer = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: JsonObject) -> None:
        """Send a message; raises OSError if the other end is closed."""
        self.socket.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self) -> JsonObject | None:
        """Wait for the next message; None if the other end is closed."""
        while (message := self.take()) is None:
            if not self.fill():
                return None
        return message

    def fill(self) -> bool:
        """Wait for data and read it; False if the other end is closed."""
        try:
            data = self.socket.recv(CHUNK)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def take(self) -> JsonObject | None:
        """A complete message that was read already, or None.

        Raises:
            ValueError: the data is not a JSON object.
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
