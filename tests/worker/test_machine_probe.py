"""What the probe worker reports of the host."""

from softbench.worker import machine_probe


def test_the_host_has_a_label_and_not_its_name(monkeypatch):
    monkeypatch.delenv("SOFTBENCH_HOST", raising=False)
    monkeypatch.setattr("platform.node", lambda: "secret-name")
    assert machine_probe.host_label().startswith("host-") and "secret" not in machine_probe.host_label()
    monkeypatch.setenv("SOFTBENCH_HOST", "rack 7/<node>")
    assert machine_probe.host_label() == "rack-7--node-"
