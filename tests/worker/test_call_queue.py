"""Calls that wait in the GPU's stream until their inputs are mapped."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from softbench.worker import call_queue
from softbench.worker.call_queue import CallQueue


def softmax(x):
    return torch.softmax(x, -1)


class Stream:
    """A stream that takes `most` calls while it is held back."""

    def __init__(self, monkeypatch, most=1000):
        self.held, self.calls, self.most, self.flag = [], 0, most, None
        zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", lambda *shape, pin_memory, **options: zeros(*shape, **options))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
        monkeypatch.setattr(call_queue, "call_driver", self.driver)
        monkeypatch.setattr(call_queue, "WAIT_SECONDS", 0.05)
        self.queue = CallQueue()

    def driver(self, name, stream, address, value, flags):
        assert (name, stream.value, address.value, flags) == ("cuStreamWaitValue32_v2", 7, self.queue._flag.data_ptr(), 0)
        self.held.append(value.value)

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


@pytest.mark.parametrize(("most", "room"), [(1000, 40), (20, 15), (1, 0), (0, 0)])
def test_a_rehearsal_finds_how_many_calls_fit(monkeypatch, most, room):
    stream = Stream(monkeypatch, most)
    assert (stream.queue.room(softmax), stream.queue.rehearsed(softmax)) == (0, False)
    with stream.queue.rehearsal(softmax, lambda: stream.calls):
        assert not stream.runs
        for _ in range(40):
            stream.call()
    assert stream.runs
    assert (stream.queue.room(softmax), stream.queue.rehearsed(softmax)) == (room, True)
    assert (stream.queue.room(None), stream.queue.rehearsed(None)) == (0, False)
    assert threading.active_count() == 1


def test_a_call_that_fails_in_a_rehearsal_holds_nothing_back(monkeypatch):
    stream = Stream(monkeypatch)
    with pytest.raises(ValueError, match="a call"), stream.queue.rehearsal(softmax, lambda: 3):
        raise ValueError("a call")
    assert stream.runs
    assert not stream.queue.rehearsed(softmax)
