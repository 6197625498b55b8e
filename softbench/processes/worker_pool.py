"""The worker pool: starts workers through the forkserver, sends requests with deadlines, and ends every worker."""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from softbench.core.channel import Channel
from softbench.core.errors import WorkersError
from softbench.core.json import to_json
from softbench.core.messages import INVALID_REPLY, Failure, Reply, Request, reply_from_json
from softbench.core.outcome import Status
from softbench.core.text import harmless, one_line
from softbench.processes import sanitizer
from softbench.processes.activity import Activity
from softbench.processes.launch import openmp_environment, start_forkserver
from softbench.processes.sanitizer import Sanitizer
from softbench.processes.worker_log import signal_name, top_frame, useful_line

START_SECONDS = 120.0  # importing torch from a cold disk takes tens of seconds
EXIT_SECONDS = 10.0  # a killed process ends only after the driver has removed its CUDA context
STACK_SECONDS = 0.3
KILLING = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
"""Signals of another process; a fault of a worker's own has others."""
KEPT_BYTES = 1 << 18  # of a worker's log, which has a compiler's last output


@dataclass(slots=True)
class Worker:
    """One worker process."""

    pid: int
    channel: Channel
    log: Path
    label: str
    troubled: bool = False  # true after a failure: its log is kept
    ahead: Request[Any] | None = None  # the request that it has already (`Pool.send_ahead`)
    sent: float = 0.0  # time of the last request


@dataclass(frozen=True, slots=True)
class Lost:
    """A lost worker: it died, or its reply was late or invalid. It must not be used again."""

    status: Status
    reason: str
    invalid: bool = False
    """True if it sent a JSON object that is not a reply to the request."""
    killed: bool = False
    """True if another process killed it."""


Answer = TypeVar("Answer", bound=Reply)
Result: TypeAlias = Answer | Failure | Lost
"""What a request gets: its reply, a failure, or a lost worker."""


class Pool:
    """A forkserver and its workers. Leaving the context ends all of them."""

    def __init__(
        self,
        start_seconds: float = START_SECONDS,
        activity: Activity | None = None,
        threads: int | None = None,
        sanitizer: Sanitizer | None = None,
    ) -> None:
        """`activity` gets the waits for workers; `threads`: the CPU threads of torch in each worker; None keeps torch's own number;
        `sanitizer` runs the workers."""
        self.start_seconds, self.threads, self.sanitizer = start_seconds, threads, sanitizer
        self.workers: list[Worker] = []
        self._exits: dict[int, int] = {}
        """Exit codes by process number, as the forkserver reported them."""
        self._pids: dict[int, int] = {}
        """Process numbers by order number, of forked workers that are not yet used."""
        self._orders = 0
        self._ready = self._closed = False
        self.activity = activity or Activity()
        self._logs: list[tuple[str, str]] = []
        """Labels and logs of failed workers that the listener has not got yet."""
        self._listener: Callable[[str, str], object] | None = None

    def __enter__(self) -> Pool:
        self._folder = tempfile.TemporaryDirectory(prefix="softbench-")
        under = [self.sanitizer] if self.sanitizer else []
        environment = {**openmp_environment(self.threads), **(sanitizer.ENVIRONMENT if self.sanitizer else {})}
        self._forkserver, self._control = start_forkserver(Path(self._folder.name) / "forkserver.log", environment, *under)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close(gently=kind is None)

    def close(self, *, gently: bool = True) -> None:
        """End all workers and the forkserver. `gently` lets workers end on their own first. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if gently:
            for worker in self.workers:
                worker.channel.close()
            with suppress(WorkersError):
                self._pump(lambda: all(worker.pid in self._exits for worker in self.workers), 2.0)
        self.discard(*self.workers)
        self._control.close()  # the forkserver ends when its socket closes
        if not self._ready:
            self._forkserver.kill()  # it may hang while it imports torch
        try:
            self._forkserver.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._forkserver.kill()
            self._forkserver.wait()
        self._folder.cleanup()

    def spawn(self, label: str, env: Mapping[str, str] | None = None) -> Worker:
        """Start a worker; `env` is added to its environment.

        Raises:
            WorkersError: torch could not be imported, or the forkserver died or did not reply.
        """
        with self.activity.waiting("start", [label]):
            return self._spawn(label, dict(env or {}))

    def _spawn(self, label: str, env: dict[str, str]) -> Worker:
        if not self._ready:
            self._pump(lambda: self._ready, self.start_seconds)
        self._orders += 1
        order = self._orders
        path = Path(self._folder.name) / f"worker-{order}.log"
        ours, theirs = socket.socketpair()
        with theirs, path.open("wb") as log:
            message = json.dumps({"id": order, "env": env}).encode()
            try:
                socket.send_fds(self._control, [message], [theirs.fileno(), log.fileno()])
            except OSError:
                raise self._forkserver_lost() from None
        self._pump(lambda: order in self._pids, self.start_seconds)
        worker = Worker(self._pids.pop(order), Channel(ours), path, label)
        self.workers.append(worker)
        return worker

    def send_ahead(self, worker: Worker, request: Request[Any]) -> None:
        """Send a request now. `gather` of the same request waits for its reply, and must come before any other request to this worker."""
        with suppress(OSError):  # `gather` reads its death
            worker.channel.send(to_json(request))
        worker.ahead, worker.sent = request, time.monotonic()

    def ask(self, worker: Worker, request: Request[Answer], seconds: float, phase: str) -> Result[Answer]:
        """One request to one worker; see `gather`."""
        return self.gather({id(worker): (worker, request)}, seconds, phase)[id(worker)]

    def gather(self, requests: Mapping[int, tuple[Worker, Request[Answer]]], seconds: float, phase: str) -> dict[int, Result[Answer]]:
        """Send each request and wait for all replies, at most `seconds` since the first was sent.

        A worker that died or was late is ended and `Lost`.
        """
        op = next((request.op for _, request in requests.values()), phase)
        with self.activity.waiting(op, [worker.label for worker, _ in requests.values()]):
            return self._gather(requests, seconds, phase)

    def _gather(self, requests: Mapping[int, tuple[Worker, Request[Answer]]], seconds: float, phase: str) -> dict[int, Result[Answer]]:
        replies: dict[int, Result[Answer]] = {}
        with selectors.DefaultSelector() as selector:
            for key, (worker, request) in requests.items():
                selector.register(worker.channel, selectors.EVENT_READ, key)
                if worker.ahead is not request:
                    self.send_ahead(worker, request)
                worker.ahead = None
            selector.register(self._control, selectors.EVENT_READ, None)  # reports the end of a worker whose child keeps its socket open
            end = seconds + min((worker.sent for worker, _ in requests.values()), default=0.0)
            while len(replies) < len(requests):
                gone = {key for key, (worker, _) in requests.items() if key not in replies and worker.pid in self._exits}
                late = time.monotonic() >= end  # what has come by then is read, but a worker may send without end
                events = selector.select(0.0 if gone else max(0.0, end - time.monotonic()))
                ready = {event.data for event, _ in events} | gone
                if None in ready:
                    self._take_report(seconds)
                for key in ready - {None} - replies.keys():
                    worker, request = requests[key]
                    if (reply := self._read(worker, request, phase)) is not None:
                        replies[key] = reply
                        with suppress(KeyError, ValueError):
                            selector.unregister(worker.channel)
                if late:
                    return replies | {key: self._timed_out(requests[key][0], seconds, phase) for key in requests if key not in replies}
        return replies

    def _read(self, worker: Worker, request: Request[Answer], phase: str) -> Result[Answer] | None:
        """The worker's reply, or None if it is not complete yet."""
        try:
            if worker.pid in self._exits:
                worker.channel.socket.setblocking(False)  # its last message, if any; a child may keep the socket open
            if not worker.channel.fill():
                return self._died(worker, phase)
            data = worker.channel.take()
            if data is None:
                return None if worker.pid not in self._exits else self._died(worker, phase)
            data = harmless(data)
        except BlockingIOError:
            return self._died(worker, phase)
        except (ValueError, RecursionError):
            return self._invalid(worker, phase)
        try:
            reply = reply_from_json(request, data)
        except ValueError:
            return replace(self._invalid(worker, phase), invalid=True)
        worker.troubled |= isinstance(reply, Failure)
        return reply

    def _invalid(self, worker: Worker, phase: str) -> Lost:
        worker.troubled = True
        self.discard(worker)
        return Lost(Status.FAILED, f"{phase}: {INVALID_REPLY}")

    def _died(self, worker: Worker, phase: str) -> Lost:
        self._pump_quietly(lambda: worker.pid in self._exits, EXIT_SECONDS)
        code = self._exits.get(worker.pid)
        killed = code is not None and -code in KILLING
        how = "crashed" if code is None else f"exited with code {code}" if code >= 0 else f"crashed ({signal_name(-code)})"
        where = useful_line(worker.log)
        if killed and code is not None:
            how, where = f"killed ({signal_name(-code)})", "by another process, or for lack of memory"
        worker.troubled = True
        self.discard(worker)
        return Lost(Status.FAILED, one_line(f"{how} in {phase}{': ' + where if where else ''}"), killed=killed)

    def _timed_out(self, worker: Worker, seconds: float, phase: str) -> Lost:
        before = worker.log.stat().st_size
        with suppress(OSError):
            os.kill(worker.pid, signal.SIGUSR1)  # its fault handler writes the stack, even inside C code
        time.sleep(STACK_SECONDS)
        where = top_frame(worker.log.read_bytes()[before:].decode(errors="replace"))
        worker.troubled = True
        self.discard(worker)
        return Lost(Status.TIMEOUT, one_line(f"{phase} took longer than {seconds:g} s{' (' + where + ')' if where else ''}"))

    def discard(self, *workers: Worker) -> None:
        """End workers and their children now, and wait for that. Several at once, as CUDA contexts take a while to end."""
        ending = [worker for worker in workers if worker in self.workers]
        for worker in ending:
            self.workers.remove(worker)
            worker.channel.close()
            with suppress(OSError):  # also for a dead worker, whose children may live
                os.killpg(worker.pid, signal.SIGKILL)
            if worker.pid not in self._exits:
                with suppress(OSError):  # it may not have its own process group yet
                    os.kill(worker.pid, signal.SIGKILL)
        # The exit is reported after the kernel has closed the process's files, and with them its CUDA context.
        self._pump_quietly(lambda: all(worker.pid in self._exits for worker in ending), EXIT_SECONDS)
        for worker in ending:
            if worker.troubled:
                with suppress(OSError):
                    self._logs.append((worker.label, worker.log.read_bytes()[-KEPT_BYTES:].decode(errors="replace")))
        self._tell()

    def tell(self, listener: Callable[[str, str], object]) -> None:
        """`listener(label, log)` gets the output of every failed worker, now or when it ends."""
        self._listener = listener
        self._tell()

    def _tell(self) -> None:
        while self._logs and self._listener is not None:
            self._listener(*self._logs.pop(0))

    def _pump_quietly(self, done: Callable[[], bool], seconds: float) -> None:
        with suppress(WorkersError):
            self._pump(done, seconds)

    def _pump(self, done: Callable[[], bool], seconds: float) -> None:
        """Read the forkserver's reports until `done()`.

        Raises:
            WorkersError: the forkserver died, or time ran out.
        """
        end = time.monotonic() + seconds
        try:
            while not done():
                self._take_report(end - time.monotonic())
        except TimeoutError:
            raise WorkersError(f"worker processes did not start within {seconds:g} s") from None

    def _take_report(self, seconds: float) -> None:
        """Read one report of the forkserver. Raises TimeoutError, or WorkersError if the forkserver died."""
        self._control.settimeout(max(0.001, seconds))
        try:
            data = self._control.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            raise self._forkserver_lost()
        report = json.loads(data)
        if "code" in report:
            self._exits[report["pid"]] = report["code"]
        elif "id" in report:
            self._pids[report["id"]] = report["pid"]
            self._exits.pop(report["pid"], None)  # the kernel reuses process numbers
        elif report["ready"]:
            self._ready = True
        else:
            raise WorkersError(f"torch cannot be imported: {one_line(report['error'])}; try: python -c 'import torch'")

    def _forkserver_lost(self) -> WorkersError:
        last = useful_line(Path(self._folder.name) / "forkserver.log")
        return WorkersError(f"the forkserver has died{': ' + last if last else ''}; try: python -c 'import torch'")
