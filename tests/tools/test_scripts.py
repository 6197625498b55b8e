"""The conclusions of tools/against_ncu.py, harness_cost.py and assertion_rates.py, tested without a GPU."""

import argparse
import importlib.util
import json
import sys
import tomllib
from pathlib import Path

import pytest
from gating import dice, self_test_run


def script(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


ncu, cost, rates = script("against_ncu"), script("harness_cost"), script("assertion_rates")
CELLS = [
    {"backend": "torch", "M": 4096, "N": 256, "dtype": "bf16", "direction": "forward", "us": 3.2, "kernels": ["softmax"]},
    {"backend": "naive", "M": 4096, "N": 256, "dtype": "bf16", "direction": "forward", "us": 50.0, "kernels": ["max", "sub"]},
]


def listing(*nanoseconds, unit="ns"):
    head = '"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    rows = [f'"{i}","7","k","{ncu.METRIC}","{unit}","{ns:,}"' for i, ns in enumerate(nanoseconds)]
    return "\n".join(["==PROF== Connected to process 7", head, *rows, "==PROF== Disconnected"])


def test_ncu_kernels_are_summed_per_call_and_compared(capsys):
    durations = ncu.durations_us(listing(*[3_100] * ncu.CALLS, *[20_000, 29_000] * ncu.CALLS))
    assert ncu.grouped(durations, CELLS) == pytest.approx([3.1, 49.0])
    assert ncu.report(CELLS, [3.1, 49.0], 1.1, 1.1) == 0
    assert ncu.report(CELLS, [2.85, 49.0], 1.1, 1.1) == 1
    assert ncu.report(CELLS, [3.1, 48.0], 1.1, 1.1) == 1
    assert "1 of 2 cells within" in capsys.readouterr().out
    assert ncu.report([], [], 1.1, 1.1) == 1


def test_the_empty_kernel_explains_a_difference_without_excusing_it(capsys):
    assert ncu.report(CELLS, [4.1, 52.0], 1.1, 2.0) == 1  # 3.2 and 50.2 without the excess of launches
    told = capsys.readouterr().out
    assert "an empty kernel: 1.10 us, by ncu 2.00 us" in told
    assert "0 of 2 cells within max(3 %, 0.3 us) of ncu's gpu__time_duration; less launches 2 more" in told
    assert ncu.report(CELLS, [4.1, 54.0], 1.1, 2.0) == 1
    assert "; less launches 1 more" in capsys.readouterr().out
    assert ncu.durations_us(listing(3.5, unit="us")) == [3.5]


def test_other_kernels_than_the_calls_raise():
    with pytest.raises(ValueError, match="ncu saw 2 kernels, the calls have 27"):
        ncu.grouped([1.0, 2.0], CELLS)
    with pytest.raises(ValueError, match="no kernel"):
        ncu.durations_us("==ERROR== ERR_NVGPUCTRPERM")
    assert [ncu.unseen(cell) for cell in (*CELLS, {**CELLS[0], "kernels": ["Memcpy DtoD (Device -> Device)"]})] == [False, False, True]


def test_the_loops_time_is_scaled_to_the_same_samples():
    assert cost.compared(65, 50, 100, {"samples": 100, "bench_s": 20}) == 1.3
    assert cost.compared(65, 60, 100, {"samples": 200, "bench_s": 20}) == 1.3


def test_adaptive_sampling_is_evaluated_on_measured_rounds():
    quiet, never = [[10.0] * 50] * 10, [[5.0, 15.0] * 25] * 10
    told = cost.spared([quiet, quiet, never], 10.0)
    assert "53 ms a cell (median 30), 2 of 3 cells known to 0.5%" in told
    assert "a fixed 100 ms a cell: 2 known; 0.53 of its time" in told


def test_samples_are_read_from_the_run_document():
    case = {"M": 8, "N": 16, "dtype": "fp32", "direction": "forward", "device": "cuda"}
    outcome = {"kind": "measured", "timing": {"batches": [{"samples_us": [1.0, 2.0]}, {"samples_us": [3.0]}]}}
    document = {"settings": {"batch_ms": 10.0}, "cells": [{"backend": "a", "case": case, "outcome": outcome}]}
    document["cells"].append({"backend": "b", "case": case, "outcome": {"kind": "skipped"}})
    assert cost.taken(document) == [{"backend": "a", "case": case, "samples": 3, "ms": 20.0}]


def test_softbenchs_time_is_the_median_over_processes(tmp_path, monkeypatch):
    batches = [{"process": process, "samples_us": [us, us]} for process, us in ((0, 10.0), (0, 11.0), (1, 20.0), (2, 12.0))]
    outcome = {"kind": "measured", "profile": {"kernels": ["softmax"]}, "timing": {"batches": batches}}
    case = {"M": 4096, "N": 16384, "dtype": "bf16", "direction": "forward"}
    asked = []

    def run(command, **_):
        asked.append(command)
        (tmp_path / "latest.json").write_text(json.dumps({"cells": [{"backend": "torch", "case": case, "outcome": outcome}]}))

    monkeypatch.setattr(ncu.subprocess, "run", run)
    given = argparse.Namespace(backends="torch", M=None, N="256:65536:*256", dtype="bf16", direction="forward", processes=3)
    (cell,) = ncu.measured(given, tmp_path)
    assert cell["us"] == 12.0
    assert asked[0][asked[0].index("--processes") + 1] == "3"
    sweeps = tomllib.loads((tmp_path / "grid.toml").read_text())["sweep"]
    assert [sweep["M"] * sweep["N"] for sweep in sweeps] == [ncu.ELEMENTS] * 2


@pytest.mark.parametrize(("alarms", "found", "code"), [(1, 19, 0), (2, 20, 1), (0, 18, 1)])
def test_rates_of_the_assertion_are_counted_and_bounded(monkeypatch, capsys, alarms, found, code):
    """Of 20 repetitions; one of the slower ones is inconclusive in the first."""
    answers = {
        "torch+0": iter(["fail"] * alarms + ["pass"] * (20 - alarms)),
        "torch+0.08": iter(["fail"] * found + ["skip"] * (20 - found)),
    }

    def asserted(self, new, old, margin, **options):
        assert (old, margin, options["plugins"][0].name) == ("torch", 0.03, "slowed.py")
        outcome = next(answers[new])
        if outcome == "skip":
            pytest.skip("inconclusive")
        assert outcome == "pass"

    monkeypatch.setattr(rates.Softbench, "assert_not_slower", asserted)
    assert rates.main(["--repetitions", "20", "--apart"]) == code
    told = capsys.readouterr().out
    assert f"unchanged: {alarms} of 20 fail" in told
    assert f"8 % slower: {found} of 20 fail" in told
    assert f"{20 - found} inconclusive" in told


@pytest.mark.parametrize(("slower", "code"), [(0.08, 0), (0.02, 1)])
def test_repetitions_of_the_assertion_share_measured_sets(monkeypatch, capsys, slower, code):
    samples = self_test_run(dice(1), 20, 1, realised={0.08: slower})
    monkeypatch.setattr(rates, "compare", lambda *backends, **options: argparse.Namespace(csv=(backends, options)))
    monkeypatch.setattr(rates.run_files, "read", lambda found: asked.append(found) or samples)
    asked = []
    assert rates.main(["--repetitions", "20", "--device", "cpu"]) == code
    ((backends, options),) = asked
    assert backends == ("torch", "torch+0", "torch+0.08")
    assert (options["processes"], options["rounds"], options["max_rounds"]) == (20, 20, 20)
    told = capsys.readouterr().out
    assert "20 process sets" in told
    assert "unchanged: 0 of 20 fail" in told
    assert f"8 % slower: {20 if code == 0 else 0} of 20 fail" in told


def test_a_repetition_takes_its_own_set_first():
    sets = rates.Sets(self_test_run(dice(1), 14, 1, realised={0.08: 0.08}))

    def given(processes):
        return argparse.Namespace(settings=lambda: argparse.Namespace(processes=processes), flags={"backends": ("torch+0", "torch")})

    with sets.serving(12):
        first, fresh = (rates.ab_run.samples_of(rates.run.run(given(count), None)) for count in (1, 3))
    for measured, taken in ((first, [12]), (fresh, [13, 0, 1])):
        assert {key.backend for key in measured.cells} == {"torch", "torch+0"}
        for key, cell in measured.cells.items():
            assert [*cell.processes.values()] == [sets.samples.cells[key].processes[number] for number in taken]
