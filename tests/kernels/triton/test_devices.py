"""What the kernels know of a device, and what they ask its driver for, with pretended ones."""

from types import SimpleNamespace

import pytest
import torch
from softbench.kernels.triton import devices

KIB = 1024


@pytest.fixture
def device(monkeypatch):
    """`device(major, minor, shared)`: the traits of a GPU, of ROCm's if `hip`."""

    def traits(major, minor, shared, hip=None):
        found = SimpleNamespace(name="a GPU", major=major, minor=minor, multi_processor_count=100, shared_memory_per_block_optin=shared)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(devices, "INTERPRETED", False)
        monkeypatch.setattr(devices, "bytes_per_cycle", lambda _: 2.0)
        devices.device_traits.cache_clear()
        return devices.device_traits(torch.device("cuda", 0))

    yield traits
    devices.device_traits.cache_clear()


@pytest.mark.parametrize(
    ("major", "minor", "shared", "clusters"),
    [(8, 0, 163 * KIB, False), (8, 9, 99 * KIB, False), (9, 0, 227 * KIB, True), (10, 3, 227 * KIB, True), (12, 0, 99 * KIB, False)],
)
def test_large_gpus_from_hopper_on_have_clusters_of_16(device, major, minor, shared, clusters):
    assert device(major, minor, shared) == ("a GPU", 100, clusters, 2.0, (major, minor) == (9, 0))


def test_amds_gpus_have_neither_clusters_nor_hints(device):
    assert device(9, 0, 64 * KIB, hip="7.0") == ("a GPU", 100, False, 0.0, False)


def test_a_machine_without_a_gpu_traces_for_an_h200(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    devices.device_traits.cache_clear()
    name, sms, clusters, *_ = devices.device_traits(torch.device("cuda"))
    devices.device_traits.cache_clear()
    assert (name, sms, clusters) == ("", 132, True) or devices.INTERPRETED


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
        monkeypatch.setattr(devices, "driver", lambda: driver)
        sm = SimpleNamespace(shared_memory_per_multiprocessor=233_472)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: sm)
        devices.prefer_shared_memory(COMPILED, torch.device("cuda", 0))
        return [percent for _, percent in driver.asked] if driver else []

    return call


def test_all_resident_programs_get_their_shared_memory(ask):
    assert ask(Driver()) == [54]  # 3 * (40000 + 1000 + 1024) of 233472 bytes
    assert ask(Driver(programs=6)) == [100]


def test_without_a_driver_or_after_an_error_nothing_is_asked(ask):
    assert ask(None) == []
    assert ask(Driver(error=1)) == []
