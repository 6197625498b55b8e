"""The request for shared memory, with a pretended driver."""

from types import SimpleNamespace

import pytest
import torch
from softbench.kernels.triton import carveout

COMPILED = SimpleNamespace(function=1, metadata=SimpleNamespace(shared=1000, num_warps=4))


class Driver:
    """The driver's three functions: `static` bytes of shared memory, so many programs an SM, error codes."""

    def __init__(self, static=40_000, programs=3, error=0):
        self.static, self.programs, self.error, self.asked = static, programs, error, []

    def cuFuncGetAttribute(self, value, attribute, kernel):  # noqa: N802
        value._obj.value = self.static
        return self.error

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, value, kernel, threads, dynamic):  # noqa: N802
        assert (threads, dynamic.value) == (128, 1000)
        value._obj.value = self.programs
        return 0

    def cuFuncSetAttribute(self, kernel, attribute, percent):  # noqa: N802
        self.asked.append((attribute, percent))
        return 1  # a failure changes nothing


@pytest.fixture
def ask(monkeypatch):
    """Percentages of shared memory that are asked for, by a driver or without one."""

    def call(driver):
        monkeypatch.setattr(carveout, "driver", lambda: driver)
        sm = SimpleNamespace(shared_memory_per_multiprocessor=233_472)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: sm)
        carveout.prefer_shared_memory(COMPILED, torch.device("cuda", 0))
        return [percent for _, percent in driver.asked] if driver else []

    return call


def test_all_resident_programs_get_their_shared_memory(ask):
    assert ask(Driver()) == [54]  # 3 * (40000 + 1000 + 1024) of 233472 bytes
    assert ask(Driver(programs=6)) == [100]


def test_without_a_driver_or_after_an_error_nothing_is_asked(ask):
    assert ask(None) == []
    assert ask(Driver(error=1)) == []
