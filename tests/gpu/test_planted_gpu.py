"""Planted slowdowns on the device: what is planted is about what the timer sees."""

from statistics import median

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.alone]


@pytest.mark.parametrize("slowdown", [0.05, 0.08])
def test_a_planted_slowdown_is_about_what_the_timer_sees(slowdown):
    import torch

    from softbench.backends import injected_slowdown as planted
    from softbench.core.case import Case, Direction
    from softbench.worker import timers as timing

    case, x = Case(4096, 16384, "fp32", Direction.FORWARD, "cuda"), torch.randn(4096, 16384, device="cuda")
    timer = timing.bind("cuda").by_name["do_bench", "cold"]
    twin, slow = (backend.prepare(case) for backend in planted.inject("torch", (0.0, slowdown)))
    for _ in range(planted.CALIBRATING_CALL):
        slow(x)
    ratios = []
    for _ in range(10):
        a, b = (median(timer(lambda call=call: call(x), 2, 5, 0)[0]) for call in (twin, slow))
        ratios.append(b / a)
    assert median(ratios) == pytest.approx(1 + slowdown, abs=0.01)


def test_a_calibration_is_remembered_by_the_next_process(tmp_path):
    import torch

    from softbench.backends import injected_slowdown as planted
    from softbench.core.case import Case, Direction

    case, x = Case(262144, 197, "fp32", Direction.FORWARD, "cuda"), torch.randn(262144, 197, device="cuda")
    file = str(tmp_path / "planted.json")

    def slowed():
        (backend,) = planted.inject("torch", (0.05,), cases=[case.key], memory=file)
        return backend.prepare(case)

    first = slowed()
    for _ in range(planted.CALIBRATING_CALL):
        first(x)
    assert first.cycles > 1000
    assert slowed().cycles == first.cycles
