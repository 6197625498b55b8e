"""The stand-in for the Python that pytest-xdist starts."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import forks
import pytest

STAND_IN = Path(forks.__file__).with_name("forked_python.py")


@pytest.fixture
def started():
    """The listening socket of a process with the imports, and its stand-in."""
    address = f"softbench-test-{uuid.uuid4().hex}"
    command = [sys.executable, "-IS", str(STAND_IN), address, "-u", "-c", "import sys; print(sys.stdin.read(), sys.flags.isolated)"]
    with (
        closing(forks._listening(address)) as listening,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
    ):
        yield listening, process
        process.kill()


def test_without_a_fork_it_becomes_python(started):
    listening, process = started
    connected, _ = listening.accept()
    connected.close()
    assert process.communicate("given", timeout=60) == ("given 0\n", None)


def test_its_fork_is_interrupted_and_it_ends_after_it(started):
    listening, process = started
    connected, _ = listening.accept()
    with connected, subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], stderr=subprocess.DEVNULL) as fork:
        _, streams, _, _ = socket.recv_fds(connected, forks.MESSAGE_BYTES, 3)
        for one in streams:
            os.close(one)
        connected.send(str(fork.pid).encode())
        assert process.stdout.read() == ""  # it closed its streams
        process.send_signal(signal.SIGINT)
        assert fork.wait(60) != 0
        assert process.poll() is None
    assert process.wait(60) == 0
