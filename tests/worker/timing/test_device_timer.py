"""Device and host time of a call, with a device that only pretends."""

import itertools
import math
import os
import threading
import time
import types

import pytest
import torch

from softbench.core.case import CPU_TIMER, Case, Direction
from softbench.core.outcome import Profile
from softbench.plugins.source import PluginSource
from softbench.worker import server
from softbench.worker.timing import device_timer
from softbench.worker.timing.device_timer import FLUSH_BYTES, MARK_BYTES, MAX_CALLS, MAX_ISSUED, MIN_CALLS, DeviceTimer
from softbench.worker.timing.timers import MIN_SAMPLES, Samples, Timers, bind
from softbench.worker.timing.trace import Activity, NoKernelError, Separators, UntracedError
from softbench.worker.timing.users_calls import UsersCall

FILL, PAUSE = "fill_kernel", "spin_kernel"


class Device:
    """A clock that only calls move, and a record of what ran."""

    def __init__(self):
        self.now_ns, self.ran, self.filled, self.traced = 0, [], [], 0

    def run(self, name, us):
        self.ran.append(Activity(name, self.now_ns, round(us * 1e3)))
        self.now_ns += round(us * 1e3)

    def beside(self, name, us):
        """Work on another stream, which the caller's does not wait for."""
        self.ran.append(Activity(name, self.now_ns, round(us * 1e3), stream=7))

    def meter(self):
        return DeviceTimer(lambda: self, self.fill, lambda: self.run(PAUSE, 10), lambda: None, lambda: self.now_ns)

    def fill(self, size):
        self.filled.append(size)
        return lambda: self.run(FILL, 70 if size == FLUSH_BYTES else 1)

    def start(self):
        self.ran, self.traced = [], self.traced + 1

    def stop(self):
        return list(self.ran)


def test_device_time_is_the_kernels_sum_without_the_flush():
    device = Device()

    def call():
        device.run("max", 3)
        device.run("divide", 4.5)

    samples, kernels = device.meter().device(call, batch_ms=10, l2="cold")
    assert set(samples) == {7.5}
    assert kernels == ["max", "divide"]
    assert set(device.filled) == {FLUSH_BYTES}
    assert device.traced == 2  # the separators alone, then one window
    assert device.meter().device(call, batch_ms=10, l2="warm")[0] == [7.5] * MAX_CALLS
    assert device.filled[-1] == MARK_BYTES


def test_time_between_events_limits_a_kernel_slowed_by_tracing():
    device = Device()

    def call():
        device.run("softmax", 100 + 30 * (device.traced > 0) + len(device.ran) % 2)

    def between(separate, call, times):
        found = []
        for _ in range(times):
            separate()
            begin = device.now_ns
            call()
            found.append((device.now_ns - begin) / 1e3)
        return found

    meter = device.meter()
    meter.between = between
    samples, _ = meter.device(call, batch_ms=10, l2="cold")
    assert sorted(samples)[len(samples) // 2] == pytest.approx(100, abs=1.1)
    meter.begin("cold")  # a limit is of one window: this one has none
    meter.run(call, 10, "cold")
    assert min(meter.end()[0]) >= 130


def test_what_events_add_to_a_short_kernel_is_no_limit():
    device = Device()
    meter = device.meter()
    meter.between = lambda separate, call, times: [6.0] * times
    assert set(meter.device(lambda: device.run("softmax", 2.5), 10, "cold")[0]) == {2.5}


@pytest.mark.parametrize(("batch_ms", "us", "calls"), [(1000, 1, MAX_CALLS), (0.01, 1e6, MIN_CALLS), (10, 420, 20)])
def test_a_window_holds_what_fits_a_batch(batch_ms, us, calls):
    device, earlier = Device(), [1e5]
    meter = device.meter()
    meter.synchronize = lambda: earlier and device.run("earlier", earlier.pop())  # what was issued before does not count
    samples, _ = meter.device(lambda: device.run("softmax", us), batch_ms, "cold")
    assert len(samples) == calls


def test_the_first_call_of_a_window_does_not_count():
    device = Device()
    meter = device.meter()
    calls = iter(range(1000))

    def call():
        device.run("softmax", 50 if next(calls) <= MIN_CALLS else 5)  # those that only estimate, and the first after them

    assert set(meter.device(call, 1, "cold")[0]) == {5}


def test_a_call_with_the_flush_kernel_is_counted_correctly():
    device = Device()

    def call():
        device.run(FILL, 2)
        device.run("softmax", 5)

    samples, kernels = device.meter().device(call, 1, "cold")
    assert set(samples) == {7}
    assert kernels == [FILL, "softmax"]


def test_differing_calls_are_counted_and_usual_kernels_are_named():
    device = Device()
    calls = iter(range(1000))

    def call():
        device.run("softmax", 5)
        if next(calls) % 4 == 0:
            device.run("now and then", 1)

    samples, kernels = device.meter().device(call, 10, "cold")
    assert set(samples) == {5, 6}
    assert kernels == ["softmax"]


def test_what_the_profiler_lost_is_no_time():
    device, calls = Device(), itertools.count()
    with pytest.raises(UntracedError, match="no kernel of a call") as found:
        device.meter().device(lambda: next(calls) % 3 and device.run("softmax", 5), 1, "cold")
    assert not isinstance(found.value, NoKernelError)
    with pytest.raises(NoKernelError, match=r"no kernel of \d+ calls"):
        device.meter().device(lambda: None, 1, "cold")


def test_calls_without_any_kernel_leave_the_case_without_a_time(monkeypatch):
    device = Device()
    kernels = iter([lambda: None, lambda: device.run("softmax", 5)])
    for expected in ("the profiler saw no kernel of ", ""):
        loaded = ready(monkeypatch, device.meter(), next(kernels))
        reply = replied(loaded)
        assert reply.unverified.startswith(expected)
        assert bool(reply.unverified) == bool(expected)
        assert loaded.end_profile().unverified == ""  # it is reported once


def test_unordered_work_is_reported_once_with_the_profile(monkeypatch):
    device = Device()

    def call():
        device.run("softmax", 5)
        device.beside("hidden", 4)

    loaded = ready(monkeypatch, device.meter(), call)
    reply = replied(loaded)
    assert reply.unordered.startswith("hidden runs on another stream")
    assert set(reply.profile.device_us) == {9}
    assert loaded.end_profile().unordered == ""


def test_host_time_is_of_issuing_alone_and_bounded_in_number():
    device = Device()
    samples = device.meter().host(lambda: device.run("host", 12), 1000)
    assert samples == [12] * MAX_ISSUED


def ready(monkeypatch, meter, call=lambda: None):
    loaded = server.Server()
    rotation = types.SimpleNamespace(unwatched=lambda: call)  # stands in for `softbench.worker.timing.rotating_inputs.RotatingInputs`
    timers = Timers({("do_bench", "cold"): lambda *_: Samples([9.0])}, meter)
    monkeypatch.setattr(loaded, "_ready", lambda l2: (timers, types.SimpleNamespace(rotation=rotation)))
    return loaded


def replied(loaded):
    """The reply to the requests of a profile."""
    loaded.time_host(1, "cold")
    loaded.timers = loaded._ready("cold")[0]
    loaded.start_trace("cold")
    loaded.trace_calls(1, "cold")
    return loaded.end_profile()


def profiled(loaded):
    return replied(loaded).profile


def test_the_worker_answers_with_device_and_host_time_and_kernels(monkeypatch):
    device = Device()
    loaded = ready(monkeypatch, device.meter(), lambda: device.run("softmax\n<4>", 5))
    for _ in range(2):  # cells
        profile = profiled(loaded)
        assert set(profile.device_us) == {5}
        assert profile.kernels == ("softmax <4>",)
        assert set(profile.host_us) == {5}
    assert loaded.end_profile().profile.device_us == ()  # a profile is returned once


def test_a_users_call_is_timed_without_autograd_recorded_and_with_its_backward(monkeypatch):
    device, calls = Device(), []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            device.run("forward", 5)
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            device.run("backward", 7)
            return 2 * dy

    def function(x):
        calls.append(torch.is_grad_enabled())
        return Doubled.apply(x), "what else it returns"

    loaded = ready(monkeypatch, device.meter())
    loaded.case, loaded.inputs = Case(2, 3, "fp32", Direction.FORWARD, "cpu"), (torch.ones(2, 3),)
    named, beside = types.SimpleNamespace(name="mine", user_call=lambda case: function), (None, "theirs")
    theirs = types.SimpleNamespace(name="theirs", user_call=lambda case: lambda x: function(function(x)[0]))
    monkeypatch.setattr(loaded, "_beside", lambda source, name: theirs)
    mine = [5, 5, 12]
    for backend, expected in ((named, [*mine, 10, 10, 24]), (theirs, [10, 10, 24]), (types.SimpleNamespace(name="none"), [])):
        loaded.backend, loaded.timers = backend, loaded._ready("cold")[0]
        loaded.time_host(1, "cold")
        loaded.time_users_call(1, beside)
        one = loaded.profile.users_us
        loaded.time_users_call(1, beside)
        assert [set(samples) for samples in one] == [{us} for us in expected]
        assert loaded.profile.users_us == tuple(2 * samples for samples in one)
    assert set(calls) == {False, True}
    assert loaded.inputs[0].grad is None and not loaded.inputs[0].requires_grad


def test_two_functions_take_turns_and_each_begins_as_often():
    told = []

    def named(name):
        return lambda x: told.append(name) or 2 * x

    UsersCall((torch.ones(2),), named("a"), named("b")).us(lambda call: [call() is None])
    turns = ["".join(told[i : i + 2]) for i in range(0, len(told), 2)]
    assert turns[:12] == ["ab", *["ab", "ba"] * 2, "ab", "ab", *["ba", "ab"] * 2, "ba"]  # each first without a turn
    assert len(turns) == 3 * 6 + 1  # training needs a result's form first


def test_what_was_noted_before_is_told_without_a_call(monkeypatch):
    def fail(*_):
        raise AssertionError("called")

    loaded = ready(monkeypatch, Device().meter(), fail)
    loaded.peak_bytes, loaded.graphs_built, loaded.graphs = 4096, 1, types.SimpleNamespace(count=lambda: 3)
    monkeypatch.setattr(loaded, "_ready", fail)
    profile = loaded.end_profile().profile
    assert (profile.peak_bytes, profile.recompiles) == (4096, 2)
    assert not (profile.device_us or profile.host_us or profile.kernels)


@pytest.mark.parametrize("when", ["start", "stop"])
def test_without_a_profiler_host_time_and_a_note_remain(monkeypatch, when):
    def fail():
        raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")

    device = Device()
    meter = device.meter()
    meter.separators["cold"] = Separators(frozenset({FILL}), PAUSE, 0)
    monkeypatch.setattr(device, when, fail)
    profile = profiled(ready(monkeypatch, meter, lambda: device.run("x", 5)))
    assert profile.device_us == ()
    assert profile.host_us
    assert profile.note == "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"


def test_a_failed_profiled_call_does_not_affect_the_next_cell(monkeypatch):
    device, calls = Device(), iter(range(1000))

    def call():
        if next(calls) == MAX_ISSUED + 2 * MIN_CALLS:
            raise RuntimeError("now")
        device.run("x", 5)

    meter = device.meter()
    loaded = ready(monkeypatch, meter, call)
    assert profiled(loaded).note == "now"
    assert meter.running is None
    assert set(profiled(loaded).device_us) == {5}
    meter.begin("cold")  # a window that is not ended
    assert set(profiled(loaded).device_us) == {5}


def test_the_cpu_has_one_timer_and_an_empty_profile(monkeypatch):
    timers = bind("cpu")
    assert list(timers.by_name) == [(CPU_TIMER, "")]
    assert ready(monkeypatch, None).end_profile().profile == Profile()
    found = timers.by_name[CPU_TIMER, ""](lambda: math.sqrt(2), 0, 1, 0)
    assert len(found.us) >= MIN_SAMPLES
    assert found.block == found.calls > 1
    called: list[float] = []
    timers.by_name[CPU_TIMER, ""](lambda: called.append(time.perf_counter()), 50, 1, 1)
    assert called[-1] - called[0] > 0.05, "it is warmed up for so long"


@pytest.mark.parametrize(
    ("teardown", "leaves_in_call", "calls"), [("1", 3, 3), ("1", None, 200), ("1", 0, 0), ("0", None, 0), (None, None, 0)]
)
def test_calls_are_issued_until_cupti_has_left(monkeypatch, teardown, leaves_in_call, calls):
    monkeypatch.delenv(device_timer.TEARDOWN, raising=False)
    if teardown:
        monkeypatch.setenv(device_timer.TEARDOWN, teardown)
    made = []
    monkeypatch.setattr(device_timer, "threads", lambda: frozenset({"main"} | ({"leaving"} if len(made) != leaves_in_call else set())))
    monkeypatch.setattr(device_timer.time, "sleep", lambda _: None)
    device_timer.wait_until_gone(frozenset({"main"}), lambda: made.append(1), lambda: len(made) / 1000)
    assert len(made) == calls


def test_without_a_list_of_threads_the_whole_time_is_waited(monkeypatch):
    made = []
    monkeypatch.setenv(device_timer.TEARDOWN, "1")
    monkeypatch.setattr(device_timer, "threads", frozenset)
    monkeypatch.setattr(device_timer.time, "sleep", lambda _: None)
    device_timer.wait_until_gone(frozenset(), lambda: made.append(1), lambda: len(made) / 1000)
    assert len(made) == device_timer.LEAVE_SECONDS * 1000


def test_threads_are_seen_while_they_run():
    before, end = device_timer.threads(), threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert str(thread.native_id) in device_timer.threads() - before
    end.set()
    thread.join()
    deadline = time.monotonic() + 10
    while str(thread.native_id) in device_timer.threads():  # Python is done with it before the kernel is
        assert time.monotonic() < deadline


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_cupti_stays_for_reused_outputs_unless_the_environment_decides(monkeypatch, tmp_path, graphs, given):
    monkeypatch.setattr(device_timer, "TEARDOWN_GIVEN", given)
    monkeypatch.setenv(device_timer.TEARDOWN, "1")  # as `cuda_meter` has it
    file = tmp_path / "mine.py"
    file.write_text(f"""
class Backend:
    name, reuses_output = "mine", {graphs}
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case): return None
backend = Backend()
""")
    source = PluginSource("file", "mine", str(file), "mine.py")
    server.Server().load(source, "cpu")
    assert os.environ[device_timer.TEARDOWN] == ("0" if graphs and not given else "1")
