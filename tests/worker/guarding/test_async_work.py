"""Late work: a delay is a suspicion; only its growth with the number of calls decides. The clock is a pretended one."""

import pytest
import torch

from softbench.worker.guarding import async_work


@pytest.fixture
def delays(monkeypatch):
    """Give the delay of a measurement as a function of (is it the small fill, number of calls)."""

    def of(delay):
        zero = torch.empty(64, dtype=torch.int32)
        monkeypatch.setattr(async_work.torch, "empty", lambda *args, **kwargs: zero)
        monkeypatch.setattr(async_work, "busy_us", lambda call, calls: delay(call == zero.zero_, calls))

    return of


def call():
    return None


def test_growing_delays_of_calls_are_late_work(delays):
    delays(lambda small, calls: 3.0 if small else 100.0 * calls)
    assert async_work.late_work(call, 100.0) == (
        "the GPU still works after the caller's stream has finished: 1500 us after 15 calls, 3000 us after 30. No event sees that work"
    )
    delays(lambda small, calls: 1000.0 if small else 100.0 * calls)
    assert async_work.late_work(call, 1.0) != ""


@pytest.mark.parametrize(
    "delay",
    [
        lambda small, calls: 100.0,
        lambda small, calls: 3000.0,  # a busy host
        lambda small, calls: 3.0 if small else 3000.0,  # each call is late by itself, whatever their number
        lambda small, calls: 60.0 * calls,  # the small fill too
        lambda small, calls: 3.0 if small else 20.0 * calls + 2000,
    ],
)
def test_delays_that_do_not_grow_with_the_calls_decide_nothing(delays, delay):
    delays(delay)
    assert async_work.late_work(call, 100.0) == ""


def test_growth_must_show_in_each_measurement(delays):
    lucky = iter([False] * 100)
    once = iter([True, True, True, True, True, True])

    def delay(small, calls):
        if small:
            return 3.0
        return 100.0 * calls if next(once, False) or next(lucky) else 400.0

    delays(delay)
    assert async_work.late_work(call, 100.0) == ""
