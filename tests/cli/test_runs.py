"""`softbench runs`: which results lie in a folder."""

import json
import shutil
import time
from pathlib import Path

EXHIBIT = Path(__file__).parents[2] / "results" / "h200"
HEADER = {"run": "run-20261129-020812", "started": "2026-11-29T02:08:12+00:00", "device_name": "card", "backends": ["copy"]}


def test_runs_are_listed_newest_first_with_what_is_left_and_unreadable(main, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("losses", "odd"):
        for suffix in (".csv", ".json.gz"):
            shutil.copy(EXHIBIT / (name + suffix), folder)
    (folder / "binary.csv").write_bytes(b"\xff\x00")
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
    assert err.startswith("softbench: results/binary.csv: is not a CSV") and err.count("\n") == 1
    document = json.loads(main("runs", "results", "--json")[1])
    assert [one["file"] for one in document["runs"]] == ["results/odd.csv", "results/losses.csv"]
    assert document["runs"][1]["status"]["failed"] == 3
    assert (document["unfinished"][0]["resume"], len(document["unreadable"])) == ("softbench run --M 8 --resume", 1)


def test_an_empty_folder_and_a_missing_one_are_one_line(main, tmp_path):
    assert main("runs", ".") == (0, "", "softbench: .: no results; softbench run writes them there, or into the folder of --output\n")
    code, out, err = main("runs", "none")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("softbench: none: no such file or folder")


def test_two_hundred_runs_take_a_moment(main, tmp_path):
    for number in range(200):
        text = (EXHIBIT / "losses.csv").read_text().replace("run-2026", f"run-{number:03}-2026")
        (tmp_path / f"{number}.csv").write_text(text)
        shutil.copy(EXHIBIT / "losses.json.gz", tmp_path / f"{number}.json.gz")
    begin = time.process_time()
    code, out, _ = main("runs", ".")
    assert (code, out.count("\n")) == (0, 401)
    assert time.process_time() - begin < 5  # 0.6 s on a quiet machine; reading all cells would take 12 s
