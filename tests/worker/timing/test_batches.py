"""Batches as a worker takes them: renewed, timed, collected at once, verified when there is time for it."""

import threading
import time
import weakref
from functools import partial

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.json import to_json
from softbench.core.messages import TimeBatch, Timed, Verified, VerifyOutputs
from softbench.core.outcome import Grade, Telemetry
from softbench.ops.operation import Operation
from softbench.ops.softmax import NUMERICS
from softbench.plugins.source import origins
from softbench.worker import serve, server
from softbench.worker.checking.output_checks import CHANGED
from softbench.worker.checking.pre_check import verify_outputs
from softbench.worker.checking.probes import WHEN_READ, EqualProbes
from softbench.worker.guarding.tamper_guard import bind
from softbench.worker.timing import batches, telemetry
from softbench.worker.timing.batches import Batches
from softbench.worker.timing.rotating_inputs import RotatingInputs
from softbench.worker.timing.timers import Samples

CASE = Case(16, 32, "fp32", Direction.FORWARD, "cpu")
verdict = partial(verify_outputs, object())


def five(call, warmup_ms, batch_ms, block):
    """A timer."""
    for _ in range(5):
        call()
    return Samples([1.0] * 5)


@pytest.fixture(autouse=True)
def no_gpu_and_no_thread_of_another_test(monkeypatch):
    """Batches do not synchronize with a GPU. The threads of a test end before the next test counts threads."""
    monkeypatch.setattr(batches, "synchronize", lambda device: None)
    before = threading.enumerate()
    yield
    for thread in set(threading.enumerate()) - set(before):
        thread.join(10)


def made(call, *, case=CASE, device="cpu", guard=None, overwrites=False):
    rotation = RotatingInputs(case, NUMERICS.make(case, 0, torch.device("cpu")), call, overwrites=overwrites)
    rotation.widen()
    return Batches(rotation, device, guard)


def taken(batches, timer=five):
    """Take a batch."""
    batches.renew()
    batches.time(timer, 0, 0, 0)


def test_outputs_are_verified_as_the_batch_left_them():
    outputs = []

    def call(x):
        outputs.append(weakref.ref(y := torch.zeros_like(x)))
        late.append((x, y)) if keep else None
        return y

    for keep in (False, True):
        outputs, late = [], []
        found = made(call)
        taken(found)
        assert sum(output() is not None for output in outputs) == (5 if keep else 0)
        for x, y in late:
            y.copy_(torch.softmax(x, -1))
        assert found.verify(verdict).detail.startswith("in a timed call, in a row that had just changed: y[")


def test_an_input_restored_after_the_batch_counts_as_changed():
    before = []

    def call(x):
        before.append((x, x.clone()))
        y = torch.softmax(x, -1)
        x.data.mul_(1.0001)
        return y

    found = made(call)
    taken(found)
    for x, values in reversed(before):
        x.data.copy_(values)
    assert found.verify(verdict).detail == f"in a timed call: {CHANGED}"


def test_outputs_computed_before_the_batch_are_wrong():
    ready = {}
    for M, N in ((16, 32), (1, 64), (2, 3)):
        case = Case(M, N, "fp32", Direction.FORWARD, "cpu")
        found = made(lambda x: ready[x.data_ptr()].clone(), case=case)  # of its own memory: shared memory is another reason
        found.renew()
        ready.update({x.data_ptr(): torch.softmax(x, -1) for (x,) in found.rotation.sets})
        found.time(five, 0, 0, 0)
        assert found.verify(verdict).detail.startswith("in a timed call, in a row that had just changed: y["), case


@pytest.mark.parametrize("damage", [lambda x: x.data.zero_(), lambda x: x.resize_(0)])
def test_an_input_changed_around_the_batch_is_detected(damage):
    found = made(partial(torch.softmax, dim=-1))
    taken(found)
    for (x,) in found.rotation.sets:
        damage(x)
    assert found.verify(verdict).detail == f"in a timed call: {CHANGED}"
    found = made(partial(torch.softmax, dim=-1))
    found.renew()
    damage(found.rotation.sets[1][0])
    found.time(five, 0, 0, 0)
    assert found.verify(verdict).detail == f"in a timed call: {CHANGED}"
    found.rotation.sets[1][0].resize_(CASE.M, CASE.N)
    taken(found)
    assert found.verify(verdict).grade is Grade.PASS


def test_outputs_that_are_not_plain_tensors_are_wrong():
    for odd, part in ((lambda x: x.to_sparse(), "layout"), (lambda x: None, "NoneType"), (lambda x: x.resize_(0), "changed its input")):
        found = made(odd)
        taken(found)
        assert part in found.verify(verdict).detail


def test_a_replaced_clock_is_reported_although_undone_later(monkeypatch):
    found = made(lambda x: monkeypatch.setattr("time.monotonic", lambda: 0) or torch.softmax(x, -1), guard=bind("cpu"))
    taken(found)
    monkeypatch.undo()
    assert found.verify(verdict).detail.startswith("replaced time.monotonic")


def threaded(call, *, overwrites=False):
    """The verdicts on batches of a call, which a slow timer gives time to finish."""

    def slowly(body, *settings):
        result = five(body, *settings)
        time.sleep(0.1)
        return result

    found = made(call, overwrites=overwrites)
    for _ in range(5):
        taken(found, slowly)
        yield found.verify(verdict)


def test_threads_that_leave_the_output_alone_pass():
    end = threading.Event()

    def call(x):
        threading.Thread(target=end.wait, args=(0.02,), daemon=True).start()
        return torch.softmax(x, -1)

    assert {found.grade for found in threaded(call)} == {Grade.PASS}


def test_an_output_that_is_finished_within_its_batch_is_wrong():
    def finish(x, y):
        time.sleep(0.02)
        y.copy_(torch.softmax(x, -1))

    def call(x):
        y = torch.zeros_like(x)
        threading.Thread(target=finish, args=(x, y)).start()
        return y

    details = [found.detail for found in threaded(call)]
    assert all("its output changed during later calls" in detail or "that had just changed" in detail for detail in details), details


def test_a_reused_buffer_is_judged_as_its_call_left_it():
    y = torch.zeros(CASE.M, CASE.N)

    def finish(x):
        time.sleep(0.08)  # so long a busy host may take until the output is copied
        y.copy_(torch.softmax(x, -1))

    def call(x):
        threading.Thread(target=finish, args=(x,)).start()
        return y

    assert {found.grade for found in threaded(call, overwrites=True)} == {Grade.WRONG}


def test_sums_in_another_order_are_not_taken_for_late_writes():
    end = threading.Event()
    calls = []

    def call(x):
        calls.append(x)
        if len(calls) == 1:
            threading.Thread(target=end.wait).start()
        end.set()
        return torch.softmax(x, -1) * (1 + 1e-7 * (len(calls) % 3))

    assert {found.grade for found in threaded(call)} == {Grade.PASS}


def test_a_verdict_is_given_once():
    found = made(partial(torch.softmax, dim=-1))
    taken(found)
    assert found.verify(verdict).grade is Grade.PASS
    assert found.verify(verdict) is None
    taken(found)
    found.renew()
    assert found.verify(verdict) is None


def test_calls_whose_inputs_were_not_renewed_are_not_timed():
    found = made(lambda x: torch.softmax(x, -1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="not renewed"):
            found.time(five, 0, 0, 0)
        taken(found)
        assert found.verify(verdict).grade is Grade.PASS


def test_who_exchanges_the_judge_after_the_batch_is_noticed(monkeypatch):
    found = made(lambda x: x.clone(), guard=bind("cpu"))
    taken(found)
    monkeypatch.setattr("softbench.ops.check.excess", lambda *_: None)
    assert found.verify(verdict).detail == "replaced softbench.ops.check.excess, which measures or judges it"


@pytest.mark.parametrize(("late", "grade"), [("11", Grade.PASS), ("111", Grade.WRONG), ("000111", Grade.PASS)])
def test_outputs_that_seem_computed_when_read_are_wrong_in_most_of_several_batches(monkeypatch, late, grade):
    reasons = iter(late)
    monkeypatch.setattr(EqualProbes, "late", lambda self, call_ns: WHEN_READ * int(next(reasons)))
    found = made(partial(torch.softmax, dim=-1))
    for _ in late:
        taken(found)
    assert found.verify(verdict).grade is grade


def test_late_work_of_timed_calls_is_wrong(monkeypatch):
    for reason, grade in (("", Grade.PASS), ("the GPU still works", Grade.WRONG)):
        monkeypatch.setattr(batches, "late_work", lambda call, each_us, reason=reason: reason if call() is not None else "not called")
        found = made(partial(torch.softmax, dim=-1), device="cuda")
        found.renew()
        found.check_late_work(found.time(five, 0, 0, 0).us)
        assert found.rotation.kept == {}
        assert found.verify(verdict).grade is grade


@pytest.fixture
def loaded():
    """A worker's, at a case of torch."""
    (source,) = (source for source in origins(()) if source.label == "torch")
    loaded = server.Server()
    loaded.load(source, "cpu", "torch")
    loaded.build(CASE, 0)
    return loaded


def timed(loaded):
    loaded.renew("")
    loaded.time(0.1, 0.1, "torch.utils.benchmark", "")
    loaded.read_telemetry()
    return loaded.verify().telemetry


def test_a_batch_has_the_reading_taken_after_it(loaded, monkeypatch):
    readings = iter([Telemetry(mhz, None, None, None, None, "") for mhz in (1, 2)])
    loaded.telemetry = lambda: next(readings)
    assert [timed(loaded).sm_clock_mhz for _ in range(2)] == [1, 2]
    loaded.telemetry = lambda: None
    for busy in (None, Telemetry(throttled="a thread waited")):
        monkeypatch.setattr(telemetry.Waiting, "telemetry", lambda self, busy=busy: busy)
        assert timed(loaded) == busy


@pytest.mark.parametrize(("reasons", "throttled"), [(0x04, ""), (0x44, "hardware thermal slowdown")])
def test_products_that_lower_the_clock_by_their_power_are_not_throttled(loaded, monkeypatch, reasons, throttled):
    reading = Telemetry(reasons=reasons, throttled="SM clock 1400 of 1980 MHz")
    loaded.telemetry = lambda: reading
    assert timed(loaded) == reading
    monkeypatch.setattr(Operation, "flops", lambda self, case: 2**40)
    assert timed(loaded).throttled == throttled


def test_telemetry_is_read_after_the_reply_to_a_batch_only(monkeypatch):
    order = []

    class Fake:
        def time(self, *_):
            return Timed((1.0,))

        def verify(self):
            return Verified(None, None)

        def read_telemetry(self):
            order.append("read")

    class Channel:
        received = ()
        messages = iter([to_json(TimeBatch(1, 1, "", "")), to_json(VerifyOutputs()), None])

        def receive(self):
            return next(self.messages)

        def send(self, answer):
            order.append("answered")

    monkeypatch.setattr(serve, "Server", Fake)
    serve.serve(Channel())
    assert order == ["answered", "read", "answered"]


def test_late_work_is_looked_for_once_per_case(loaded, monkeypatch):
    looks = []
    monkeypatch.setattr(Batches, "check_late_work", lambda self, samples: looks.append(len(samples) > 0))

    def on_a_gpu():
        loaded.renew("")
        loaded.device = "cuda"
        loaded.time(0.1, 0.1, "torch.utils.benchmark", "")
        loaded.device = "cpu"

    timed(loaded)
    assert looks == []
    on_a_gpu()
    on_a_gpu()
    loaded.release()
    assert loaded.batches is None
    on_a_gpu()
    assert looks == [True]
    loaded.build(CASE, 0)
    on_a_gpu()
    assert looks == [True, True]
