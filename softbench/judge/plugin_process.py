"""A process that makes the calls of challenges, as the judge sees it, and the judge's clock.

It is the plugin's process, or the process without a plugin.
"""

from __future__ import annotations

import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import torch
from msgspec.structs import replace

from softbench.core.case import Case
from softbench.core.messages import Called, Failure, MakeCalls, MapInputs, QueueCalls, ReleaseOutputs, Reply, Request, ShareOutputs
from softbench.core.outcome import Accuracy, Status
from softbench.judge.challenge import Challenge, OutputReader
from softbench.plugins.source import PluginSource
from softbench.processes.slot import infos_of, load_request
from softbench.processes.worker_pool import Lost, Pool, Worker
from softbench.worker.garbage_collection import paused
from softbench.worker.judged import shared_memory
from softbench.worker.judged.memory import Tensors
from softbench.worker.timing.timers import synchronize

CLOCK = time.perf_counter_ns
FLUSH_BYTES = 256 * 2**20
WAKING_REQUESTS = 4
"""Requests without work just before the clock starts. A process that has waited long answers its first request late."""
BUSY_SECONDS = 1.0
"""The judge waits for calls on a GPU without sleep, so long at most."""
QUEUE_SECONDS = 20.0
"""So long the calls before the clock may take, at most. A rehearsal counted those of a quarter of a second. If a call waits for the
GPU now, nothing ends its wait."""
ATTEMPTS = 100
"""How often the processes of the plugin's group are ended, at most: each may have started another."""
STOP_SECONDS = 5.0
"""So long a process may take to stop, at most: a thread in a long system call stops after it."""
PROCESSOR_TIME = 2
"""The kind of clock of clock_gettime(2) that is a process's processor time."""
ENDED = "ZX"
"""States of a thread that has ended."""
Answer = TypeVar("Answer", bound=Reply)


class EndedError(Exception):
    """The judgement ends without a result."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(slots=True)
class PluginProcess:
    """A worker of the pool that makes the calls of challenges: that of the plugin, or one without a plugin."""

    pool: Pool
    worker: Worker
    case: Case
    calls: int
    """Calls of a challenge."""
    deadlines: Mapping[str, float]
    """Seconds by phase."""
    reader: OutputReader | None = None
    processor_us: float = 0.0
    """Processor time of its threads during the calls of the last challenge, microseconds."""
    mapped: Challenge | None = None
    """The challenge whose inputs it has mapped. Their descriptor stays open until the next challenge has been drawn."""

    def ask(self, request: Request[Answer], phase: str, *, busy: bool = False, most: float = math.inf) -> Answer:
        """The reply to a request; `busy`: wait without sleep. Raises EndedError if there is none, or if the plugin failed.

        The deadline is that of the phase, or `most` seconds if that is less.
        """
        if busy:
            self.pool.send_ahead(self.worker, request)
            self.worker.channel.wait_busily(BUSY_SECONDS)
        reply = self.pool.ask(self.worker, request, min(most, self.deadlines[phase]), phase)
        if isinstance(reply, Lost):
            raise EndedError(reply.status, reply.reason)
        if isinstance(reply, Failure):
            raise EndedError(reply.status, f"{phase}: {reply.reason}")
        return reply

    def share(self, block: shared_memory.Block, size: int) -> None:
        """Share memory for outputs, of `size` bytes. Raises as `ask`."""
        self.worker.channel.outgoing = [block.descriptor]
        self.ask(ShareOutputs(self.case, self.calls, size), "time")
        self.reader = OutputReader(self.case, self.calls, block, size)

    def load(self, source: PluginSource, name: str | None) -> str:
        """Load the plugin; returns the name of its backend. Raises EndedError if it cannot be loaded, named or used."""
        seconds = self.deadlines["build" if source.builds_at_import else "import"]
        reply = self.pool.ask(self.worker, load_request(source, self.case.device, name), seconds, "import")
        infos = infos_of(source, reply)
        if infos[0].broken:
            raise EndedError(Status(infos[0].broken_status), infos[0].broken)
        if len(infos) != 1 or name not in (None, infos[0].name):
            names = ", ".join(info.name for info in infos)
            other = f"no backend {name}, but " if name else ""
            raise EndedError(Status.FAILED, f"import: it has {other}the backends {names}; name one of them with --backend")
        if infos[0].unavailable:
            raise EndedError(Status.UNAVAILABLE, infos[0].unavailable)
        return infos[0].name

    def empty(self, drawn: Challenge) -> tuple[float, float]:
        """Microseconds of a challenge without what its calls take the GPU, and what these take.

        The process has no plugin, so it is trusted. Its GPU reads the inputs and writes outputs. So both processes wait as long as in other
        challenges, and their caches hold as little. The first of two counts for nothing: just after inputs were drawn, what the judge's
        process needs is not in the caches.
        """
        for _ in range(2):
            us, called, _ = self._timed(drawn)
            self.release()
        return us - called.device_us, called.device_us

    def empties(self, drawn: Challenge, count: int) -> tuple[list[float], float]:
        """The same of so many challenges on the same inputs, and the most that their calls took the GPU."""
        found = [self.empty(drawn) for _ in range(count)]
        return [us for us, _ in found], max(gpu_us for _, gpu_us in found)

    def touching(self, drawn: Challenge, count: int) -> tuple[float, float]:
        """On a CPU: the medians of so many challenges that only use all pages of memory: microseconds, and processor time."""
        found = []
        for _ in range(count):
            found.append((self._timed(drawn, touch=True)[0], self.processor_us))
            self.release()
        us, processor_us = map(statistics.median, zip(*found, strict=True))
        return us, processor_us

    def challenge(self, drawn: Challenge, *, at_once: bool = False) -> tuple[float, Accuracy]:
        """Microseconds of a challenge, and the accuracy of its outputs. Raises as `ask`, also for a plugin that started a process.

        With `at_once` the outputs are what the caller's stream reads right after each call, and the time is of no use.
        """
        self._require_alone()
        self._map_again()
        us, called, outputs = self._timed(drawn, at_once=at_once)
        self.mapped = drawn
        accuracy = drawn.verdict(outputs, self._reader().whole(called.places[drawn.chosen]))
        drawn.forget()
        self._require_alone()
        return us, accuracy

    def release(self) -> None:
        """Let the process free the outputs, between challenges: the judge's clock does not run then. Raises as `ask`."""
        self.ask(ReleaseOutputs(), "time")

    def _map_again(self) -> None:
        """On a GPU: map the last inputs once more. A process that has waited long maps late, and an empty challenge is never the first."""
        if self.case.device == "cuda" and self.mapped is not None:
            self.worker.channel.outgoing = [self.mapped.inputs.descriptor]
            self.ask(MapInputs(self.mapped.bytes), "time")

    def _timed(self, drawn: Challenge, *, touch: bool = False, at_once: bool = False) -> tuple[float, Called, list[Tensors]]:
        """Microseconds from the request to the end of the read, the reply with all places, and what is read of outputs."""
        gpu, reader = self.case.device == "cuda", self._reader()
        for _ in range(WAKING_REQUESTS):
            self.release()
        self._flush()
        places = self.ask(QueueCalls(at_once), "time", most=QUEUE_SECONDS).places if gpu else ()
        elements = reader.elements(drawn, places) if reader.valid(places) else None
        self.worker.channel.outgoing = [drawn.inputs.descriptor]
        with paused():
            before, start = _processor_ns(self.worker.pid), CLOCK()
            called = self.ask(MakeCalls(drawn.bytes, touch, at_once), "time", busy=gpu)
            if elements is None or called.places:
                places = (*places, *called.places)
                if not reader.valid(places):
                    raise EndedError(Status.WRONG, "time: its process named outputs outside the judge's memory")
                elements = reader.elements(drawn, places)
            found = reader.read(drawn, places, elements)
            synchronize(self.case.device)
            us = (CLOCK() - start) / 1e3
            self.processor_us = (_processor_ns(self.worker.pid) - before) / 1e3
        return us, replace(called, places=places), found

    def _reader(self) -> OutputReader:
        if self.reader is None:
            raise RuntimeError("a challenge before its memory")
        return self.reader

    def _flush(self) -> None:
        """Replace what the GPU's L2 holds, and wait for the device."""
        if self.case.device == "cuda":
            _flush_buffer().zero_()
        synchronize(self.case.device)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """In the context no thread of the process runs. What it gave the GPU may.

        Raises EndedError if it has another process, or if it ran: a timer of its own may send SIGCONT. If it has ended, that is no error.
        """
        pid = self.worker.pid
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            before = _stopped_at(pid)
            self._require_alone()
            yield
            if (after := _processor_ns(pid)) != before and _lives(pid):
                raise EndedError(Status.UNVERIFIED, f"time: it ran for {(after - before) / 1e3:.0f} us while the judge had stopped it")
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def end(self) -> None:
        """End the process and its group, and wait for that. Raises EndedError if one of them lives on."""
        pid = self.worker.pid
        self.pool.discard(self.worker)
        if _lives(pid) or _others(pid):
            raise EndedError(Status.UNVERIFIED, "time: its process does not end when the judge ends it")

    def end_others(self) -> None:
        """End all other processes of the plugin's group, such as compilers. Raises EndedError if they do not end."""
        for _ in range(ATTEMPTS):
            others = _others(self.worker.pid)
            if not others:
                return
            for pid in others:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._require_alone()

    def _require_alone(self) -> None:
        if _others(self.worker.pid):
            raise EndedError(Status.WRONG, "time: it started a process after its build")


def _others(leader: int) -> list[int]:
    """The living processes of a group, without its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if _group(int(entry.name)) == leader != int(entry.name) and _lives(int(entry.name)):
                found.append(int(entry.name))
    return found


def _group(pid: int) -> int:
    return int(_stat(f"/proc/{pid}/stat")[2])


def _lives(pid: int) -> bool:
    """True if a thread of the process lives. The state of the process is that of its first thread, which may end before the others."""
    return any(state not in ENDED for state in _states(pid))


def _states(pid: int) -> list[str]:
    """The states of all threads of a process; none if it does not exist."""
    found = []
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                found.append(_stat(f"{thread}/stat")[0])
    return found


def _stat(file: str) -> list[str]:
    return Path(file).read_text().rpartition(")")[2].split()


def _processor_ns(pid: int) -> int:
    """Processor time of all threads of a process, also of ended ones; 0 if it does not exist."""
    with suppress(OSError):
        return time.clock_gettime_ns(~pid << 3 | PROCESSOR_TIME)
    return 0


def _stopped_at(pid: int) -> int:
    """Wait until all threads of a process have stopped; returns its processor time. Raises EndedError if they do not."""
    end = time.monotonic() + STOP_SECONDS
    while True:
        before = _processor_ns(pid)
        time.sleep(0.001)  # a thread is still on its processor for a moment after its state says that it is stopped
        if all(state == "T" or state in ENDED for state in _states(pid)) and _processor_ns(pid) == before:
            return before
        if time.monotonic() > end:
            raise EndedError(Status.UNVERIFIED, "time: its process does not stop when the judge stops it")


@cache
def _flush_buffer() -> torch.Tensor:
    return torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")


@contextmanager
def plugin_folder() -> Iterator[str]:
    """The folder that a plugin's process may write to. It is removed after the process has ended, whatever was left in it."""
    folder = TemporaryDirectory(prefix="softbench-plugin-", ignore_cleanup_errors=True)
    try:
        yield folder.name
    finally:
        with suppress(RecursionError):
            folder.cleanup()
        if Path(folder.name).exists():  # its folders are too deep for Python
            subprocess.run(["chmod", "-R", "u+rwx", folder.name], stderr=subprocess.DEVNULL, check=False)
            subprocess.run(["rm", "-rf", folder.name], stderr=subprocess.DEVNULL, check=False)
