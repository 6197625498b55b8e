"""Starting the forkserver (`softbench.worker.forkserver`), from the parent's side."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import softbench
from softbench.processes.sanitizer import Sanitizer

END_SECONDS = 10.0  # importing torch holds the interpreter: the forkserver's watching thread may have to wait for it
_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from softbench.worker.forkserver import main; main(int(sys.argv[2]))"
_ELSEWHERE = (
    "import json, sys; own, version, lent = json.loads(sys.argv[1]); sys.path.insert(0, own); import softbench; del sys.path[0]; "
    "sys.path += [own] if own not in sys.path else []; from softbench.worker.forkserver import borrow, main; "
    "borrow(lent if version == [*sys.version_info[:2]] else []); main(int(sys.argv[2]))"
)
"""In another environment its own packages come first, but for a softbench, which may be another version than that of the parent.

What it lacks, such as msgspec, softbench lends if both have one Python.
"""

SPINS = "10000"
"""How often a waiting OpenMP thread looks before it sleeps; libgomp's own number is 300000.

If another process has one of two cores, a waiting thread takes the other one from the thread that works.
"""


def openmp_environment(threads: int | None) -> dict[str, str]:
    """Variables of OpenMP, which reads them when torch is imported. `threads`: the CPU threads of torch; None keeps its own number.

    A user's own waiting policy stays.
    """
    chosen = {} if threads is None else dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    waits = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys()
    return chosen if waits else {**chosen, "GOMP_SPINCOUNT": SPINS}


def start_forkserver(
    log: Path, environment: Mapping[str, str], under: Sanitizer | None = None, python: str = ""
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A forkserver with this process's `sys.path` that prints into `log`, and the parent's end of its control socket.

    `environment` is added to this process's variables. `under` runs it and its workers. `python` is the interpreter of another environment,
    whose packages it then has.

    An interrupt can arrive before the caller knows the new process. After any exception the socket tells the process to end, and this
    function waits at most END_SECONDS for that.

    Raises:
        OSError: no process could be started.
    """
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code, paths = (_ELSEWHERE, _lent()) if python else (_CODE, sys.path)
    line = [python or sys.executable, "-P", "-X", "faulthandler", "-c", code, json.dumps(paths), str(theirs.fileno())]
    inherited = {key: value for key, value in os.environ.items() if not (python and key in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"))}
    try:
        with theirs, log.open("wb") as output:
            process = subprocess.Popen(
                under.command(log.parent, line) if under else line,
                pass_fds=[theirs.fileno()],
                env={**inherited, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
    except BaseException:
        theirs.close()  # the interrupt may have come before the close
        _wait_for_its_end(control)
        raise
    return process, control


def _lent() -> tuple[str, tuple[int, int], list[str]]:
    """The folder of softbench, its version of Python, and the folders of packages that it has."""
    return str(Path(softbench.__file__).parents[1]), sys.version_info[:2], [path for path in sys.path if path.endswith("-packages")]


def _wait_for_its_end(control: socket.socket) -> None:
    end = time.monotonic() + END_SECONDS
    with control, suppress(OSError):  # too slow or already gone; the caller gets the first exception
        control.shutdown(socket.SHUT_WR)
        while (left := end - time.monotonic()) > 0:
            control.settimeout(left)
            if not control.recv(1 << 16):
                return
