"""Operators of torch with a kernel that is not torch's own."""

import sys

import pytest
from overridden import OPERATORS, on_the_cpu, other_override
from softbench.kernels.automatic.override import use

from softbench.worker import machine_probe
from softbench.worker.guarding import overrides


def test_a_registered_kernel_is_found_until_it_is_removed():
    before = overrides.active()
    assert not any("_softmax" in names for names in before.values())
    with other_override("_softmax", lambda x, dim, half_to_float: x):
        found = overrides.active()
        assert found == {**before, "overridden.py": ["_softmax"]}
        assert machine_probe.software()["overrides"] == found
    assert overrides.active() == before


def test_the_filters_of_use_are_found(monkeypatch):
    on_the_cpu(monkeypatch, "filter")
    with use():
        assert overrides.active()["softbench.use"] == sorted(OPERATORS)
    assert "softbench.use" not in overrides.active()


def test_kernels_without_a_predecessor_count_if_python_registered_them():
    with other_override("_softmax", lambda x, dim, half_to_float: x, "CUDA"):
        assert "_softmax" in overrides.active()["overridden.py"]


def test_a_run_without_overrides_records_none(monkeypatch):
    monkeypatch.setattr(overrides, "active", dict)
    assert "overrides" not in machine_probe.software()


@pytest.mark.parametrize(
    ("where", "owner"),
    [
        ("/home/me/venv/lib/python3.12/site-packages/flag_gems/runtime/register.py", "flag_gems"),
        ("/usr/lib/python3/dist-packages/torch/_native/registry.py", "torch._native"),
        ("/home/me/secret/mine.py", "mine.py"),
        ("softbench.use", "softbench.use"),
    ],
)
def test_an_owner_is_a_package_or_a_file_without_folders(where, owner):
    assert overrides._owner(where) == owner


def test_it_loads_no_further_modules():
    before = {*sys.modules}
    overrides.active()
    assert {*sys.modules} == before
