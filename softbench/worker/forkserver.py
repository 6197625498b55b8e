"""The forkserver: the process that forks the workers. It imports torch once, so that a worker starts in milliseconds.

`multiprocessing` has a similar forkserver, with four differences. Its start blocks without a deadline while torch is imported. Each child
runs the caller's main module again. It keeps a second helper process. Its processes cannot be ended as a group.

Protocol on the control socket (SOCK_SEQPACKET: a message is a datagram, and the other side's close is seen):

    parent     -> {"id": 3, "env": {...}}, with two descriptors: the worker's end of its pipe, and its log.
    forkserver -> {"id": 3, "pid": 4711}, and after the worker's end {"pid": 4711, "code": -11}; {"id": 3, "errno": 11} if fork failed.
    parent     -> {"preload": true}: import what workers have told (`preload_file`) as soon as they do; false: no more.
    forkserver -> {"ready": true} once torch is imported, or {"ready": false, "error": "..."}.

The forkserver ends when the parent closes the control socket or its writing half, also during the import of torch. All workers end with
it, because each asks the kernel for a signal at its parent's death.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import site
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from softbench.core.toolchain import BY_NVML, FRESH_CACHES, PRELOADED, fresh_caches, preload_file

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MESSAGE_BYTES = 1 << 16
OOM_SCORE = "500"
"""If memory runs out, Linux kills a worker rather than the forkserver or the parent, which have the default of 0."""
LOOK_SECONDS = 0.1
"""How often a forkserver that waits for the file of modules looks for it."""
OF_JOBS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that Slurm sends to all processes of a job. The parent ends the workers then; one that ended before would be a failed cell."""


def borrow(folders: Sequence[str]) -> None:
    """Put folders of packages of softbench's environment, with the parts that their `.pth` files add, behind those of this process.

    Editable installs are not lent: the environment may have none of that package, and their code is elsewhere than in these folders.
    """
    own, finders = [*sys.path], [*sys.meta_path]
    for folder in folders:
        site.addsitedir(folder)
    added = dict.fromkeys(path for path in sys.path if path not in own)
    sys.path[:] = [*own, *(path for path in added if any(Path(path).is_relative_to(folder) for folder in folders))]
    sys.meta_path[:] = finders


def main(descriptor: int) -> None:
    """Serve the control socket until it closes."""
    for signum in OF_JOBS:
        signal.signal(signum, lambda *_: None)  # no SIG_IGN, which the programs that it starts would inherit
    control = socket.socket(fileno=descriptor)
    control.set_inheritable(False)  # the parent must see the close, even if a child process lives on
    from softbench.worker.garbage_collection import seldom

    try:
        with _ending_with(control), seldom():
            import softbench.worker.serve  # noqa: F401 - imports torch, which every worker then has
            from softbench.plugins import load
            from softbench.worker import compiler_cache
            from softbench.worker.guarding import tamper_guard

            _preload()
            tamper_guard.remember()
            compiler_cache.remove_libraries()
            compiler_cache.remove_locks()
            load.remember()
    except BaseException as error:  # a broken torch may raise anything at import; the parent reports it
        _send(control, {"ready": False, "error": f"{type(error).__name__}: {error}"})
        return
    gc.freeze()  # else the first collections of each worker visit and copy what all share
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # inherit what a plugin started in its own session
    _send(control, {"ready": True})
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # with a handler and a wake-up descriptor, select wakes for ended children
    signal.set_wakeup_fd(wake_write)
    waiting = False
    while True:
        readable, _, _ = select.select([control.fileno(), wake_read], [], [], LOOK_SECONDS if waiting else None)
        if not readable:
            with seldom():
                waiting = not _preload()
            load.remember()
            gc.freeze()
        if wake_read in readable:
            os.read(wake_read, MESSAGE_BYTES)
            _reap(control)
        if control.fileno() in readable:
            try:
                data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 2)
            except OSError:  # a parent that was killed may reset the connection
                data = b""
            if not data:
                _end_children()
                os._exit(0)  # torch's own exit is slow
            order = json.loads(data)
            waiting = order.get("preload", waiting)
            if "id" in order:
                _fork(control, order, descriptors, wake_read, wake_write)


def _preload() -> bool:
    """Import the modules that earlier workers had, which may take seconds; false if none has told them yet.

    None may start CUDA, which no fork could use then.
    """
    if (file := preload_file()) is None:
        return False
    try:
        names = file.read_text("utf-8").split()
    except OSError:
        return False
    before = os.environ.get(BY_NVML)
    os.environ[BY_NVML] = "1"
    try:
        for name in names:
            with suppress(Exception):
                if name.partition(".")[0] in PRELOADED:
                    importlib.import_module(name)
        with suppress(Exception):  # a hash of Triton's own files, of which one has 400 MB, before the first kernel of a process
            sys.modules["triton.runtime.cache"].triton_key()
        return True
    finally:
        del os.environ[BY_NVML]
        os.environ |= {BY_NVML: before} if before is not None else {}


@contextmanager
def _ending_with(control: socket.socket) -> Iterator[None]:
    """Ends this process when the other side of `control` closes, because an interrupt may end the parent before it knows this process."""
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
    finally:  # no thread may run when workers are forked
        os.write(end, b".")  # a close would not be seen while a child process of the import has the descriptor, too
        watcher.join()
        os.close(end)
        os.close(over)


def _fork(control: socket.socket, order: dict[str, Any], descriptors: list[int], *wake: int) -> None:
    try:
        if len(descriptors) < 2:  # the kernel drops those that this process may not have
            raise OSError(errno.EMFILE, "")
        pid = os.fork()
    except OSError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        _send(control, {"id": order["id"], "errno": error.errno})
        return
    pipe, log = descriptors
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
    os.setsid()  # its own group can be killed as a whole, and a terminal's Ctrl-C does not reach it
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    signal.set_wakeup_fd(-1)
    for signum in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(signum, signal.SIG_DFL)
    _let_children_end()
    control.close()
    for descriptor in wake:
        os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)  # a plugin may print; replies use the pipe
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the parent signals a hanging worker to get its stack
    os.environ.update(order["env"])
    if folder := os.environ.get(FRESH_CACHES):
        os.environ |= fresh_caches(f"{folder}/{os.getpid()}")
    tempfile.tempdir = None  # torch's import made it that of the forkserver's TMPDIR; a judged plugin may write only in its own
    from softbench.core.channel import Channel
    from softbench.worker.serve import serve

    serve(Channel(socket.socket(fileno=pipe), takes_descriptors=True))


def _let_children_end() -> None:
    """SIGTERM ends the processes that a plugin forks, as autotuners expect. One that comes during the fork waits until then."""
    of_children = (signal.SIGTERM,)

    def in_child() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, of_children)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, of_children),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, of_children),
        after_in_child=in_child,
    )


def _end_children() -> None:
    """Kill all children, and the processes that become children by that, until none is left."""
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
    except OSError:  # the parent is gone
        _end_children()
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
