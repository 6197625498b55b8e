"""Plugin sources load at once."""

import pytest

from softbench.plugins.source import PluginSource
from softbench.processes.activity import Activity
from softbench.processes.slot import discover, load_all
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


FORKS = "import os, time\nif os.fork() == 0:\n    time.sleep(120)\n    os._exit(0)\nos._exit(3)\n"
"""A child keeps the worker's socket open."""


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


@pytest.mark.parametrize("crash", ["import os\nos._exit(3)\n", FORKS])
def test_a_crash_costs_its_source_only(pool, tmp_path, crash):
    first, second = load_all(pool, [source(tmp_path, "a"), source(tmp_path, "b", crash)], "cpu", {}, 60)
    assert first.name == first.worker.label == "a"
    assert second.info.broken.startswith("exited with code 3 in import") and second.worker is None


@pytest.mark.slow
def test_a_load_ends_with_its_deadline(pool, tmp_path):
    first, second = load_all(pool, [source(tmp_path, "a"), source(tmp_path, "b", "import time\ntime.sleep(120)\n")], "cpu", {}, 3.0)
    assert first.info.able and second.info.broken.startswith("import took longer than 3 s") and second.worker is None
    (compiled,) = load_all(pool, [source(tmp_path, "c", "# cpp_extension\nimport time\ntime.sleep(5)\n")], "cpu", {}, 3.0)
    assert compiled.info.able


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
