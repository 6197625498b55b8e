"""What the probe worker reports of the host."""

import pytest

from softbench.worker import probe


def test_the_host_has_a_label_and_not_its_name(monkeypatch):
    monkeypatch.delenv("SOFTBENCH_HOST", raising=False)
    monkeypatch.setattr("platform.node", lambda: "secret-name")
    assert probe.host_label().startswith("host-") and "secret" not in probe.host_label()
    monkeypatch.setenv("SOFTBENCH_HOST", "rack 7/<node>")
    assert probe.host_label() == "rack-7--node-"


@pytest.mark.parametrize("bus", ["00000000:3B:00.0", b"00000000:3B:00.0"])
def test_the_numa_node_of_a_gpu_is_read(tmp_path, monkeypatch, bus):
    """NVML writes the domain with eight digits, and Linux with four."""
    folder = tmp_path / "sys/bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    real = probe.Path
    monkeypatch.setattr(probe, "Path", lambda path: real(f"{tmp_path}{path}"))
    (folder / "numa_node").write_text("1\n")
    assert probe._numa_node(bus) == 1
    (folder / "numa_node").write_text("-1\n")
    with pytest.raises(ValueError, match="one node"):
        probe._numa_node(bus)
