"""A run's files: whole at any moment, resumable, and published once. Records from JSON: what does not fit is refused."""

import errno
import gzip
import json
import math
import os
import time
from dataclasses import replace

import pytest

from softbench.core import files
from softbench.core.case import Case, Direction
from softbench.core.errors import ResultsError, StorageError
from softbench.core.files import not_written
from softbench.core.outcome import Accuracy, Build, Failed, Grade, Judged, Profile, Record, Skipped, Status, Telemetry
from softbench.gate import run_files
from softbench.results import csv, writer
from softbench.results.csv import read_csv
from softbench.results.document import interrupted, load
from softbench.results.journal import line_of
from softbench.results.records import merge, record_from_json, record_to_json
from softbench.run.header import fingerprint

CASES = [Case(4096, N, "fp32", Direction.FORWARD) for N in (256, 512)]


def header(cases=CASES, **measuring):
    return {
        "device_name": "H200",
        "command": "softbench run",
        "backends": ["copy", "ours"],
        "sources": {"copy": "source", "ours": "source"},
        "yardstick": "copy",
        "relative_to": "copy",
        "fingerprint": fingerprint({"rounds": 3, **measuring}, {"torch": "2.13"}, "0.1.0", cases, ["copy", "ours"]),
    }


def test_every_case_is_on_disk_before_the_next(tmp_path, make_record, monkeypatch):
    monkeypatch.setattr(writer, "LAG", 0)  # the first CSV of a process takes longer, and would delay the second
    run = writer.start(tmp_path, header())
    for N in (256, 512):
        run.add(0, [make_record("ours", [20.0], N=N), make_record("copy", [10.0], N=N)])
        read, _ = read_csv(run.csv)
        assert [row.N for row in read[-2:]] == [N, N]
        assert [row.backend for row in read[-2:]] == ["copy", "ours"]
        assert read[-1].of_copy == 0.5
    assert not (tmp_path / "latest.csv").exists()


def test_a_new_case_is_appended_to_the_csv_and_a_changed_one_written_again(tmp_path, make_record, monkeypatch):
    monkeypatch.setattr(writer, "LAG", 0)
    run = writer.start(tmp_path, header(processes=2))
    run.add(0, [make_record("ours", [20.0])])
    file = run.csv.stat().st_ino
    run.add(0, [make_record("ours", [30.0], N=512)])
    assert run.csv.stat().st_ino == file
    with run.csv.open("a") as torn:
        torn.write("of another process")
    run.add(0, [make_record("ours", [40.0], N=1024)])
    assert [row.median_us for row in read_csv(run.csv)[0]] == [20, 30, 40]
    second = make_record("ours", [40.0])
    batch = replace(second.outcome.timing.batches[0], process=1)
    run.add(1, [replace(second, outcome=replace(second.outcome, timing=replace(second.outcome.timing, batches=(batch,))))])
    assert [(row.N, row.median_us, row.processes) for row in read_csv(run.csv)[0]] == [(256, 30, 2), (512, 30, 1), (1024, 40, 1)]


def test_a_row_that_the_disk_refuses_leaves_no_torn_line(tmp_path, make_record, monkeypatch):
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("ours", [20.0])])
    append = writer._append

    def full(file, data):
        append(file, data[:40] if file.name == str(run.csv) else data)
        if file.name == str(run.csv):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_append", full)
    with pytest.raises(StorageError, match="free space on that disk"):
        run.add(0, [make_record("ours", [30.0], N=512)])
    assert [row.N for row in read_csv(run.csv)[0]] == [256]
    assert [record.case.N for record in run.records()] == [256, 512]


def test_a_record_that_another_process_changed_is_not_published(tmp_path, make_record):
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("ours", [20.0])])
    path = tmp_path / f"{run.name}.jsonl"
    path.write_bytes(path.read_bytes().replace(b"20.0", b"10.0"))
    with pytest.raises(ResultsError, match=r"\.jsonl: another process changed it, perhaps a plugin"):
        run.finish(publish=True)
    assert not (tmp_path / "latest.csv").exists()


def test_finishing_publishes_both_files_and_ends_the_journal(tmp_path, make_record):
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("copy", [10.0])])
    run.finish(publish=True)
    assert (tmp_path / "latest.csv").read_text() == run.csv.read_text()
    document = load(tmp_path / "latest.json.gz")
    assert document["run"] == run.name
    assert document["cells"][0]["outcome"]["timing"]["batches"][0]["samples_us"] == [9.7, 10.0, 10.3]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [".lock", "latest.csv", "latest.json.gz", run.csv.name, run.json.name]
    )


def test_a_csv_that_was_changed_beside_its_json_is_refused(tmp_path, make_record):
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("copy", [10.0]), make_record("ours", [20.0])])
    assert read_csv(run.csv)[1] == []  # an unfinished run has no JSON yet
    run.finish(publish=True)
    for file in (run.csv, tmp_path / "latest.csv"):
        assert read_csv(file)[1] == []
        file.write_text(file.read_text().replace(",20,", ",10,"))
        with pytest.raises(
            ResultsError, match=rf"{file.name}: is not the table that {file.stem}\.json\.gz belongs to: .* a name of its own$"
        ):
            read_csv(file)
    (tmp_path / "edited.csv").write_text(run.csv.read_text())
    rows, warnings = read_csv(tmp_path / "edited.csv")
    assert [row.median_us for row in rows] == [10, 10]
    assert warnings == [f"{tmp_path}/edited.csv: the JSON of its run is not beside it, so a changed number is not noticed"]
    run.json.write_bytes(run.json.read_bytes()[:20])
    assert [text.partition("; so a")[2] for text in read_csv(run.csv)[1]] == [f" changed number in {run.csv.name} is not noticed"]


def test_a_host_that_crashes_loses_at_most_a_second(tmp_path, make_record, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "SYNC_SECONDS", 0.2)
    monkeypatch.setattr("os.fsync", lambda number: synced.append(os.fstat(number).st_size))
    run = writer.start(tmp_path, header())
    synced.clear()
    for N in range(256, 276):
        run.add(0, [make_record("copy", [10.0], N=N)])
    size = os.fstat(run.journal.fileno()).st_size
    deadline = time.monotonic() + 10
    while size not in synced and time.monotonic() < deadline:
        time.sleep(0.01)
    assert synced[-1] == size
    assert len(synced) < 20


def test_a_run_that_measured_nothing_leaves_latest_alone(tmp_path, make_record):
    (tmp_path / "latest.csv").write_text("kept")
    run = writer.start(tmp_path, header())
    run.finish(publish=False)
    assert (tmp_path / "latest.csv").read_text() == "kept"


def test_two_runs_at_once_keep_their_own_files(tmp_path, make_record):
    first, second = writer.start(tmp_path, header()), writer.start(tmp_path, header())
    assert first.name != second.name
    first.add(0, [make_record("copy", [10.0])])
    second.add(0, [make_record("copy", [20.0])])
    second.finish(publish=True)
    first.finish(publish=True)
    assert (tmp_path / "latest.csv").read_text() == first.csv.read_text()
    assert load(tmp_path / "latest.json.gz")["run"] == first.name


def test_names_are_in_the_order_of_the_runs_whatever_the_clock_does(tmp_path, make_record):
    (tmp_path / "run-29991231-235959-2.csv").touch()  # of a clock that was ahead, by an earlier version
    names = []
    for us in (10.0, 20.0, 30.0):
        run = writer.start(tmp_path, header())
        run.add(0, [make_record("copy", [us])])
        run.finish(publish=False)
        names.append(run.name)
    assert names == ["run-30000101-000000", "run-30000101-000001", "run-30000101-000002"]
    (tmp_path / "run-99991231-235959.csv").touch()  # no time after it has a name
    (tmp_path / "run-20261399-000000.csv").touch()
    assert writer.start(tmp_path, header()).name == "run-30000101-000003"


def journal_of(tmp_path, make_record, **measuring):
    run = writer.start(tmp_path, header(**measuring))
    run.add(0, [make_record("copy", [10.0]), make_record("ours", [20.0])])
    run.journal.close()  # as a process that ends lets go of it
    return run


def test_a_resumed_run_has_what_was_measured_and_only_that(tmp_path, make_record):
    before = journal_of(tmp_path, make_record)
    with (tmp_path / f"{before.name}.jsonl").open("ab") as journal:
        journal.write(b'{"process":0,"backend":"ours","torn')
    run, told = writer.resume(tmp_path, header())
    assert run.name == before.name
    assert "2 cells are there already" in told
    case = make_record("ours", [20.0]).case
    assert run.has(0, ["copy", "ours"], case)
    assert not run.has(1, ["copy", "ours"], case)
    assert not run.has(0, ["copy", "ours"], make_record("ours", [20.0], N=512).case)
    run.add(0, [make_record("ours", [20.0], N=512)])
    run.finish(publish=True)
    assert len(load(run.json)["cells"]) == 3


def test_a_look_at_an_interrupted_run_changes_no_file(tmp_path, make_record):
    before = journal_of(tmp_path, make_record)
    path = tmp_path / f"{before.name}.jsonl"
    with path.open("ab") as journal:
        journal.write(b'{"process":0,"backend":"ours","torn')
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    path.chmod(0o444)
    run, _ = writer.resume(tmp_path, header(), look=True)
    assert run.has(0, ["copy", "ours"], make_record("ours", [20.0]).case)
    assert run.journal.closed
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    path.chmod(0o644)
    going, _ = writer.resume(tmp_path, header())
    run, told = writer.resume(tmp_path, header(), look=True)
    assert run is None
    assert told == f"{going.name} is still running"


def test_a_damaged_finished_run_is_named_and_not_measured_again(tmp_path):
    (tmp_path / "run-20261129-000000.json.gz").write_bytes(gzip.compress(b'{"schema": 1, "run": "run-20261129-000000"}'))
    with pytest.raises(ResultsError, match=r"run-20261129-000000\.json\.gz: is damaged"):
        writer.resume(tmp_path, header(), retry=True)


def test_cases_with_a_failed_cell_of_a_finished_run_are_measured_again(tmp_path, make_record):
    first = writer.start(tmp_path, header(processes=2))
    late = replace(make_record("ours", [20.0], N=512), outcome=Failed(Status.TIMEOUT, "build", "build took longer than 5 s"))
    for process in (0, 1):
        batches = (replace(make_record("copy", [10.0]).outcome.timing.batches[0], process=process),)
        right = replace(make_record("copy", [10.0]).outcome, timing=replace(make_record("copy", [10.0]).outcome.timing, batches=batches))
        for N in (256, 512):
            copy, ours = make_record("copy", [10.0], N=N), make_record("ours", [20.0], N=N)
            first.add(process, [replace(copy, outcome=right), late if N == 512 else replace(ours, outcome=right)])
    first.finish(publish=True)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    look, _ = writer.resume(tmp_path, header(processes=2), look=True, retry=True)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == files
    with pytest.raises(ResultsError, match=r"--retry-failed: run-.* does not fit: rounds was 3, now it is 9"):
        writer.resume(tmp_path, header(processes=2, rounds=9), retry=True)
    run, told = writer.resume(tmp_path, header(processes=2), retry=True)
    assert told == f"resuming {first.name}: 4 cells are there already; 1 case with a failed cell measured again"
    kept, again = replace(late.case, N=256), late.case
    for one in (look, run):
        assert all(one.has(process, ["copy", "ours"], kept) and not one.has(process, ["copy"], again) for process in (0, 1))
    for process in (0, 1):
        run.add(process, [make_record(name, [30.0], N=512) for name in ("copy", "ours")])
    run.finish(publish=True)
    cells = load(run.json)["cells"]
    assert [(cell["case"]["N"], cell["outcome"]["kind"]) for cell in cells] == [(256, "measured")] * 2 + [(512, "measured")] * 2
    assert [len(cell["outcome"]["timing"]["batches"]) for cell in cells] == [2] * 4
    assert not run.csv.with_suffix(".jsonl").exists()
    assert writer.resume(tmp_path, header(processes=2), look=True, retry=True)[1].endswith("; no case has a failed cell")


def test_an_interrupted_run_has_a_document_that_says_so_until_it_is_resumed(tmp_path, make_record):
    first = writer.start(tmp_path, header())
    first.add(0, [make_record("copy", [10.0]), make_record("ours", [20.0])])
    first.interrupt()
    document = load(first.json)
    assert (len(document["cells"]), document["interrupted"]) == (2, True)
    whole = f"{first.csv}: is of an interrupted run, and not whole; continue with: softbench run --resume"
    rows, told = read_csv(first.csv)
    assert (len(rows), told) == (2, [whole])
    with pytest.raises(ResultsError) as refused:
        run_files.read(first.csv)
    assert str(refused.value) == whole
    assert interrupted({**document, "command": "softbench gate"}) == "is of an interrupted run, and not whole; measure again"
    assert (
        interrupted({**document, "merged": [{}]}) == "is of an interrupted run, and not whole; continue that with --resume, and merge again"
    )
    torn, other = tmp_path / f".{first.json.name}.half", tmp_path / ".run-19990101-000000.csv.half"
    for file in (torn, other):
        file.touch()
    writer.resume(tmp_path, header(), look=True)
    assert first.json.exists() and torn.exists()
    run, _ = writer.resume(tmp_path, header())
    assert not first.json.exists()  # the CSV changes now
    assert other.exists() and not torn.exists()  # the run was killed while it wrote that
    run.add(0, [make_record("copy", [10.0], N=512), make_record("ours", [20.0], N=512)])
    assert read_csv(first.csv)[1] == []
    run.finish(publish=True)
    document = load(run.json)
    assert (run.name, len(document["cells"]), "interrupted" in document, read_csv(run.csv)[1]) == (first.name, 4, False, [])


def test_an_interrupted_run_without_cells_has_no_document(tmp_path):
    run = writer.start(tmp_path, header())
    run.interrupt()
    assert not run.json.exists() and run.csv.exists()


def test_a_finished_run_is_continued_beside_an_interrupted_one_of_other_settings(tmp_path, make_record):
    for rounds, end in ((3, lambda run: run.finish(publish=True)), (9, writer.Run.interrupt)):
        run = writer.start(tmp_path, header(rounds=rounds))
        run.add(0, [make_record("copy", [10.0]), make_record("ours", [20.0])])
        end(run)
    journal, document = run.csv.with_suffix(".jsonl").read_bytes(), run.json.read_bytes()
    again, _ = writer.resume(tmp_path, header(), retry=True)
    assert again.name < run.name
    assert (run.csv.with_suffix(".jsonl").read_bytes(), run.json.read_bytes()) == (journal, document)


def test_a_resumed_comparison_knows_the_first_set_in_which_a_case_failed(tmp_path, make_record):
    """Also of a set that has both sides already."""
    first = writer.start(tmp_path, header(processes=4))
    for process, sizes in ((1, (512,)), (2, (256, 512))):
        for N in (256, 512):
            late = replace(make_record("ours", [20.0], N=N), outcome=Failed(Status.TIMEOUT, "build", "build took longer than 5 s"))
            first.add(process, [make_record("copy", [10.0], N=N), late if N in sizes else make_record("ours", [20.0], N=N)])
    first.interrupt()
    run, _ = writer.resume(tmp_path, header(processes=4))
    assert {case.N: process for case, process in run.first_failures().items()} == {256: 2, 512: 1}
    run.header["sources"] = {"copy": "source", "ours": "edited"}
    assert not run.first_failures()


def test_a_changed_backend_is_measured_again(tmp_path, make_record):
    journal_of(tmp_path, make_record)
    run, note = writer.resume(tmp_path, {**header(), "sources": {"copy": "source", "ours": "edited"}})
    assert note.endswith("0 cells are there already; 1 case measured again, as the source files of a backend changed")
    case = make_record("ours", [20.0]).case
    assert run.has(0, ["copy"], case)
    assert not run.has(0, ["copy", "ours"], case)


def test_a_run_with_other_settings_is_not_resumed(tmp_path, make_record):
    before = journal_of(tmp_path, make_record, rounds=9)
    run, told = writer.resume(tmp_path, header())
    assert run is None
    assert told == f"{before.name} cannot be resumed: rounds was 9, now it is 3; its command: softbench run"


def test_a_run_of_another_card_is_not_resumed(tmp_path, make_record):
    before, other = journal_of(tmp_path, make_record), header()
    other["fingerprint"]["unit"] = "node2/0/22222222"
    _, told = writer.resume(tmp_path, other)
    assert told.startswith(f"{before.name} cannot be resumed: unit was None, now it is node2/0/22222222; a run with --devices continues")


def test_a_run_that_is_still_going_is_not_taken_over(tmp_path, make_record):
    going = writer.start(tmp_path, header())
    run, told = writer.resume(tmp_path, header())
    assert run is None
    assert told.endswith(f"{going.name} is still running")
    assert writer.resume(tmp_path / "empty", header())[0] is None


def test_a_file_system_without_locks_is_named_and_used(tmp_path, make_record, monkeypatch):
    def refuse(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    assert writer.start(tmp_path / "locked", header()).warning == ""
    monkeypatch.setattr("fcntl.flock", refuse)
    run = writer.start(tmp_path, header())
    warning = f"{tmp_path}: its file system has no locks, so two runs may continue one journal; give each run a folder of its own"
    assert run.warning.startswith(warning)
    run.add(0, [make_record("ours", [20.0])])
    run.interrupt()
    run, told = writer.resume(tmp_path, header())
    assert "1 cell is there already" in told and run.warning.startswith(warning)
    run.finish(publish=True)
    assert read_csv(tmp_path / "latest.csv")


def test_another_sweep_is_another_run_and_its_journal_stays(tmp_path, make_record):
    before = journal_of(tmp_path, make_record)
    run, told = writer.resume(tmp_path, header(CASES[:1]))
    assert run is None
    assert told.startswith(f"{before.name} cannot be resumed: cases was 2 (hash ")
    assert (tmp_path / f"{before.name}.jsonl").exists()


@pytest.mark.parametrize("line", [b"garbage", b"5", b"[]", b'{"process": 0}', b"[" * 50000])
def test_a_damaged_line_of_a_journal_is_named_and_moved(tmp_path, make_record, line):
    before = journal_of(tmp_path, make_record)
    path = tmp_path / f"{before.name}.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    lost = f"{path}: line 4 is damaged (its digest shows a change): left out, and what was there is measured again"
    assert writer.resume(tmp_path, header(), look=True)[0].lost == lost
    run, _ = writer.resume(tmp_path, header())
    aside = path.with_suffix(".damaged")
    assert (run.lost, aside.read_bytes()) == (f"{lost}; the damaged text is in {aside}", line + b"\n")
    run.add(0, [make_record("ours", [20.0], N=512)])
    run.journal.close()
    again, _ = writer.resume(tmp_path, header())
    assert (len(again.cells), again.lost) == (3, "")


@pytest.mark.parametrize(
    ("change", "left", "lost"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], 2, "1 line missing"),
        (lambda lines: [*lines[:2], lines[3], lines[2]], 2, "line 4 is damaged (it stands twice, or in the wrong place)"),
        (lambda lines: [*lines[:3], *lines[2:]], 3, "line 4 is damaged (it stands twice, or in the wrong place)"),
        (lambda lines: [*lines[:3], lines[3][:50]], 2, "the last line is torn"),
        (lambda lines: [lines[0], *(line.replace(b"0.0", b"1.0") for line in lines[1:3]), lines[3]], 1, "line 2 is damaged"),
    ],
    ids=["taken out", "changed places", "twice", "torn", "other digits"],
)
def test_lines_of_a_journal_that_were_moved_or_changed_are_left_out(tmp_path, make_record, change, left, lost):
    before = journal_of(tmp_path, make_record)
    run, _ = writer.resume(tmp_path, header())
    run.add(0, [make_record("ours", [20.0], N=512)])
    run.journal.close()
    path = tmp_path / f"{before.name}.jsonl"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    run, _ = writer.resume(tmp_path, header())
    assert (len(run.cells), lost in run.lost) == (left, True), run.lost
    run.journal.close()


def test_a_run_whose_first_line_is_damaged_is_not_resumed(tmp_path, make_record):
    before = journal_of(tmp_path, make_record)
    path = tmp_path / f"{before.name}.jsonl"
    path.write_bytes(path.read_bytes().replace(b"H200", b"H100", 1))
    assert writer.resume(tmp_path, header())[1].startswith(
        f"{before.name} cannot be resumed: {path.name}, line 1 is damaged (ValueError: its"
    )


def test_text_of_another_process_ends_the_run_and_is_removed(tmp_path, make_record):
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("copy", [10.0])])
    path = tmp_path / f"{run.name}.jsonl"
    before = path.read_bytes()
    forged = json.dumps({"process": 0, **record_to_json(make_record("ours", [0.1]))}).encode() + b"\n"
    with path.open("ab") as journal:
        journal.write(forged)
    with pytest.raises(ResultsError, match=r"\.jsonl: another process wrote to it, perhaps a plugin; what it wrote was removed"):
        run.add(0, [make_record("ours", [20.0])])
    assert path.read_bytes() == before
    run.add(0, [make_record("ours", [20.0])])
    with path.open("ab") as journal:
        journal.write(forged)
    assert run.restore_journal()  # as at an interruption
    run.journal.close()
    resumed, _ = writer.resume(tmp_path, header())
    assert {record.outcome.timing.batches[0].samples_us[1] for record in resumed.records()} == {10.0, 20.0}


@pytest.mark.parametrize(
    ("process", "change", "reason"),
    [
        (0, {"N": 1024}, "fp32 4096x1024 cuda is no case of the run"),
        (0, {"backend": "theirs"}, "no backend of the run is named theirs"),
        (1, {}, "a batch of another process set or round"),
        (7, {}, "the run has no process set 7"),
        (0, {"medians": [1.0] * 9}, "a batch of another process set or round"),
    ],
)
def test_cells_of_a_journal_that_were_not_planned_are_left_out(tmp_path, make_record, process, change, reason):
    measuring = {"processes": 2, "max_rounds": 3}
    before = journal_of(tmp_path, make_record, **measuring)
    path = tmp_path / f"{before.name}.jsonl"
    record = make_record(**{"backend": "ours", "medians": [1.0], "N": 512, **change})
    with path.open("ab") as journal:
        journal.write(line_of({"process": process, **record_to_json(record)}, 4))
    run, _ = writer.resume(tmp_path, header(**measuring), frozenset(CASES))
    assert (len(run.cells), "line 4 is damaged" in run.lost) == (2, True)
    assert reason.replace("fp32 4096x1024 cuda", record.case.key) in run.lost


def test_a_case_whose_rounds_were_taken_again_is_resumed(tmp_path, make_record):
    """`copy` was doubtful, so the rounds count on from the largest number of rounds."""
    measuring = {"rounds": 1, "max_rounds": 3}
    before = journal_of(tmp_path, make_record, **measuring)
    record = make_record("ours", [1.0] * 6, N=512)
    with (tmp_path / f"{before.name}.jsonl").open("ab") as journal:
        journal.write(line_of({"process": 0, **record_to_json(record)}, 4))
    run, _ = writer.resume(tmp_path, header(**measuring), frozenset(CASES))
    assert (len(run.cells), run.lost) == (3, "")


def test_cells_that_are_measured_again_replace_their_rows(tmp_path, make_record):
    journal_of(tmp_path, make_record)
    run, _ = writer.resume(tmp_path, header())
    assert [row.median_us for row in run.rows()] == [10, 20]
    run.add(0, [make_record("copy", [30.0]), make_record("ours", [40.0])])
    assert [row.median_us for row in read_csv(run.csv)[0]] == [30, 40]


def test_a_resumed_run_with_nothing_to_measure_writes_its_csv(tmp_path, make_record):
    before = journal_of(tmp_path, make_record)
    before.csv.unlink()
    run, _ = writer.resume(tmp_path, {**header(), "relative_to": "ours"})
    run.finish(publish=True)
    assert {row.relative_to for row in read_csv(tmp_path / "latest.csv")[0]} == {"ours"}


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultsError, match="cannot be written: Not a directory"):
        writer.writable(tmp_path / "file" / "results")


def test_a_folder_is_created_by_the_run_that_starts(tmp_path):
    folder = tmp_path / "some" / "results"
    writer.writable(folder)
    assert not list(tmp_path.iterdir())
    writer.start(folder, header()).journal.close()
    assert [file.suffix for file in folder.iterdir()] == [".jsonl"]


@pytest.mark.parametrize("readable", [True, False])
def test_the_lock_of_another_user_is_read_or_named(tmp_path, monkeypatch, make_record, readable):
    (tmp_path / ".lock").touch()
    opened = os.open

    def refuse(path, flags, *mode, **more):
        if str(path).endswith(".lock") and (flags & os.O_ACCMODE != os.O_RDONLY or not readable):
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, flags, *mode, **more)

    monkeypatch.setattr(os, "open", refuse)
    if not readable:
        with pytest.raises(ResultsError, match=r"no permission for \.lock; remove it, or choose another folder with --output"):
            writer.writable(tmp_path)  # before any measurement
        return
    writer.writable(tmp_path)
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("ours", [20.0])])
    run.finish(publish=True)
    assert (tmp_path / "latest.csv").is_file()


def test_a_file_with_too_many_cells_is_refused(tmp_path, make_record, monkeypatch):
    run = writer.start(tmp_path, header())
    run.add(0, [make_record("ours", [20.0]), make_record("copy", [10.0])])
    assert len(read_csv(run.csv)[0]) == 2
    monkeypatch.setattr(csv, "MAX_CELLS", 1)
    with pytest.raises(ResultsError, match="has more than 1 cell, and softbench reads no more; split the file"):
        read_csv(run.csv)


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "huge.csv"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ResultsError, match=r"is larger than 30\.52 GiB, so it is no results file"):
        read_csv(path)


def test_logs_and_journals_follow_no_symbolic_link(tmp_path, make_record):
    other = tmp_path / "other"
    other.write_text("of another folder\n")
    folder = tmp_path / "results"
    folder.mkdir()
    run = writer.start(folder, header())
    run.log.symlink_to(other)
    run.keep_log("torch", "failed")
    assert other.read_text() == "of another folder\n"
    run.add(0, [make_record("copy", [10.0])])
    run.journal.close()
    journal = folder / f"{run.name}.jsonl"
    journal.rename(other)
    journal.symlink_to(other)
    before = other.read_bytes()
    resumed, told = writer.resume(folder, header())
    assert resumed is None
    assert "cannot be resumed: Too many levels of symbolic links" in told
    assert other.read_bytes() == before


def test_a_lock_that_is_a_symbolic_link_is_refused(tmp_path, make_record):
    (tmp_path / "results").mkdir()
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "results" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(ResultsError, match=r"results: cannot be written: \.lock is a symbolic link; remove it"):
        writer.writable(tmp_path / "results")
    with pytest.raises(OSError, match="symbolic link"):
        writer._lock_file(tmp_path / "results" / ".lock")
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize(
    "outcome",
    [
        Skipped("why", unavailable=True),
        Failed(Status.WRONG, "check", "off", Build(1.0, "cold"), Accuracy(Grade.WRONG, math.inf, "off")),
        Failed(Status.TIMEOUT, "import", "slow"),
    ],
)
def test_records_survive_json(make_record, outcome):
    record = Record("ours", make_record("ours", [1.0]).case, outcome, "s")
    assert record_from_json(json.loads(json.dumps(record_to_json(record), allow_nan=False))) == record


def test_profiles_are_stored_in_json_and_merged_over_sets(make_record):
    record = make_record("ours", [1.0])
    profile = Profile((5.0,), (30.0,), ("softmax",), peak_bytes=1024, recompiles=1)
    profiled = replace(record, outcome=replace(record.outcome, profile=profile))
    assert record_from_json(json.loads(json.dumps(record_to_json(profiled), allow_nan=False))) == profiled
    assert merge([profiled, profiled]).outcome.profile == Profile((5.0, 5.0), (30.0, 30.0), ("softmax",), "", 1024, 2)


def test_telemetry_survives_json(make_record):
    record = make_record("ours", [1.0])
    batch = replace(record.outcome.timing.batches[0], telemetry=Telemetry(1980, None, 500.5, 60, 4, "too hot"))
    told = replace(record, outcome=replace(record.outcome, timing=replace(record.outcome.timing, batches=(batch,))))
    assert record_from_json(json.loads(json.dumps(record_to_json(told), allow_nan=False))) == told


def test_merged_process_sets_keep_all_batches_and_a_failure(make_record):
    first, second = make_record("ours", [10.0]), make_record("ours", [30.0], grade=Grade.LOW_PRECISION)
    merged = merge([first, second])
    assert len(merged.outcome.timing.batches) == 2
    failed = Record("ours", first.case, Failed(Status.OOM, "build", "out of memory"))
    assert merge([first, failed]) is failed


def test_records_that_a_full_disk_refuses_stay_in_memory(tmp_path, make_record):
    run = writer.start(tmp_path, header())
    run.journal.close()
    run.journal, run._size = open("/dev/full", "wb", buffering=0), 0  # noqa: PTH123, SIM115 - a device whose writes fail as a full disk's do
    with pytest.raises(StorageError, match=r"cannot be written: No space left on device; free space on that disk$"):
        run.add(0, [make_record("copy", [10.0]), make_record("ours", [20.0])])
    assert [record.backend for record in run.records()] == ["copy", "ours"]
    run.journal.close()


@pytest.mark.parametrize(
    ("code", "kind", "exit_code"),
    [
        *[(code, StorageError, 4) for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)],
        *[(code, ResultsError, 2) for code in (errno.EACCES, errno.ENOENT)],
    ],
)
def test_an_error_of_the_disk_is_no_error_of_usage(code, kind, exit_code):
    error = not_written("x.csv", OSError(code, os.strerror(code)))
    assert (type(error), error.exit_code) == (kind, exit_code)
    assert str(error).startswith(f"x.csv: cannot be written: {os.strerror(code)}")


@pytest.mark.parametrize("samples", [[], ["5"], [True], [1.0, math.nan], [None], [0], [-1.0], [math.inf], [math.nan], "123", 5])
def test_samples_are_positive_numbers_and_nothing_else(make_record, samples):
    data = record_to_json(make_record("ours", [10.0]))
    assert record_from_json(data) == make_record("ours", [10.0])
    data["outcome"]["timing"]["batches"][0]["samples_us"] = samples
    with pytest.raises((TypeError, ValueError)):
        record_from_json(data)


@pytest.mark.parametrize("change", [{"kind": "nonsense"}, {"profile": None}, {"timing": {"batches": []}}, {"build": None}])
def test_a_damaged_outcome_is_refused(make_record, change):
    data = record_to_json(make_record("ours", [10.0]))
    data["outcome"].update(change)
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        record_from_json(data)


def test_the_times_of_the_judge_stay_in_the_file(make_record):
    plain = make_record("ours", [10.0])
    record = replace(plain, outcome=replace(plain.outcome, judged=Judged(2, 9.5, 9.25, 10.0, 11.0, 12.0)))
    data = record_to_json(record)
    times = {"us": 9.5, "low_us": 9.25, "high_us": 10.0, "at_most_us": 11.0, "least_us": 12.0}
    assert data["outcome"]["judged"] == {"judgements": 2, **times}
    assert record_from_json(json.loads(json.dumps(data))) == record
    assert merge([record, plain]).outcome.judged == record.outcome.judged
    assert "judged" not in record_to_json(plain)["outcome"]


@pytest.mark.parametrize(
    "judged", [{}, {"judgements": 0}, {"judgements": 1, "us": -1.0}, {"judgements": 1, "us": "5"}, {"judgements": True}, [], 5]
)
def test_an_invalid_judgement_is_refused(make_record, judged):
    data = record_to_json(make_record("ours", [10.0]))
    data["outcome"]["judged"] = judged
    with pytest.raises((TypeError, ValueError)):
        record_from_json(data)
