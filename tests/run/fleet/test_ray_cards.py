"""The cards of a Ray cluster. One test starts a cluster of three nodes, kills one of them and stops another; without Ray it skips.

The tests of the relay have a Ray that only pretends.
"""

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing, suppress
from pathlib import Path

import pytest
from fleets import Note

from softbench import __version__
from softbench.core.errors import UsageError
from softbench.plan.settings import from_flags
from softbench.run.fleet import members, ray_cards, ray_relay
from softbench.run.fleet.fleet import How, run
from softbench.run.fleet.members import CardsLostError
from softbench.run.fleet.ray_cards import RayCards, ship
from softbench.run.request import RunRequest

N = list(range(8, 136, 8))
PLUGIN = "import beside\ndef softmax(x): return beside.softmax(x)\n"
"""A plugin with a module beside it."""


@pytest.fixture
def plugin(tmp_path):
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "beside.py").write_text("import torch\n\n\ndef softmax(x):\n    return torch.softmax(x, dim=-1)\n")
    (folder / "mine.py").write_text(PLUGIN)
    (folder / "data.bin").write_bytes(b"x")
    return folder / "mine.py"


def asked(folder, plugin, resume=False):
    flags = from_flags(
        {"M": ["64"], "N": [",".join(map(str, N))], "backends": ["torch,mine"], "plugins": [plugin], "rounds": 1, "batch_ms": 40.0}
    )
    return RunRequest({}, flags, False, folder / "results", resume, "softbench run --ray auto", __version__)


def test_files_are_shipped_with_the_sources_beside_them(tmp_path, plugin):
    found = ship([plugin], tmp_path / "shipped")
    assert found == {str(plugin): "0/mine.py"}
    assert sorted(path.name for path in (tmp_path / "shipped" / "0").iterdir()) == ["beside.py", "mine.py"]


def test_too_large_folders_are_refused(tmp_path, plugin, monkeypatch):
    monkeypatch.setattr(ray_cards, "MAX_BYTES", 10)
    with pytest.raises(UsageError, match=r"--ray: .*mine\.py is in a folder with more than"):
        ship([plugin], tmp_path / "shipped")


def of_node(host):
    """The processes of a node of the cluster, by the variable that its processes inherit."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"SOFTBENCH_HOST={host}\0".encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def signalled(host, signum):
    for process in of_node(host):
        with suppress(OSError):
            os.kill(process, signum)


@pytest.fixture
def cluster(monkeypatch):
    """A head and two nodes of one processor each; the head cannot be lost."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'softbench[ray]'")
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    hosts = ("softbench-test-1", "softbench-test-2")
    try:
        for host in hosts:
            found.add_node(num_cpus=1, env_vars={"SOFTBENCH_HOST": host})
            os.environ.pop("SOFTBENCH_HOST", None)  # Ray sets it in this process too, and the relay would inherit it
        yield found.address
    finally:
        for host in hosts:
            signalled(host, signal.SIGKILL)
        found.shutdown()


class Faults(Note):
    """An observer that kills the first node after its first case, and stops the second after its first."""

    kept = None

    def advance(self, case):
        for host, signum in (("softbench-test-1", signal.SIGKILL), ("softbench-test-2", signal.SIGSTOP)):
            if any(key[3].startswith(host) for key in self.kept.cells) and f"{host} {signum}" not in self:
                self.append(f"{host} {signum}")
                signalled(host, signum)


@pytest.mark.timeout(300)
def test_a_cluster_loses_two_of_three_nodes(cluster, tmp_path, plugin, monkeypatch):
    """A killed node and one that hangs cost no cell: the head measures their cases. The plugin was shipped to every node."""
    monkeypatch.setattr(members, "SILENT_SECONDS", 10.0)
    seen = Faults()
    kept = run(
        How(lambda request: RayCards(cluster, request), "shard", True), asked(tmp_path, plugin), seen, lambda k: setattr(seen, "kept", k)
    )
    assert Counter((row.backend, row.N) for row in kept.rows()) == {(name, n): 1 for name in ("copy", "torch", "mine") for n in N}
    assert {row.status for row in kept.rows()} == {"ok"}
    lost = [text for text in seen if " is lost: " in text]
    assert len(lost) == 2
    assert any("Ray lost it" in text or "its process ended" in text for text in lost) and any(
        "said nothing for 10 s" in text for text in lost
    )
    hosts = {row.unit.partition("/")[0] for row in kept.rows()}
    assert {"softbench-test-1", "softbench-test-2"} < hosts and len(hosts) == 3
    assert {one["unit"] for one in kept.header["units"]} == {row.unit for row in kept.rows()}


@pytest.fixture
def fake_ray(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "support" / "fake_ray")


class Kills(Note):
    """An observer that kills the relay after so many cases."""

    def __init__(self, cards, after):
        super().__init__()
        self.cards, self.after = cards, after

    def advance(self, case):
        self.after -= 1
        if self.after == 0:
            self.cards[-1]._relay.kill()


@pytest.mark.slow
def test_a_run_without_its_head_node_is_resumed(fake_ray, tmp_path, plugin):
    """The relay ends, as Ray ends its driver. The next run through it measures only the rest, with the plugin that was shipped."""
    opened = []

    def cards(request):
        opened.append(RayCards("auto", request))
        return opened[-1]

    with pytest.raises(CardsLostError, match=r"cases of run-.* could not be measured: here:0 is lost: the Ray cluster is gone"):
        run(How(cards), asked(tmp_path, plugin), Kills(opened, 3), lambda kept: None)
    seen = Kills(opened, -1)
    kept = run(How(cards), asked(tmp_path, plugin, resume=True), seen, lambda kept: None)
    assert any(re.fullmatch(r"resuming run-.*: \d+ cells are there already", text) for text in seen)
    assert Counter((row.backend, row.N) for row in kept.rows()) == {(name, n): 1 for name in ("copy", "torch", "mine") for n in N}
    assert {row.status for row in kept.rows()} == {"ok"}
    assert opened[1].names == ["here:0"] and opened[1]._relay.poll() == 0


def test_cards_of_a_node_open_with_their_places(fake_ray, tmp_path, plugin, monkeypatch):
    """Each then parts the node's processors, as the processors of the fleet's host may be others."""
    monkeypatch.setenv("FAKE_RAY_GPUS", "2")
    with closing(RayCards("auto", asked(tmp_path, plugin))) as cards:
        assert cards.opening == [{"device": "cuda", "processors": [], "of_node": [number, 2]} for number in range(2)]


def test_a_cluster_that_cannot_be_reached_is_one_line(fake_ray, tmp_path, plugin):
    with pytest.raises(UsageError, match=r"--ray there:1: no Ray cluster at there:1: ConnectionError: no cluster at there:1"):
        RayCards("there:1", asked(tmp_path, plugin))


def test_each_gpu_is_a_card():
    nodes = [
        {"Alive": True, "NodeID": "aaaa1", "NodeName": "one", "Resources": {"CPU": 8.0, "GPU": 2.0}},
        {"Alive": True, "NodeID": "bbbb2", "NodeName": "one", "Resources": {"CPU": 8.0, "GPU": 1.0}},
        {"Alive": True, "NodeID": "cccc3", "NodeName": "head", "Resources": {"CPU": 8.0}},
        {"Alive": False, "NodeID": "dddd4", "NodeName": "gone", "Resources": {"GPU": 8.0}},
    ]
    assert [card["name"] for card in ray_relay._slots(nodes)] == ["one-aaaa:0", "one-aaaa:1", "one-bbbb:0"]
    assert [card["of_node"] for card in ray_relay._slots(nodes)] == [[0, 2], [1, 2], [0, 1]]
    assert [(card["name"], card["resource"]) for card in ray_relay._slots(nodes[2:])] == [("head:0", "CPU")]


@pytest.fixture
def other_ray(tmp_path, monkeypatch):
    """Writes a module that hides Ray."""
    (tmp_path / "hidden").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "hidden")
    return (tmp_path / "hidden" / "ray.py").write_text


def test_without_ray_the_extra_is_named(tmp_path, plugin, other_ray):
    """A relay that cannot import Ray says what to install."""
    other_ray("raise ImportError('no ray')\n")
    with pytest.raises(UsageError, match=r"--ray auto: Ray is not installed: pip install 'softbench\[ray\]'"):
        RayCards("auto", asked(tmp_path, plugin))


def test_a_cluster_that_does_not_answer_is_one_line(tmp_path, plugin, other_ray, monkeypatch):
    """Ray itself waits for minutes."""
    other_ray("import time\n\n\ndef init(**about):\n    time.sleep(60)\n")
    monkeypatch.setattr(ray_cards, "START_SECONDS", 2.0)
    with pytest.raises(UsageError, match=r"--ray there:1: no Ray cluster answered within 2 s; is its head node running\?"):
        RayCards("there:1", asked(tmp_path, plugin))


@pytest.mark.parametrize(("of_raylet", "of_worker", "expected"), [(None, "1", None), ("3", "3", "3"), (None, None, None)])
def test_a_card_has_the_threads_of_its_node(of_raylet, of_worker, expected):
    """Ray sets OMP_NUM_THREADS for a worker of a node whose user did not. Here a process takes the place of the raylet."""
    worker = "from softbench.run.fleet.ray_relay import environment_of_card; print(environment_of_card().get('OMP_NUM_THREADS'))"
    raylet = f"""
import os, subprocess, sys
given = {{**os.environ, **({{"OMP_NUM_THREADS": {of_worker!r}}} if {of_worker!r} else {{}})}}
subprocess.run([sys.executable, "-c", {worker!r}], env=given, check=True)
"""
    clean = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment = clean | ({"OMP_NUM_THREADS": of_raylet} if of_raylet else {})
    done = subprocess.run([sys.executable, "-c", raylet], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(expected)
