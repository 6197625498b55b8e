"""Plugin sources load while the parent does something else."""

import time

import pytest

from softbench.core.messages import ProbeMachine
from softbench.plugins.source import PluginSource
from softbench.processes.activity import Activity
from softbench.processes.slot import Loading, discover
from softbench.processes.worker_pool import Pool

GOOD = """
class Backend:
    name = "{name}"
    def available(self): return None
    def supports(self, case): return None
    def prepare(self, case): return None
backend = Backend()
"""


def source(folder, name, before=""):
    path = folder / f"{name}.py"
    path.write_text(before + GOOD.format(name=name))
    return PluginSource("file", name, str(path), f"{name}.py")


def waits_for(file):
    return f"import os, time\nwhile not os.path.exists({str(file)!r}): time.sleep(0.01)\n"


@pytest.fixture(scope="module")
def running(forked):
    with Pool() as pool:
        yield pool


@pytest.fixture
def pool(running):
    """A pool without workers."""
    yield running
    for worker in [*running.workers]:
        running.discard(worker)
    assert not running.workers


@pytest.mark.slow
def test_one_source_is_used_while_another_loads(pool, tmp_path):
    loading = Loading(pool, [source(tmp_path, "a"), source(tmp_path, "b", waits_for(tmp_path / "go"))], "cpu", {}, 60)
    (first,) = loading.slots("a")
    assert first.name == first.worker.label == "a"
    assert pool.ask(first.worker, ProbeMachine(), 60, "probe").machine  # it answers, and b has not loaded
    (tmp_path / "go").touch()
    again, second = loading.slots()
    assert again is first and second.info.able and second.worker in pool.workers


@pytest.mark.slow
def test_the_deadline_of_a_load_begins_with_it(pool, tmp_path):
    loading = Loading(pool, [source(tmp_path, "a"), source(tmp_path, "b", waits_for(tmp_path / "never"))], "cpu", {}, 3.0)
    loading.slots("a")
    time.sleep(3.0)
    begin = time.monotonic()
    first, second = loading.slots()
    assert time.monotonic() - begin < 2
    assert first.info.able and second.info.broken.startswith("import took longer than 3 s") and second.worker is None


def test_a_crash_that_was_not_awaited_is_found_later(pool, tmp_path):
    loading = Loading(pool, [source(tmp_path, "a"), source(tmp_path, "b", "import os\nos._exit(3)\n")], "cpu", {}, 60)
    loading.slots("a")
    time.sleep(0.5)
    assert loading.slots("b")[0].info.broken.startswith("exited with code 3 in import")


def test_a_crash_that_was_reported_earlier_is_found_at_once(pool, tmp_path):
    """A child keeps the socket open, so only the forkserver reports the end, and another wait has read the report."""
    crash = "import os, time\nif os.fork() == 0:\n    time.sleep(120)\n    os._exit(0)\nos._exit(3)\n"
    loading = Loading(pool, [source(tmp_path, "a"), source(tmp_path, "b", crash)], "cpu", {}, 60)
    worker = pool.workers[1]
    pool._pump(lambda: worker.pid in pool._exits, 30)
    begin = time.monotonic()
    assert loading.slots("b")[0].info.broken.startswith("exited with code 3 in import")
    assert time.monotonic() - begin < 30  # and not its deadline


def test_one_at_a_time_no_worker_is_left(pool, tmp_path):
    found = discover(pool, [source(tmp_path, "a"), source(tmp_path, "b")], "cpu", {}, 60, together=False)
    assert [slot.name for slot in found] == ["a", "b"]
    assert not pool.workers and all(slot.worker is None for slot in found)


def test_waits_are_summed_by_request_and_the_present_one_shown():
    times = iter([10.0, 11.5, 20.0, 20.25])
    activity = Activity(lambda: next(times))
    with activity.waiting("build", ["a", "b"]):
        assert (activity.now.op, activity.now.labels, activity.now.since) == ("build", ("a", "b"), 10.0)
    assert activity.now is None
    with pytest.raises(OSError), activity.waiting("build", []):
        raise OSError
    assert activity.now is None
    assert activity.seconds == {"build": 1.75}
