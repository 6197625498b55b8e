"""The channel between parent and worker: JSON lines over a socket. Pickle is never used, as a worker is untrusted."""

from __future__ import annotations

import json
import select
import socket
import time

from softbench.core.json import JsonObject

CHUNK = 1 << 16
MAX_DESCRIPTORS = 4


class Channel:
    """One end of a worker's socket."""

    def __init__(self, end: socket.socket, *, takes_descriptors: bool = False) -> None:
        """`takes_descriptors`: only a worker takes file descriptors. A parent takes none, because it cannot trust a worker."""
        self.socket, self.takes_descriptors = end, takes_descriptors
        self._buffer = bytearray()
        self.outgoing: list[int] = []
        """File descriptors that the next message takes along; this process keeps its own."""
        self.received: list[int] = []
        """File descriptors that came with messages."""

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: JsonObject) -> None:
        """Send a message; raises OSError if the other end is closed."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if self.outgoing:  # they go with the first byte
            descriptors, self.outgoing = self.outgoing, []
            socket.send_fds(self.socket, [data[:1]], descriptors)
            data = data[1:]
        self.socket.sendall(data)

    def receive(self) -> JsonObject | None:
        """Wait for the next message; None if the other end is closed."""
        while (message := self.take()) is None:
            if not self.fill():
                return None
        return message

    def fill(self) -> bool:
        """Wait for data and read it; False if the other end is closed."""
        try:
            if self.takes_descriptors:
                data, descriptors, _, _ = socket.recv_fds(self.socket, CHUNK, MAX_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
                self.received += descriptors
            else:
                data = self.socket.recv(CHUNK)
        except ConnectionResetError:
            return False
        self._buffer += data
        return bool(data)

    def wait_busily(self, seconds: float) -> None:
        """Wait for data without sleep, at most so many seconds."""
        end = time.monotonic() + seconds
        while not select.select([self.socket], [], [], 0)[0] and time.monotonic() < end:
            pass

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
