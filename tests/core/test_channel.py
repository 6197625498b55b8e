"""The channel between parent and worker."""

import socket
import threading
import time

import pytest

from softbench.core.channel import Channel


@pytest.fixture
def ends():
    ours, theirs = (Channel(end) for end in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def seconds(function):
    start = time.monotonic()
    function()
    return time.monotonic() - start


def test_a_busy_wait_ends_with_data(ends):
    ours, theirs = ends
    threading.Timer(0.05, theirs.send, [{"a": 1}]).start()
    assert 0.02 < seconds(lambda: ours.wait_busily(20)) < 10
    assert ours.receive() == {"a": 1}
    theirs.send({"b": 2})
    assert seconds(lambda: ours.wait_busily(20)) < 10


def test_a_busy_wait_ends_with_the_other_end(ends):
    ours, theirs = ends
    theirs.socket.shutdown(socket.SHUT_WR)
    assert seconds(lambda: ours.wait_busily(20)) < 10
    assert ours.receive() is None


def test_a_busy_wait_ends_in_time(ends):
    assert 0.05 <= seconds(lambda: ends[0].wait_busily(0.05)) < 10
