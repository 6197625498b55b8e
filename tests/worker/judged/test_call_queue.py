"""Calls that wait in the GPU's stream until their inputs are mapped."""

import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from softbench.worker.judged import call_queue
from softbench.worker.judged.call_queue import CallQueue


def softmax(x):
    return torch.softmax(x, -1)


class Stream:
    """A stream that takes `most` calls while it is held back, and a GPU that writes 50 ms after `_sleep`."""

    def __init__(self, monkeypatch, most=1000):
        self.held, self.calls, self.most, self.slept, self.writes = [], 0, most, [], []
        zeros, side = torch.zeros, SimpleNamespace(cuda_stream=8)
        monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory, **options: zeros(*shape, **options))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
        monkeypatch.setattr(torch.cuda, "Stream", lambda: side)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.slept.append((cycles, self.runs)))
        monkeypatch.setattr(call_queue, "call_driver", self.driver)
        monkeypatch.setattr(call_queue, "IN_TIME_SECONDS", 0.03)
        self.queue = CallQueue()

    def driver(self, name, stream, address, value, flags):
        assert (address.value, flags) == (self.queue._flag.data_ptr(), 0)
        if name == "cuStreamWaitValue32_v2":
            assert stream.value == 7
            self.held.append(value.value)
        else:
            assert (name, stream.value, self.slept[-1][0]) == ("cuStreamWriteValue32_v2", 8, call_queue.RELEASE_CYCLES)
            self.writes.append(threading.Timer(0.05, self.queue._flag.fill_, [value.value]))
            self.writes[-1].start()

    @property
    def runs(self):
        return not self.held or self.queue._flag.item() >= self.held[-1]

    def call(self):
        while not self.runs and self.calls >= self.most:
            time.sleep(0.001)
        self.calls += 1


def test_a_stream_waits_until_its_start(monkeypatch):
    stream = Stream(monkeypatch)
    for number in (1, 2):
        stream.queue.hold()
        assert stream.held == [*range(1, number + 1)]
        assert not stream.runs
        stream.queue.start()
        assert stream.runs


@pytest.mark.parametrize(("most", "room"), [(1000, 40), (54, 40), (53, 39), (40, 30), (20, 15), (1, 0), (0, 0)])
def test_a_rehearsal_finds_how_many_calls_fit(monkeypatch, most, room):
    stream = Stream(monkeypatch, most)
    assert (stream.queue.room(softmax), stream.queue.rehearsed(softmax)) == (0, False)
    stream.queue.rehearse(softmax, stream.call, 40)
    assert stream.calls == 54
    assert stream.runs
    assert all(free for _, free in stream.slept), "a kernel that is loaded while calls are held back may wait for ever"
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
