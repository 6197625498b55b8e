"""Probes find tricks that rely on constant inputs or late reading, leave inputs as they were, and distort no sample."""

import itertools
import random
import time
from dataclasses import replace
from functools import partial

import pytest
import torch
from sampled import sampled
from wrongs import BATCH_TRICKS, HONEST

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking import any_dim, output_checks, probes
from softbench.worker.checking.output_checks import CHANGED
from softbench.worker.checking.pre_check import verify_outputs
from softbench.worker.checking.probes import EqualProbes, Probes
from softbench.worker.timing.batches import Batches
from softbench.worker.timing.rotating_inputs import RotatingInputs
from softbench.worker.timing.timers import Samples, bind

CASE = Case(64, 256, "fp32", Direction.FORWARD, "cpu")
ON_GPU = replace(CASE, device="cuda")
"""Its tensors lie on the CPU here."""


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


@pytest.mark.parametrize("trick", sampled(BATCH_TRICKS, lambda trick: BATCH_TRICKS.index(trick) % 4 == 0), ids=lambda trick: trick.name)
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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_inputs_are_restored_bit_by_bit_with_their_version(device, monkeypatch):
    monkeypatch.setattr(probes, "possible", lambda device: True)
    passes = ("softmax", Direction.BACKWARD), ("cross_entropy", Direction.FORWARD), ("masked_softmax", Direction.BACKWARD)
    for (op, direction), M in [*itertools.product(passes, [64]), (passes[1], 1)]:
        case = Case(M, 256, "bf16", direction, device, op, "2x2x16x256" if op == "masked_softmax" else "")
        given = any_dim.make(case, 0, torch.device("cpu"))
        seen = []

        def call(*given, case=case, seen=seen):
            seen.append(given[0].clone())
            made = tuple(torch.zeros(form.shape, dtype=form.dtype) for form in output_checks.forms(case))
            return made if len(made) > 1 else made[0]

        rotation = RotatingInputs(case, given, call, overwrites=False)
        rotation.widen()
        body = rotation.renew()
        before = [(x.clone(), x._version) for tensors in rotation.sets for x in tensors]
        for _ in range(100):
            body()
            now = [(x, x._version) for tensors in rotation.sets for x in tensors]
            assert all(torch.equal(x, old) and version == first for (x, version), (old, first) in zip(now, before, strict=True))
        changed = sum(not torch.equal(x, given[0]) and not torch.equal(x, rotation.sets[1][0]) for x in seen)
        assert changed > 90 if device == "cpu" else 1 < changed < 30


def test_probes_are_rare_and_one_is_late(monkeypatch):
    monkeypatch.setattr(probes, "possible", lambda device: True)
    for seed in range(20):
        made = Probes(ON_GPU, [NUMERICS.make(CASE, 0, torch.device("cpu"))] * 2, random.Random(seed), 8, overwrites=False)
        for turn in range(1000):
            if turn >= made.at:
                made.before(turn)
                made.after(turn, torch.zeros(64, 256))
        assert 6 <= made.turns[0] < 8
        assert made.turns[-1] > 400
        assert len(made.turns) < 40
        assert len(made.done) <= 8


def test_on_a_cpu_any_call_may_be_compared():
    """No step before a call differs, and the compared ones are chosen after it."""
    firsts = []
    for seed in range(40):
        made = EqualProbes(CASE, [NUMERICS.make(CASE, 0, torch.device("cpu"))], random.Random(seed), 8, overwrites=False)
        for turn in range(200):
            made.before(turn)
            made.after(turn, torch.full((64, 256), float(turn)))
        assert len(made.done) == 8
        firsts += [probe.outputs[0][0, 0].item() for probe in made.done]
    assert sum(first < 100 for first in firsts) == pytest.approx(160, abs=60)


def test_what_is_done_between_calls_takes_no_time_of_them(monkeypatch):
    real = EqualProbes.before
    monkeypatch.setattr(EqualProbes, "before", lambda self, turn: time.sleep(0.005) or real(self, turn))
    rotation = RotatingInputs(CASE, NUMERICS.make(CASE, 0, torch.device("cpu")), lambda x: x + 1, overwrites=False)
    found = bind("cpu").by_name["torch.utils.benchmark", ""](rotation.renew(), 1.0, 1.0, 2)
    assert min(found.us) < 1000


def test_samples_are_those_of_the_calls_own_clock():
    """A plugin may replace `round`, or what else a timer uses, until it was used."""

    def timer(call, warmup_ms, batch_ms, block):
        bind("cpu").by_name["torch.utils.benchmark", ""](call, 0.1, 0.1, 2)
        return Samples([1e-3] * 3, 2, 2)

    batches = made(lambda x: time.sleep(0.001) or torch.softmax(x, -1))
    batches.renew()
    assert min(batches.time(timer, 0, 0, 0).us) > 900


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
    assert verdict.detail == f"in a timed call: {CHANGED}"
