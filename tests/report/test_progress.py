"""Progress of a run in a log and on a terminal."""

import io
import re
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from softbench.report import progress

PLAN = SimpleNamespace(
    infos=[SimpleNamespace(name="torch", able=True), SimpleNamespace(name="quack", able=False)], cases=[1], device_name="CPU"
)
PACE = SimpleNamespace(done=2, cells=6, seconds_left=lambda: 75.0, doing=lambda: "check of torch on a case")


@pytest.fixture
def log():
    return io.StringIO()


def test_a_log_gets_lines_while_one_request_lasts(log, monkeypatch):
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.02)
    with progress.Progress(Console(file=log, width=200)) as watching:
        watching.watch(lambda: "import of torch")
        time.sleep(0.2)
        watching.begin(PLAN, PACE, "run-1")
        time.sleep(0.2)
    lines = log.getvalue().splitlines()
    assert lines.count("softbench: import of torch") >= 2
    assert "softbench: run-1: torch over 1 case on CPU; 6 cells, about 1 min 15 s" in lines
    assert lines.count("softbench: 2 of 6 cells, about 1 min 15 s left; check of torch on a case") >= 2
    ended = log.getvalue()
    time.sleep(0.1)
    assert log.getvalue() == ended


def test_a_terminal_shows_phase_cells_and_time(log):
    with progress.Progress(Console(file=log, force_terminal=True, width=200)) as watching:
        watching.begin(PLAN, PACE, "run-1")
        watching.show()
        [task] = watching._bar.tasks
        assert (task.completed, task.total) == (2, 6)
    assert "check of torch on a case" in log.getvalue()
    assert "cells, about 1 min 15 s left" in log.getvalue()


def test_the_leader_so_far_is_shown(log, make_row):
    rows = [make_row(name, us, low_us=us, high_us=us) for name, us in (("torch", 9.0), ("naive", 20.0))]
    with progress.Progress(Console(file=log, width=200)) as watching:
        watching.begin(PLAN, PACE, "run-1")
        watching.leader.rows = lambda: rows
        watching.advance(None)
        watching.show()
    assert "2 of 6 cells, about 1 min 15 s left; torch leads in 1 of 1 case; check of torch on a case" in log.getvalue()


def test_a_narrow_terminal_cuts_what_runs_now(log):
    with progress.Progress(Console(file=log, force_terminal=True, width=50)) as watching:
        watching.begin(PLAN, PACE, "run-1")
        watching.show()
    assert "2/6 cells, about 1 min 15 s left; ch" in re.sub("\x1b\\[[0-9;]*m", "", log.getvalue())


def test_a_closed_stderr_does_not_end_the_display(log):
    def closed(*_, **__):
        raise OSError

    with progress.Progress(Console(file=log)) as watching:
        watching.console.print = closed
        watching.begin(PLAN, PACE, "run-1")
        watching.show()
