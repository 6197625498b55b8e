"""The queued timer, on a GPU that a test makes up: a clock, a stream that can be held back, and calls that take a while."""

from types import SimpleNamespace

import pytest
import torch

from softbench.worker.timing import timers
from softbench.worker.timing.timers import MIN_SAMPLES, MOST_QUEUED, WAITS, Samples

CALL_US, FLUSH_US, HOST_US = 5.0, 75.0, 20.0


class Gpu:
    """A host and a GPU with a clock each. The stream holds `room` launches while it is held back."""

    def __init__(self, room=1000, host_us=HOST_US):
        self.host_us, self.room, self.host, self.device = host_us, room, 0.0, 0.0
        self.held, self.waiting, self.number, self.ended, self.issued, self.pauses = False, [], 0, 0, 0, []

    # What the queue does.
    def hold(self, seconds):
        self.held, self.limit, self.number = True, self.host + seconds * 1e6, self.number + 1

    def start(self):
        self.held = False
        self.drain()

    def expired(self, after):
        return self.ended > after

    def drain(self):
        self.device = max(self.device, self.host)
        for work in self.waiting:
            work()
        self.waiting.clear()

    # What runs on it.
    def launch(self, work):
        if self.held and len(self.waiting) >= self.room:
            self.wait()
        self.waiting.append(work)
        if not self.held:
            self.drain()

    def wait(self):
        """The host waits for the GPU: a held stream runs after the limit only."""
        if self.held:
            self.host, self.ended, self.held = max(self.host, self.limit), self.number, False
        self.drain()
        self.host = max(self.host, self.device)

    def takes(self, us):
        def work():
            self.device += us

        self.launch(work)

    def call(self):
        self.host += self.host_us
        self.issued += 1
        self.takes(CALL_US)


class Event:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, None

    def record(self):
        self.gpu.launch(lambda: setattr(self, "at", self.gpu.device))

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e3


@pytest.fixture
def timed(monkeypatch):
    """`timed(gpu, call, block)`: a batch of 2 ms and 10 ms."""

    def batch(gpu, call=None, block=0, l2="cold", queue=None):
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(gpu))
        monkeypatch.setattr(timers, "CallQueue", queue or (lambda: gpu))
        monkeypatch.setattr(timers, "_events", lambda l2, meter: lambda *_: Samples([100.0]))
        meter = SimpleNamespace(fill=lambda size: lambda: gpu.takes(FLUSH_US), synchronize=gpu.wait)
        timer = timers._Queued(l2, meter)
        timer.clock = lambda: gpu.host / 1e6
        return timer(call or gpu.call, 2.0, 10.0, block)

    return batch


@pytest.mark.parametrize("host_us", [1.0, 20.0, 70.0, 900.0])
def test_the_time_is_that_of_the_gpu_on_any_host(timed, host_us):
    found = timed(Gpu(host_us=host_us))
    assert set(found.us) == {CALL_US}
    assert (found.block, found.calls, found.timer) == (MOST_QUEUED, 1, "")


def test_a_batch_has_the_length_of_do_bench_or_some_of_it_on_a_slow_host(timed):
    assert len(timed(Gpu(host_us=1.0)).us) == int(10_000 / (CALL_US + FLUSH_US))
    assert len(timed(Gpu(host_us=1e4)).us) == MIN_SAMPLES


def test_a_call_that_waits_for_the_gpu_is_timed_by_do_bench(timed):
    gpu = Gpu()

    def waits():
        gpu.call()
        gpu.wait()

    found = timed(gpu, waits)
    assert (found.us, found.timer, found.block) == ([100.0], "do_bench", WAITS)
    tried = gpu.issued
    assert timed(gpu, waits, found.block).timer == "do_bench"
    assert gpu.issued == tried, "a later batch of the cell queues nothing"


def test_do_bench_times_where_no_kernel_can_hold_the_stream_back(timed):
    def no_queue():
        raise RuntimeError("cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU")

    found = timed(Gpu(), queue=no_queue)
    assert (found.us, found.timer, found.block) == ([100.0], "do_bench", WAITS)


@pytest.mark.parametrize("room", [40, 12, 4])
def test_fewer_calls_are_queued_where_the_stream_takes_fewer(timed, room):
    gpu = Gpu(room=room)
    found = timed(gpu)
    assert set(found.us) == {CALL_US}
    assert (found.timer, 4 * found.block <= room) == ("", True)
    assert gpu.ended > 0


def test_a_host_that_stood_still_once_costs_one_trial(timed):
    gpu = Gpu()

    def stalls_once():
        if gpu.issued == 3:
            gpu.host += 1e6
            gpu.ended, gpu.held = gpu.number, False
            gpu.drain()
        gpu.call()

    found = timed(gpu, stalls_once)
    assert (set(found.us), found.timer) == ({CALL_US}, "")


def test_a_call_that_fails_leaves_nothing_held_back(timed):
    gpu = Gpu()

    def fails():
        gpu.call()
        if gpu.issued > 3:
            raise ValueError("a call")

    with pytest.raises(ValueError, match="a call"):
        timed(gpu, fails)
    assert not gpu.held


def test_a_warm_l2_is_not_flushed(timed):
    assert len(timed(Gpu(host_us=1.0), l2="warm").us) == int(10_000 / CALL_US)
