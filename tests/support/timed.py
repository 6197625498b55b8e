"""Host time of a call, for tests that bound it; and waits with an end."""

import time
import timeit


def least_seconds(call, number=2000, repeat=30):
    """The least of many means: other programs of the host only add time."""
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number


def wait_for(condition, seconds=60.0):
    """The first true value of the condition."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found
