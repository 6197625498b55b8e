"""Notes on a CPU that other processes use."""

from dataclasses import replace

import pytest

from softbench.core.case import Case, Direction
from softbench.core.outcome import Failed, Record, Status, Telemetry
from softbench.run import cpu_load
from softbench.run.cpu_load import CpuLoad

CASE = Case(8, 8, "fp32", Direction.FORWARD, "cpu")


def notes_of(monkeypatch, tmp_path, idle):
    """The notes of a look in which each processor had this share of idle time; the process may use the first two."""
    file, notes = tmp_path / "stat", []
    monkeypatch.setattr(cpu_load, "STAT", file)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})

    def write(passed):
        lines = [f"cpu{i} {passed * (1 - part):.0f} 0 0 {passed * part:.0f} 0 0 0" for i, part in enumerate(idle)]
        file.write_text("\n".join(["cpu 1 2 3 4 5 6 7", *lines, "intr 1"]))

    write(100)
    CpuLoad(notes.append, lambda _: write(200)).look()
    return notes


@pytest.mark.parametrize(("idle", "used"), [((0, 1, 0), "1.0"), ((0.2, 0.5, 1), "1.3"), ((0.6, 1, 1), "0.4")])
def test_other_processes_are_told_before_the_run(tmp_path, monkeypatch, idle, used):
    [note] = notes_of(monkeypatch, tmp_path, idle)
    assert note.startswith(f"other processes use {used} of 2 processors; results may be disturbed")


@pytest.mark.parametrize("idle", [(1, 1, 0), (0.9, 0.9), ()])
def test_an_idle_or_unknown_machine_gets_no_note(tmp_path, monkeypatch, idle):
    assert notes_of(monkeypatch, tmp_path, idle) == []


def test_the_first_disturbed_case_is_told_once(make_record):
    def record(*busy):
        found = make_record("torch", [1.0, 2.0])
        batches = zip(found.outcome.timing.batches, busy, strict=True)
        marked = tuple(replace(batch, telemetry=Telemetry(throttled="waited" if one else "")) for batch, one in batches)
        return replace(found, outcome=replace(found.outcome, timing=replace(found.outcome.timing, batches=marked)))

    notes = []
    watching = CpuLoad(notes.append)
    watching.measured(CASE, [record(True, False), Record("a", CASE, Failed(Status.FAILED, "build", "why"))])
    assert notes == []
    for _ in range(2):
        watching.measured(CASE, [record(False, False), record(True, True)])
    assert [note.partition(";")[0] for note in notes] == ["forward-fp32-8x8: threads waited for a processor in every round"]
