"""`softbench runs`: which results lie in a folder."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from tests.support.documents import vouch

EXHIBIT = Path(__file__).parents[2] / "results" / "h200"
HEADER = {"run": "run-20261129-020812", "started": "2026-11-29T02:08:12+00:00", "device_name": "card", "backends": ["copy"]}


def test_a_named_pipe_in_the_folder_is_left_out(main, tmp_path):
    copy("odd", tmp_path / "results")
    for name in ("pipe.csv", "run-pipe.jsonl"):
        os.mkfifo(tmp_path / "results" / name)
    code, out, err = main("runs")
    assert (code, out.splitlines()[0], err) == (0, "results: 1 run; newest first, times in UTC", "")


def test_the_cells_of_a_run_are_those_that_show_counts(main, tmp_path):
    copy("sweep", tmp_path / "results")
    number = main("show", "results/sweep.csv")[1].split()[1]
    assert f"  {number} cells (1 wrong" in main("runs")[1]


def test_runs_are_listed_newest_first_with_what_is_left_and_unreadable(main, tmp_path):
    folder = tmp_path / "results"
    for name in ("losses", "odd"):
        copy(name, folder)
    (folder / "binary.csv").write_bytes(b"\xff\x00")
    shutil.copy(EXHIBIT / "masked.csv", folder / "latest.csv")
    vouch(folder / "latest.csv")
    with (folder / "latest.csv").open("a") as edited:
        edited.write("\n")
    journal = {**HEADER, "command": "softbench run --M 8", "fingerprint": {"cases": "12 (hash 1)"}}
    (folder / "run-20261129-020812.jsonl").write_text(json.dumps(journal) + "\n{}\n")
    code, out, err = main("runs")
    head, *lines = out.splitlines()
    assert (code, head) == (0, "results: 2 runs, 1 unfinished; newest first, times in UTC")
    assert [line.split()[0] for line in lines[::2]] == ["run-20261129-020812.jsonl", "odd.csv", "losses.csv"]
    assert lines[1] == "  unfinished: 1 of 12 cells are stored; continue with: softbench run --M 8 --resume"
    assert lines[2].endswith("2026-11-29 01:03  NVIDIA H200")
    assert lines[3].startswith("  96 cells (2 noisy): softmax forward,backward bf16,fp32; copy, torch, cuda")
    assert lines[5].startswith("  195 cells (3 failed, 1 wrong; 42 noisy, 10 launch-bound): cross_entropy,logprob ")
    texts = ("results/binary.csv: is not text", "results/latest.csv: is not the table that latest.json.gz belongs to: it was changed")
    assert [line.startswith(f"softbench: {text}") for line, text in zip(err.splitlines(), texts, strict=True)] == [True, True]
    document = json.loads(main("runs", "results", "--json")[1])
    assert [one["file"] for one in document["runs"]] == ["results/odd.csv", "results/losses.csv"]
    assert document["runs"][1]["status"]["failed"] == 3
    assert (document["unfinished"][0]["resume"], len(document["unreadable"])) == ("softbench run --M 8 --resume", 2)


def test_an_empty_folder_and_a_missing_one_are_one_line(main, tmp_path):
    assert main("runs", ".") == (0, "", "softbench: .: no results; softbench run writes them there, or into the folder of --output\n")
    code, out, err = main("runs", "none")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("softbench: none: no such file or folder")


def copy(name, folder, new=""):
    folder.mkdir(exist_ok=True)
    for suffix in (".csv", ".json.gz"):
        shutil.copy(EXHIBIT / (name + suffix), folder / ((new or name) + suffix))


@pytest.mark.parametrize(
    "words", [("show", "--csv", "-"), ("compare", "odd.csv", "--json", "-"), ("plot", "-o", "x.svg"), ("report", "-o", "x.html")]
)
def test_a_folder_is_its_latest_run(main, tmp_path, words):
    copy("odd", tmp_path)
    for name in ("losses", "odd"):
        copy(name, tmp_path / "many")
    code, out, err = main(*words, "many")
    assert code == 0, err
    assert "softbench: many/odd.csv is the newest of 2 runs in many; softbench runs many lists them" in err.splitlines()
    if words[-1] == "-":
        assert out == main(*words, "many/odd.csv")[1]
    copy("losses", tmp_path / "many", "latest")
    assert "the newest of" not in main(*words, "many")[2]


READERS = {
    "show": ("show", "X"),
    "plot": ("plot", "X"),
    "report": ("report", "X"),
    "compare": ("compare", "odd.csv", "X"),
    "gate": ("gate", "X", "--baseline", "odd.csv"),
    "gate --self-test": ("gate", "--self-test", "X"),
    "merge": ("merge", "odd.csv", "X", "-o", "m.csv"),
    "baseline": ("baseline", "save", "X", "--name", "x"),
    "verify": ("judge", "--verify", "X"),
}
WRONG = {
    "empty": "a folder without results|is a folder|Is a directory",
    ".": "is a folder|Is a directory|odd.csv",
    "empty.csv": "is empty|is not the JSON",
    "binary.csv": "is not text|is not the JSON",
    "none.csv": "No such file or directory",
    "text.csv": "not a softbench results file|is not the JSON",
}


@pytest.mark.parametrize("command", READERS)
def test_what_is_no_results_file_is_one_line_for_every_command(main, tmp_path, command):
    copy("odd", tmp_path)
    (tmp_path / "empty").mkdir()
    for name, content in (("empty.csv", b""), ("binary.csv", b"\xff\x00"), ("text.csv", b"hello\n")):
        (tmp_path / name).write_bytes(content)
    for given, said in WRONG.items():
        if given == "." and command in ("show", "plot", "report", "compare"):
            continue  # they take the newest run of the folder
        code, out, err = main(*(given if word == "X" else word for word in READERS[command]))
        last = err.splitlines()[-1]
        assert code in (2, 3) and out == "" and "Traceback" not in err, (given, err)
        assert re.search(said, last), (given, err)
