"""The checks on a GPU: the same tricks and bugs as on the CPU, and those that only a GPU has."""

import csv
import ctypes
from contextlib import suppress

import pytest
import torch
from wrongs import BUGS, HONEST, PLUGINS, TRICKS, grade, tried

from softbench.core.case import Case, Direction
from softbench.ops.rowwise import OVER_INT32
from softbench.processes.worker_pool import Pool
from softbench.worker.guarding.async_work import late_work
from softbench.worker.timing.device_timer import cuda_meter
from softbench.worker.timing.persisting_l2 import LIMIT, WINDOW, bind
from softbench.worker.timing.trace import UntracedError

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

LARGE = Case(4096, 8192, "fp32", Direction.FORWARD, "cuda")


@pytest.fixture(scope="module")
def pool():
    with Pool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def memory():
    yield
    torch.cuda.empty_cache()


def alone(bug):
    """What has more than 2^31 elements asks for 80 GB at once."""
    return [pytest.mark.alone] if bug.item == f"shape {OVER_INT32}" else []


@pytest.mark.parametrize("bug", [pytest.param(bug, id=bug.name, marks=alone(bug)) for bug in BUGS])
def test_a_bug_is_wrong_where_correct_implementations_pass(bug):
    verdict, reason = grade(bug, bug.item, bug.direction, bug.dtype, "cuda")
    assert verdict == "wrong", (verdict, reason)
    assert bug.rule in reason, reason
    if bug.seems_right:
        assert grade(bug, bug.seems_right, bug.direction, bug.dtype, "cuda") == ("pass", "")
    for honest in HONEST:
        assert grade(honest, bug.item, bug.direction, bug.dtype, "cuda") == ("pass", ""), honest.name


@pytest.mark.parametrize("trick", TRICKS, ids=lambda trick: trick.name)
def test_a_trick_is_detected_by_its_stage_and_rule(pool, trick):
    stage, verdict, reason = tried(pool, trick.name, "cuda", LARGE if trick.cuda else None, pause=0.05)
    assert verdict == "wrong", reason
    assert stage == trick.stage or trick.stage == "either"
    assert any(rule in reason for rule in ([trick.rule] if isinstance(trick.rule, str) else trick.rule)), reason


@pytest.mark.parametrize("name", [honest.name for honest in HONEST])
@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_correct_implementations_pass_the_check_and_the_timed_batches(pool, name, direction):
    cases = [
        Case(64, 256, "fp32", direction),
        Case(1, 4097, "bf16", direction),
        Case(3, 1, "fp16", direction),
        Case(4096, 8192, "bf16", direction),
    ]
    for case in cases:
        assert tried(pool, name, "cuda", case, PLUGINS / "correct" / "variants.py")[:2] == ("time", "pass")


def side_stream_calls(M, priority=0):
    """Calls that run a softmax of M x 2048 on another stream, by how they order it."""
    x, stream = torch.randn(M, 2048, device="cuda"), torch.cuda.Stream(priority=priority)
    small = torch.empty(64, device="cuda")

    def without_waiting():
        with torch.cuda.stream(stream):
            torch.softmax(x, -1)

    def waiting():
        small.zero_()
        stream.wait_stream(torch.cuda.current_stream())
        without_waiting()

    def joined():
        waiting()
        torch.cuda.current_stream().wait_stream(stream)

    graph = torch.cuda.CUDAGraph()
    torch.softmax(x, -1)
    with torch.cuda.graph(graph):
        torch.softmax(x, -1)
    return {"wrong": (without_waiting, waiting), "right": (joined, lambda: torch.softmax(x, -1), graph.replay)}


def unordered(call):
    meter = cuda_meter()
    with suppress(UntracedError):  # hidden work can be in another call's part of the trace
        meter.device(call, 5.0, "cold")
    return meter.unordered


@pytest.mark.alone  # a GPU shared in time slices by other processes runs two streams of one process one after the other
@pytest.mark.parametrize("M", [16, 512, 4096, 65536])
@pytest.mark.parametrize("priority", [0, -1])
def test_side_stream_work_is_traced_unless_it_is_joined(M, priority):
    calls = side_stream_calls(M, priority)
    for call in calls["wrong"]:
        assert unordered(call) != ""
    for call in calls["right"]:
        assert [unordered(call) for _ in range(3)] == [""] * 3


def test_changed_settings_of_persisting_lines_are_named():
    torch.cuda.synchronize()  # as in a worker, whose inputs are made first
    found = bind()
    assert found is not None
    assert found.changed() == ""
    found.reset()
    found.driver.cuCtxSetLimit(LIMIT, ctypes.c_size_t(2 * found.limit_bytes + 2**20))
    assert found.changed().startswith("set the limit of L2's persisting lines to ")
    found.driver.cuCtxSetLimit(LIMIT, ctypes.c_size_t(found.limit_bytes))
    assert found.changed() == ""
    x = torch.empty(2**20, device="cuda")
    window = (ctypes.c_uint64 * 8)(x.data_ptr(), 2**20)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert found.driver.cuStreamSetAttribute(ctypes.c_void_p(stream.cuda_stream), WINDOW, window) == 0
        assert found.changed().startswith("set an access policy window on the caller's stream")
    assert found.changed() == ""


@pytest.mark.alone
def test_late_work_is_detected_without_the_profiler():
    calls = side_stream_calls(65536)
    for call in calls["wrong"]:
        assert late_work(call, 260.0).startswith("the GPU still works")
    for call in calls["right"]:
        assert late_work(call, 260.0) == ""


def test_tricks_have_no_bandwidth_and_the_kernels_are_named(cli):
    names = "cached-by-version,side-stream,patches-events"
    files = [part for name in ("wrong/tricks.py", "correct/variants.py") for part in ("--plugin", PLUGINS / name)]
    done = cli("run", *files, "--backends", f"torch,of-torch,{names}", "--M", "4096", "--N", "8192", timeout=300)
    assert done.returncode == 1, done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        found = {row["backend"]: row for row in csv.DictReader(file)}
    for name in names.split(","):
        assert found[name]["status"] == "wrong", found[name]
        assert found[name]["gbps"] == ""
    assert found["torch"]["status"] == found["of-torch"]["status"] == "ok"
    kernels = {
        cell["backend"]: cell["outcome"]["profile"]["kernels"] for cell in cli.document()["cells"] if cell["outcome"]["kind"] == "measured"
    }
    assert kernels["of-torch"] == kernels["torch"]  # what falls back to torch is named by its kernels
    assert any("softmax" in name.lower() for name in kernels["of-torch"])
