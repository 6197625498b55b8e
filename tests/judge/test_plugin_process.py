"""No part of the plugin's process runs while an empty challenge is measured, and nothing of its folder stays."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from timed import wait_for

from softbench.core.case import Case, Direction
from softbench.core.messages import Done, QueueCalls
from softbench.core.outcome import Status
from softbench.judge import plugin_process
from softbench.judge.plugin_process import EndedError, PluginProcess, plugin_folder
from softbench.processes.worker_pool import Lost

CASE = Case(16, 96, "fp32", Direction.FORWARD, "cpu")
BUSY = "print(flush=True)\nwhile True: pass"
CHILD = """
import ctypes, os, threading, time
if os.fork() == 0:
    if {first_thread_ends}:
        threading.Thread(target=time.sleep, args=(60,)).start()
        ctypes.CDLL(None).syscall(60, 0)
    time.sleep(60)
print(flush=True)
time.sleep(60)
"""
LONG_CALLS = """
import os, threading
file, data = os.memfd_create("x"), bytes(2**27)
def write():
    while True: os.pwrite(file, data, 0)
threading.Thread(target=write).start()
print(flush=True)
while True: pass
"""


@contextmanager
def running(code):
    """A plugin's process that runs this code in a group of its own. It has written a line."""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True) as process:
        process.stdout.readline()
        try:
            yield PluginProcess(None, SimpleNamespace(pid=process.pid), CASE, 2, {})
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_a_stopped_process_runs_on_after_the_context():
    with running(BUSY) as process:
        with process.stopped():
            assert set(plugin_process._states(process.worker.pid)) == {"T"}
        before = plugin_process._processor_ns(process.worker.pid)
        wait_for(lambda: plugin_process._processor_ns(process.worker.pid) > before)


def test_a_process_that_ends_while_stopped_is_no_error():
    with subprocess.Popen(["sleep", "60"]) as process, PluginProcess(None, SimpleNamespace(pid=process.pid), CASE, 2, {}).stopped():
        process.kill()
        process.wait()


def test_a_process_that_has_ended_before_is_no_error():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with PluginProcess(None, SimpleNamespace(pid=process.pid), CASE, 2, {}).stopped():
        pass


def test_a_process_that_runs_while_stopped_ends_the_judgement():
    """A timer of its own may send it SIGCONT."""
    with running(BUSY) as process, pytest.raises(EndedError, match=r"it ran for \d+ us") as error, process.stopped():
        os.kill(process.worker.pid, signal.SIGCONT)
        time.sleep(0.05)
        os.kill(process.worker.pid, signal.SIGSTOP)
    assert error.value.status == "unverified"


def test_a_long_system_call_ends_before_the_context():
    with running(LONG_CALLS) as process:
        for _ in range(5):
            with process.stopped():
                assert plugin_process._states(process.worker.pid) == ["T", "T"]


def test_a_process_that_does_not_stop_ends_the_judgement(monkeypatch):
    monkeypatch.setattr(plugin_process, "STOP_SECONDS", 0.05)
    with running(BUSY) as process:
        monkeypatch.setattr(plugin_process.os, "kill", lambda *_: None)
        with pytest.raises(EndedError, match="does not stop"), process.stopped():
            pytest.fail("it runs")
        monkeypatch.undo()


@pytest.mark.parametrize("first_thread_ends", [False, True])
def test_another_process_of_a_stopped_one_is_found(first_thread_ends):
    with running(CHILD.format(first_thread_ends=first_thread_ends)) as process:
        (other,) = wait_for(lambda: plugin_process._others(process.worker.pid))
        if first_thread_ends:
            wait_for(lambda: plugin_process._stat(f"/proc/{other}/stat")[0] == "Z")
        with pytest.raises(EndedError, match="started a process") as error, process.stopped():
            pytest.fail("the other process runs")
        assert error.value.status == "wrong"
        process.end_others()
        assert not plugin_process._others(process.worker.pid)


def test_calls_before_the_clock_have_a_deadline_of_their_own(monkeypatch):
    """A call that waits for the GPU there waits for ever: nothing starts the GPU."""
    asked = []

    class Late:
        def ask(self, worker, request, seconds, phase):
            asked.append((type(request).__name__, seconds))
            return Lost(Status.TIMEOUT, f"{phase} took longer than {seconds:g} s") if isinstance(request, QueueCalls) else Done()

    monkeypatch.setattr(PluginProcess, "_flush", lambda process: None)
    case = replace(CASE, device="cuda")
    for seconds, expected in ((120.0, plugin_process.QUEUE_SECONDS), (3.0, 3.0)):
        asked.clear()
        process = PluginProcess(Late(), SimpleNamespace(pid=0), case, 2, {"time": seconds}, reader=SimpleNamespace())
        with pytest.raises(EndedError, match=f"longer than {expected:g} s"):
            process._timed(SimpleNamespace())
        assert asked == [("ReleaseOutputs", seconds)] * plugin_process.WAKING_REQUESTS + [("QueueCalls", expected)]


def test_a_folder_of_any_depth_is_removed():
    with plugin_folder() as folder:
        file = os.open(folder, os.O_RDONLY)
        for _ in range(sys.getrecursionlimit() + 200):
            os.mkdir("d", dir_fd=file)
            inner = os.open("d", os.O_RDONLY, dir_fd=file)
            os.close(file)
            file = inner
        os.close(file)
    assert not Path(folder).exists()


def test_what_cannot_be_read_is_removed_without_following_links(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="an error"), plugin_folder() as folder:
        inner = Path(folder) / "inner"
        inner.mkdir()
        (inner / "link").symlink_to(tmp_path)
        (inner / "file").touch(0o000)
        inner.chmod(0o000)
        raise ValueError("an error")
    assert not Path(folder).exists()
    assert (tmp_path / "file").exists()
