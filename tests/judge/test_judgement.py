"""Judgements of honest backends, the order of what the judge does, and its limits."""

import gc
import os
import re
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from problem_files import FP8, HALVES, cases, problem
from sampled import sampled
from wrongs import CASE, confined, judged

from softbench.core.case import Case, Direction
from softbench.core.messages import Called, MakeCalls, QueueCalls, ShareOutputs
from softbench.core.outcome import Accuracy, Grade
from softbench.judge import challenge, judgement, plugin_process
from softbench.judge.challenge import OutputReader
from softbench.judge.judgement import Judge, Judgement, calls_of
from softbench.judge.main import readable_folders
from softbench.judge.plugin_process import PluginProcess
from softbench.plugins.source import FILE, PluginSource, origins
from softbench.worker.checking import any_dim
from softbench.worker.judged import shared_memory
from softbench.worker.judged.calls import JudgedCalls
from softbench.worker.judged.memory import input_layout, output_bytes, output_layout, tensors_of_calls


@pytest.mark.slow
def test_a_case_too_large_for_the_judge_is_unverified(judge, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shared_memory, "create", refuse)
    found = judged(judge, "correct/logsumexp.py", None)
    assert (found.status, "the judge cannot judge this case" in found.reason, "No space left" in found.reason) == ("unverified", True, True)


def test_a_judgement_that_does_not_fit_takes_no_memory(judge, monkeypatch):
    """The kernel once killed the judge's process, because a block of shared memory grows as it is written."""
    monkeypatch.setattr(shared_memory, "create", lambda *_, **__: pytest.fail("it took memory"))
    source = next(one for one in origins(()) if one.label == "torch")
    found = judge.judge(source, Case(10**8, 10**5, "fp32", Direction.FORWARD, "cpu"))
    assert found.status == "oom"
    assert re.fullmatch(r"a judgement needs about [\d.]+ TiB; [\d.]+ GiB are free; choose a smaller shape", found.reason)


@confined
def test_an_honest_backend_gets_a_limit_and_every_level(judge):
    found = judged(judge, "correct/logsumexp.py", None)
    document = found.document(CASE)
    assert (document["status"], document["class"], document["calls"]) == ("ok", "pass", 64)
    assert document["at_most_us"] > 0
    assert all(document["confinement"].values())


READS_LIBRARIES = """
import os, pathlib, tempfile, torch
from softbench.kernels.common.cuda_toolkit import cache_folder, cached_library
library = cached_library("cuda-sm_90a-0/softmax.so")
text = library.read_text()
hidden = library.parents[1] / "infos" / "some.json"
lock, link = library.with_name("lock"), library.parents[1] / "cuda-sm_80-0" / "softmax.so"
refused = 0
change = (lambda: library.write_text("mine"), library.unlink, (library.parent / "new").touch)
for use in (hidden.read_text, lock.read_text, link.read_text, *change):
    try:
        use()
    except OSError:
        refused += 1
cache_folder().mkdir(exist_ok=True)
(cache_folder() / "own").touch()
tempfile.TemporaryDirectory().cleanup()  # Inductor compiles in such a folder

def softmax(x):
    assert (text, refused) == ("built", 6), (text, refused)
    return torch.softmax(x, -1)
"""


@confined
def test_a_plugin_may_read_built_libraries_and_nothing_else_there(judge, tmp_path, monkeypatch):
    cache, plugin = tmp_path / "cache", tmp_path / "plugin" / "reads.py"
    library, secret = cache / "cuda-sm_90a-0" / "softmax.so", cache / "infos" / "some.json"
    for file, text in ((library, "built"), (library.with_name("lock"), ""), (secret, "{}"), (plugin, READS_LIBRARIES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (cache / "cuda-sm_80-0").mkdir()
    (tmp_path / "elsewhere").write_text("")
    (cache / "cuda-sm_80-0" / "softmax.so").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("SOFTBENCH_CACHE", str(cache))
    found = judge.judge(PluginSource(FILE, "reads", str(plugin), "reads.py"), CASE, None)
    assert found.status == "ok", found
    there = {"cuda-sm_80-0", "cuda-sm_80-0/softmax.so", "cuda-sm_90a-0", "cuda-sm_90a-0/softmax.so", "cuda-sm_90a-0/lock"}
    assert {str(file.relative_to(cache)) for file in cache.rglob("*")} == {*there, "infos", "infos/some.json"}
    assert library.read_text() == "built"


def test_a_plugin_may_read_packages_that_are_links(tmp_path, monkeypatch):
    cache, packages = tmp_path / "cache", tmp_path / "venv" / "site-packages"
    for file in ("whole/__init__.py", "one/__init__.py", "one-1.dist-info/METADATA"):
        (cache / file).parent.mkdir(parents=True, exist_ok=True)
        (cache / file).touch()
    (packages / "one-1.dist-info").mkdir(parents=True)
    (packages / "whole").symlink_to(cache / "whole")
    (packages / "one-1.dist-info" / "METADATA").symlink_to(cache / "one-1.dist-info" / "METADATA")
    monkeypatch.setattr(sys, "path", [*sys.path, str(packages)])
    assert {str(packages), str(cache / "whole"), str(cache)} <= {*readable_folders()}


def test_memory_is_freed_if_no_challenge_can_be_drawn(monkeypatch):
    def refuse(*_):
        raise RuntimeError("too little memory")

    made, create = [], shared_memory.create
    monkeypatch.setattr(shared_memory, "create", lambda *given, **more: made.append(create(*given, **more)) or made[-1])
    monkeypatch.setattr(challenge.any_dim, "make", refuse)
    with pytest.raises(RuntimeError, match="too little memory"):
        challenge.draw(CASE, 2)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0].descriptor)


class Process:
    """A worker's channel that replies at once, and what it was asked."""

    def __init__(self, monkeypatch, replies):
        self.asked, self.replies = [], replies
        monkeypatch.setattr(PluginProcess, "ask", lambda process, request, phase, **more: self.reply(request))
        monkeypatch.setattr(plugin_process, "CLOCK", lambda: (self.asked.append("clock"), 1_000_000 * len(self.asked))[1])

    def reply(self, request):
        self.asked.append(request.op)
        return self.replies.get(request.op)

    def of(self, case, calls, block):
        reader = OutputReader(case, calls, block, output_bytes(case, calls))
        return PluginProcess(None, SimpleNamespace(channel=SimpleNamespace(), pid=-1), case, calls, {}, reader)


@pytest.fixture
def blocks():
    """`blocks(size)`: shared memory, freed after the test. `blocks.drawn`: the inputs of two calls."""
    made = [challenge.draw(CASE, 2)]

    def create(size=0):
        made.append(SimpleNamespace(inputs=shared_memory.create(size or output_bytes(CASE, 2), "cpu")))
        return made[-1].inputs

    create.drawn = made[0]
    yield create
    for one in made:
        one.inputs.close()


WAKING = ["release_of_judge"] * plugin_process.WAKING_REQUESTS


def test_requests_without_work_come_before_the_clock(monkeypatch, blocks):
    process = Process(monkeypatch, {"calls_of_judge": Called(((0,), (0,)), 250.0)})
    us = process.of(CASE, 2, blocks()).empty(blocks.drawn)
    assert process.asked == [*WAKING, "clock", "calls_of_judge", "clock", "release_of_judge"] * 2
    assert us == (2000.0 - 250.0, 250.0)  # between the clocks are two entries


def test_no_collector_of_the_judge_runs_with_its_clock(monkeypatch, blocks):
    process, running = Process(monkeypatch, {"calls_of_judge": Called(((0,), (0,)), 0.0)}), []
    monkeypatch.setattr(plugin_process, "CLOCK", lambda: (running.append(gc.isenabled()), 0)[1])
    process.of(CASE, 2, blocks()).empty(blocks.drawn)
    assert running == [False] * 4
    assert gc.isenabled()


def test_the_plugin_is_stopped_during_each_empty_challenge(judge, monkeypatch):
    """Not before the load of the plugin. It has no process at the last one."""
    states, pids, empty = [], [], PluginProcess.empty

    def watched(process, drawn):
        pids.extend(worker.pid for worker in judge.pool.workers if worker.label == "plugin")
        states.append(set(plugin_process._states(pids[0])))
        return empty(process, drawn)

    monkeypatch.setattr(PluginProcess, "empty", watched)
    assert judged(judge, "correct/logsumexp.py", None).status == "ok"
    assert "T" not in states[0]
    assert states[1:] == [{"T"}, {"T"}, set()]


@pytest.mark.parametrize("queued", [0, 1, 2])
def test_places_of_queued_calls_come_first(monkeypatch, blocks, queued):
    """`Challenge.draw` and the blocks are those of a CPU, the case says `cuda`."""
    case, size = replace(CASE, device="cuda"), output_layout(CASE)[1]
    places = ((0,), (size,))
    replies = {"queue_of_judge": Called(places[:queued], 0.0), "calls_of_judge": Called(places[queued:], 250.0)}
    process, drawn = Process(monkeypatch, replies), blocks.drawn
    monkeypatch.setattr(PluginProcess, "_flush", lambda _: None)
    monkeypatch.setattr(plugin_process, "synchronize", lambda _: None)
    outputs = blocks()
    outputs.bytes.view(torch.float32).copy_(torch.arange(outputs.bytes.nbytes // 4))
    _, called, found = process.of(case, 2, outputs)._timed(drawn)
    assert process.asked == [*WAKING, "queue_of_judge", "clock", "calls_of_judge", "clock"]
    assert called == Called(places, 250.0)
    for call, (rows,) in enumerate(found):
        assert torch.equal(rows, torch.arange(16 * 96.0).view(16, 96)[drawn.rows[call]] + call * size // 4)
    replies["calls_of_judge"] = Called(((0,),) * 3, 0.0)
    with pytest.raises(plugin_process.EndedError, match="outside the judge's memory"):
        process.of(case, 2, outputs)._timed(drawn)


def test_an_empty_challenge_writes_one_element(blocks):
    server = SimpleNamespace(case=None, call=None, backend=None, inputs=None)
    sizes = output_bytes(CASE, 2), 2 * input_layout(CASE)[1]
    outputs, inputs = map(blocks, sizes)
    outputs.bytes.fill_(3)
    judged = JudgedCalls(server, [os.dup(block.descriptor) for block in (outputs, inputs)])
    judged.handle(ShareOutputs(CASE, 2, sizes[0]))
    assert judged.handle(QueueCalls()) == Called((), 0.0)
    assert judged.handle(MakeCalls(sizes[1])) == Called(((0,), (output_layout(CASE)[1],)), 0.0)
    assert outputs.bytes.ne(3).nonzero().flatten().tolist() == [0, 1, 2, 3]


def test_a_time_is_the_one_beyond_an_empty_challenge():
    found = Judgement(calls=10, empty_us=[90.0, 100.0, 110.0], challenges_us=[1100.0, 1300.0, 1200.0]).document(CASE)
    assert found["samples_us"] == [101.0, 120.0, 109.0]
    assert (found["us"], found["low_us"], found["high_us"], found["at_most_us"]) == (109.0, 101.0, 120.0, 120.0)
    assert found["gbps"] == pytest.approx(2 * 16 * 96 * 4 / 109e3, abs=1e-3)
    short = Judgement(calls=10, empty_us=[90.0, 115.0], challenges_us=[109.0, 115.0]).document(CASE)
    assert (short["status"], short["at_most_us"], short["us"], short["low_us"], short["gbps"]) == ("ok", 11.2, None, None, None)


def test_a_few_late_challenges_leave_the_interval_alone():
    empty, times = [100.0] * 9, [1000.0 + us for us in range(9)]
    quiet = Judgement(calls=10, empty_us=empty, challenges_us=times).document(CASE)
    assert (quiet["us"], quiet["low_us"], quiet["high_us"]) == (90.4, 90.1, 90.7)
    late = Judgement(calls=10, empty_us=empty, challenges_us=[*times[:-1], 9000.0]).document(CASE)
    assert [late[name] for name in ("us", "low_us", "high_us")] == [quiet[name] for name in ("us", "low_us", "high_us")]


@pytest.mark.parametrize(("gpu_us", "status"), [(625.0, "ok"), (626.0, "unverified")])
def test_a_busy_gpu_ends_the_judgement(judge, monkeypatch, gpu_us, status):
    """The GPU's time of the first empty challenge is from before the load of the plugin."""
    times, empty = iter([100.0, 625.0, gpu_us, 100.0]), PluginProcess.empty
    monkeypatch.setattr(PluginProcess, "empty", lambda process, drawn: (empty(process, drawn)[0], next(times)))
    found = judge.judge(next(source for source in origins(()) if source.label == "torch"), CASE, "torch")
    assert found.status == status, found
    assert ("busy" in found.reason) == (status == "unverified")


def test_an_empty_challenge_counts_as_without_the_plugin_at_most(judge, monkeypatch):
    """The last empty challenge comes when the plugin's process has ended. 109 is the highest decile of 100 and 110."""
    beside, counts = 700.0, 109.0
    times, workers, lived, end = iter([100.0, 90.0, beside, 110.0]), [], [], PluginProcess.end
    monkeypatch.setattr(PluginProcess, "end", lambda process: (workers.append(process.worker.pid), end(process)))
    monkeypatch.setattr(
        PluginProcess, "empty", lambda *_: (lived.append([plugin_process._lives(pid) for pid in workers]), (next(times), 0.0))[1]
    )
    found = judge.judge(next(source for source in origins(()) if source.label == "torch"), CASE, "torch")
    assert (found.before_us, found.empty_us, lived) == ([100.0], [pytest.approx(counts)], [[], [], [], [False]])


def test_late_empty_challenges_raise_the_limit_by_a_quarter():
    before = [100.0] * 8 + [900.0]
    assert judgement.limit_of_empty(before, [100.0] * 9) == 100.0
    assert judgement.limit_of_empty(before, [120.0] * 9) == 120.0
    assert judgement.limit_of_empty([100.0] * 9, [1000.0] * 9) == 125.0
    assert judgement.limit_of_empty([100.0], [1000.0]) == 125.0


def test_a_process_that_does_not_end_gives_no_time(judge, monkeypatch):
    monkeypatch.setattr(plugin_process, "_others", lambda leader: [] if leader in {one.pid for one in judge.pool.workers} else [1])
    found = judge.judge(next(source for source in origins(()) if source.label == "torch"), CASE, "torch")
    assert (found.status, "does not end" in found.reason) == ("unverified", True), found


def test_inputs_stay_until_the_next_are_mapped():
    with judgement._Inputs(CASE, 2) as inputs:
        first = inputs.draw()
        second = inputs.draw()
        assert first.inputs.bytes.nbytes and second.inputs.bytes.nbytes
        inputs.draw()
        assert not first.inputs.bytes.nbytes
        assert second.inputs.bytes.nbytes
    assert not second.inputs.bytes.nbytes


@pytest.mark.parametrize("gib", [24, 40, 80])
@pytest.mark.parametrize("N", [1024, 16384, 32768])
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_a_challenge_leaves_memory_of_a_gpu_free(gib, N, direction):
    """Both blocks of inputs, the block of outputs, and 7 GiB for the processes of a run."""
    case = Case(4096, N, "bf16", direction, "cuda")
    calls = calls_of(case, gib * 2**30)
    needed = 2 * calls * input_layout(case)[1] + output_bytes(case, calls)
    assert needed <= (gib - 7) * 2**30
    assert calls >= 4
    assert calls == 256 or gib == 80 or needed >= 0.5 * gib * 2**30


@pytest.mark.parametrize(
    "case",
    sampled(
        [
            replace(CASE, direction=Direction.BOTH),
            Case(12, 40, "fp32", Direction.FORWARD, "cpu", "log_softmax", "3x40x4@dim1"),
            Case(16, 96, "fp32", Direction.FUSED, "cpu", "cross_entropy"),
        ],
        lambda case: case.op == "cross_entropy",
    ),
    ids=lambda case: case.key,
)
def test_other_passes_and_shapes_are_judged(judge, case):
    (torch_backend,) = (source for source in origins(()) if source.label == "torch")
    found = judge.judge(torch_backend, case, "torch")
    assert (found.status, found.reason) == ("ok", "")
    assert found.document(case)["class"] in ("pass", "low-precision")


def test_a_plugin_of_several_backends_needs_a_name(judge):
    found = judged(judge, "wrong/judge_attacks.py", None)
    assert found.status == "failed"
    assert found.reason.startswith("import: it has the backends ") and "name one of them with --backend" in found.reason
    assert judged(judge, "wrong/judge_attacks.py", "nope").reason.startswith("import: it has no backend nope, but the backends ")
    assert judged(judge, "wrong/judge_attacks.py", "reads-memory", replace(CASE, direction=Direction.BOTH)).status == "skipped"


def test_inputs_of_a_challenge_differ_and_have_structured_rows():
    drawn = challenge.draw(CASE, 8)
    size = drawn.bytes // 8
    sets = [shared_memory.typed(drawn.inputs.bytes, call * size, (16, 96), torch.float32) for call in range(8)]
    assert not any(torch.equal(one, other) for i, one in enumerate(sets) for other in sets[:i])
    assert any(bool(((one.abs() > 1e3) | one.isnan()).any()) for one in sets)
    for call, one in enumerate(sets):
        torch.testing.assert_close(one[drawn.rows[call]], drawn.truth[call][0], rtol=0, atol=0, equal_nan=True)
    drawn.inputs.close()


TWICE = "def inputs(M=40, N=8):\n return torch.randn(M, N)\n\ndef reference(x):\n return x * 2, (3 * x).sum(), (9 * x).round().long()\n"


def test_of_each_call_of_a_problem_outputs_are_compared_that_only_the_judge_knows(tmp_path, monkeypatch, blocks):
    """Some as a whole, and elements of the others. The reader finds both in the block of outputs."""
    monkeypatch.setattr(challenge, "READ_ELEMENTS", {"cpu": 6000})
    (case,) = cases(problem(tmp_path, TWICE))
    drawn = challenge.draw(case, 20)
    layout, each = input_layout(case)
    given = tensors_of_calls(drawn.inputs.bytes, layout, each, case, 20)
    assert sorted([*drawn.numbers, *drawn.others]) == [*range(20)]
    assert len(drawn.numbers) == len(drawn.rows) == challenge.WHOLE_COMPARED
    assert [tuple(one.shape) for one in drawn.elements] == [(12, 100), (12, 1), (12, 100)]
    layout, each = output_layout(case)
    size = output_bytes(case, 20)
    reader = OutputReader(case, 20, blocks(size), size)
    places = [tuple(call * each + at for at, _ in layout) for call in range(20)]

    def graded(wrong=None):
        for call, (x,) in enumerate(given):
            right = x * 2, (3 * x).sum(), (9 * x).round().long()
            for (at, spec), out in zip(layout, right, strict=True):
                slot = shared_memory.typed(reader.block.bytes, call * each + at, spec.shape(case), out.dtype)
                slot.copy_(out if call != wrong else given[call - 1][0] * 2 if out.dim() and out.is_floating_point() else out)
        outputs = reader.read(drawn, places, reader.elements(drawn, places))
        return drawn.verdict(outputs, reader.whole(places[drawn.chosen]))

    assert graded().grade == "sampled"
    for wrong in (drawn.numbers[0], *[*drawn.others][:2]):
        found = graded(wrong)
        assert found.grade == "wrong"
        assert re.fullmatch(r"y0\[\d+, \d+\] is [-.\d]+ and should be [-.\d]+: .* x the bound", found.detail), found
    drawn.inputs.close()


SKIPS = """
number, kept = 0, None

def solution(x):
    global number, kept
    number += 1
    if number % 32 == 9:
        return kept.clone()
    kept = x * 3
    return kept
"""


def test_a_problems_solution_that_skips_few_calls_is_wrong(judge, tmp_path, monkeypatch):
    """Compared as a whole are 8 of 64 calls, which is all that a CPU makes without this test."""
    monkeypatch.setattr(judgement, "WHOLE_CALLS", {"cpu": 64})
    monkeypatch.setattr(challenge, "WHOLE_COMPARED", 1)
    operation = problem(tmp_path, "def inputs(M=64, N=64):\n return torch.randn(M, N)\n\ndef reference(x):\n return x * 3\n")
    file = str(tmp_path / f"{operation.name}.py")
    for name, text, status in (("right", "def solution(x):\n    return x * 3\n", "ok"), ("skips", SKIPS, "wrong")):
        (plugin := tmp_path / name / f"{name}.py").parent.mkdir()
        plugin.write_text(text)
        found = judge.judge(PluginSource(FILE, name, str(plugin), plugin.name), cases(operation)[0], None, [file])
        assert (found.status, found.calls) == (status, 64), found


def test_a_problem_whose_bound_accepts_zeros_is_unverified(judge, tmp_path):
    lossy = "def inputs(M=64, N=128):\n return torch.randn(M, N)\n\ndef reference(x):\n return x.to(torch.float8_e5m2).float() ** 3\n"
    operation, plugin = problem(tmp_path, lossy), tmp_path / "plugin" / "zeros.py"
    plugin.parent.mkdir()
    plugin.write_text("import torch\n\ndef solution(x):\n    return torch.zeros_like(x)\n")
    source = PluginSource(FILE, "zeros", str(plugin), plugin.name)
    found = judge.judge(source, cases(operation)[0], None, [str(tmp_path / f"{operation.name}.py")])
    assert (found.status, found.reason) == ("unverified", "the bound of y accepts zeros, so it cannot tell right from wrong")


def test_inputs_and_outputs_of_fp8_bools_and_integers_are_judged(judge, tmp_path, monkeypatch):
    monkeypatch.setattr(judgement, "WHOLE_CALLS", {"cpu": 12})
    operation, plugin = problem(tmp_path, FP8), tmp_path / "plugin" / "halves.py"
    plugin.parent.mkdir()
    for text, status in ((HALVES, "ok"), (HALVES.replace("/ 2", "/ 4"), "wrong"), (HALVES.replace("> 3", "> 4"), "wrong")):
        plugin.write_text(text)
        source = PluginSource(FILE, "halves", str(plugin), plugin.name)
        found = judge.judge(source, cases(operation)[0], None, [str(tmp_path / f"{operation.name}.py")])
        assert (found.status, found.calls) == (status, 12), found


def test_places_outside_the_memory_are_invalid(blocks):
    reader = OutputReader(Case(2, 8, "fp32", Direction.FORWARD, "cpu"), 2, blocks(4096), 4096)
    assert reader.valid([[0], [4032]])
    for places in ([[0]], [[0], [4036]], [[0], [-4]], [[0], [2]], [[0], [0, 0]]):
        assert not reader.valid(places)


@pytest.mark.parametrize("shape", ["", "3x40x4@dim1"])
def test_rows_are_read_as_the_reference_numbers_them(shape, blocks):
    case = Case(12, 40, "fp32", Direction.FORWARD, "cpu", "softmax", shape)
    block = blocks(2 * 2048)
    block.bytes.view(torch.float32).copy_(torch.arange(1024.0))
    reader, rows, places = OutputReader(case, 2, block, 4096), torch.tensor([[3, 11], [0, 7]]), [[0], [2048]]
    drawn = SimpleNamespace(compared=list, rows=rows)
    for call, found in enumerate(reader.read(drawn, places, reader.elements(drawn, places))):
        (whole,) = reader.whole([call * 2048])
        assert torch.equal(found[0], any_dim.rows_of_outputs(case, (whole,), rows[call])[0])


class Disturbed:
    """A plugin's process and one without a plugin on a GPU that another process disturbs: times of empty challenges, and of others."""

    def __init__(self, empties, times, at_once):
        self.case, self.empties, self.times, self.at_once, self.processor_us = (
            replace(CASE, device="cuda"),
            iter(empties),
            times,
            at_once,
            0.0,
        )
        self.made = 0

    def empty(self, drawn):
        return next(self.empties), 0.0

    def challenge(self, drawn, *, at_once):
        assert at_once == (self.made in self.at_once)
        self.made += 1
        return self.times[self.made - 1], Accuracy(Grade.PASS, 0.5, "")

    def release(self):
        pass

    stopped = staticmethod(nullcontext)


def test_disturbed_challenges_are_made_again(monkeypatch):
    """Other processes that start or end on any GPU hold a lock of the driver. Of each three challenges one is compared only."""
    monkeypatch.setattr(judgement, "SECRET", SimpleNamespace(randint=lambda first, last: 1))
    found, long, at_once = Judgement(calls=10, before_us=[1900.0, 9000.0, 2000.0]), 100_000.0, (1, 4, 7)
    judge, inputs = Judge(None, {}, (), {}, challenges=2), SimpleNamespace(draw=lambda: None)
    empties = [2000.0, 2000.0, 2000.0, long, 2100.0, long, 2000.0, 2000.0, 2050.0, 2000.0]
    pair = Disturbed(empties, [9.0, 9.0, 3000.0, 1.0, 9.0, 2.0, 3200.0, 9.0, 3300.0, 3400.0], at_once)
    judge._challenge(pair, pair, found, inputs, 1e9, lambda *now: None)
    assert (pair.made, found.empty_us, found.challenges_us) == (9, [2000.0, 2050.0], [3200.0, 3300.0])
    quiet = Disturbed([2000.0] * 4, [9.0, 9.0, 3000.0, 3100.0], at_once)
    judge._challenge(quiet, quiet, found, inputs, 1e9, lambda *now: None)
    assert (quiet.made, found.challenges_us) == (4, [3000.0, 3100.0])
    empties = [long, long, 3000.0, 4000.0, 9000.0, 8000.0, 7000.0, 9000.0, 9500.0, 9900.0]
    busy = Disturbed(empties, [1.0, 9.0, 3000.0, 3100.0, 9.0, 2.0, 3.0, 9.0, 4.0, 5.0], at_once)
    judge._challenge(busy, busy, found, inputs, 1e9, lambda *now: None)
    assert (busy.made, found.challenges_us) == (10, [3000.0, 2.0])
