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
    assert device(major, minor, shared) == (("a GPU", 10 * major + minor), 100, clusters, 2.0, (major, minor) == (9, 0))


def test_amds_gpus_have_neither_clusters_nor_hints(device):
    assert device(9, 0, 64 * KIB, hip="7.0") == (("a GPU", 90), 100, False, 0.0, False)


def test_a_machine_without_a_gpu_traces_for_an_h200(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    devices.device_traits.cache_clear()
    (name, _), sms, clusters, *_ = devices.device_traits(torch.device("cuda"))
    devices.device_traits.cache_clear()
    assert (name, sms, clusters) == ("", 132, True) or devices.INTERPRETED
