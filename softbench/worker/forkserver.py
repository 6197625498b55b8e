"""The process that workers are forked from: it imports torch once, so that a worker starts in milliseconds.

`multiprocessing`'s forkserver does nearly this. It is not used because its start blocks without a deadline while torch is imported,
it runs the caller's main module again in every child, it keeps a second helper process, and its processes cannot be ended as a group.

Protocol on the control socket (SOCK_SEQPACKET: a message is a datagram, and closing is seen):

    parent  -> {"id": 3, "env": {...}} with two descriptors: the worker's end of its pipe, and its log
    nursery -> {"id": 3, "pid": 4711}            and later {"pid": 4711, "code": -11}
    nursery -> {"ready": true} once torch is imported, or {"ready": false, "error": "..."} when it cannot be

Closing the control socket, or only the parent's writing half of it, ends the nursery, also while it imports torch, and with it every worker
(each asks the kernel to be killed with its parent).
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES = 1 << 16


def main(descriptor: int) -> None:
    """Serve the control socket until it closes."""
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)  # that this process has closed it is to be seen, whatever it started
    try:
        with _ending_with(control):
            import softbench.worker.server  # noqa: F401 - imports torch, which every worker then has
    except BaseException as error:  # a broken torch may raise anything at import; all of it is the answer
        _send(control, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a plugin starts in a session of its own becomes ours when its worker ends
    _send(control, {"ready": True})
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler and a wake-up descriptor, select wakes for ended children
    signal.set_wakeup_fd(wake_write)
    while True:
        readable, _, _ = select.select([control.fileno(), wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, MESSAGE_BYTES)
            _reap(control)
        if control.fileno() in readable:
            data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
            if not data:
                _end_children()
                os._exit(0)  # torch's own ending takes a while
            _fork(control, json.loads(data), descriptors, wake_read, wake_write)


@contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """Ends this process when the other side of `control` closes: an interrupt may end the parent before it knows of its nursery."""
    over, end = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(control, select.POLLRDHUP)
        poll.register(over, select.POLLIN)
        if any(descriptor == control.fileno() for descriptor, _ in poll.poll()):
            os._exit(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:  # no thread is left when workers are forked
        os.write(end, b".")  # closing it would be no news while a child of the import has it, too
        watcher.join()
        os.close(end)
        os.close(over)


def _fork(control: socket.socket, order: dict[str, Any], descriptors: list[int], *wake: int) -> None:
    pipe, log = descriptors
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _become_worker(control, order, pipe, log, wake)
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # into the worker's log
        finally:
            sys.stderr.flush()
            os._exit(code)  # no atexit handlers of a plugin, no slow teardown
    os.close(pipe)
    os.close(log)
    _send(control, {"id": order["id"], "pid": pid})


def _become_worker(control: socket.socket, order: dict[str, Any], pipe: int, log: int, wake: tuple[int, ...]) -> None:
    os.setsid()  # a group of its own: it can be killed with all it started, and a terminal's Ctrl-C does not reach it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_DFL)
    control.close()
    for descriptor in wake:
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)  # a plugin may print; results do not travel there
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent asks a worker that hangs where it hangs
    os.environ.update(order["env"])
    from softbench.core.channel import Channel
    from softbench.worker.server import serve

    serve(Channel(socket.socket(fileno=pipe)))


def _end_children() -> None:
    """Kill every child, and what becomes our child by that, until none is left."""
    for _ in range(100):
        children = [pid for pid in _processes() if _parent(pid) == os.getpid()]
        if not children:
            return
        for pid in children:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with suppress(OSError):
                os.waitpid(pid, 0)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _parent(pid: int) -> int:
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _reap(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _send(control, {"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(message).encode())
    except OSError:
        sys.exit(0)  # the parent is gone


if __name__ == "__main__":
    main(int(sys.argv[1]))
