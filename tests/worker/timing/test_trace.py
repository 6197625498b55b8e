"""Traces: calls are parted by their separators, and work outside their order is found."""

import pytest

from softbench.worker.timing.trace import Activity, Separators, UntracedError, separators, split, unordered

KNOWN = Separators(frozenset({"fill"}), "pause", 7)
CALLS = 10


def on(stream, *activities):
    return [Activity(name, round(start * 1e3), round(us * 1e3), stream) for name, start, us in activities]


def traced(work):
    """The trace of calls: a fill of 70 us, what `work` gives from the time after it, and a pause of 15 us."""
    found, now = [], 0.0
    for _ in range(CALLS):
        ran, us = work(now + 70)
        found += on(7, ("fill", now, 70), ("pause", now + 70 + us, 15)) + ran
        now += 85 + us
    return split(found, CALLS, KNOWN)


def hidden_behind(us):
    """Work that waits for the caller's stream, and that this stream does not wait for."""
    return lambda now: (on(7, ("ours", now, 2)) + on(9, ("hidden", now + 4, us)), 2)


def test_separators_are_recognized_from_a_trace_of_them_alone():
    alone = on(7, ("pause", 80, 15), ("fill", 5, 70))
    assert separators(alone) == KNOWN
    for bad in (alone[:1], [], [*alone[:1], *on(8, ("fill", 5, 70))]):
        with pytest.raises(UntracedError, match="where a fill and a pause ran"):
            separators(bad)


def test_calls_are_told_apart_and_may_pause_themselves():
    calls = traced(lambda now: (on(7, ("pause", now, 3), ("ours", now + 3, 2)), 5))
    assert [[activity.name for activity in call.work] for call in calls] == [["pause", "ours"]] * CALLS
    assert {(call.fill.name, call.pause.duration_ns) for call in calls} == {("fill", 15000)}


def test_a_lost_separator_is_an_error():
    every = [activity for call in traced(lambda now: (on(7, ("ours", now, 2)), 2)) for activity in (call.fill, *call.work, call.pause)]
    assert len(split(every, CALLS, KNOWN)) == CALLS
    with pytest.raises(UntracedError, match="29 kernels and fills, which 10 calls do not explain"):
        split(every[1:], CALLS, KNOWN)
    with pytest.raises(UntracedError, match="lost a pause"):
        split(every[:-1], CALLS, KNOWN)


@pytest.mark.parametrize("us", [2, 5, 60, 1000])
def test_work_beside_separators_is_unordered_at_any_length(us):
    assert unordered(traced(hidden_behind(us))) == (
        f"hidden runs on another stream, not ordered with the caller's stream, so no event sees it ({CALLS} times in {CALLS} calls)"
    )


def test_ordered_work_on_other_streams_is_no_sign():
    def joined(now):
        return on(7, ("ours", now, 2)) + on(9, ("theirs", now + 3, 50)), 53

    assert unordered(traced(joined)) == ""
    assert unordered(traced(lambda now: (on(9, ("theirs", now, 50.9)), 50))) == ""  # time stamps are off by less than 1 us


def test_one_overlap_is_a_single_event_and_no_sign():
    once = iter([True])

    def work(now):
        return on(7, ("ours", now, 2)) + (on(9, ("setup", now, 30)) if next(once, False) else []), 2

    assert unordered(traced(work)) == ""
