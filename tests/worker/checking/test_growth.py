"""What each call keeps is found, and garbage that a collection frees is none of it."""

import gc

import pytest

from softbench.worker.checking.growth import WINDOWS, Growth

KEPT: list[object] = []


def keeps(cycle):
    KEPT.append(cycle)


@pytest.mark.parametrize(("call", "leak"), [(keeps, "keeps Python objects and memory of every call"), (len, "")])
def test_what_is_kept_is_told_from_garbage(call, leak):
    gc.collect()
    gc.disable()
    growth = Growth("cpu", 500)
    while len(growth.marks) <= WINDOWS:
        for _ in range(500):
            cycle: list[object] = [bytes(1000)]
            cycle.append(cycle)
            call(cycle)
        growth.called()
    try:
        assert growth.leak().replace(" and address space", "") == leak
    finally:
        gc.enable()
        KEPT.clear()
