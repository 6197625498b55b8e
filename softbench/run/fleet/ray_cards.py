"""The cards of a Ray cluster, which a relay process reaches (`softbench.run.fleet.ray_relay`). This process does not import Ray."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from softbench.core.errors import UsageError
from softbench.core.json import JsonObject
from softbench.core.text import one_line, size
from softbench.ops import registry
from softbench.plugins.source import FILE, SOURCES, origins
from softbench.processes.worker_log import useful_line

if TYPE_CHECKING:
    from softbench.run.request import RunRequest

START_SECONDS = 60.0
END_SECONDS = 30.0
MAX_BYTES = 64 * 2**20
"""Of the files that are shipped to each node."""
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from softbench.run.fleet.ray_relay import main; main(*sys.argv[2:])"


class RayCards:
    """The GPUs of a Ray cluster (`softbench.run.fleet.cards.Cards`), or its nodes if none has a GPU."""

    def __init__(self, address: str, request: RunRequest) -> None:
        """`address` is that of the cluster, or `auto`. Files of plugins and operations are shipped with the files beside them.

        Raises:
            UsageError: Ray is not installed, the cluster cannot be reached, or the files to ship are too large.
        """
        self.events: queue.Queue[tuple[int, JsonObject]] = queue.Queue()
        self.names: list[str] = []
        self._folder = tempfile.TemporaryDirectory(prefix="softbench-ray-")
        self._shipped = ship(
            [*_plugin_files(request), *filter(None, map(registry.path_of, registry.files()))], Path(self._folder.name) / "shipped"
        )
        self._log = Path(self._folder.name) / "relay.log"
        with self._log.open("wb") as log:
            self._relay = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path), address, str(Path(self._folder.name) / "shipped")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        try:
            cards = self._first(address)["cards"]
        except BaseException:
            self.close()
            raise
        self.names = [one_line(str(card["name"]), 60) for card in cards]
        self.opening: list[JsonObject] = [{"device": card["device"], "processors": [], "of_node": card["of_node"]} for card in cards]

    def _first(self, address: str) -> JsonObject:
        """The relay's first message. Raises UsageError with the reason if it has no cards."""
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            _, message = self.events.get(timeout=START_SECONDS)
        except queue.Empty:
            raise UsageError(f"--ray {address}: no Ray cluster answered within {START_SECONDS:g} s; is its head node running?") from None
        if "error" in message:
            raise UsageError(f"--ray {address}: {one_line(str(message['error']), 500)}")
        return message

    def _receive(self) -> None:
        assert self._relay.stdout is not None
        with suppress(OSError, ValueError):
            for line in self._relay.stdout:
                message = json.loads(line)
                self.events.put((message["card"], message["message"]) if "card" in message else (0, message))
        last = useful_line(self._log)
        if not self.names:
            self.events.put((0, {"error": last or "the driver ended at once"}))
        for number in range(len(self.names)):
            self.events.put((number, {"op": "ended", "text": f"the Ray cluster is gone{': ' + last if last else ''}"}))

    def send(self, number: int, message: JsonObject) -> None:
        text = json.dumps(message)
        for file, shipped in self._shipped.items():
            text = text.replace(json.dumps(file)[1:-1], shipped)
        self._write({"card": number, "message": json.loads(text)})

    def kill(self, number: int) -> None:
        self._write({"card": number, "kill": True})

    def _write(self, message: JsonObject) -> None:
        assert self._relay.stdin is not None
        with suppress(OSError, ValueError):
            self._relay.stdin.write(json.dumps(message, separators=(",", ":")) + "\n")
            self._relay.stdin.flush()

    def close(self) -> None:
        with suppress(OSError):
            assert self._relay.stdin is not None
            self._relay.stdin.close()
        try:
            self._relay.wait(END_SECONDS if self.names else 0)
        except subprocess.TimeoutExpired:
            self._relay.kill()
            self._relay.wait()
        self._folder.cleanup()


def _plugin_files(request: RunRequest) -> list[Path]:
    return [Path(source.target) for source in origins(request.settings().plugins) if source.kind == FILE]


def ship(files: Sequence[Path], folder: Path) -> dict[str, str]:
    """Copy each file, with the sources beside it, into a folder of its own; returns the place of each in `folder`, by absolute path.

    Raises:
        UsageError: the files are larger than MAX_BYTES.
    """
    folder.mkdir()
    found: dict[str, str] = {}
    places: dict[Path, str] = {}
    total = 0
    for file in files:
        if file.is_dir():  # of BackendBench
            shutil.copytree(file, folder / f"{file.name}-{len(found)}", ignore=shutil.ignore_patterns("__pycache__", ".*"))
            found[str(file.resolve())] = f"{file.name}-{len(found)}"
            continue
        beside = file.resolve().parent
        if beside not in places:
            places[beside] = str(len(places))
            (folder / places[beside]).mkdir()
            for other in sorted(beside.iterdir()):
                if other.suffix in SOURCES and other.is_file():
                    total += other.stat().st_size
                    if total > MAX_BYTES:
                        raise UsageError(f"--ray: {file} is in a folder with more than {size(MAX_BYTES)} of sources; move it into its own")
                    shutil.copy(other, folder / places[beside])
        if file.suffix not in SOURCES:
            shutil.copy(file, folder / places[beside])
        found[str(file.resolve())] = f"{places[beside]}/{file.name}"
    return found
