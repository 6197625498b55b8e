"""A backend that kills the workers of others gets no result."""

import pytest
from pretended import FakePool, make, scheduler_of

from softbench.core.outcome import Failed, Measured, Status
from softbench.processes.worker_pool import Lost
from softbench.run import isolation

KILLED = Lost(Status.FAILED, "killed (SIGKILL) in time: by another process, or for lack of memory", killed=True)


class Killing(FakePool):
    """The worker `killer` kills all others when it is timed; they are found dead at their next request. `limit`: kills at most."""

    def __init__(self, killer, limit=99):
        super().__init__()
        self.killer, self.left, self.dead = killer, limit, set()
        self.alive = {}

    def spawn(self, label, env=None, python=""):
        worker = super().spawn(label, env, python)
        self.alive[worker.pid] = label
        return worker

    def gather(self, requests, seconds, phase):
        replies = super().gather(requests, seconds, phase)
        for key, (worker, request) in requests.items():
            if worker.pid in self.dead:
                replies[key] = KILLED
            elif worker.label == self.killer and request.op == "time" and self.left:
                self.left -= 1
                self.dead |= set(self.alive) - {worker.pid}
        return replies


def measured(pool, names=("copy", "a", "killer", "b"), cases=1):
    plan = make(names, cases=cases)
    group, notes = scheduler_of(plan, pool), []
    found = [{record.backend: record.outcome for record in isolation.measure(group, case, notes.append)} for case in plan.cases]
    return found, notes


def test_a_killer_has_no_result_and_its_victims_have():
    [first, second], notes = measured(Killing("killer"), cases=2)
    for found in (first, second):
        assert list(found) == ["copy", "a", "killer", "b"]
        assert isinstance(found["killer"], Failed)
        assert found["killer"].reason == "the worker of copy was killed 2 times as copy ran beside this backend, and not as copy ran alone"
    assert isinstance(first["a"], Measured)
    assert isinstance(first["b"], Measured)
    assert all(isinstance(second[name], Measured) for name in ("copy", "a", "b"))
    assert len(notes) == 1  # it is not asked in the second case
    assert "was killed, and not by softbench; the case is measured again" in notes[0]


def test_without_a_yardstick_a_victim_is_the_witness():
    [found], _ = measured(Killing("killer"), ("a", "killer"))
    assert isinstance(found["killer"], Failed)


def test_one_kill_for_lack_of_memory_accuses_nobody():
    [found], notes = measured(Killing("killer", limit=1))
    assert {type(outcome) for outcome in found.values()} == {Measured}
    assert len(notes) == 1


def test_a_worker_that_dies_alone_accuses_nobody():
    """As under a memory limit that the yardstick exceeds."""
    [found], _ = measured(FakePool({("copy", "time"): KILLED}))
    assert isinstance(found["copy"], Failed)
    assert all(isinstance(found[name], Measured) for name in ("a", "killer", "b"))


def test_a_run_without_kills_measures_once():
    pool = FakePool()
    plan = make()
    notes = []
    records = isolation.measure(scheduler_of(plan, pool), plan.cases[0], notes.append)
    assert [type(record.outcome) for record in records] == [Measured] * 3
    assert (notes, [op for _, op in pool.log].count("build")) == ([], 3)


KILLER = """
import os, signal, torch
from pathlib import Path
calls = [0]
def siblings():
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, parent = int(status.parent.name), int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == os.getppid() and pid != os.getpid():
            yield pid
def call(x):
    calls[0] += 1
    if calls[0] == 6:
        for pid in VICTIMS():
            os.kill(pid, signal.SIGKILL)
    return torch.softmax(x, -1)
class Killer:
    name = "killer"
    def available(self): pass
    def supports(self, case): pass
    def prepare(self, case):
        calls[0] = 0
        return call
backend = Killer()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("victims", "told"), [("siblings", "the worker of copy"), ("lambda: [os.getppid()]", "the forkserver")])
def test_a_plugin_that_kills_workers_or_their_parent_is_told(cli, victims, told):
    (cli.folder / "killer.py").write_text(KILLER.replace("VICTIMS", f"({victims})"))
    done = cli("run", "--plugin", "killer.py", "--backends", "killer,torch", "--device", "cpu", "--quick", "--M", "8", "--N", "16,32")
    assert done.returncode == 1, done.stdout + done.stderr
    rows = {(row["backend"], row["N"]): row for row in cli.rows()}
    assert "was killed, and not by softbench" in done.stderr
    for N in ("16", "32"):
        assert rows["killer", N]["status"] == "failed"
        assert f"{told} was killed 2 times as copy ran beside this backend" in rows["killer", N]["reason"]
        assert float(rows["torch", N]["gbps"]) > 0
