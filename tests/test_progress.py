"""What a log is told while a run goes on."""

import io
from types import SimpleNamespace

from rich.console import Console

from softbench import progress


def test_a_start_that_took_long_is_told_with_the_first_cell(monkeypatch):
    """A run that resumes nothing begins with no cells done, however long its workers took to start: no rate to tell by then."""
    monkeypatch.setattr(progress, "LOG_SECONDS", -1.0)
    told = io.StringIO()
    plan = SimpleNamespace(offers=[], cases=["a case"], device_name="CPU")
    watching = progress.Progress(Console(file=told))
    watching.begin(plan, 6, "run")
    watching.advance(plan.cases[0], 0)
    assert "of 6 cells" not in told.getvalue()
    watching.advance(plan.cases[0], 2)
    assert "2 of 6 cells, about" in told.getvalue()
