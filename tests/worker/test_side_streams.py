"""Work that is not ordered with the caller's stream, on a device that only pretends."""

import pytest
import torch

from softbench.worker import side_streams
from softbench.worker.device_timer import Activity, UntracedError
from softbench.worker.side_streams import SEPARATOR_CYCLES, SUSPECT_US, unordered_work

CALLER, OTHER = 7, 20
SEPARATOR = Activity("spin_kernel", 0, 1, CALLER)


class Device:
    """Each stream runs its work in order. A nanosecond is a cycle."""

    def __init__(self, monkeypatch, *, suspect=True, traced=True):
        self.free, self.ran, self.traces, self.stops, self.traced = {CALLER: 0, OTHER: 0}, [], 0, 0, traced
        monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: self.run("spin_kernel", cycles))
        monkeypatch.setattr(torch, "empty", lambda *_, **__: torch.zeros(1))
        monkeypatch.setattr(side_streams, "busy_us", lambda call, calls: 2 * SUSPECT_US if suspect else SUSPECT_US / 2)

    def run(self, name, ns, stream=CALLER):
        self.ran.append(Activity(name, self.free[stream], ns, stream))
        self.free[stream] += ns

    def wait(self, waiting, waited):
        self.free[waiting] = max(self.free[waiting], self.free[waited])

    def start(self):
        self.ran, self.traces = [], self.traces + 1
        self.free = dict.fromkeys(self.free, max(self.free.values()))

    def stop(self):
        self.stops += 1
        if not self.traced:
            raise UntracedError("no profiler")
        return self.ran

    def found(self, call):
        return unordered_work(call, 1000.0, lambda: self)


def test_work_that_forks_and_joins_is_ordered(monkeypatch):
    device = Device(monkeypatch)

    def call():
        device.run("half", 3000)
        device.wait(OTHER, CALLER)
        device.run("other half", 3000, OTHER)
        device.wait(CALLER, OTHER)

    assert device.found(call) == ""


@pytest.mark.parametrize("ns", [800, 3000, SEPARATOR_CYCLES, 5 * SEPARATOR_CYCLES])
@pytest.mark.parametrize("fork", [True, False])
def test_work_without_a_join_is_found_whatever_its_length(monkeypatch, ns, fork):
    device = Device(monkeypatch)

    def call():
        if fork:
            device.wait(OTHER, CALLER)
        device.run("hidden", ns, OTHER)

    assert device.found(call).startswith("hidden runs on another stream, not ordered with the caller's stream, so no event sees it (")
    assert device.traces == device.stops == 3


def test_a_second_trace_must_confirm_the_first(monkeypatch):
    device = Device(monkeypatch)

    def call():
        device.run("softmax", 3000)
        if device.traces == 2:
            device.run("hidden", 3000, OTHER)

    assert device.found(call) == ""
    assert device.traces == 3


@pytest.mark.parametrize("first", [1, 2, 3])
def test_a_profiler_that_sees_other_separators_decides_nothing(monkeypatch, first):
    device = Device(monkeypatch)
    stop = device.stop

    def lossy():
        found = stop()
        if device.traces < first:
            return found
        return found[1:] if device.traces > 1 else [Activity("stray", 0, 1, OTHER), *found]

    monkeypatch.setattr(device, "stop", lossy)
    assert device.found(lambda: device.run("hidden", 3000, OTHER)) == ""
    assert device.traces == first


@pytest.mark.parametrize("step", ["start", "stop"])
def test_a_profiler_that_fails_in_any_way_decides_nothing(monkeypatch, step):
    device = Device(monkeypatch)

    def fail():
        raise AssertionError("Legacy CUDA profiling requires use_cpu=True")

    monkeypatch.setattr(device, step, fail)
    assert device.found(lambda: device.run("hidden", 3000, OTHER)) == ""


def test_a_late_host_is_no_evidence(monkeypatch):
    device = Device(monkeypatch)
    assert device.found(lambda: device.run("softmax", 3000)) == ""
    assert device.traces == 2


def test_a_call_without_suspicion_is_not_traced(monkeypatch):
    device = Device(monkeypatch, suspect=False)
    assert device.found(lambda: device.run("hidden", 3000, OTHER)) == ""
    assert device.traces == 0


def test_one_overlap_or_a_short_one_is_ignored():
    separators = [Activity("spin_kernel", 10_000 * i, 5000, CALLER) for i in range(4)]

    def overlaps(activities):
        return side_streams.overlaps(activities, SEPARATOR, 4)

    side = [Activity("copy", 10_000 * i + 4500, 3000, OTHER) for i in range(4)]
    assert overlaps([*separators, *side]) == ""
    inside = [Activity("copy", 10_000 * i + 1000, 3000, OTHER) for i in range(4)]
    assert overlaps([*separators, inside[2]]) == ""
    assert overlaps([*separators, *inside[2:]]).endswith("(2 times in a trace)")


@pytest.mark.parametrize("traced", [True, False])
def test_work_that_grows_with_the_calls_is_found_untraced(monkeypatch, traced):
    device = Device(monkeypatch, traced=traced)
    busy = {}
    monkeypatch.setattr(side_streams, "busy_us", lambda call, calls: busy[call is hidden](calls))

    def hidden():
        pass

    def found():
        return unordered_work(hidden, 60.0, lambda: device)

    late = 3 * SUSPECT_US  # a busy host is late for both, however many calls there are
    busy |= {True: lambda calls: late, False: lambda calls: late}
    assert found() == ""
    busy |= {False: lambda calls: 5.0}
    assert found() == ""
    busy |= {True: lambda calls: 1.2 * (SUSPECT_US + 10) * calls / 50}
    text = "the GPU works on after the caller's stream has finished, 96 us after 25 calls and 192 us after 50: on another stream"
    assert found().startswith(text)
    assert unordered_work(hidden, 60.0, None).startswith(text)
    busy |= {False: lambda calls: late}
    assert found() == ""


def test_an_error_of_the_call_ends_the_session(monkeypatch):
    device = Device(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        device.found(lambda: 1 / 0)
    assert device.stops == device.traces == 2
