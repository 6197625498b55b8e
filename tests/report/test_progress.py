"""Progress of a run in a log and on a terminal."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from softbench.report import progress

CASE = "a case"
PLAN = SimpleNamespace(infos=[], cases=[CASE], device_name="CPU")


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def watching(log, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", -1.0)
    now = iter(range(90, 1000, 10))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    return progress.Progress(Console(file=log))


@pytest.mark.parametrize(
    ("stored", "done", "line"), [(0, 2, "2 of 6 cells, about 20 s left"), (100, 1, "101 of 106 cells, about 50 s left")]
)
def test_the_remaining_time_counts_only_cells_of_this_run(watching, log, stored, done, line):
    """Before the first measured cell the speed is unknown, so no remaining time is printed."""
    watching.begin(PLAN, stored + 6, "run")
    watching.advance(CASE, stored, stored=True)
    assert " cells, about" not in log.getvalue()
    watching.advance(CASE, done)
    assert line in log.getvalue()


@pytest.mark.parametrize("stored", [True, False])
def test_the_speed_of_the_bar_ignores_stored_cells(log, stored):
    with progress.Progress(Console(file=log, force_terminal=True)) as watching:
        watching.begin(PLAN, 106, "run")
        for _ in range(4):
            watching.advance(SimpleNamespace(key=CASE), 25, stored=stored)
            time.sleep(0.01)
        [task] = watching._bar.tasks
        assert task.completed == 100
        assert (task.speed is None) is stored
