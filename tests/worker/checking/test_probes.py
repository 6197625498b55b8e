"""Probes find tricks that rely on constant inputs or late reading, leave inputs as they were, and distort no sample."""

import itertools
import random
import time
from functools import partial

import pytest
import torch
from sampled import sampled
from wrongs import BATCH_TRICKS, HONEST

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking import probes
from softbench.worker.checking.pre_check import verify_outputs
from softbench.worker.checking.probes import Probes
from softbench.worker.timing.batches import Batches
from softbench.worker.timing.rotating_inputs import RotatingInputs
from softbench.worker.timing.timers import Samples

CASE = Case(64, 256, "fp32", Direction.FORWARD, "cpu")


def calling(count):
    """A timer of so many calls, whose samples are the calls' numbers."""

    def timer(call, warmup_ms, batch_ms, block):
        for _ in range(count):
            call()
        return Samples([float(number) for number in range(count - 10, count)])

    return timer


def made(call, case=CASE, *, overwrites=False):
    rotation = RotatingInputs(case, NUMERICS.make(case, 0, torch.device("cpu")), call, overwrites=overwrites)
    rotation.widen()
    return Batches(rotation, "cpu", None)


def verdicts(batches, calls, count):
    for _ in range(count):
        batches.renew()
        time.sleep(0.025)  # a trick takes the pause for the end of a batch
        batches.time(calling(calls), 0, 0, 0)
        yield batches.verify(partial(verify_outputs, object()))


@pytest.mark.parametrize("trick", sampled(BATCH_TRICKS, lambda trick: BATCH_TRICKS.index(trick) % 2 == 0), ids=lambda trick: trick.name)
def test_tricks_within_a_batch_are_found_in_most_batches(trick):
    call = trick.make()
    for _ in range(60):
        call(torch.randn(64, 256))
    found = [verdict.grade is Grade.WRONG for verdict in verdicts(made(call), 100, 10)]
    assert sum(found) >= 8


@pytest.mark.parametrize(
    ("honest", "direction"),
    sampled(
        itertools.product(HONEST, (Direction.FORWARD, Direction.BACKWARD)),
        lambda honest, direction: (direction is Direction.FORWARD) == (HONEST.index(honest) % 2 == 0),
    ),
)
def test_honest_backends_pass_probes_at_any_shape(honest, direction):
    for M, N in ((64, 256), (1, 3000), (5, 2), (7, 1)):
        case = Case(M, N, "bf16", direction, "cpu")
        assert {verdict.grade for verdict in verdicts(made(honest.prepare(case), case), 60, 2)} == {Grade.PASS}


def test_inputs_are_restored_bit_by_bit_with_their_version():
    batches = made(lambda x: torch.softmax(x, -1))
    body = batches.rotation.renew()
    before = [(x.clone(), x._version) for (x,) in batches.rotation.sets]
    seen = set()
    for _ in range(100):
        body()
        seen.add(len(batches.rotation.probes.turns))
        now = [(x, x._version) for (x,) in batches.rotation.sets]
        assert all(torch.equal(x, old) and version == first for (x, version), (old, first) in zip(now, before, strict=True))
    assert len(seen) > 4


def test_probes_are_rare_and_one_is_late():
    for seed in range(20):
        made = Probes(CASE, [NUMERICS.make(CASE, 0, torch.device("cpu"))] * 2, random.Random(seed), 8, overwrites=False)
        for turn in range(1000):
            if turn >= made.at:
                made.before(turn)
                made.after(turn, torch.zeros(64, 256))
        assert 2 <= made.turns[0] < 6
        assert made.turns[-1] > 400
        assert len(made.turns) < 40
        assert len(made.done) <= 8


def test_a_declared_overwriting_output_passes():
    buffer = torch.empty(64, 256)
    batches = made(lambda x: torch.softmax(x, -1, out=buffer), overwrites=True)
    assert {verdict.grade for verdict in verdicts(batches, 60, 3)} == {Grade.PASS}


def test_samples_of_probed_calls_are_dropped_if_enough_remain():
    made = Probes(CASE, [NUMERICS.make(CASE, 0, torch.device("cpu"))], random.Random(0), 8, overwrites=False)
    made.turns = [3, 95, 99]
    samples = [float(number) for number in range(90, 100)]
    assert made.without(samples, 1, 100) == [90, 91, 92, 93, 94, 96, 97, 98]
    assert made.without(samples, 10, 100) == samples[1:-1]  # blocks of ten calls
    made.turns = list(range(90, 100))
    assert made.without(samples, 1, 100) == samples


def test_graph_captures_and_profilers_prevent_probes(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert probes.possible("cuda")
    with torch.autograd.profiler.profile():
        assert not probes.possible("cuda")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert not probes.possible("cuda")
    assert probes.possible("cpu")


def test_a_call_that_resizes_its_input_is_wrong():
    (verdict,) = verdicts(made(lambda x: torch.softmax(x, -1) if x.resize_(0) is None else x.new_zeros(64, 256)), 60, 1)
    assert verdict.detail == "in a timed call: changed its input"
