import fcntl
import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from softbench.core.errors import ResultsError
from softbench.results.csv import read_csv
from softbench.results.document import load, load_header
from softbench.results.runs import cell_counts, find, unfinished

EXHIBIT = Path(__file__).parents[2] / "results"
ODD, MASKED = EXHIBIT / "h200" / "odd", EXHIBIT / "h200" / "masked"


def copied(file: Path, to: Path, name: str = "") -> Path:
    to.mkdir(parents=True, exist_ok=True)
    for suffix in (".csv", ".json.gz"):
        shutil.copy(file.with_name(file.name + suffix), to / f"{name or file.name}{suffix}")
    return to / f"{name or file.name}.csv"


def test_the_exhibit_is_found_oldest_first_with_commit_and_environment():
    runs, problems = find([EXHIBIT])
    assert problems == []
    assert len(runs) == len(list(EXHIBIT.rglob("*.csv")))
    assert [one.started for one in runs] == sorted(one.started for one in runs)
    (odd,) = [one for one in runs if one.file.name == "odd.csv"]
    assert (odd.device, odd.commit) == ("NVIDIA H200", "1bfc23eef7b9+")
    assert str(odd.environment["torch"]).startswith("2.")


def test_a_run_counts_once_with_the_file_of_its_name(tmp_path):
    own = copied(ODD, tmp_path / "nightly", "run-20261129-010300")
    copied(ODD, tmp_path / "nightly", "latest")
    copied(ODD, tmp_path / "z")
    assert [one.file for one in find([tmp_path])[0]] == [own]


def test_the_parts_of_a_merged_file_do_not_count_again(tmp_path):
    whole = copied(MASKED, tmp_path)
    part = tmp_path / "part.csv"
    part.write_text(re.sub(r"run-([\d-]+)(\+run-[\d-]+)+", r"run-\1", whole.read_text()))
    assert [one.file for one in find([tmp_path])[0]] == [whole]
    whole.unlink()
    assert [one.file for one in find([tmp_path])[0]] == [part]


def test_other_files_have_a_line_each_and_hidden_folders_none(tmp_path):
    copied(ODD, tmp_path / ".cache")
    copied(ODD, tmp_path)
    for name, content in (("people.csv", b"name,age\nA,1\n"), ("empty.csv", b""), ("binary.csv", b"\xff\x00"), ("head.csv", b"backend\n")):
        (tmp_path / name).write_bytes(content)
    runs, problems = find([tmp_path])
    assert len(runs) == 1
    assert [Path(text.partition(":")[0]).name for text in problems] == ["binary.csv", "empty.csv", "head.csv", "people.csv"]
    assert "column backend is missing" in problems[-1]
    with pytest.raises(ResultsError, match="no such file or folder"):
        find([tmp_path / "absent"])


@pytest.mark.parametrize("damage", ['{"run": "x"}', "[", '{"run": "run-20261129-010300", "commits": 3}', '{"run": "run-20261129-010300"}'])
def test_a_damaged_document_leaves_what_the_csv_tells(tmp_path, damage):
    file = copied(ODD, tmp_path)
    file.with_suffix(".json.gz").write_text(damage)
    (found,), _ = find([file])
    assert (found.started, found.commit) == ("2026-11-29T01:03:00+00:00", "")


def test_the_header_is_the_document_without_its_cells(tmp_path):
    document = load(ODD.with_name("odd.json.gz"))
    assert load_header(ODD.with_name("odd.json.gz")) == {key: value for key, value in document.items() if key != "cells"}
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"cells": [1], **load_header(ODD.with_name("odd.json.gz"))}, indent=1))
    assert load_header(plain)["run"] == document["run"]


def journal(folder, lines=4, **more):
    """A journal of 12 cases and two backends with this many cells."""
    header = {"run": "run-20261129-020812", "started": "2026-11-29T02:08:12+00:00", "device_name": "card", "backends": ["copy", "torch"]}
    header |= {"command": "softbench run --M 8 -o here", "fingerprint": {"cases": "12 (hash 1)", "processes": 3}, **more}
    folder.mkdir(exist_ok=True)
    (folder / "run-20261129-020812.jsonl").write_text(json.dumps(header) + "\n" + "{}\n" * lines)


def test_an_unfinished_run_without_a_cell_is_no_bad_file(tmp_path):
    journal(tmp_path, lines=0)
    (tmp_path / "run-20261129-020812.csv").write_text(ODD.with_name("odd.csv").read_text().partition("\n")[0] + "\n")
    assert find([tmp_path]) == ([], [])
    (tmp_path / "run-20261129-020812.jsonl").unlink()
    assert find([tmp_path])[1] == [f"{tmp_path}/run-20261129-020812.csv: holds no cells"]


def test_an_unfinished_run_says_how_far_it_is_and_how_to_continue(tmp_path):
    journal(tmp_path / "a")
    (tmp_path / "run-1.jsonl").write_text("torn")
    (one,), (problem,) = unfinished([tmp_path])
    assert (one.stored, one.planned, one.running, one.resume) == (4, 72, False, "softbench run --M 8 -o here --resume")
    assert problem.startswith(f"{tmp_path}/run-1.jsonl: is no journal")
    with (tmp_path / "a" / "run-20261129-020812.jsonl").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert unfinished([tmp_path])[0][0].running
    for command, resume in (("gate --candidate a --reference b", ""), ("gate --self-test", "softbench gate --self-test --resume")):
        journal(tmp_path / "a", command=f"softbench {command}")
        assert unfinished([tmp_path])[0][0].resume == resume


def test_a_tally_counts_what_the_rows_say(tmp_path):
    file = EXHIBIT / "h200" / "losses.csv"
    rows, found = read_csv(file)[0], cell_counts(file)
    assert found.cells == len(rows)
    assert found.status == Counter(row.status for row in rows)
    assert found.labels == Counter(label for row in rows for label in row.labels.split())
    assert set(found.operations) == {row.op for row in rows}
    assert found.cards == ("NVIDIA H200",)
    two = tmp_path / "two.csv"
    two.write_text(file.read_text().replace("/0/ccbc9197", "/1/ccbc9198", 1))
    assert cell_counts(two).cards == ("2 x NVIDIA H200",)
    torn = tmp_path / "torn.csv"
    torn.write_text(file.read_text()[:5000].rpartition(",")[0].rpartition("\n")[0] + "\ntorch,forward\n")
    with pytest.raises(ResultsError, match=r"torn\.csv: is damaged .*softbench show .*torn\.csv names the line"):
        cell_counts(torn)
