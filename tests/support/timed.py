"""Host time of a call, for tests that bound it."""

import timeit


def least_seconds(call, number=2000, repeat=30):
    """The least of many means: other programs of the host only add time."""
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number
