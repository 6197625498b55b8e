"""Injected slowdowns on a GPU: the timer measures the requested slowdown."""

from statistics import median

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


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
        a, b = (median(timer(lambda call=call: call(x), 2, 5, 0)[0]) for call in (copy, slow))
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
