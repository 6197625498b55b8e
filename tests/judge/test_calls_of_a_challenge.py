"""What the plugin's process does while the judge's clock runs: nothing that it can do before, and the same without a plugin."""

import gc
import os
from itertools import cycle
from types import SimpleNamespace

import pytest
import torch
from problem_files import cases, problem
from wrongs import PLUGINS, load

from softbench.core.case import Case, Direction
from softbench.core.json import to_json
from softbench.core.messages import Called, Done, MakeCalls, MapInputs, QueueCalls, ReleaseOutputs, ShareOutputs
from softbench.worker import serve
from softbench.worker.judged import calls as judged_calls, memory, shared_memory
from softbench.worker.judged.calls import WARM_CALLS, JudgedCalls
from softbench.worker.judged.memory import input_layout, output_bytes, output_layout

CASE = Case(16, 96, "fp32", Direction.FORWARD, "cpu")
FUSED = Case(16, 96, "fp32", Direction.FUSED, "cpu", "cross_entropy")
CALLS = 3


class Challenges:
    """The judge's side of challenges in this process."""

    def __init__(self, call=None, case=CASE, inputs=None, backend=None):
        self.case, self.size = case, CALLS * input_layout(case)[1]
        self.server = SimpleNamespace(case=None, call=call, backend=backend, inputs=inputs)
        self.outputs = shared_memory.create(output_bytes(case, CALLS), "cpu")
        self.worker = JudgedCalls(self.server, [os.dup(self.outputs.descriptor)])
        self.worker.handle(ShareOutputs(case, CALLS, output_bytes(case, CALLS)))

    def block(self):
        """Memory for new inputs, which the worker is given."""
        block = shared_memory.create(self.size, "cpu", read_only=True)
        self.worker.descriptors.append(os.dup(block.descriptor))
        return block

    def run(self, *, at_once=False):
        """The inputs of each call, and its outputs, of a new challenge."""
        self.worker.handle(ReleaseOutputs())
        block = self.block()
        block.bytes.view(torch.float32).normal_()
        layout, each = input_layout(self.case)
        given = [call[0].clone() for call in memory.tensors_of_calls(block.bytes, layout, each, self.case, CALLS)]
        places = self.worker.handle(MakeCalls(self.size, at_once=at_once)).places
        found = [shared_memory.typed(self.outputs.bytes, at, given[0].shape, torch.float32).clone() for (at,) in places]
        block.close()
        return given, found


def softmax(x):
    return torch.softmax(x, -1)


def all_right(given, found):
    return all(map(torch.allclose, found, map(softmax, given)))


def test_calls_are_right_for_new_inputs_at_one_address():
    addresses = []
    challenges = Challenges(lambda x: (addresses.append(x.data_ptr()), softmax(x))[1])
    assert all(all_right(*challenges.run()) for _ in range(3))
    assert len(set(addresses)) == CALLS and addresses == addresses[:CALLS] * 3


def test_inputs_that_are_mapped_once_more_change_nothing():
    challenges = Challenges(softmax)
    assert all_right(*challenges.run())
    challenges.block().bytes.fill_(0)
    assert challenges.worker.handle(MapInputs(challenges.size)) == Done()
    assert all_right(*challenges.run())


def test_an_input_that_a_call_changes_is_copied_to_where_the_judge_reads_it(tmp_path):
    text = "def inputs(M=16, N=96):\n return torch.randn(M, N)\n\ndef reference(x):\n x.mul_(2)\n"
    challenges = Challenges(lambda x: x.mul_(2), *cases(problem(tmp_path, text)))
    given, found = challenges.run()
    assert all(torch.equal(2 * x, after) for x, after in zip(given, found, strict=True))


def test_work_that_nothing_waits_for_is_missing_right_after_its_call(tmp_path, monkeypatch):
    """As on another stream of a GPU: it is there when the device was waited for."""
    later, text = [], "def inputs(M=16, N=96):\n return torch.randn(M, N)\n\ndef reference(x):\n x.mul_(2)\n"
    monkeypatch.setattr(judged_calls, "synchronize", lambda device: [later.pop()() for _ in later.copy()])
    challenges = Challenges(lambda x: (later.append(lambda: x.mul_(2)), x)[1], *cases(problem(tmp_path, text)))

    def right(*, at_once):
        return all(torch.equal(2 * x, after) for x, after in zip(*challenges.run(at_once=at_once), strict=True))

    assert [right(at_once=at_once) for at_once in (False, True, False)] == [True, False, True]
    challenges.worker.server.call = lambda x: x.mul_(2)
    assert right(at_once=True)


@pytest.mark.parametrize("name", ["cached-by-address", "cached-by-version"])
def test_outputs_cached_by_address_are_wrong(name):
    (trick,) = (trick for trick in load(PLUGINS / "wrong" / "tricks.py") if trick.name == name)
    challenges = Challenges(trick.make())
    assert all_right(*challenges.run())
    assert not all_right(*challenges.run())


def test_a_tensor_of_the_last_challenge_has_new_values():
    kept = []
    challenges = Challenges(lambda x: (kept.append(x), softmax(kept[-CALLS - 1] if len(kept) > CALLS else x))[1])
    assert all_right(*challenges.run())
    given, found = challenges.run()
    assert all_right(given, found)
    assert torch.equal(kept[0], given[0])


def test_tensors_of_calls_are_made_before_the_request(monkeypatch):
    challenges = Challenges(softmax)
    challenges.worker.handle(ReleaseOutputs())
    made = []
    monkeypatch.setattr(judged_calls, "tensors_of_calls", lambda *_: made.append(1))
    block = challenges.block()
    challenges.worker.handle(MakeCalls(challenges.size))
    assert not made
    block.close()


def test_each_challenge_has_tensors_without_a_past():
    """Of a case with gradients. The tensors that were made before the build have none."""
    seen = []

    def call(x):
        seen.append((x.requires_grad, x.is_leaf, x.grad, x._version))
        torch.softmax(x, -1).sum().backward()
        with torch.no_grad():
            torch._C._autograd._unsafe_set_version_counter((x,), (7,))
        return softmax(x.detach())

    challenges = Challenges(call)
    challenges.worker.handle(ReleaseOutputs())
    challenges.server.inputs = (torch.zeros(1, requires_grad=True),)
    challenges.run()
    challenges.run()
    assert seen[0] == seen[CALLS] == (True, True, None, 0)


def test_a_block_larger_than_its_range_is_refused():
    window, block = shared_memory.window(4096, "cpu"), shared_memory.create(8192, "cpu")
    with pytest.raises(ValueError, match="8192 bytes for a range of 4096"):
        window.map(block.descriptor, 8192)
    with pytest.raises(OSError, match="Bad file descriptor"):
        window.map(9999, 4096)
    block.close()


@pytest.mark.parametrize("call", [pytest.param(None, marks=pytest.mark.slow), softmax])
def test_no_collector_runs_from_the_request_to_the_reply(call, monkeypatch):
    """Also in an empty challenge. Garbage is collected before."""
    outputs, size = shared_memory.create(output_bytes(CASE, CALLS), "cpu"), CALLS * input_layout(CASE)[1]
    inputs, running = shared_memory.create(size, "cpu", read_only=True), []
    requests = [ShareOutputs(CASE, CALLS, output_bytes(CASE, CALLS)), ReleaseOutputs(), MakeCalls(size), ReleaseOutputs()]
    left = iter([*map(to_json, requests), None])

    def watched(x):
        running.append(("call", gc.isenabled(), gc.get_freeze_count() > 0))
        return call(x)

    def send(reply):
        running.append((reply["reply"], gc.isenabled(), gc.get_freeze_count() > 0))

    server = SimpleNamespace(case=None, call=call and watched, backend=None, inputs=None, source=None)
    monkeypatch.setattr(serve, "Server", lambda: server)
    descriptors = [os.dup(block.descriptor) for block in (outputs, inputs)]
    gc.unfreeze()
    try:
        serve.serve(SimpleNamespace(receive=lambda: next(left), received=descriptors, send=send))
    finally:
        gc.freeze()  # as pytest_collection_finish left it
    calls = [("call", False, True)] * CALLS if call else []
    assert running == [("Done", True, False), ("Done", True, True), *calls, ("Called", False, True), ("Done", True, True)]


def test_an_output_in_the_memory_needs_no_slot():
    challenges = Challenges()
    arena, kept = challenges.worker.arena, []
    slot, arena.slots = arena.slots[1][0], None
    assert arena.place(1, (slot,), kept) == (output_layout(CASE)[1],)
    assert kept[0] is slot


@pytest.mark.parametrize(
    "out",
    [
        *(None, torch.nn.Parameter(torch.zeros(16, 96)), torch.zeros(16, 95), torch.zeros(96, 16), torch.zeros(1, 16, 96)),
        *(torch.zeros(16, 96, dtype=torch.float64), torch.zeros(16, 96, dtype=torch.int32), torch.zeros(16, 96, device="meta")),
    ],
)
def test_an_output_of_another_form_is_refused(out):
    with pytest.raises(ValueError, match=r"returned .*, not torch.float32 \(16, 96\) on cpu"):
        Challenges().worker.arena.place(0, (out,), [])


def test_another_number_of_outputs_is_refused():
    arena, outputs = (
        Challenges(case=FUSED).worker.arena,
        tuple(torch.zeros(form.shape, dtype=form.dtype) for form in Challenges(case=FUSED).worker.arena.forms),
    )
    assert len(arena.place(0, outputs, [])) == len(outputs) == 2
    for wrong in (outputs[0], outputs[:1], (*outputs, outputs[0])):
        with pytest.raises(ValueError, match="must return"):
            arena.place(0, wrong, [])


def test_outputs_elsewhere_are_copied_and_strided_ones_too():
    challenges = Challenges()
    arena, kept = challenges.worker.arena, []
    start = output_layout(CASE)[1]
    values = torch.rand(16, 96, requires_grad=True)
    assert arena.place(1, (values,), kept) == (start,)
    assert torch.equal(arena.slots[1][0], values)
    strided = arena.slots[2][0].view(96, 16).t()
    strided.copy_(values.detach())
    assert arena.place(1, (strided,), kept) == (start,)
    assert not kept and not arena.slots[1][0].requires_grad


class Driver:
    """CUDA's driver, as far as it maps memory."""

    def __init__(self, monkeypatch):
        self.calls, self.handles = [], 0
        monkeypatch.setattr(shared_memory, "call_driver", self.call)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.calls.append(("synchronize",)))
        monkeypatch.setattr(torch, "as_tensor", self.tensor)

    def call(self, name, *arguments):
        values = [getattr(argument, "_obj", argument) for argument in arguments]
        numbers = [getattr(value, "value", value) for value in values]
        match name:
            case "cuMemGetAllocationGranularity":
                values[0].value = 4096
                return
            case "cuMemAddressReserve":
                values[0].value = 2**40
                self.calls.append((name, numbers[1]))
            case "cuMemCreate" | "cuMemImportFromShareableHandle":
                self.handles += 1
                values[0].value = self.handles
                self.calls.append((name, numbers[1]))
            case "cuMemMap":
                self.calls.append((name, numbers[0], numbers[1], numbers[3]))
            case "cuMemSetAccess":
                self.calls.append((name, *numbers[:2], values[2].location.id, values[2].flags))
            case _:
                self.calls.append((name, *numbers))

    def tensor(self, memory, device):
        assert self.calls[-1][0] == "cuMemSetAccess", "torch asks for the device of the address"
        self.calls.append(("tensor", memory.__cuda_array_interface__["data"][0], *memory.__cuda_array_interface__["shape"]))
        return torch.zeros(memory.__cuda_array_interface__["shape"], dtype=torch.uint8)


def test_a_range_of_the_gpu_is_reserved_once(monkeypatch):
    driver, at = Driver(monkeypatch), 2**40
    window = shared_memory.window(10_000, "cuda")
    assert driver.calls == [
        ("cuMemAddressReserve", 12_288),
        ("cuMemCreate", 4096),
        ("cuMemMap", at, 4096, 1),
        ("cuMemSetAccess", at, 4096, 0, 3),
        ("tensor", at, 10_000),
    ]
    for handle, mapped in ((2, 4096), (3, 12_288)):
        driver.calls.clear()
        descriptor = os.open(os.devnull, os.O_RDONLY)
        window.map(descriptor, 10_000)
        assert driver.calls == [
            ("cuMemImportFromShareableHandle", descriptor),
            ("cuMemUnmap", at, mapped),
            ("cuMemMap", at, 12_288, handle),
            ("cuMemSetAccess", at, 12_288, 0, 3),
            ("cuMemRelease", handle - 1),
        ]
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
    with pytest.raises(ValueError, match="for a range of 12288"):
        window.map(0, 12_289)


def test_a_block_of_the_gpu_is_made_mapped_and_freed(monkeypatch):
    driver, at = Driver(monkeypatch), 2**40
    block = shared_memory.create(5000, "cuda")
    block.descriptor = os.open(os.devnull, os.O_RDONLY)
    block.close()
    names = [name for name, *_ in driver.calls]
    assert names == [
        *("cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "tensor"),
        *("synchronize", "cuMemUnmap", "cuMemAddressFree", "cuMemRelease"),
    ]
    assert ("cuMemMap", at, 8192, 1) in driver.calls


class Held:
    """A queue of a GPU that takes `most` calls of a rehearsed function. What happens is written to `events`."""

    def __init__(self, events, most):
        self.events, self.most, self.function = events, most, ()

    def room(self, function):
        return self.most if self.rehearsed(function) else 0

    def rehearsed(self, function):
        return self.function == (function,)

    def hold(self):
        self.events.append("hold")

    def start(self):
        self.events.append("start")

    def rehearse(self, function, issue, count, *, spare=True):
        self.events.append("rehearsal")
        for _ in range(count + 3 * spare):
            issue()
        self.function = (function,)


@pytest.fixture
def queued():
    """Challenges whose calls are queued, and what happens in them."""
    events = []
    challenges = Challenges(lambda x: (events.append("call"), softmax(x))[1])
    window = challenges.worker.window
    challenges.worker.window = SimpleNamespace(bytes=window.bytes, map=lambda *given: (events.append("map"), window.map(*given)))
    challenges.worker.queue = Held(events, 2)
    return challenges, events


def test_the_first_calls_are_rehearsed_with_their_inputs(queued):
    challenges, events = queued
    assert challenges.worker.handle(QueueCalls()) == Called((), 0.0)
    assert all_right(*challenges.run())
    assert events == ["map", "call", *["call"] * WARM_CALLS, "rehearsal", *["call"] * (CALLS + 3)]


@pytest.mark.parametrize("apart", [True, False])
def test_cuda_graphs_are_recorded_for_each_call(queued, monkeypatch, apart):
    challenges, events = queued
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: events.append("step"))
    slots = [slot for (slot,) in challenges.worker.arena.slots]
    turns = cycle(slots if apart else slots[-1:])
    challenges.worker.server.backend = SimpleNamespace(reuses_output=True)
    challenges.worker.server.call = lambda x: (events.append("call"), next(turns).copy_(softmax(x)))[1]
    assert all_right(*challenges.run())
    assert events == ["step", "map", *["call"] * CALLS, "step", "rehearsal", *["call"] * CALLS]
    assert (challenges.worker.apart, len(challenges.worker.kept)) == (apart, CALLS * apart)


@pytest.mark.parametrize("graphs", [False, True])
def test_repeated_calls_leave_no_gradient(queued, monkeypatch, graphs):
    challenges, _ = queued
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    challenges.worker.server.backend = SimpleNamespace(reuses_output=graphs)
    challenges.worker.server.inputs = [torch.empty(1, requires_grad=True)]
    grads = []
    challenges.worker.server.call = lambda x: (grads.append(x.grad), softmax(x).sum().backward(), softmax(x).detach())[2]
    assert all_right(*challenges.run())
    assert grads == [None] * (2 * CALLS if graphs else 1 + WARM_CALLS + CALLS + 3)


def test_one_buffer_of_two_outputs_is_found():
    arena = Challenges(case=FUSED).worker.arena
    places = [list(call) for call in arena.places]
    assert arena.apart([tuple(call) for call in places])
    places[1][0] = places[0][0]
    assert not arena.apart([tuple(call) for call in places])


def test_later_calls_are_queued_before_their_inputs_are_mapped(queued):
    challenges, events = queued
    challenges.run()
    events.clear()
    challenges.worker.handle(ReleaseOutputs())
    first = challenges.worker.handle(QueueCalls()).places
    assert (len(first), events) == (2, ["hold", "call", "call"])
    block = challenges.block()
    rest = challenges.worker.handle(MakeCalls(challenges.size)).places
    assert events == ["hold", "call", "call", "map", "start", *["call"] * (CALLS - 2)]
    assert [place for (place,) in (*first, *rest)] == [call * output_layout(CASE)[1] for call in range(CALLS)]
    block.close()


def test_half_of_the_queue_is_for_the_copies_of_outputs(queued):
    challenges, events = queued
    challenges.run()
    challenges.worker.handle(ReleaseOutputs())
    events.clear()
    first = challenges.worker.handle(QueueCalls(at_once=True)).places
    assert (len(first), events) == (1, ["hold", "call"])
    block = challenges.block()
    rest = challenges.worker.handle(MakeCalls(challenges.size, at_once=True)).places
    assert [place for (place,) in (*first, *rest)] == [call * output_layout(CASE)[1] for call in range(CALLS)]
    block.close()


def test_a_queued_call_that_fails_holds_nothing_back(queued):
    challenges, events = queued
    challenges.run()

    def fails(x):
        raise ValueError("a call")

    challenges.worker.queue.function = (fails,)
    challenges.worker.server.call = fails
    events.clear()
    with pytest.raises(ValueError, match="a call"):
        challenges.worker.handle(QueueCalls())
    assert events == ["hold", "start"]


def test_inputs_that_cannot_be_mapped_hold_nothing_back(queued):
    challenges, events = queued
    challenges.run()
    challenges.worker.handle(ReleaseOutputs())
    challenges.worker.handle(QueueCalls())
    events.clear()
    challenges.worker.descriptors.append(-1)
    with pytest.raises(ValueError, match="for a range of"):
        challenges.worker.handle(MakeCalls(2 * challenges.size))
    assert events == ["map", "start"]


def test_outputs_stay_from_the_queue_to_the_release(queued):
    """Torch would give the memory of others to later calls."""
    challenges, _ = queued
    slots = cycle(slot for (slot,) in challenges.worker.arena.slots)
    challenges.worker.server.call = lambda x: next(slots)
    challenges.run()
    challenges.worker.handle(ReleaseOutputs())
    assert not challenges.worker.kept
    challenges.worker.handle(QueueCalls())
    block = challenges.block()
    challenges.worker.handle(MakeCalls(challenges.size))
    assert len(challenges.worker.kept) == CALLS
    block.close()
