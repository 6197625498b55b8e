"""What the parent waits for."""

import pytest

from softbench.processes.activity import Activity


def test_waits_are_summed_by_request_and_the_present_one_shown():
    times = iter([10.0, 11.5, 20.0, 20.25])
    activity = Activity(lambda: next(times))
    with activity.waiting("build", ["a", "b"]):
        assert (activity.now.op, activity.now.labels, activity.now.since) == ("build", ("a", "b"), 10.0)
    assert activity.now is None
    with pytest.raises(OSError), activity.waiting("build", []):
        raise OSError
    assert activity.now is None
    assert activity.seconds == {"build": 1.75}
