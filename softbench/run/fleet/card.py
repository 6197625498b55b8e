"""The process of one card: it plans and measures as a run does, and sends each case's records to the fleet as JSON lines.

It receives on stdin `Open`, then `Measure` (`softbench.run.fleet.messages`). It sends `Opened` with the machine and its backends, then
for each case `Records`; `Log`, `Note`, `Done`, and `Error` before it ends. `Beat` comes every second. When stdin closes, it ends with all
its workers.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import IO, NoReturn

from softbench import __version__
from softbench.core.case import Case
from softbench.core.errors import Interrupted, SoftbenchError, UsageError
from softbench.core.json import JsonObject, to_json
from softbench.core.outcome import Record
from softbench.ops import registry
from softbench.ops.declaration import from_json
from softbench.plan.plan import Plan
from softbench.plan.settings import WORKER
from softbench.plugins.info import info_to_json
from softbench.processes.activity import Activity
from softbench.processes.session import Session
from softbench.results.records import record_to_json
from softbench.run.cpu_load import CpuLoad
from softbench.run.fleet import messages, processors
from softbench.run.fleet.messages import Beat, Done, Error, FromCard, Log, Measure, Note, Open, Opened, Records
from softbench.run.judged_cells import CellJudge
from softbench.run.pace import Pace, Pacing, working
from softbench.run.request import request_from_json
from softbench.run.run import Prepared, Watch, execute, in_turn, open_session, prepare

BEAT_SECONDS = 1.0


class Link:
    """The messages to the fleet. It also is the observer of the card's run."""

    def __init__(self, out: IO[str]) -> None:
        self._out, self._lock = out, threading.Lock()
        self._doing: Callable[[], str] = str
        self._pace: Pacing | None = None

    def send(self, message: FromCard) -> None:
        """Send a message. A fleet that is gone ends this process."""
        with self._lock:
            try:
                self._out.write(json.dumps(to_json(message), separators=(",", ":")) + "\n")
                self._out.flush()
            except OSError:
                os.kill(os.getpid(), signal.SIGTERM)

    def beat(self) -> None:
        """Say every second how far this card is, until the process ends."""
        over = threading.Event()
        while not over.wait(BEAT_SECONDS):
            pace = self._pace
            self.send(Beat(pace.doing(), pace.seconds_left()) if pace else Beat(self._doing(), 0.0))

    def watch(self, doing: Callable[[], str]) -> None:
        self._doing = doing

    def begin(self, plan: Plan, pace: Pacing, name: str) -> None:
        self._pace = pace

    def advance(self, case: Case) -> None:
        """The fleet counts records."""

    def note(self, text: str, *, error: bool = False) -> None:
        self.send(Note(text))


class Sent:
    """Takes the place of the store (`softbench.results.writer.Keeps`): records go to the fleet."""

    def __init__(self, link: Link, stored: set[tuple[int, Case]]) -> None:
        """`stored` has the cases of each process set that the fleet has from this unit already."""
        self.link, self.stored = link, stored

    def has(self, process: int, names: Sequence[str], case: Case) -> bool:
        return (process, case) in self.stored

    def add(self, process: int, records: Sequence[Record]) -> None:
        self.link.send(Records(process, tuple(map(record_to_json, records))))

    def keep_log(self, label: str, text: str) -> None:
        self.link.send(Log(label, text))


def main() -> NoReturn:
    """Serve the fleet until it closes stdin."""
    link = Link(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)  # what else is printed must not get between the messages
    received: queue.Queue[JsonObject | None] = queue.Queue()
    _on_end(_interrupt)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the fleet, which then closes stdin
    threading.Thread(target=_receive, args=(received,), daemon=True).start()
    threading.Thread(target=link.beat, daemon=True).start()
    code = 0
    try:
        with ExitStack() as end:
            try:
                serve(link, received.get, end)
            finally:
                _on_end(signal.SIG_IGN)  # nothing interrupts the end of the workers
    except SoftbenchError as error:
        link.send(Error(str(error), error.exit_code))
        code = error.exit_code
    except Interrupted:
        pass
    except BaseException:
        sys.excepthook(*sys.exc_info())  # into the card's log, whose last line the fleet reads
        code = 1
    sys.stderr.flush()
    os._exit(code)  # the thread that reads stdin may hold its lock


def _on_end(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """What to do at a signal that ends the card. Slurm may send both to all processes of a job."""
    for signum in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(signum, handler)


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    _on_end(signal.SIG_IGN)  # once is enough; what follows is the end of the workers
    raise Interrupted(signum)


def _receive(received: queue.Queue[JsonObject | None]) -> None:
    with suppress(OSError, ValueError):
        for line in sys.stdin:
            received.put(json.loads(line))
    received.put(None)
    os.kill(os.getpid(), signal.SIGTERM)


def serve(link: Link, receive: Callable[[], JsonObject | None], end: ExitStack) -> None:
    """Open the card's session, then measure what the fleet deals. The session is left with `end`.

    Raises:
        SoftbenchError: the card cannot be opened, or cannot go on.
        ValueError: a message is invalid.
    """
    first = _next(receive)
    if not isinstance(first, Open):
        return
    if mine := first.processors or (processors.of_node(*first.of_node) if first.of_node else None):
        os.sched_setaffinity(0, mine)  # the workers inherit it
    for file, operation in first.operations.items():
        registry.add(from_json(operation), file)
    request = request_from_json({**first.request, "flags": {**first.request["flags"], "device": first.device}})
    activity = Activity()
    link.watch(partial(working, activity))
    settings = request.settings()
    if settings.threads and settings.threads > (most := len(os.sched_getaffinity(0))):
        raise UsageError(f"--threads {settings.threads}: must be at most {most}, the processors of the card {first.device}")
    session = in_turn(request, activity, link, end)[0] if first.wait else end.enter_context(open_session(settings, activity))
    prepared = prepare(session, request)
    link.send(_about(session, prepared))
    while isinstance(message := _next(receive), Measure):
        _measure(link, message, session, prepared)
        link.send(Done(session.pool.activity.seconds))


def _next(receive: Callable[[], JsonObject | None]) -> Open | Measure | None:
    """The fleet's next message; None if it is gone."""
    data = receive()
    return None if data is None else messages.to_card(data)


def _about(session: Session, prepared: Prepared) -> Opened:
    """What the fleet plans with: the machine and its backends."""
    return Opened(
        softbench=__version__,
        machine=session.machine,
        gpu=session.machine.gpus.index(session.gpu) if session.gpu else None,
        unit=prepared.plan.unit,
        infos=tuple(messages.Backend(info.origin.label, info_to_json(info)) for info in prepared.plan.infos),
        unsupported=tuple(prepared.unsupported),
    )


def _measure(link: Link, message: Measure, session: Session, prepared: Prepared) -> None:
    """Measure cases, with all backends or some, and send their records."""
    plan = replace(prepared.plan, cases=message.cases)
    if chosen := message.backends:
        infos = tuple(info for info in plan.infos if info.name in chosen)
        settings = replace(plan.settings, profile="off", processes=1, judge=WORKER)
        plan = replace(plan, infos=infos, groups=(tuple(info.name for info in infos),), settings=settings)
    kept = Sent(link, set(message.stored))
    slots = [slot for slot in prepared.slots if slot.info.name in {info.name for info in plan.infos}]
    pace = Pace(plan, session.pool.activity, kept.has, prepared.unsupported)
    link.begin(plan, pace, "")
    session.pool.tell(kept.keep_log)
    with CellJudge(plan, session.pool.activity) as judge:
        watch = Watch(link, pace, CpuLoad(link.note), judge.judged)
        execute(plan, kept, watch, session.pool, slots, session.environment)


if __name__ == "__main__":
    main()
