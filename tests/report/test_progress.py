"""What a log is told while a run goes on."""

import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from softbench.report import progress

CASE = "a case"
PLAN = SimpleNamespace(infos=[], cases=[CASE], device_name="CPU")


@pytest.fixture
def told():
    return io.StringIO()


@pytest.fixture
def watching(told, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", -1.0)
    now = iter(range(90, 1000, 10))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(now)))
    return progress.Progress(Console(file=told))


@pytest.mark.parametrize(
    ("stored", "done", "line"), [(0, 2, "2 of 6 cells, about 20 s left"), (100, 1, "101 of 106 cells, about 50 s left")]
)
def test_the_time_left_goes_by_what_this_run_measured_and_is_told_from_its_first_cell_on(watching, told, stored, done, line):
    """A run that resumes nothing begins with no cells done, however long its workers took to start: no rate to tell by then."""
    watching.begin(PLAN, stored + 6, "run")
    watching.advance(CASE, stored, stored=True)
    assert " cells, about" not in told.getvalue()
    watching.advance(CASE, done)
    assert line in told.getvalue()


@pytest.mark.parametrize("stored", [True, False])
def test_the_bars_rate_is_that_of_what_this_run_measured(told, stored):
    with progress.Progress(Console(file=told, force_terminal=True)) as watching:
        watching.begin(PLAN, 106, "run")
        for _ in range(4):
            watching.advance(SimpleNamespace(key=CASE), 25, stored=stored)
            time.sleep(0.01)
        [task] = watching._bar.tasks
        assert task.completed == 100
        assert (task.speed is None) is stored
