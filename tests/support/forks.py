"""Commands and forkservers without their imports: one process imports softbench and torch once, and forks each of them.

A command costs seconds of imports, most of them in its forkserver. A fork has what a new process imports, so that the rest is the same:
arguments, folder, environment, output files, forkserver, workers. The processes of pytest-xdist share the imports: `Imports` forks a
forking process for each. That one is the subreaper of its forks, so it finds all that is left. Without a GPU the processes of pytest-xdist
are forks too (`forked_python`): each would import for seconds before its first test.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import uuid
import warnings
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import ModuleType

from softbench.processes.launch import openmp_environment

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MADV_COLLAPSE = 25  # since Linux 6.1
HUGE = 1 << 21
MESSAGE_BYTES = 1 << 18
INDUCTORS = "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"
"""A pointer of this process; torch.compile sets the variable before each use."""
IMPORTS = "SOFTBENCH_TEST_IMPORTS"
"""The socket of the process with the imports, which pytest-xdist's processes share."""
DECIDING = "SOFTBENCH_TEST_DECIDING"
"""The variables of the tests that imports may read."""
READ_LATE = (
    *("PATH", "CC", "CXX", "CUDA_HOME", "HOME", "TORCHINDUCTOR_CACHE_DIR", "COLUMNS", "LINES", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE"),
    *("PYTEST_", "SOFTBENCH_", "XDG_", "GITHUB_", "TEARDOWN_CUPTI", INDUCTORS),
)
"""The first letters of variables that no import of the forking process reads, or that `command` reads in place of Python."""
IMPORTED_BY_WORKERS = ("torch.utils.benchmark", "torch._dynamo", "torch._inductor.compile_fx")
"""What a worker imports for the tamper guard, and to compile."""
IMPORTED_BY_TESTS = (
    *("softbench.kernels.cuda", "softbench.kernels.triton.operator", "softbench.kernels.triton.masked_softmax", "pytest", "hypothesis"),
    *("softbench.kernels.automatic.masked_softmax", "matplotlib.figure", "pandas", "torch.testing._internal.optests"),
)
"""What files of tests import."""
SEARCHED = [*sys.path]
"""The folders where a new process searches for modules; importing setuptools adds one."""
RUNNING: dict[int, socket.socket] = {}
"""In the forking process: the sockets for the exit codes of its forks, by process number."""


class Fork:
    """A fork, with the methods of `subprocess.Popen` that softbench's pool needs."""

    def __init__(self, orders: socket.socket, order: dict, descriptors: list[int]) -> None:
        self.replies, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(orders, [json.dumps(order).encode()], [theirs.fileno(), *descriptors])
        self.pid, self.returncode = json.loads(self.replies.recv(MESSAGE_BYTES))["pid"], None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.replies.settimeout(timeout)
            try:
                self.returncode = json.loads(self.replies.recv(MESSAGE_BYTES))["code"]
            except TimeoutError:
                raise subprocess.TimeoutExpired("a fork", timeout) from None
            self.replies.close()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Command(Fork):
    """A fork that is a command, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, orders: socket.socket, order: dict) -> None:
        self.files = [tempfile.TemporaryFile("w+") for _ in ("stdout", "stderr")]  # noqa: SIM115 - closed by communicate
        super().__init__(orders, order, [file.fileno() for file in self.files])

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        texts = []
        for file in self.files:
            with file:
                file.seek(0)
                texts.append(file.read())
        return texts[0], texts[1]


def deciding(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that imports may read."""
    return {name: value for name, value in env.items() if not name.startswith(READ_LATE)}


class Imports:
    """The process that imports, from the side that starts it. `Forks` finds it at `address`, processes of tests at `tests`.

    `many`: it has many forks, as the processes of pytest-xdist share it.
    """

    def __init__(self, env: Mapping[str, str], *, many: bool = False) -> None:
        self.address = f"softbench-tests-{uuid.uuid4().hex}"
        self.tests = f"{self.address}-tests"
        with closing(_listening(self.address)) as listening, closing(_listening(self.tests)) as of_tests:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(listening.fileno()), str(of_tests.fileno()), str(many)],
                pass_fds=[listening.fileno(), of_tests.fileno()],
                env=env | openmp_environment(None) | {DECIDING: json.dumps(deciding(env))},  # other users see arguments
                stdin=subprocess.PIPE,
                start_new_session=True,
            )

    def python(self) -> str:
        """The command that stands in for Python where pytest-xdist starts its processes."""
        return shlex.join([sys.executable, "-IS", str(Path(__file__).with_name("forked_python.py")), self.tests])

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def _listening(address: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"\0{address}")  # no file
    made.listen()
    return made


class Forks:
    """A forking process, from the test's side."""

    def __init__(self, address: str) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process.connect(f"\0{address}")
        with theirs:
            socket.send_fds(self.process, [b"fork"], [theirs.fileno(), self.orders.fileno()])
        self.env = json.loads(self.process.recv(MESSAGE_BYTES))

    def suit(self, env: Mapping[str, str]) -> bool:
        """True if a fork can have this environment: other variables are read at imports."""
        return deciding(env) == self.env

    def run(self, words: list[str], cwd: Path, env: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
        """`python -m softbench` with these words."""
        return self._ended(self.start(words, cwd, env), timeout)

    def start(self, words: list[str], cwd: Path, env: dict[str, str]) -> Command:
        """The same, while it runs."""
        return Command(self.orders, {"kind": "command", "words": words, "cwd": str(cwd), "env": env})

    def run_code(self, code: str, env: dict[str, str], timeout: float) -> subprocess.CompletedProcess[str]:
        """`python -c` with this code, without warnings. Triton is not imported yet."""
        return self._ended(Command(self.orders, {"kind": "code", "words": [code], "cwd": str(Path.cwd()), "env": env}), timeout)

    def _ended(self, fork: Command, timeout: float) -> subprocess.CompletedProcess[str]:
        try:
            out, err = fork.communicate(timeout)
        except BaseException:
            fork.kill()
            raise
        return subprocess.CompletedProcess([], fork.returncode, out, err)

    def left(self) -> list[str]:
        """The command lines of the live processes that forks left behind."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                socket.send_fds(self.orders, [b'{"kind": "left"}'], [theirs.fileno()])
            return json.loads(ours.recv(MESSAGE_BYTES))

    def close(self) -> None:
        self.process.shutdown(socket.SHUT_WR)
        self.process.recv(1)  # until it has ended
        self.process.close()
        self.orders.close()


def start_forkserver(
    orders: socket.socket, log: Path, environment: dict[str, str], under: object = None, python: str = ""
) -> tuple[Fork, socket.socket]:
    """Stands in for `softbench.processes.launch.start_forkserver`. Of the environment of `python` the fork has the packages."""
    first = map(str, Path(python).parent.parent.glob("lib/python*/site-packages")) if python else ()
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, log.open("wb") as output:
        order = {"kind": "forkserver", "cwd": str(Path.cwd()), "env": {**os.environ, **environment}, "path": [*first, *sys.path]}
        return Fork(orders, order, [theirs.fileno(), output.fileno(), output.fileno()]), control


def main(descriptor: int, of_tests: int, many: bool) -> None:
    """The process with the imports: forks a forking process for each that connects, until standard input closes."""
    gc.disable()
    env = os.environ.pop(DECIDING)
    import_all()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    if many and not os.fork():
        fork_tests(socket.socket(fileno=of_tests))
    os.close(of_tests)
    importlib.import_module("softbench.worker.guarding.tamper_guard").remember()  # as the forkserver does
    gc.freeze()
    gc.enable()
    if many:
        use_huge_pages()
    listening = socket.socket(fileno=descriptor)
    while 0 not in select.select([0, listening.fileno()], [], [])[0]:
        connected, _ = listening.accept()
        _, descriptors, _, _ = socket.recv_fds(connected, MESSAGE_BYTES, 2)
        connected.send(env.encode())
        if not os.fork():
            listening.close()
            take_orders(connected, *(socket.socket(fileno=one) for one in descriptors))
        connected.close()
        for one in descriptors:
            os.close(one)


def use_huge_pages() -> None:
    """Let the kernel make huge pages of what forks share: a fork copies an entry for each page. It is no error if it cannot."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, name = [*line.split(maxsplit=5), ""][:6]
        if rights == "rw-p" and name in ("", "[heap]"):
            start, end = (int(address, 16) for address in place.split("-"))
            start, end = -(-start // HUGE) * HUGE, end // HUGE * HUGE
            if start < end:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), MADV_COLLAPSE)


def fork_tests(listening: socket.socket) -> None:
    """Fork the processes that run tests, until standard input closes."""
    if select.select([listening.fileno(), 0], [], [])[0] == [listening.fileno()]:
        for name in IMPORTED_BY_TESTS:
            importlib.import_module(name)
    while 0 not in select.select([0, listening.fileno()], [], [])[0]:
        connected, _ = listening.accept()
        data, streams, _, _ = socket.recv_fds(connected, MESSAGE_BYTES, 3)
        if not (pid := os.fork()):
            listening.close()
            run_tests(json.loads(data), streams)
        with suppress(OSError), connected:  # one that was interrupted does not wait
            connected.send(str(pid).encode())
        for one in streams:
            os.close(one)
    os._exit(0)


def run_tests(order: dict, streams: list[int]) -> None:
    """Become the Python that `forked_python` stands in for. It never returns."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for stream, given in enumerate(streams):
            os.dup2(given, stream)
            os.close(given)
        os.environ.clear()
        os.environ.update(order["env"])
        random.seed()
        gc.enable()
        sys.modules["__main__"] = ModuleType("__main__")
        exec(order["code"], vars(sys.modules["__main__"]))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def import_all() -> None:
    import softbench.cli.output
    import softbench.report.check_report
    import softbench.report.progress
    import softbench.report.tables
    import softbench.run.check
    import softbench.run.run
    import softbench.worker.serve  # noqa: F401
    from softbench.cli.main import COMMANDS

    for module, _ in COMMANDS.values():
        importlib.import_module(f"softbench.cli.{module}")

    with suppress(ImportError):  # some versions of Typer import it, and pydantic, when they parse the first argument
        import typer._adapters  # noqa: F401
    if not list(Path("/dev").glob("nvidia[0-9]*")):  # torch.utils.benchmark calls the CUDA driver, which no fork could use then
        import_for_workers()


def take_orders(connected: socket.socket, taken: socket.socket, given: socket.socket) -> None:
    """The forking process: takes orders until the test's side shuts the connection."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    while True:
        readable, _, _ = select.select([connected.fileno(), taken.fileno(), wake_read], [], [])
        if connected.fileno() in readable:  # closed
            os._exit(0)
        if wake_read in readable:
            os.read(wake_read, 4096)
            reap()
        if taken.fileno() in readable:
            data, descriptors, _, _ = socket.recv_fds(taken, MESSAGE_BYTES, 4)
            order = json.loads(data)
            replies = socket.socket(fileno=descriptors[0])
            if order["kind"] == "left":
                reap()
                replies.send(json.dumps(left_behind()).encode())
                replies.close()
            elif pid := os.fork():
                RUNNING[pid] = replies
                replies.send(json.dumps({"pid": pid}).encode())
            else:
                become(order, descriptors, [connected.fileno(), taken.fileno(), wake_read, wake_write], given)
            for fd in descriptors[1:]:
                os.close(fd)


def import_for_workers() -> None:
    """Import what workers import, except Triton: each worker imports that with or without its interpreter."""
    sys.modules["triton"] = None
    for name in IMPORTED_BY_WORKERS:
        importlib.import_module(name)
    del sys.modules["triton"]
    importlib.import_module("torch.utils._triton").has_triton_package.cache_clear()


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if replies := RUNNING.pop(pid, None):
            with suppress(OSError), replies:  # a test that was interrupted does not wait
                replies.send(json.dumps({"code": os.waitstatus_to_exitcode(status)}).encode())


def left_behind() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [*filter(None, found)]  # one that ends has no command line any more


def become(order: dict, descriptors: list[int], others: list[int], orders: socket.socket) -> None:
    """Become a command or a forkserver. It never returns."""
    code = 1
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT, and its children inherit that
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(descriptors[-2], 1)
        os.dup2(descriptors[-1], 2)
        kept = descriptors[1] if order["kind"] == "forkserver" else orders.fileno()
        for fd in {*descriptors, *others, nothing, orders.fileno(), *(one.fileno() for one in RUNNING.values())} - {kept}:
            os.close(fd)
        os.environ.clear()
        os.environ.update(order["env"])
        os.chdir(order["cwd"])
        random.seed()
        if order["kind"] == "code":
            code = run_code(order)
        else:
            code = serve(kept, order["path"]) if order["kind"] == "forkserver" else command(order, orders)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
        os._exit(code)


def command(order: dict, orders: socket.socket) -> int:
    import softbench
    from softbench.cli import main as cli
    from softbench.processes import worker_pool

    sys.path[:] = SEARCHED
    sys.path[:0] = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder and folder not in sys.path]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.argv = [str(Path(softbench.__file__).with_name("__main__.py")), *order["words"]]
    worker_pool.start_forkserver = lambda log, environment, *others: start_forkserver(orders, log, environment, *others)
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)


def run_code(order: dict) -> int:
    warnings.simplefilter("ignore")
    (code,) = order["words"]
    exec(compile(code, "<code of a test>", "exec"), {"__name__": "__main__"})
    return 0


def serve(control: int, path: list[str]) -> int:
    import torch

    from softbench.worker import forkserver

    sys.path[:] = path
    if threads := os.environ.get("OMP_NUM_THREADS"):  # which OpenMP read when torch was imported
        torch.set_num_threads(int(threads))
    forkserver.main(control)
    return 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "True")
