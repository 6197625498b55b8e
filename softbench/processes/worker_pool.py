"""The worker pool: starts workers through the forkserver, sends requests with deadlines, and ends every worker.

If the forkserver dies, all its workers die with it. The pool then starts another one, and each request to such a worker is `Lost`.
Workers of another environment have a forkserver there, in a pool of its own inside this one.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

from softbench.core.channel import Channel
from softbench.core.errors import StorageError, UsageError, WorkersError
from softbench.core.json import to_json
from softbench.core.messages import INVALID_REPLY, Failure, Reply, Request, reply_from_json
from softbench.core.outcome import Status
from softbench.core.text import harmless, one_line
from softbench.processes import sanitizer
from softbench.processes.activity import Activity
from softbench.processes.launch import openmp_environment, start_forkserver
from softbench.processes.sanitizer import Sanitizer
from softbench.processes.worker_log import oom_kills, signal_name, state, tail, top_frame, useful_line

START_SECONDS = 120.0  # importing torch from a cold disk takes tens of seconds
EXIT_SECONDS = 10.0  # a killed process ends only after the driver has removed its CUDA context
STACK_SECONDS = 0.3
ENDED = ("", "Z", "X")
"""States of a process that has closed its files, and with them its CUDA context."""
RESTARTS = 16
"""New forkservers of a pool, at most. A backend that kills it costs four in a run (`softbench.run.isolation`)."""
KILLING = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT})
"""Signals of another process; a fault of a worker's own has others."""
NEEDED = "it needs torch and a Python from 3.11 on, and msgspec if its Python is of another version than softbench's"
KEPT_BYTES = 1 << 18  # of a worker's log, which has a compiler's last output
FIXES = {
    errno.EMFILE: "allow more open files: ulimit -n 65536",
    errno.ENFILE: "allow more open files: sysctl fs.file-max",
    errno.EAGAIN: "allow more processes: ulimit -u, or the container's limit",
    errno.ENOMEM: "free memory, or select fewer backends",
    errno.ENOSPC: "free some space in {folder}, or set TMPDIR to another folder",
    errno.EROFS: "{folder} is read-only; set TMPDIR to another folder",
}
"""What to do if no worker can be started, by the error's number."""


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
    orphan: bool = False  # true if its forkserver died, and the worker with it
    python: str = ""  # the interpreter of its environment; empty for that of softbench


@dataclass(frozen=True, slots=True)
class Lost:
    """A lost worker: it died, or its reply was late or invalid. It must not be used again."""

    status: Status
    reason: str
    invalid: bool = False
    """True if it sent a JSON object that is not a reply to the request."""
    killed: bool = False
    """True if another process killed it."""
    orphan: bool = False
    """True if it died with its forkserver."""


Answer = TypeVar("Answer", bound=Reply)
Result: TypeAlias = Answer | Failure | Lost
"""What a request gets: its reply, a failure, or a lost worker."""


class NotStartedError(WorkersError):
    """A worker could not be started, and others may be."""


class Pool:
    """A forkserver and its workers. Leaving the context ends all of them."""

    def __init__(
        self,
        start_seconds: float = START_SECONDS,
        activity: Activity | None = None,
        threads: int | None = None,
        sanitizer: Sanitizer | None = None,
        pythons: Sequence[str] = (),
        python: str = "",
    ) -> None:
        """`activity` gets the waits for workers; `threads`: the CPU threads of torch in each worker; None keeps torch's own number;
        `sanitizer` runs the workers; `pythons` are the interpreters of other environments, whose forkservers start at once, and then that
        of softbench's starts with its first worker; `python` is the interpreter of this pool's own."""
        self.start_seconds, self.threads, self.sanitizer, self.python = start_seconds, threads, sanitizer, python
        self.pythons = tuple(dict.fromkeys(filter(None, pythons)))
        self._elsewhere: dict[str, Pool] = {}
        """The pools of other environments, by their interpreter."""
        self.workers: list[Worker] = []
        self._exits: dict[int, int] = {}
        """Exit codes by process number, as the forkserver reported them."""
        self._forked: dict[int, int | OSError] = {}
        """Process numbers or errors by order number, of forks that `spawn` has not read yet."""
        self._orders = 0
        self._oom_kills = 0
        """The kernel's count of processes that it killed for lack of memory, before the present requests."""
        self._restarts = 0
        self._started = self._ready = self._closed = False
        self.activity = activity or Activity()
        self._logs: list[tuple[str, str]] = []
        """Labels and logs of failed workers that the listener has not got yet."""
        self._listener: Callable[[str, str], object] | None = None

    def __enter__(self) -> Pool:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="softbench-")
        except OSError as error:
            raise StorageError(f"no folder for temporary files: {_explained(error)}") from None
        for python in self.pythons:
            self._pool_of(python)
        if not self.pythons:
            self._start()
        return self

    @property
    def folder(self) -> str:
        """A folder for temporary files, which goes when the pool is closed."""
        return self._folder.name

    @property
    def restarts(self) -> int:
        """Forkservers that died and were replaced."""
        return self._restarts + sum(pool.restarts for pool in self._elsewhere.values())

    @property
    def started(self) -> list[Pool]:
        """The pools of this one whose forkserver was started."""
        return [one for one in (self, *self._elsewhere.values()) if one._started]

    def _pool_of(self, python: str) -> Pool:
        """The pool of an environment."""
        if python == self.python:
            return self
        if python not in self._elsewhere:
            pool = Pool(self.start_seconds, self.activity, self.threads, self.sanitizer, python=python)
            self._elsewhere[python] = pool.__enter__()
            if self._listener is not None:
                pool.tell(self._listener)
        return self._elsewhere[python]

    def _start(self) -> None:
        environment = {**openmp_environment(self.threads), **(sanitizer.ENVIRONMENT if self.sanitizer else {})}
        try:
            log = Path(self._folder.name) / "forkserver.log"
            self._forkserver, self._control = start_forkserver(log, environment, self.sanitizer, self.python)
        except OSError as error:
            raise WorkersError(f"{self._at}no process can be started: {_explained(error)}") from None
        self._started, self._ready = True, False

    @property
    def _at(self) -> str:
        """Where an error is, if it is in another environment."""
        return f"{self.python}: " if self.python else ""

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close(gently=kind is None)

    def close(self, *, gently: bool = True) -> None:
        """End all workers and the forkserver. `gently` lets workers end on their own first. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for pool in self._elsewhere.values():
            pool.close(gently=gently)
        if not self._started:
            self._folder.cleanup()
            return
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

    def spawn(self, label: str, env: Mapping[str, str] | None = None, python: str = "") -> Worker:
        """Start a worker; `env` is added to its variables, and `python` is the interpreter of another environment.

        Raises:
            NotStartedError: this worker could not be started.
            WorkersError: torch could not be imported, or the forkserver died too often or did not reply.
        """
        if (pool := self._pool_of(python)) is not self:
            return pool.spawn(label, env, python)
        if not self._started:
            self._start()
        with self.activity.waiting("start", [label]):
            while True:
                if not self._ready:
                    self._pump(lambda: self._ready, self.start_seconds)
                if (worker := self._spawn(label, dict(env or {}))) is not None:
                    return worker

    def _spawn(self, label: str, env: dict[str, str]) -> Worker | None:
        """A new worker; None if the forkserver died meanwhile."""
        self._orders += 1
        order, restarts = self._orders, self._restarts
        path = Path(self._folder.name) / f"worker-{order}.log"
        with ExitStack() as unused:
            try:
                ours, theirs = socket.socketpair()
                unused.enter_context(ours)
                with theirs, path.open("wb") as log:
                    message = json.dumps({"id": order, "env": env}).encode()
                    try:
                        socket.send_fds(self._control, [message], [theirs.fileno(), log.fileno()])
                    except ConnectionError:
                        self._restart()
                        return None
            except OSError as error:
                raise NotStartedError(f"its process could not be started: {_explained(error)}") from None
            self._pump(lambda: order in self._forked or self._restarts > restarts, self.start_seconds)
            found = self._forked.pop(order, None)
            if isinstance(found, OSError):
                raise NotStartedError(f"its process could not be started: {_explained(found)}")
            if found is None or self._restarts > restarts:
                return None
            unused.pop_all()
        self.workers.append(worker := Worker(found, Channel(ours), path, label, python=self.python))
        return worker

    def preload(self, *, wait: bool) -> None:
        """Have all forkservers import what workers of their environment tell (`toolchain.preload_file`), until it is false."""
        for pool in self.started:
            with suppress(OSError):  # a dead forkserver has no use for it
                pool._control.send(json.dumps({"preload": wait}).encode())

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
            homes = dict.fromkeys(self._pool_of(worker.python) for worker, _ in requests.values())
            if len(homes) > 1:  # all work at the same time, and one pool after the other reads
                for worker, request in requests.values():
                    if worker.ahead is not request:
                        self.send_ahead(worker, request)
            replies: dict[int, Result[Answer]] = {}
            for home in homes:
                replies |= home._gather({key: one for key, one in requests.items() if self._pool_of(one[0].python) is home}, seconds, phase)
            return replies

    def _gather(self, requests: Mapping[int, tuple[Worker, Request[Answer]]], seconds: float, phase: str) -> dict[int, Result[Answer]]:
        replies: dict[int, Result[Answer]] = {}
        self._oom_kills = oom_kills()
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
        worker.troubled = True
        self.discard(worker)
        if killed and not worker.orphan and oom_kills() > self._oom_kills:
            return Lost(Status.OOM, f"killed in {phase}: the kernel had no memory left; free some, or measure smaller shapes")
        if killed and code is not None:
            how = f"killed ({signal_name(-code)}) in {phase}"
            parent = " with its parent, the forkserver" if worker.orphan else ""
            why = f"{how}{parent}: by another process, or for lack of memory"
            return Lost(Status.FAILED, why, killed=True, orphan=worker.orphan)
        how = "crashed" if code is None else f"exited with code {code}" if code >= 0 else f"crashed ({signal_name(-code)})"
        where = useful_line(worker.log)
        return Lost(Status.FAILED, one_line(f"{how} in {phase}{': ' + where if where else ''}"))

    def _timed_out(self, worker: Worker, seconds: float, phase: str) -> Lost:
        before = worker.log.stat().st_size
        with suppress(OSError):
            os.kill(worker.pid, signal.SIGUSR1)  # its fault handler writes the stack, even inside C code
        time.sleep(STACK_SECONDS)
        where = top_frame(tail(worker.log, KEPT_BYTES, before))
        worker.troubled = True
        self.discard(worker)
        return Lost(Status.TIMEOUT, one_line(f"{phase} took longer than {seconds:g} s{' (' + where + ')' if where else ''}"))

    def discard(self, *workers: Worker) -> None:
        """End workers and their children now, and wait for that. Several at once, as CUDA contexts take a while to end."""
        for pool in self._elsewhere.values():
            pool.discard(*(worker for worker in workers if worker.python == pool.python))
        ending = [worker for worker in workers if worker in self.workers]
        if not ending:
            return
        for worker in ending:
            self.workers.remove(worker)
            worker.channel.close()
            self._kill(worker)
        # The exit is reported after the kernel has closed the process's files, and with them its CUDA context.
        self._pump_quietly(lambda: all(worker.pid in self._exits for worker in ending), EXIT_SECONDS)
        for worker in ending:
            if worker.troubled:
                self._keep_log(worker.label, worker.log)
        self._tell()

    def _keep_log(self, label: str, log: Path, how: str = "") -> None:
        with suppress(OSError):
            if text := how + tail(log, KEPT_BYTES):
                self._logs.append((label, text))

    def _kill(self, worker: Worker) -> None:
        with suppress(OSError):  # also for a dead worker, whose children may live
            os.killpg(worker.pid, signal.SIGKILL)
        if worker.pid not in self._exits:
            with suppress(OSError):  # it may not have its own process group yet
                os.kill(worker.pid, signal.SIGKILL)

    def tell(self, listener: Callable[[str, str], object]) -> None:
        """`listener(label, log)` gets the output of every failed worker, now or when it ends."""
        self._listener = listener
        self._tell()
        for pool in self._elsewhere.values():
            pool.tell(listener)

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
        """Read one report of the forkserver, or start another one if it has died. Raises TimeoutError, or as `_restart`."""
        self._control.settimeout(max(0.001, seconds))
        try:
            data = self._control.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError:
            data = b""
        if not data:
            self._restart()
            return
        report = json.loads(data)
        if "code" in report:
            self._exits[report["pid"]] = report["code"]
        elif "errno" in report:
            self._forked[report["id"]] = OSError(report["errno"], os.strerror(report["errno"]))
        elif "id" in report:
            self._forked[report["id"]] = report["pid"]
            self._exits.pop(report["pid"], None)  # the kernel reuses process numbers
        elif report["ready"]:
            self._ready = True
        else:
            if self.python:
                raise UsageError(f"{self.python}: runs no worker: {one_line(report['error'])}; {NEEDED}")
            raise WorkersError(f"torch cannot be imported: {one_line(report['error'])}; try: python -c 'import torch'")

    def _restart(self) -> None:
        """Start another forkserver in place of one that has died. Its workers are orphans now, and dead.

        Raises:
            WorkersError: it died too often, or while it imported torch and by its own fault, or the pool is being closed.
            UsageError: that of another environment did not start.
        """
        with suppress(subprocess.TimeoutExpired):
            self._forkserver.wait(EXIT_SECONDS)
        self._forkserver.kill()
        code = self._forkserver.wait()
        log = Path(self._folder.name) / "forkserver.log"
        if (killed := -code in KILLING) and not self._closed and self._restarts >= RESTARTS:
            raise WorkersError(f"the forkserver was killed {RESTARTS + 1} times; free memory, select fewer backends, or see: dmesg")
        how = f"was killed ({signal_name(-code)})" if killed else ": ".join(filter(None, ("has died", useful_line(log))))
        if self.python and not (self._ready or self._closed or killed):
            raise UsageError(f"{self.python}: runs no worker: {useful_line(log) or f'exit code {code}'}; {NEEDED}")
        if self._closed or self._restarts >= RESTARTS or not (self._ready or killed):
            raise WorkersError(f"{self._at}the forkserver {how}; try: {self.python or 'python'} -c 'import torch'")
        self._restarts += 1
        self._keep_log("forkserver", log, f"It {how}.\n")
        for worker in self.workers:
            worker.orphan = True
            self._kill(worker)
        end = time.monotonic() + EXIT_SECONDS
        while any(state(worker.pid) not in ENDED for worker in self.workers) and time.monotonic() < end:
            time.sleep(0.01)
        self._exits.update({worker.pid: -signal.SIGKILL for worker in self.workers})
        self._control.close()
        self._start()


_kept: list[tuple[Pool, object]] = []
"""At most one open pool without workers, and the surroundings in which its forkserver started."""


def opened(
    activity: Activity | None = None, threads: int | None = None, sanitizer: Sanitizer | None = None, pythons: Sequence[str] = ()
) -> Pool:
    """An open pool; arguments as of `Pool`. It is the one that was kept, if its forkservers would start in the same way now.

    So a command that reads a problem before its session imports torch once.
    """
    while _kept:
        pool, before = _kept.pop()
        alive = all(state(one._forkserver.pid) not in ENDED for one in pool.started)
        if alive and before == _surroundings(threads, sanitizer) and set(pool.pythons) == {*pythons}:
            activity = activity or Activity()
            activity.continue_after(pool.activity)
            for one in (pool, *pool.started):
                one.activity = activity
            return pool
        pool.close(gently=False)
    return Pool(activity=activity, threads=threads, sanitizer=sanitizer, pythons=pythons).__enter__()


def keep(pool: Pool) -> None:
    """Let the next `opened` have this open pool, whose workers have ended. The end of the process closes it otherwise."""
    _kept.append((pool, _surroundings(pool.threads, pool.sanitizer)))


@atexit.register
def close_kept() -> None:
    """End the pool that was kept. This does not wait: a forkserver ends when its socket closes."""
    while _kept:
        for one in _kept.pop()[0].started:
            one._control.close()
            one._folder.cleanup()


def _surroundings(threads: int | None, sanitizer: Sanitizer | None) -> object:
    """What a forkserver is started with, beside its log."""
    return threads, sanitizer, dict(os.environ), tuple(sys.path), Path.cwd()


def _explained(error: OSError) -> str:
    """What the system said, and what to do."""
    fix = FIXES.get(error.errno or 0, "").format(folder=os.environ.get("TMPDIR", tempfile.gettempdir()))
    return "; ".join(filter(None, (error.strerror or str(error), fix)))
