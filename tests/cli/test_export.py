"""`softbench export`: results in the words of other evaluators, and of services that keep a value for each commit."""

import csv
import json
import os
from types import SimpleNamespace

import pytest

from softbench.report import exports
from softbench.report.exports import Solved

ABSENT = """
class Absent:
    name = "absent"
    operations = ("squares",)

    def available(self):
        return "no card here"

    def supports(self, case):
        return None

    def prepare(self, case):
        raise AssertionError

backend = Absent()
"""
PROBLEM = """
import torch

cases = [dict(rows=8, kind="plain"), dict(rows=9, kind="plain")]

def inputs(rows, columns=64, kind="plain"):
    return torch.randn(rows, columns)

def reference(x):
    return x.square().sum(1)
"""
SOLUTIONS = {"right": "(x * x).sum(1)", "wrong": "(x * x).sum(1) * 1.01", "broken": "x.nothing()"}


@pytest.fixture(scope="module")
def measured(tmp_path_factory, forks):
    folder = tmp_path_factory.mktemp("export")
    (folder / "squares.py").write_text(PROBLEM)
    for name, text in SOLUTIONS.items():
        (folder / f"{name}.py").write_text(f"def solution(x):\n    return {text}\n")
    (folder / "absent.py").write_text(ABSENT)
    plugins = [word for name in (*SOLUTIONS, "absent") for word in ("--plugin", f"{name}.py")]
    words = ["run", "--problem", "squares.py", *plugins, "--backends", "reference,right,wrong,broken,absent", "--device", "cpu", "--quick"]
    done = forks().run(words, folder, os.environ | {"PATH": "/nonexistent", "CC": "", "CXX": ""}, 200)  # nothing compiles
    assert done.returncode == 1, done.stderr
    return folder / "results" / "latest.csv"


def medians(file, M):
    """Of right cells, by backend."""
    with file.open() as lines:
        return {row["backend"]: float(row["median_us"]) for row in csv.DictReader(lines) if row["status"] == "ok" and row["M"] == M}


def test_kernelbench_gets_times_and_shares(measured, main):
    code, out, err = main("export", measured, "--to", "kernelbench")
    found = json.loads(out)
    assert (code, err) == (0, "")
    results = found["results"]["squares-forward-fp32-8x64"]
    assert {name: (one["compiled"], one["correctness"]) for name, one in results.items()} == {
        "right": (True, True), "wrong": (True, False), "broken": (False, False),
    }  # fmt: skip
    right = results["right"]
    assert 0 < right["runtime_stats"]["min"] <= right["runtime"] <= right["runtime_stats"]["max"]
    assert right["ref_runtime"] > 0 and results["wrong"]["runtime"] == -1.0
    assert "1.01" in results["wrong"]["metadata"]["reason"] or "bound" in results["wrong"]["metadata"]["reason"]
    assert found["fast_p"]["right"]["0"] == {"share": 1.0, "least": 1.0, "most": 1.0}
    assert found["fast_p"]["wrong"]["0"]["most"] == 0.0


def test_shares_are_over_the_compiled_reference_too(monkeypatch, tmp_path):
    def row(backend, us):
        return SimpleNamespace(
            backend=backend, case="c", unit="", median_us=us, low_us=us * 0.9, high_us=us * 1.1, status="ok", reason="", grade="", run="r"
        )

    references = {
        "reference": row("reference", 30.0),
        "reference:compile": row("reference:compile", 12.5),
        "reference:slow": row("reference:slow", 0),
    }
    cells = [Solved(row("mine", us), references, (us,), (30.0,), {}, ()) for us in (10.0, 20.0)]
    monkeypatch.setattr(exports, "solved", lambda *_: cells)
    monkeypatch.setattr(exports, "load_header", lambda _: {})
    found = json.loads(exports.kernelbench({tmp_path / "a.csv": []}))
    assert found["fast_p"]["mine"]["1"] == {"share": 1.0, "least": 1.0, "most": 1.0}
    assert found["fast_p_over"] == {"reference:compile": {"mine": found["fast_p_over"]["reference:compile"]["mine"]}}
    monkeypatch.setattr(exports, "solved", lambda *_: [Solved(row("mine", 10.0), {}, (10.0,), (), {}, ())])
    assert json.loads(exports.kernelbench({tmp_path / "a.csv": []}))["fast_p"] == {}
    assert found["fast_p_over"]["reference:compile"]["mine"]["1"] == {"share": 0.5, "least": 0.5, "most": 0.5}


def test_kernelbot_gets_lines_of_one_solution(measured, main):
    code, out, _ = main("export", measured, "--to", "kernelbot", "--backends", "right")
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert code == 0
    assert (lines["benchmark-count"], lines["check"]) == ("2", "pass")
    assert lines["benchmark.0.spec"] == "rows: 8; columns: 64; kind: plain"
    assert float(lines["benchmark.1.best"]) <= float(lines["benchmark.1.mean"]) <= float(lines["benchmark.1.worst"])
    code, out, _ = main("export", measured, "--to", "kernelbot", "--backends", "wrong")
    assert "benchmark.0.status: fail" in out and out.endswith("check: fail\n")
    code, _, err = main("export", measured, "--to", "kernelbot")
    assert code == 2 and "choose with --backends" in err


def test_flashinfer_gets_traces_with_the_workloads_identifiers(measured, main, tmp_path):
    (tmp_path / "w.jsonl").write_text(json.dumps({"workload": {"uuid": "nine", "axes": {"rows": 9}, "inputs": {}}}) + "\n")
    code, out, _ = main("export", measured, "--to", "flashinfer", "--workloads", tmp_path / "w.jsonl", "-o", tmp_path / "traces.jsonl")
    assert (code, out) == (0, "")
    traces = [json.loads(line) for line in (tmp_path / "traces.jsonl").read_text().splitlines()]
    status = {(one["solution"], one["workload"]["axes"]["rows"]): one["evaluation"]["status"] for one in traces}
    assert status == {
        ("right", 8): "PASSED", ("right", 9): "PASSED", ("wrong", 8): "INCORRECT_NUMERICAL", ("wrong", 9): "INCORRECT_NUMERICAL",
        ("broken", 8): "COMPILE_ERROR", ("broken", 9): "COMPILE_ERROR",
    }  # fmt: skip
    assert {one["workload"]["uuid"] for one in traces if one["workload"]["axes"]["rows"] == 9} == {"nine"}
    for one in (one for one in traces if one["solution"] == "right"):
        found, expected = one["evaluation"]["performance"], medians(measured, str(one["workload"]["axes"]["rows"]))
        times = 1000 * found["latency_ms"], 1000 * found["reference_latency_ms"]
        assert times == pytest.approx((expected["right"], expected["reference"]))


@pytest.mark.parametrize(
    ("to", "backends", "told"), [("bencher", "wrong", "no cell was right and timed"), ("kernelbench", "copy", "no cell of a solution")]
)
def test_an_export_of_nothing_is_refused(measured, main, to, backends, told):
    code, out, err = main("export", measured, "--to", to, "--backends", backends)
    assert (code, out) == (2, "") and f"{told}, so there is nothing to export" in err


def test_a_file_without_samples_is_refused(measured, main, tmp_path):
    (tmp_path / "alone.csv").write_bytes(measured.read_bytes())
    code, _, err = main("export", tmp_path / "alone.csv", "--to", "kernelbench")
    assert code == 2 and "alone.json.gz is not in its folder, and that file has the samples; copy both files, or measure again" in err
    (tmp_path / "alone.jsonl").touch()
    for command in (
        ("export", "alone.csv", "--to", "kernelbench"),
        ("merge", "alone.csv", "-o", "all.csv"),
        ("gate", "alone.csv", "--baseline", "alone.csv"),
    ):
        code, _, err = main(*command)
        assert code == 2 and err.splitlines()[-1].endswith("the run is unfinished, and gets it after softbench run --resume"), err


def test_services_get_the_values_of_right_cells(measured, main):
    us = medians(measured, "8")
    code, out, err = main("export", measured, "--to", "bencher", "--backends", "right,wrong,copy")
    latency = json.loads(out)["right squares-forward-fp32-8x64"]["latency"]
    assert (code, err) == (0, "")
    assert latency["value"] == pytest.approx(1000 * us["right"])
    assert latency["lower_value"] <= latency["value"] <= latency["upper_value"]
    assert {name.partition(" ")[0] for name in json.loads(out)} == {"right"}
    entry = json.loads(main("export", measured, "--to", "github-action-benchmark", "--backends", "right")[1])[0]
    assert (entry["name"], entry["unit"], entry["value"]) == ("right squares-forward-fp32-8x64 latency", "us", us["right"])
    record = json.loads(main("export", measured, "--to", "pytorch-hud", "--backends", "right")[1])[0]
    assert (record["benchmark"]["dtype"], record["model"]["backend"]) == ("float32", "right")
    assert record["metric"]["benchmark_values"] == [us["right"]]
