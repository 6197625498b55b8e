"""Timers against each other and against injected slowdowns, on a real GPU."""

import csv
import json
import os
import subprocess
import sys
import time
from statistics import median

import pytest
import torch

from softbench.worker.timing.timers import MOST_QUEUED, WAITS, bind

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def timers():
    return bind("cuda")


@pytest.fixture
def call():
    x = torch.randn(4096, 16384, device="cuda", dtype=torch.bfloat16)
    return lambda: torch.softmax(x, -1)


def test_having_profiled_leaves_do_bench_as_it_was(timers):
    """Stands first: what CUPTI leaves behind in a process is seen only while it has not been started."""
    x = torch.randn(4096, 256, device="cuda", dtype=torch.bfloat16)

    def call():
        return torch.softmax(x, -1)

    def host():
        return min(median(timers.meter.host(call, 5)) for _ in range(50))

    def device():
        return min(median(timers.by_name["do_bench", "cold"](call, 20, 50, 0).us) for _ in range(10))  # clocks rise within the first

    fresh, fresh_host = device(), host()
    timers.meter.device(call, 20, "cold")
    # Without a profile, too, a host is 1.5 times as slow for seconds, and do_bench with it: so one of ten looks must be as fast.
    assert any(device() < fresh + 0.5 for _ in range(10))
    assert any(host() < 1.25 * fresh_host for _ in range(10))  # 1.4 to 2.3 times as long in every look if CUPTI stays


def test_sessions_in_quick_succession_each_see_their_kernels(timers):
    x = torch.randn(512, 1024, device="cuda")
    for _ in range(20):
        samples, kernels = timers.meter.device(lambda: torch.softmax(x, -1), 1, "warm")
        assert len(kernels) == 1
        assert min(samples) > 0


def test_a_profile_is_quick_after_the_first(timers):
    """It is taken of every cell: beside some 100 ms of a cell it must not count."""
    x = torch.randn(4096, 1024, device="cuda")
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        timers.meter.device(lambda: torch.softmax(x, -1), 10, "cold")
        seconds.append(time.perf_counter() - begin)
    assert median(seconds) < 0.1, seconds


def test_device_time_of_a_long_kernel_agrees_with_do_bench(timers, call):
    device_us, kernels = timers.meter.device(call, 20, "cold")
    bench_us = timers.by_name["do_bench", "cold"](call, 5, 20, 0).us
    assert len(kernels) == 1
    assert "softmax" in kernels[0].lower()
    assert median(device_us) == pytest.approx(median(bench_us), rel=0.05)


def test_a_copy_of_a_few_bytes_is_warm_or_cold(timers):
    x = torch.randn(4 * 2**20, device="cuda")
    y = torch.empty_like(x)
    cold, kernels = timers.meter.device(lambda: y.copy_(x), 10, "cold")
    warm, _ = timers.meter.device(lambda: y.copy_(x), 10, "warm")
    assert len(kernels) == 1
    assert median(warm) < median(cold)


def test_a_fill_that_is_the_calls_own_is_counted(timers):
    x = torch.empty(2**20, dtype=torch.int32, device="cuda")
    device_us, kernels = timers.meter.device(x.zero_, 10, "cold")
    assert len(kernels) == 1
    assert min(device_us) > 0


def test_a_graph_and_its_kernels_take_as_long(timers, call):
    graph_us = timers.by_name["graph", "warm"](call, 5, 20, 0).us
    device_us = timers.by_name["device", "warm"](call, 5, 20, 0).us
    assert median(graph_us) == pytest.approx(median(device_us), rel=0.1)
    assert median(timers.by_name["graph", "cold"](call, 5, 20, 0).us) == pytest.approx(median(graph_us), rel=0.2)


def queued(timers, call, block=0):
    found = timers.by_name["queued", "cold"](call, 2, 20, block)
    return median(found.us), found


def test_a_queued_call_is_as_fast_as_its_kernels_on_a_busy_host(timers):
    """Five kernels, whose host time no flush hides, while every core is busy."""
    x = torch.randn(4096, 256, device="cuda")

    def call():
        wide = x - x.amax(-1, keepdim=True)
        top = wide.exp()
        return top / top.sum(-1, keepdim=True)

    call()
    idle, _ = queued(timers, call)
    kernels = median(timers.meter.device(call, 20, "cold")[0])
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        loaded, found = queued(timers, call)
    finally:
        for one in busy:
            one.kill()
    assert found.timer == ""
    assert kernels - 1 < idle < kernels + 12  # events, and a gap of one to two microseconds between two kernels
    assert loaded == pytest.approx(idle, rel=0.03)


def test_queued_and_do_bench_agree_where_the_flush_hides_the_host(timers, call):
    assert queued(timers, call)[0] == pytest.approx(median(timers.by_name["do_bench", "cold"](call, 2, 20, 0).us), rel=0.01)


@pytest.mark.parametrize("waits", [lambda y: y[0, 0].item(), lambda y: torch.cuda.synchronize()], ids=["item", "synchronize"])
def test_a_call_that_waits_for_the_gpu_is_timed_by_do_bench(timers, waits):
    x = torch.randn(512, 1024, device="cuda")

    def call():
        y = torch.softmax(x, -1)
        waits(y)
        return y

    begin = time.perf_counter()
    us, found = queued(timers, call)
    assert (found.timer, found.block) == ("do_bench", WAITS)
    assert time.perf_counter() - begin < 2
    begin = time.perf_counter()
    assert queued(timers, call, found.block)[0] == pytest.approx(us, rel=0.5)
    assert time.perf_counter() - begin < 0.2


def test_a_call_of_many_kernels_is_queued_with_fewer_others(timers):
    x = torch.randn(64, 64, device="cuda")

    def call():
        y = x
        for _ in range(300):
            y = y + 1
        return y

    _, found = queued(timers, call)
    assert found.timer == ""
    assert 0 < found.block < MOST_QUEUED


def test_a_call_of_another_stream_is_queued(timers):
    x, side, main = torch.randn(4096, 4096, device="cuda"), torch.cuda.Stream(), torch.cuda.current_stream()

    def call():
        side.wait_stream(main)
        with torch.cuda.stream(side):
            y = torch.softmax(x, -1)
        main.wait_stream(side)
        y.record_stream(main)
        return y

    us, found = queued(timers, call)
    assert found.timer == ""
    assert us == pytest.approx(queued(timers, lambda: torch.softmax(x, -1))[0], rel=0.1)


def test_issuing_a_call_does_not_wait_for_it(timers, call):
    assert median(timers.meter.host(call, 20)) < median(timers.meter.device(call, 20, "cold")[0])


@pytest.mark.parametrize("timer", ["queued", "do_bench", "device", "graph", "host"])
def test_every_timer_also_records_device_and_host_time(cli, timer):
    done = cli("run", "--backends", "torch", "--M", "512", "--N", "1024", "--quick", "--timer", timer, "--l2", "warm")
    assert done.returncode == 0, done.stderr
    with (cli.folder / "results" / "latest.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["timer"], row["l2"]) for row in rows} == {(timer, "warm")}
    assert all(float(row["device_us"]) > 0 and float(row["host_us"]) > 0 and int(row["kernels"]) == 1 for row in rows)
    assert all(float(row["sm_clock_mhz"]) > 0 and float(row["power_w"]) > 0 and row["throttled_batches"] for row in rows)
    assert {int(row["peak_bytes"]) for row in rows if row["backend"] == "torch"} == {512 * 1024 * 4}
    assert all(json.loads(json.dumps(cell["outcome"]["profile"]["kernels"])) for cell in cli.document()["cells"])


@pytest.mark.parametrize("slowdown", [0.05, 0.08])
def test_the_timer_measures_the_injected_slowdown(slowdown):
    import torch

    from softbench.backends import injected_slowdown
    from softbench.core.case import Case, Direction
    from softbench.worker.timing import timers

    case, x = Case(4096, 16384, "fp32", Direction.FORWARD, "cuda"), torch.randn(4096, 16384, device="cuda")
    timer = timers.bind("cuda").by_name["do_bench", "cold"]
    copy, slow = (backend.prepare(case) for backend in injected_slowdown.inject("torch", (0.0, slowdown)))
    for _ in range(injected_slowdown.CALIBRATING_CALL):
        slow(x)
    ratios = []
    for _ in range(10):
        a, b = (median(timer(lambda call=call: call(x), 2, 5, 0).us) for call in (copy, slow))
        ratios.append(b / a)
    assert median(ratios) == pytest.approx(1 + slowdown, abs=0.01)


def test_the_next_process_reads_the_calibration(tmp_path):
    import torch

    from softbench.backends import injected_slowdown
    from softbench.core.case import Case, Direction

    case, x = Case(262144, 197, "fp32", Direction.FORWARD, "cuda"), torch.randn(262144, 197, device="cuda")
    file = str(tmp_path / "cycles.json")

    def slowed():
        (backend,) = injected_slowdown.inject("torch", (0.05,), cases=[case.key], memory=file)
        return backend.prepare(case)

    first = slowed()
    for _ in range(injected_slowdown.CALIBRATING_CALL):
        first(x)
    assert first.cycles > 1000
    assert slowed().cycles == first.cycles
