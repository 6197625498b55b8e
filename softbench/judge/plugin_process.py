"""The plugin's process during a judgement, seen from the judge, and the clock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from softbench.core.case import Case
from softbench.core.messages import MakeCalls, ReleaseInputs, Request, ShareOutputs
from softbench.core.outcome import Accuracy, Status
from softbench.core.replies import Failure, Reply
from softbench.judge import challenge
from softbench.judge.challenge import OutputReader
from softbench.plugins.source import PluginSource
from softbench.processes.pool import Lost, Pool, Worker
from softbench.processes.slot import infos_of, load_request
from softbench.worker import shared_memory
from softbench.worker.judged_calls import Tensors, output_bytes
from softbench.worker.timers import synchronize

CLOCK = time.perf_counter_ns
FLUSH_BYTES = 256 * 2**20
WAKING_REQUESTS = 4
"""Requests without work just before the clock starts. A process that has waited long answers its first request late."""
ATTEMPTS = 100
"""How often the processes of the plugin's group are ended, at most: each may have started another."""
Answer = TypeVar("Answer", bound=Reply)


class EndedError(Exception):
    """The judgement ends without a figure."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(slots=True)
class PluginProcess:
    """A worker of the pool that makes the calls of challenges."""

    pool: Pool
    worker: Worker
    case: Case
    calls: int
    """Calls of a challenge."""
    deadlines: Mapping[str, float]
    """Seconds by phase."""
    reader: OutputReader | None = None
    flush: torch.Tensor | None = None

    def ask(self, request: Request[Answer], phase: str) -> Answer:
        """The reply to a request. Raises EndedError if there is none, or if the plugin failed."""
        reply = self.pool.ask(self.worker, request, self.deadlines[phase], phase)
        if isinstance(reply, Lost):
            raise EndedError(reply.status, reply.reason)
        if isinstance(reply, Failure):
            raise EndedError(reply.status, f"{phase}: {reply.reason}")
        return reply

    @contextmanager
    def outputs(self) -> Iterator[None]:
        """Share memory for outputs."""
        size = output_bytes(self.case, self.calls)
        with _created(size, self.case.device) as block:
            self.worker.channel.outgoing = [block.descriptor]
            self.ask(ShareOutputs(self.case, self.calls, size), "time")
            self.reader = OutputReader(self.case, self.calls, block, size)
            yield

    def load(self, source: PluginSource, name: str | None) -> str:
        """Load the plugin; returns the name of its backend. Raises EndedError if it cannot be loaded, named or used."""
        reply = self.pool.ask(self.worker, load_request(source, self.case.device, name), self.deadlines["import"], "import")
        infos = infos_of(source, reply)
        if infos[0].broken:
            raise EndedError(Status(infos[0].broken_status), infos[0].broken)
        if len(infos) != 1 or name not in (None, infos[0].name):
            names = ", ".join(info.name for info in infos)
            raise EndedError(Status.FAILED, f"import: it has the backends {names}; name one of them with --backend")
        if infos[0].unavailable:
            raise EndedError(Status.UNAVAILABLE, infos[0].unavailable)
        return infos[0].name

    def empty(self) -> float:
        """Microseconds of a challenge that computes nothing. The plugin is not loaded yet.

        Its inputs are drawn as those of other challenges. Otherwise both processes would answer sooner: their data would be in the caches.
        """
        drawn = challenge.draw(self.case, self.calls)
        try:
            us = self._timed(drawn.inputs, drawn.bytes, drawn.rows)[0]
        finally:
            drawn.inputs.close()
        self.release()
        return us

    def challenge(self) -> tuple[float, Accuracy]:
        """Microseconds of a challenge, and the accuracy of its outputs. Raises as `ask`, also for a plugin that started a process."""
        drawn = challenge.draw(self.case, self.calls)
        try:
            self._require_alone()
            us, places, outputs = self._timed(drawn.inputs, drawn.bytes, drawn.rows)
            accuracy = drawn.verdict(outputs, self._reader().whole(places[drawn.chosen]))
            self._require_alone()
            return us, accuracy
        finally:
            drawn.inputs.close()

    def release(self) -> None:
        """Let the plugin's process unmap the inputs, between challenges: the judge's clock does not run then. Raises as `ask`."""
        self.ask(ReleaseInputs(), "time")

    def _timed(self, block: shared_memory.Block, size: int, rows: torch.Tensor) -> tuple[float, tuple[tuple[int, ...], ...], list[Tensors]]:
        """Microseconds from the request to the end of the read, where the outputs lie, and these rows of them."""
        reader = self._reader()
        indices = reader.indices(rows)
        for _ in range(WAKING_REQUESTS):
            self.release()
        self._flush()
        self.worker.channel.outgoing = [block.descriptor]
        start = CLOCK()
        places = self.ask(MakeCalls(size), "time").places
        if not reader.valid(places):
            raise EndedError(Status.WRONG, "time: its process named outputs outside the judge's memory")
        found = reader.rows(places, indices)
        synchronize(self.case.device)
        return (CLOCK() - start) / 1e3, places, found

    def _reader(self) -> OutputReader:
        if self.reader is None:
            raise RuntimeError("a challenge before its memory")
        return self.reader

    def _flush(self) -> None:
        """Replace what the GPU's L2 holds, and wait for the device."""
        if self.case.device == "cuda":
            self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda") if self.flush is None else self.flush
            self.flush.zero_()
        synchronize(self.case.device)

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
            state, _, group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(group) == leader != int(entry.name) and state not in "ZX":
                found.append(int(entry.name))
    return found


@contextmanager
def _created(size: int, device: str, *, read_only: bool = False) -> Iterator[shared_memory.Block]:
    block = shared_memory.create(size, device, read_only=read_only)
    try:
        yield block
    finally:
        block.close()
