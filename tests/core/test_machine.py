"""What is read of a machine."""

import pytest

from softbench.core import machine
from softbench.worker import machine_probe


@pytest.mark.parametrize("bus", ["00000000:3B:00.0", b"00000000:3B:00.0"])
def test_the_numa_node_of_a_gpu_is_read(tmp_path, monkeypatch, bus):
    """NVML writes the domain with eight digits, and Linux with four."""
    folder = tmp_path / "0000:3b:00.0"
    folder.mkdir()
    monkeypatch.setattr(machine, "PCI", tmp_path)
    (folder / "numa_node").write_text("1\n")
    assert machine.numa_node(bus) == 1
    (folder / "numa_node").write_text("-1\n")
    with pytest.raises(ValueError, match="one node"):
        machine.numa_node(bus)


def test_the_host_has_a_label_and_not_its_name(monkeypatch):
    monkeypatch.delenv("SOFTBENCH_HOST", raising=False)
    monkeypatch.setattr("platform.node", lambda: "secret-name")
    assert machine_probe.host_label().startswith("host-") and "secret" not in machine_probe.host_label()
    monkeypatch.setenv("SOFTBENCH_HOST", "rack 7/<node>")
    assert machine_probe.host_label() == "rack-7--node-"
