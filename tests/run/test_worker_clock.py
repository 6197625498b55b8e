"""A worker's clock that goes slowly is noticed, and a busy machine is not taken for one."""

import os
import time

from pretended import GOOD, FakePool, make, measure

from softbench.core.messages import Timed
from softbench.core.outcome import Failed, Measured, Status
from softbench.run import worker_clock
from softbench.run.worker_clock import Span, disputed

HONEST, SLOW = Span(15_000, 12_000, 400), Span(400_000, 12_000, 8_000)


def test_a_cell_is_disputed_if_most_batches_took_far_longer_than_their_calls():
    assert disputed([HONEST] * 3) is None
    assert disputed([HONEST, HONEST, SLOW]) is None
    failed = disputed([HONEST, SLOW, SLOW])
    assert (failed.status, failed.stage) == (Status.UNVERIFIED, "time")
    assert failed.reason == "disputed: the calls of a batch took 12 ms by its worker's clock, and the batch 400 ms by softbench's"
    assert disputed([Span(4e8, 0.0, 0)]) is None  # nobody counted
    assert disputed([]) is None
    short = Span(500_000, 12_000, 80_000, 50_000)  # so many calls that what is done between them could take as long
    assert disputed([short]) and disputed([short._replace(whole_us=450_000)]) is None


def test_the_shorter_of_two_times_counts():
    """While a process sleeps, or waits for other processes, it takes no time of processors."""
    watch = worker_clock.Watch(os.getpid())
    time.sleep(0.1)
    assert watch.us() < 50_000


def test_a_disputed_cell_has_no_time(monkeypatch):
    monkeypatch.setattr(worker_clock.Watch, "us", lambda self: 5e6)
    records = measure(make(), FakePool({("a", "time"): Timed((1.0,) * 20, "", 1000, 1000.0), ("b", "time"): GOOD["time"]}))
    assert isinstance(records["a"].outcome, Failed)
    assert records["a"].outcome.reason.startswith("disputed: ")
    assert isinstance(records["b"].outcome, Measured)
