"""Real worker processes: they start, die, hang and are gone."""

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from timed import wait_for

from softbench.core.errors import UsageError, WorkersError
from softbench.core.json import to_json
from softbench.core.messages import LoadSource, ProbeMachine
from softbench.core.outcome import Status
from softbench.core.toolchain import FRESH_CACHES, PRELOAD, preload_file
from softbench.plugins.source import PluginSource
from softbench.processes import launch, worker_pool
from softbench.processes.launch import END_SECONDS
from softbench.processes.slot import load_request
from softbench.processes.worker_pool import Lost, NotStartedError, Pool
from softbench.worker import forkserver

OF_OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")


@pytest.fixture(scope="module")
def pool():
    with pytest.MonkeyPatch.context() as patch:
        for name in OF_OPENMP:
            patch.delenv(name, raising=False)
        with Pool(threads=1) as pool:
            yield pool
            pool.spawn("last")
            forkserver = pool._forkserver.pid
        assert gone(forkserver)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def plugin(tmp_path: Path, code: str) -> LoadSource:
    path = tmp_path / "plug.py"
    path.write_text(code)
    return load_request(PluginSource("file", "plug", str(path), "plug.py"), "cpu")


def test_a_worker_reports_the_machine(pool):
    reply = pool.ask(pool.spawn("probe"), ProbeMachine(), 60, "probe")
    assert reply.machine.software["torch"] == reply.machine.torch


def test_workers_have_their_own_process_group_and_environment(pool, tmp_path):
    worker = pool.spawn("x", {"SOFTBENCH_X": "7"})
    code = "import os\nraise RuntimeError(f\"{os.environ['SOFTBENCH_X']} {os.getpid()} {os.getpgrp()} {os.getsid(0)}\")"
    reply = pool.ask(worker, plugin(tmp_path, code), 60, "import")
    assert reply.reason.startswith(f"RuntimeError: 7 {worker.pid} {worker.pid} {worker.pid} (in <module>, plug.py:")


def test_each_worker_has_fresh_caches_of_compilers_below_a_folder(pool, tmp_path):
    code = "import os\nraise RuntimeError(os.environ['CUPY_CACHE_DIR'])"
    for worker in [pool.spawn("x", {FRESH_CACHES: f"{pool.folder}/caches"}) for _ in range(2)]:
        reply = pool.ask(worker, plugin(tmp_path, code), 60, "import")
        assert reply.reason.startswith(f"RuntimeError: {pool.folder}/caches/{worker.pid}/CUPY_CACHE_DIR")


def test_a_forkserver_imports_what_earlier_workers_had(tmp_path, monkeypatch):
    """Torch's own modules, which a package needs, take seconds in each process set."""
    monkeypatch.setenv(PRELOAD, str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "torch.utils.model_zoo", raising=False)  # another test may have imported it
    assert not forkserver._preload()
    preload_file().mkdir()
    assert not forkserver._preload(), "what cannot be read ends no forkserver"
    preload_file().rmdir()
    preload_file().write_text("torch\ntorch.no_such_module\nantigravity\ntorch.utils.model_zoo")
    assert forkserver._preload()
    assert "torch.utils.model_zoo" in sys.modules
    assert "antigravity" not in sys.modules, "a package may name its own modules"


def test_a_forkserver_waits_for_what_workers_tell(tmp_path, monkeypatch):
    """The workers that measure first begin sooner, as their forkserver works while targets are read."""
    monkeypatch.setenv(PRELOAD, str(tmp_path / "modules"))
    code = "import sys\nraise RuntimeError('torch.utils.model_zoo' in sys.modules)"

    def has_it(pool):
        return "RuntimeError: True" in pool.ask(pool.spawn("x"), plugin(tmp_path, code), 60, "import").reason

    with Pool(threads=1) as pool:
        pool.preload(wait=True)
        assert not has_it(pool)
        preload_file().write_text("torch.utils.model_zoo")
        wait_for(lambda: has_it(pool), 20)
        pool.preload(wait=False)


def test_workers_do_not_collect_what_they_share(pool, tmp_path):
    """A collection of all modules takes a quarter of a second and copies their memory."""
    code = "import gc\nraise RuntimeError(gc.get_freeze_count() > 10_000)"
    assert "RuntimeError: True" in pool.ask(pool.spawn("x"), plugin(tmp_path, code), 60, "import").reason


def test_packages_of_pth_files_are_lent_and_editable_installs_are_not(tmp_path, monkeypatch):
    """CuTe DSL comes by such a file. An environment without the package that is compared must not take softbench's editable one."""
    lent = tmp_path / "site-packages"
    (lent / "dsl" / "parts").mkdir(parents=True)
    (lent / "dsl.pth").write_text(f"import sys; sys.path.insert(0, {str(lent / 'dsl' / 'parts')!r})\n")
    (lent / "editable.pth").write_text(f"{tmp_path}\nimport sys; sys.meta_path.insert(0, object())\n")
    own, finders = ["", *sys.path], [*sys.meta_path]
    monkeypatch.setattr(sys, "path", [*own])
    monkeypatch.setattr(sys, "meta_path", [*finders])
    forkserver.borrow([str(lent)])
    assert sys.path[: len(own)] == own, "what the environment itself has comes first"
    assert set(sys.path[len(own) :]) == {str(lent), str(lent / "dsl" / "parts")}
    assert sys.meta_path == finders


def test_an_environment_with_a_softbench_of_its_own_runs_the_code_of_the_parent(tmp_path):
    (tmp_path / "softbench").mkdir()
    (tmp_path / "softbench" / "__init__.py").touch()
    code, sent = launch._ELSEWHERE.partition("borrow(lent")[0] + "print(main.__code__.co_filename)", json.dumps(launch._lent())
    line = [sys.executable, "-P", "-c", code, sent]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{forkserver.__file__}\n", done.stderr


def test_an_environment_that_starts_no_worker_is_named_with_what_it_needs(tmp_path, monkeypatch):
    """As a Python 3.10 does, which has no option -P."""
    (python := tmp_path / "python").write_text("#!/bin/sh\necho Unknown option: -P >&2\nexit 2\n")
    python.chmod(0o755)
    monkeypatch.setattr(worker_pool, "start_forkserver", launch.start_forkserver)
    with Pool(threads=1) as pool, pytest.raises(UsageError, match=r"python: runs no worker: Unknown option: -P; it needs .* 3\.11"):
        pool.spawn("x", python=str(python))


def test_a_crash_is_told_with_its_signal_and_place(pool, tmp_path):
    worker = pool.spawn("x")
    reply = pool.ask(worker, plugin(tmp_path, "import ctypes\ndef deref():\n    ctypes.string_at(0)\nderef()"), 60, "import")
    assert isinstance(reply, Lost)
    assert reply.status is Status.FAILED
    assert reply.reason.startswith("crashed (SIGSEGV) in import: in deref, plug.py:3: ctypes.string_at(0)")
    assert gone(worker.pid)


def test_a_damaged_heap_is_told_in_place_of_where_it_was_seen(pool, tmp_path):
    code = "import ctypes\nmemory = ctypes.create_string_buffer(64)\nctypes.CDLL(None).free(ctypes.c_void_p(ctypes.addressof(memory) + 8))"
    reply = pool.ask(pool.spawn("x"), plugin(tmp_path, code), 60, "import")
    assert reply.reason == "crashed (SIGABRT) in import: the heap is damaged, as by a write outside a tensor (free(): invalid pointer)"


def test_an_exit_is_told_with_its_code_and_last_words(pool, tmp_path):
    reply = pool.ask(pool.spawn("x"), plugin(tmp_path, "import os\nos.write(2, b'giving up\\n')\nos._exit(5)"), 60, "import")
    assert reply == Lost(Status.FAILED, "exited with code 5 in import: giving up")


def test_a_hang_ends_at_its_deadline_with_its_children(pool, tmp_path):
    code = f"""
import subprocess, time
child = subprocess.Popen(["sleep", "3600"])
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
time.sleep(3600)
"""
    worker = pool.spawn("x")
    start = time.monotonic()
    reply = pool.ask(worker, plugin(tmp_path, code), 1.0, "import")
    assert time.monotonic() - start < 30  # and not 3600
    assert reply.status is Status.TIMEOUT
    assert reply.reason == "import took longer than 1 s (in <module>, plug.py:5: time.sleep(3600))"
    assert gone(worker.pid)
    child = int((tmp_path / "child").read_text())
    wait_for(lambda: gone(child) or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2], 5)  # it is init's to reap


def test_a_reply_without_end_ends_at_its_deadline(pool, monkeypatch):
    """A part of it is there whenever the parent looks."""
    worker, start = pool.spawn("x"), time.monotonic()

    def fill():
        assert time.monotonic() - start < 20  # and not for ever
        return True

    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b" ")
        monkeypatch.setattr(worker.channel, "fileno", ours.fileno)
        monkeypatch.setattr(worker.channel, "fill", fill)
        reply = pool.ask(worker, ProbeMachine(), 1.0, "probe")
    assert (reply.status, reply.reason[:27]) == (Status.TIMEOUT, "probe took longer than 1 s "), reply
    assert gone(worker.pid)


def test_a_crash_is_detected_although_a_child_keeps_the_pipe(pool, tmp_path):
    code = "import ctypes, os, time\nif os.fork() == 0:\n    time.sleep(60)\n    os._exit(0)\nctypes.string_at(0)"
    start = time.monotonic()
    reply = pool.ask(pool.spawn("x"), plugin(tmp_path, code), 30, "import")
    assert time.monotonic() - start < 25  # and not its deadline of 30
    assert reply.reason.startswith("crashed (SIGSEGV)")


def test_sigterm_ends_what_a_plugin_started_and_not_its_worker(pool, tmp_path):
    """Slurm sends it to all processes of a job; autotuners send it to their compilers."""
    code = (
        "import multiprocessing, os, signal, time\n"
        "child = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "child.start()\nchild.terminate()\nchild.join(20)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nos.kill(os.getppid(), signal.SIGTERM)\n"
        "raise ValueError(f'its child ended with {child.exitcode}')"
    )
    assert pool.ask(pool.spawn("x"), plugin(tmp_path, code), 60, "import").reason.startswith("ValueError: its child ended with -15 ")
    assert pool.ask(pool.spawn("y"), ProbeMachine(), 60, "probe").machine.torch


@pytest.mark.slow
def test_a_plugins_detached_child_ends_when_the_connection_is_reset(tmp_path):
    """A parent that is killed leaves reports unread; the kernel then resets its connection."""
    code = f"""
import subprocess
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
"""
    with Pool() as pool:
        workers = [pool.spawn(name) for name in "ab"]
        pool.ask(workers[0], plugin(tmp_path, code), 60, "import")
        child = int((tmp_path / "child").read_text())
        assert not gone(child)
        os.kill(workers[1].pid, signal.SIGKILL)
        select.select([pool._control], [], [], 30)  # the report of its end
        pool._control.close()
        pool._forkserver.wait(30)
        wait_for(lambda: gone(child), 10)
        pool._closed = True


@pytest.mark.slow
def test_files_of_the_working_directory_are_not_imported(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text("raise ImportError('the wrong json')")
    monkeypatch.chdir(tmp_path)
    with Pool() as pool:
        assert pool.ask(pool.spawn("probe"), ProbeMachine(), 60, "probe").machine


def test_what_a_plugin_prints_is_not_taken_for_an_answer(pool, tmp_path):
    code = "import os\nprint('{\"infos\": []}', flush=True)\nos.write(1, b'{}\\n')\nraise ValueError('loud')"
    assert pool.ask(pool.spawn("x"), plugin(tmp_path, code), 60, "import").reason.startswith("ValueError: loud (in ")


SENDS = """
import os, stat
for fd in range(3, 64):
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.write(fd, {line!r} + b"\\n")
    except OSError:
        pass
"""
"""A plugin that writes a line into every socket of its worker."""


@pytest.mark.parametrize(("line", "invalid"), [(b'{"x":1}', True), (b"[1]", False), (b"noise", False)])
def test_a_json_object_that_is_no_reply_is_invalid(pool, tmp_path, line, invalid):
    reply = pool.ask(pool.spawn("x"), plugin(tmp_path, SENDS.format(line=line)), 60, "import")
    assert reply == Lost(Status.FAILED, "import: the worker sent an invalid reply", invalid=invalid)


def test_requests_to_several_workers_run_at_once(pool, tmp_path):
    workers = [pool.spawn(str(i)) for i in range(4)]
    code = f"""
import os, pathlib, time
here = pathlib.Path({str(tmp_path)!r})
(here / f"{{os.getpid()}}.here").touch()
while len(list(here.glob("*.here"))) < 4:  # one after the other they would never meet
    time.sleep(0.01)
raise ValueError("met")
"""
    replies = pool.gather({i: (worker, plugin(tmp_path, code)) for i, worker in enumerate(workers)}, 60, "import")
    assert [reply.reason for reply in replies.values()] == ["ValueError: met (in <module>, plug.py:7)"] * 4


@pytest.mark.usefixtures("forked_pools")
def test_leaving_the_pool_ends_every_process_even_in_a_hang(tmp_path):
    detached = f"""
import subprocess
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
open({str(tmp_path / "child")!r}, "w").write(str(child.pid))
raise ValueError("x")
"""
    with Pool() as pool:
        pool.ask(pool.spawn("x"), plugin(tmp_path, detached), 60, "import")
        workers = [pool.spawn(str(i)) for i in range(2)]
        workers[0].channel.send(to_json(plugin(tmp_path, "import time\ntime.sleep(3600)")))
        forkserver = pool._forkserver.pid
    assert all(gone(worker.pid) for worker in workers)
    assert gone(forkserver) and gone(int((tmp_path / "child").read_text()))


@pytest.mark.usefixtures("forked_pools")
def test_a_killed_forkserver_is_replaced(monkeypatch, tmp_path):
    logs = []
    with Pool() as pool:
        pool.tell(lambda *log: logs.append(log))
        asked, idle = pool.spawn("asked"), pool.spawn("idle")
        os.kill(pool._forkserver.pid, signal.SIGKILL)
        lost = pool.ask(asked, plugin(tmp_path, "import time\ntime.sleep(3600)"), 60, "import")
        assert (lost.status, lost.killed, lost.orphan) == (Status.FAILED, True, True)
        assert lost.reason.startswith("killed (SIGKILL) in import with its parent, the forkserver")
        assert gone(idle.pid) or Path(f"/proc/{idle.pid}/stat").read_text().split()[2] == "Z"
        assert pool.ask(pool.spawn("next"), ProbeMachine(), 60, "probe").machine
        assert pool.ask(idle, ProbeMachine(), 60, "probe").orphan
        assert logs == [("forkserver", "It was killed (SIGKILL).\n")]
        monkeypatch.setattr(worker_pool, "RESTARTS", 1)
        os.kill(pool._forkserver.pid, signal.SIGKILL)
        with pytest.raises(WorkersError, match="the forkserver was killed 2 times; free memory"):
            pool.spawn("last")


def test_a_worker_that_cannot_be_forked_is_one_error_and_the_next_can(pool):
    pool.spawn("warm")  # the forkserver has imported torch
    most = resource.prlimit(pool._forkserver.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pool._forkserver.pid, resource.RLIMIT_NOFILE, (3, most[1]))
    with pytest.raises(NotStartedError, match="its process could not be started: Too many open files; allow more open files: ulimit -n"):
        pool.spawn("x")
    resource.prlimit(pool._forkserver.pid, resource.RLIMIT_NOFILE, most)
    assert pool.ask(pool.spawn("y"), ProbeMachine(), 60, "probe").machine


def test_a_parent_without_free_descriptors_starts_no_worker(pool):
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, most[1]))
        with pytest.raises(NotStartedError, match="Too many open files"):
            pool.spawn("x")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    assert pool.ask(pool.spawn("y"), ProbeMachine(), 60, "probe").machine


def test_a_full_disk_under_a_workers_log_is_told_with_the_users_line(pool, tmp_path):
    (Path(pool._folder.name) / f"worker-{pool._orders + 1}.log").symlink_to("/dev/full")
    reply = pool.ask(pool.spawn("x"), plugin(tmp_path, "\nprint('hello', flush=True)"), 60, "import")
    assert reply.reason == "OSError: [Errno 28] No space left on device (in <module>, plug.py:2: print('hello', flush=True))"


def test_a_worker_that_linux_killed_for_lack_of_memory_is_oom(pool, tmp_path, monkeypatch):
    counts = iter([7, 8])
    monkeypatch.setattr(worker_pool, "oom_kills", lambda: next(counts))
    lost = pool.ask(pool.spawn("x"), plugin(tmp_path, "import os\nos.kill(os.getpid(), 9)"), 60, "import")
    assert (lost.status, lost.killed) == (Status.OOM, False)
    assert lost.reason.startswith("killed in import: the kernel had no memory left")


def test_a_torch_that_cannot_be_imported_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Pool() as pool, pytest.raises(WorkersError, match=r"torch cannot be imported: ImportError: libcudart.so.13"):
        pool.spawn("x")


def test_a_torch_whose_import_hangs_is_ended_at_the_deadline(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import time\ntime.sleep(3600)")
    monkeypatch.syspath_prepend(str(tmp_path))
    start = time.monotonic()
    with Pool(start_seconds=1) as pool, pytest.raises(WorkersError, match="did not start within 1 s"):
        pool.spawn("x")
    assert time.monotonic() - start < 30  # and not 3600


def test_a_forkserver_that_imports_torch_ends_with_its_parent(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(3600)")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = Pool().__enter__()
    wait_for((tmp_path / "begun").exists)
    pool._control.close()  # all that is left to do it, where an interrupt came before the forkserver was known
    try:
        assert pool._forkserver.wait(10) != 0
    finally:
        pool.close(gently=False)


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_at_start_waits_for_the_forkserver_to_end(monkeypatch, cli, late):
    """`late`: when the process is there and its number known, while descriptors are closed."""
    monkeypatch.setenv("SOFTBENCH_TEST_MARK", cli.mark)
    started = []

    class Interrupting(subprocess.Popen):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            started.append(self)
            if not late:
                raise KeyboardInterrupt

    closing = socket.socket.__exit__

    def interrupted(theirs, *_):  # the parent's copy of the forkserver's end stays open
        monkeypatch.setattr(socket.socket, "__exit__", closing)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupting)
    if late:
        monkeypatch.setattr(socket.socket, "__exit__", interrupted)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Pool():
        pytest.fail("a pool without a forkserver was entered")
    took = time.monotonic() - begin
    assert cli.left_behind() == []
    assert started[0].wait(10) == 1
    assert took < END_SECONDS  # it was seen to end


TELLS = "import os, torch\nraise RuntimeError(f'{torch.get_num_threads()} {os.environ.get(\"GOMP_SPINCOUNT\")}')\n"


def test_threads_and_waits_reach_openmp_before_torch(pool, tmp_path):
    assert "1 10000" in pool.ask(pool.spawn("plug"), plugin(tmp_path, TELLS), 60, "import").reason


@pytest.mark.slow
@pytest.mark.parametrize(("own", "spins"), [({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)])
def test_a_users_waits_reach_openmp(tmp_path, monkeypatch, own, spins):
    for name in OF_OPENMP:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    with Pool(threads=1) as pool:
        assert f"1 {spins}" in pool.ask(pool.spawn("plug"), plugin(tmp_path, TELLS), 60, "import").reason


CALLS_THE_DRIVER = "torch.utils.cpp_extension"  # with a toolkit it calls torch.cuda.is_available when it is imported


def test_forkserver_imports_nothing_that_calls_the_driver():
    code = f"import sys, softbench.worker.serve; sys.exit({CALLS_THE_DRIVER!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.gpu
def test_worker_forked_after_the_import_can_use_the_gpu():
    code = """
import os, softbench.worker.serve, torch
child = os.fork()
if not child:
    os._exit(int(torch.ones(1, device="cuda").item()) - 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
