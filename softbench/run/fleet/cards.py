"""The cards of a fleet: how messages reach the process of each card, on this host or through Ray."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from softbench.core.errors import UsageError
from softbench.core.json import JsonObject
from softbench.core.machine import Machine
from softbench.core.text import one_line
from softbench.plan.settings import PHASES
from softbench.processes.session import Session, choose_device
from softbench.processes.worker_log import signal_name, useful_line
from softbench.run.fleet.processors import parted

END_SECONDS = 20.0
"""How long a card may take to end its workers."""
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from softbench.run.fleet.card import main; main()"


class Cards(Protocol):
    """The processes of the cards, by number."""

    names: list[str]
    """What messages call each card, such as `cuda:1`."""
    opening: list[JsonObject]
    """What `open` says to each card beside the request: its device, and its processors or its place on its node."""
    events: queue.Queue[tuple[int, JsonObject]]
    """Messages with the number of their card. The last of a card is `ended` with a reason."""

    def send(self, number: int, message: JsonObject) -> None:
        """Send a message to a card. A card that is gone has an event."""

    def kill(self, number: int) -> None:
        """End a card's process now, with its workers."""

    def close(self) -> None:
        """End all cards and wait for that."""


class LocalCards:
    """The cards of this host."""

    def __init__(self, devices: str) -> None:
        """`devices` is `all`, or numbers of GPUs as in `0,2`. Each card's process runs on its part of the processors.

        Raises:
            UsageError: there is no such GPU, or more cards than processors.
            WorkersError: the machine cannot be probed.
        """
        self.names, nodes = _devices(devices)
        self.opening: list[JsonObject] = [
            {"device": name.partition(":")[0] if name.startswith("cpu") else name, "processors": sorted(some)}
            for name, some in zip(self.names, parted(nodes), strict=True)
        ]
        self.events: queue.Queue[tuple[int, JsonObject]] = queue.Queue()
        self._folder = tempfile.TemporaryDirectory(prefix="softbench-cards-")
        self._processes: list[subprocess.Popen[str]] = []
        try:
            for number in range(len(self.names)):
                self._start(number)
        except BaseException:
            self.close()
            raise

    def _start(self, number: int) -> None:
        with self._log(number).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CODE, json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self._processes.append(process)
        threading.Thread(target=self._receive, args=(number, process), daemon=True).start()

    def _log(self, number: int) -> Path:
        return Path(self._folder.name) / f"card-{number}.log"

    def _receive(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with suppress(OSError, ValueError):  # a torn line ends the card
            for line in process.stdout:
                self.events.put((number, json.loads(line)))
        code = process.wait()
        how = f"was killed ({signal_name(-code)})" if code < 0 else f"ended with code {code}"
        last = useful_line(self._log(number))
        self.events.put((number, {"op": "ended", "text": one_line(f"its process {how}{': ' + last if last else ''}")}))

    def send(self, number: int, message: JsonObject) -> None:
        stdin = self._processes[number].stdin
        assert stdin is not None
        with suppress(OSError, ValueError):
            stdin.write(json.dumps(message, separators=(",", ":")) + "\n")
            stdin.flush()

    def kill(self, number: int) -> None:
        process = self._processes[number]
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # its workers end with their forkserver, which sees its socket close
        process.wait()

    def close(self) -> None:
        for process in self._processes:
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
        for number, process in enumerate(self._processes):
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill(number)
        self._folder.cleanup()


def _devices(text: str) -> tuple[list[str], list[int | None]]:
    """The names of the cards, and their NUMA nodes. `cpu:0,cpu:1` are parts of the processors, for tests without GPUs."""
    words = list(dict.fromkeys(word.strip().removeprefix("cuda:") for word in text.split(",")))
    if all(re.fullmatch("cpu:[0-9]+", word) for word in words):
        return words, [None] * len(words)
    if words != ["all"] and not all(word.isascii() and word.isdecimal() for word in words):
        raise UsageError(f"--devices {text}: write all, or the numbers of GPUs as in 0,2")
    with Session("auto", PHASES["import"]) as session:
        return _named(words, session.machine, text)


def _named(words: Sequence[str], machine: Machine, text: str) -> tuple[list[str], list[int | None]]:
    """The names and NUMA nodes of these GPUs of a machine."""
    chosen = range(len(machine.gpus)) if words == ["all"] else dict.fromkeys(map(int, words))
    names = [f"cuda:{number}" for number in chosen]
    if not names:
        raise UsageError(f"--devices {text}: {machine.no_gpu}; leave out --devices for a run on the CPU")
    return names, [_node(machine, name, text) for name in names]


def _node(machine: Machine, name: str, text: str) -> int | None:
    """A GPU's NUMA node. Raises UsageError if there is no such GPU."""
    try:
        _, gpu = choose_device(name, machine)
    except UsageError as error:
        raise UsageError(str(error).replace(f"--device {name}", f"--devices {text}")) from None
    node = gpu.facts.get("gpu_numa_node") if gpu else None
    return node if isinstance(node, int) else None
