"""Calls that wait in the GPU's stream until the host starts them."""

import threading
import time

import pytest
import torch

from softbench.worker import cuda_driver
from softbench.worker.timing import call_queue
from softbench.worker.timing.call_queue import CallQueue


def softmax(x):
    return torch.softmax(x, -1)


class Stream:
    """A stream that takes `most` calls while it is held back, and a GPU whose kernel ends a hold after its limit."""

    def __init__(self, monkeypatch, most=1000):
        self.held, self.calls, self.most, self.limits = [], 0, most, []
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory, **options: zeros(*shape, **options))
        monkeypatch.setattr(cuda_driver, "kernel", lambda ptx, name: (ptx, name))
        monkeypatch.setattr(cuda_driver, "launch_one_thread", self.launch)
        monkeypatch.setattr(call_queue, "REHEARSAL_SECONDS", 0.05)
        monkeypatch.setattr(call_queue, "IN_TIME_SECONDS", 0.03)
        self.queue = CallQueue()

    def launch(self, kernel, flags, number, limit_ns):
        assert (kernel, flags.value) == ((call_queue.HOLD, b"hold"), self.queue._flags.data_ptr())
        self.held.append(number.value)
        self.limits.append(limit_ns.value)
        if limit_ns.value < 1e9:
            threading.Timer(limit_ns.value / 1e9, self.end, [number.value]).start()

    def end(self, number):
        if self.queue._memory[0] < number:
            self.queue._memory[1] = number

    @property
    def runs(self):
        return not self.held or max(self.queue._memory) >= self.held[-1]

    def call(self):
        while not self.runs and self.calls >= self.most:
            time.sleep(0.001)
        self.calls += 1


def test_a_stream_waits_until_its_start(monkeypatch):
    stream = Stream(monkeypatch)
    for number in (1, 2):
        stream.queue.hold()
        assert (stream.held, stream.queue.number) == ([*range(1, number + 1)], number)
        assert not stream.runs
        stream.queue.start()
        assert stream.runs
        assert not stream.queue.expired(0)


def test_a_hold_that_nobody_starts_ends_by_its_limit(monkeypatch):
    stream = Stream(monkeypatch)
    stream.queue.hold(0.02)
    assert (stream.limits, stream.queue.expired(0)) == ([20_000_000], False)
    time.sleep(0.1)
    assert stream.runs
    assert (stream.queue.expired(0), stream.queue.expired(1)) == (True, False)


@pytest.mark.parametrize(("most", "room"), [(1000, 40), (54, 40), (53, 39), (40, 30), (20, 15), (1, 0), (0, 0)])
def test_a_rehearsal_finds_how_many_calls_fit(monkeypatch, most, room):
    stream = Stream(monkeypatch, most)
    assert (stream.queue.room(softmax), stream.queue.rehearsed(softmax)) == (0, False)
    stream.queue.rehearse(softmax, stream.call, 40)
    assert stream.calls == 54
    assert stream.runs
    assert (stream.queue.room(softmax), stream.queue.rehearsed(softmax)) == (room, True)
    assert (stream.queue.room(None), stream.queue.rehearsed(None)) == (0, False)


def test_calls_of_a_rehearsal_are_held_back(monkeypatch):
    stream, ran = Stream(monkeypatch), []
    stream.queue.rehearse(softmax, lambda: ran.append(stream.runs), 2)
    assert ran == [False, False, False]


def test_a_call_that_fails_in_a_rehearsal_holds_nothing_back(monkeypatch):
    stream = Stream(monkeypatch)

    def fails():
        raise ValueError("a call")

    with pytest.raises(ValueError, match="a call"):
        stream.queue.rehearse(softmax, fails, 3)
    assert stream.runs
    assert not stream.queue.rehearsed(softmax)
