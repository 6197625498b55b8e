"""The judge on a GPU: shared memory, times of honest backends, and attacks that only a GPU has."""

import os
import subprocess
import sys
from dataclasses import replace
from statistics import median

import pytest
import torch
from problem_files import FP8, HALVES, cases, problem
from wrongs import PLUGINS, confined, load, module_of

from softbench.backends import naive
from softbench.core.case import Case, Direction
from softbench.judge.judgement import Judge
from softbench.judge.main import readable_folders
from softbench.plugins.source import FILE, PluginSource, origins
from softbench.processes.worker_pool import Pool
from softbench.worker.judged import shared_memory
from softbench.worker.timing.call_queue import CallQueue

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(600)]  # a GPU that others keep busy ends a judgement

CASE = Case(4096, 16384, "bf16", Direction.FORWARD, "cuda")
SMALL = Case(64, 512, "fp32", Direction.FORWARD, "cuda")
ATTACKS = load(PLUGINS / "wrong" / "judge_attacks.py")
PORTS = load(PLUGINS / "wrong" / "harness_attacks.py")
TRICKS = [(f"wrong/{file}.py", one.name) for file in ("tricks", "batch_tricks") for one in load(PLUGINS / "wrong" / f"{file}.py")]
TRICKS += [("wrong/judge_attacks.py", name) for name in ("without-a-wait", "keeps-its-inputs-in-l2")]
CAUGHT = (
    *("damages-its-input", "damages-when-unwatched", "stale-memory", "by-thread", "by-a-pool-of-threads", "half-when-unwatched"),
    *("side-stream", "skips-when-unwatched", "normal-rows-only", "cached-by-shape", "lazy", "one-value-for-all", "patches-the-reference"),
)
"""Tricks whose outputs are wrong or of another form."""
EVENTS = """
import torch
from wrongs import PLUGINS, load
[attack] = [one for one in load(PLUGINS / "wrong" / "harness_attacks.py") if one.name == "without-events"]
call, x = attack.make(), torch.randn(4096, 16384, device="cuda")
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
call(x)
end.record()
end.synchronize()
print(begin.elapsed_time(end))
"""
TOLERANCE = 0.03
LABELS = {"compile:reduce-overhead": "compile"}
ON_CPU = ("changes-shared-memory",)


@pytest.fixture(scope="module")
def judge():
    with Pool() as pool:
        yield Judge(pool, {}, readable_folders(), {"import": 120, "build": 300, "time": 120}, challenges=5)


def judged(judge, name, case, file=None):
    path = PLUGINS / file if file else None
    own = (one for one in origins(()) if one.label in (name, LABELS.get(name)))
    source = PluginSource(FILE, path.stem, str(path), path.name) if path else next(own)
    return judge.judge(source, case, name)


@pytest.fixture(scope="module")
def honest_us(judge):
    """Microseconds of `torch`, by the judge."""
    found = judged(judge, "torch", CASE).document(CASE)
    assert found["status"] == "ok", found
    return found["us"]


def test_a_block_is_new_memory_that_torch_reads_and_writes():
    block = shared_memory.create(2**21, "cuda")
    block.bytes.fill_(7)
    values = shared_memory.typed(block.bytes, 512, (16, 8), torch.bfloat16)
    values.fill_(2)
    assert block.bytes[:512].eq(7).all()
    assert values.sum().item() == 256
    other = shared_memory.attach(block.descriptor, 2**21, "cuda")
    assert other.bytes.data_ptr() != block.bytes.data_ptr()
    assert torch.equal(other.bytes, block.bytes)
    values.zero_()
    assert torch.equal(other.bytes, block.bytes)
    block.bytes.zero_()


def test_tensors_made_before_read_each_block_of_a_range():
    window = shared_memory.window(2**21 + 1024, "cuda")
    values = shared_memory.typed(window.bytes.data, 512, (2**20, 2), torch.uint8)
    version, queue, blocks, copy = values._version, CallQueue(), [], torch.empty(2**20, 2, dtype=torch.uint8, device="cuda")
    for number in (3, 5, 7):
        blocks.append(block := shared_memory.create(2**21 + 1024, "cuda"))
        block.bytes.fill_(number)
        torch.cuda.synchronize()
        if number > 3:
            queue.hold()
            copy.copy_(values)
        window.map(os.dup(block.descriptor), 2**21 + 1024)
        queue.start()
        if number == 3:
            copy.copy_(values)
        assert copy.eq(number).all()
        assert values._version == version
    for block in blocks:
        block.close()


@pytest.mark.parametrize("name", ["torch", "triton", "cuda"])
def test_an_honest_backend_is_right(judge, name):
    for case in (SMALL, Case(4096, 1000, "fp32", Direction.BACKWARD, "cuda"), Case(512, 4096, "bf16", Direction.BOTH, "cuda")):
        found = judged(judge, name, case)
        assert found.status in ("ok", "skipped"), found
        assert found.confinement["network"] == found.confinement["system calls"]


def test_the_time_is_that_of_do_bench(judge):
    from triton.testing import do_bench

    found = judged(judge, "torch", CASE).document(CASE)
    x = torch.randn(CASE.M, CASE.N, device="cuda", dtype=torch.bfloat16)
    expected = 1e3 * median(do_bench(lambda: torch.softmax(x, -1), warmup=20, rep=100, return_mode="all"))
    assert found["status"] == "ok", found
    assert found["us"] == pytest.approx(expected, rel=TOLERANCE), found
    assert found["at_most_us"] >= found["us"]


ROWS = """
def inputs(M=256, N=300):
    return torch.randn(M, N), torch.rand(N)

def reference(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * w
"""
RIGHT = "def right(x, w):\n    return x / ((x * x).mean(-1, keepdim=True) + 1e-3).sqrt() * w\n\n"
SOLUTIONS = {
    "right": f"{RIGHT}solution = right\n",
    "cheat": f"{RIGHT}kept = {{}}\n\ndef solution(x, w):\n    return kept.setdefault(x.shape, right(x, w)).clone()\n",
    "skips": f"{RIGHT}n = iter(range(10**9))\n\ndef solution(x, w):\n    return right(x, w) if next(n) % 32 else x.new_empty(x.shape)\n",
}


def test_a_short_call_of_a_problem_has_its_time(judge, tmp_path):
    """Its kernels take some microseconds, and the fixed cost of a challenge two milliseconds."""
    operation, found = problem(tmp_path, ROWS), {}
    case = replace(cases(operation)[0], device="cuda")
    for name, text in SOLUTIONS.items():
        (file := tmp_path / name / f"{name}.py").parent.mkdir()
        file.write_text(text)
        found[name] = judge.judge(PluginSource(FILE, name, str(file), file.name), case, None, [str(tmp_path / f"{operation.name}.py")])
    call, queue = module_of(tmp_path / "right" / "right.py").solution, CallQueue()
    inputs = torch.randn(256, 300, device="cuda"), torch.rand(300, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call(*inputs)
    queue.hold()
    begin.record()
    for _ in range(64):
        call(*inputs)
    end.record()
    queue.start()
    torch.cuda.synchronize()
    expected, document = 1e3 * begin.elapsed_time(end) / 64, found["right"].document(case)
    assert {name: one.status for name, one in found.items()} == {"right": "ok", "cheat": "wrong", "skips": "wrong"}, found
    assert found["right"].calls == 64
    assert document["us"] == pytest.approx(expected, rel=0.35), (document, expected)


def test_inputs_and_outputs_of_fp8_bools_and_integers_are_judged(judge, tmp_path):
    operation, plugin = problem(tmp_path, FP8), tmp_path / "plugin" / "halves.py"
    plugin.parent.mkdir()
    case = replace(cases(operation)[0], device="cuda")
    for text, status in ((HALVES, "ok"), (HALVES.replace("/ 2", "/ 4"), "wrong")):
        plugin.write_text(text)
        source = PluginSource(FILE, "halves", str(plugin), plugin.name)
        found = judge.judge(source, case, None, [str(tmp_path / f"{operation.name}.py")])
        assert (found.status, found.calls) == (status, 64), found


def test_outputs_of_cuda_graphs_are_not_copied(judge):
    """A copy of each output would make a call a quarter longer."""
    from triton.testing import do_bench

    found = judged(judge, "compile:reduce-overhead", CASE).document(CASE)
    call, x = torch.compile(naive.naive_forward, mode="reduce-overhead", dynamic=False), torch.randn(4096, 16384, device="cuda").bfloat16()
    for _ in range(3):
        call(x)
    expected = 1e3 * median(do_bench(lambda: call(x), warmup=20, rep=100, return_mode="all"))
    assert found["status"] == "ok", found
    assert found["us"] == pytest.approx(expected, rel=0.05), found


def test_cuda_graphs_of_both_passes_are_right(judge):
    found = judged(judge, "compile:reduce-overhead", Case(512, 4096, "bf16", Direction.BOTH, "cuda"))
    assert found.status in ("ok", "skipped"), found


def test_a_call_that_waits_for_the_gpu_is_judged(judge):
    found = judged(judge, "waits-for-its-maximum", SMALL, "correct/habits.py")
    assert (found.status, found.calls) == ("ok", 256), found


def test_a_reply_forged_before_the_inputs_gains_nothing(judge):
    found = judged(judge, "forges-an-early-reply", SMALL, "wrong/judge_attacks.py")
    assert found.status == "wrong", found


def test_a_gpu_that_is_kept_busy_gains_nothing(judge):
    found = judged(judge, "keeps-the-gpu-busy", CASE, "wrong/judge_attacks.py")
    assert (found.status, "the GPU was busy" in found.reason) == ("unverified", True), found


@pytest.mark.parametrize("M", [64, 4096])
def test_work_for_which_the_caller_does_not_wait_is_wrong(judge, M):
    """Small kernels on streams of their own would run side by side."""
    found = judged(judge, "side-stream", Case(M, 512, "fp32", Direction.FORWARD, "cuda"), "wrong/tricks.py")
    assert (found.status, "read right after its call" in found.reason) == ("wrong", True), found


@confined
@pytest.mark.parametrize(
    "attack", [attack for attack in ATTACKS if not attack.cuda and attack.name not in ON_CPU], ids=lambda one: one.name
)
def test_an_attack_reaches_nothing_that_counts(judge, attack):
    found = judged(judge, attack.name, Case(16, 96, "fp32", Direction.FORWARD, "cuda"), "wrong/judge_attacks.py")
    assert (found.status, attack.rule in found.reason) == (attack.ends, True), found


@pytest.mark.parametrize(("file", "name"), TRICKS, ids=[name for _, name in TRICKS])
def test_a_trick_gets_no_better_time(judge, honest_us, file, name):
    """A trick that keeps its outputs may end for want of memory."""
    found = judged(judge, name, CASE, file).document(CASE)
    assert found["status"] != "ok" or (found["us"] or found["at_most_us"]) >= (1 - TOLERANCE) * honest_us, found
    assert found["status"] in ("wrong", "failed") or name not in CAUGHT, found


@confined
@pytest.mark.parametrize("attack", [attack for attack in PORTS if not attack.cuda], ids=lambda one: one.name)
def test_an_attack_on_a_shared_process_gains_nothing(judge, attack):
    found = judged(judge, attack.name, Case(16, 96, "fp32", Direction.FORWARD, "cuda"), "wrong/harness_attacks.py")
    assert (found.status, attack.rule in found.reason, found.calls) == (attack.ends, True, 256), found


def test_events_without_time_gain_nothing(judge, honest_us):
    """The call computes three times. Its own events say that it took a nanosecond."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    events = subprocess.run([sys.executable, "-c", EVENTS], env=environment, capture_output=True, text=True, check=True)
    assert float(events.stdout) <= 1e-6
    found = judged(judge, "without-events", CASE, "wrong/harness_attacks.py").document(CASE)
    assert found["status"] == "ok" and found["us"] >= 2.9 * honest_us


def test_an_overwritten_gpu_gains_nothing(judge):
    """It overwrites all memory that it finds. The judge's process, its copies and its inputs' reference are elsewhere."""
    found = judged(judge, "overwrites-the-gpu", SMALL, "wrong/harness_attacks.py")
    assert found.status in ("wrong", "failed"), found
    assert judged(judge, "torch", SMALL).status == "ok"
