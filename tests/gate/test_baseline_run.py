"""New processes against a baseline: the request, the second look, family errors with fixed seeds, and large slowdowns."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gating import GPU, Answers, cell_samples, dice, key, stored, stored_run
from pretended import make
from sampled import sampled
from simulate_gate import STORED, Noise, Stored, families

from softbench.core.errors import InconclusiveError, UsageError
from softbench.core.machine import Machine
from softbench.core.text import duration
from softbench.gate import baseline_run, next_step, power, unpaired
from softbench.gate.inference import proportion_bounds
from softbench.gate.verdicts import Rules, State
from softbench.plan import estimate
from softbench.processes.session import choose_device
from softbench.run.request import RunRequest

RULES = Rules(margin=unpaired.MARGIN)
UNLIKE = ("tau 4 %", "bad process", "machine 30 %")
"""A noise of each kind."""


def asked(**flags):
    return RunRequest({}, flags, False, None, False, "softbench gate --baseline h200", "")


def test_the_request_measures_what_the_baseline_has():
    base = replace(stored(dice(1), 10, cells=3), settings={"rounds": 7, "max_rounds": 9, "warmup_ms": 0.2, "foreign": 1})
    base.cells[key("gone", 1)] = cell_samples(status="unavailable", reason="not installed")
    base.cells[key("ours", 4)] = cell_samples(status="wrong", reason="row 3 differs")
    request = baseline_run.baseline_request(asked(), base)
    settings = request.settings()
    assert (settings.backends, settings.processes, settings.rounds, settings.max_rounds) == (("ours",), 3, 7, 9)
    assert (settings.device, settings.warmup_ms) == ("cuda", 0.2)
    assert {(sweep.M, sweep.N) for sweep in settings.sweep} == {((4096,), (N,)) for N in (1, 2, 3, 4)}
    assert baseline_run.baseline_request(asked(processes=5), base).settings().processes == 5
    with pytest.raises(UsageError, match="--processes 2 can never show a regression"):
        baseline_run.baseline_request(asked(processes=2), base)
    with pytest.raises(UsageError, match="rounds"):
        baseline_run.baseline_request(asked(), replace(base, settings={"rounds": "many"}))


def compare(tmp_path, base, *runs):
    measure, request = Answers(tmp_path, *runs), baseline_run.baseline_request(replace(asked(), output=tmp_path), base)
    return baseline_run.compare(measure, request, base, RULES), measure.asked


def slow(i):
    return 0.1 if i in (3, 17) else 0


def test_new_processes_decide_the_cells_that_are_not_the_same(tmp_path):
    base, second = stored(dice(1), 10), stored(dice(3), 6, slowdown=lambda i: 0.1 if i == 3 else 0)
    report, requests = compare(tmp_path, base, stored(dice(2), 3, slowdown=slow), second)
    assert [verdict.cell.N for verdict in report.verdicts if verdict.fails] == [4]
    assert {verdict.state for verdict in report.verdicts if verdict.cell.N == 18} == {State.SAME}
    assert len(requests[1].config["sweep"]) == 8
    assert {(4,), (18,)} < {sweep.N for sweep in requests[1].config["sweep"]}
    assert requests[1].flags["processes"] == 6
    step = next_step.after_new_processes(report, "softbench gate --baseline h200", base, 3)
    assert step == "if the change is intended, measure a new baseline: softbench run --M 4096 --processes 10"


def test_a_quiet_comparison_needs_no_second_look(tmp_path):
    report, requests = compare(tmp_path, stored(dice(1), 10), stored(dice(2), 3))
    assert (report.exit_code, len(requests)) == (0, 1)


def test_cells_that_the_baseline_has_of_another_card_are_inconclusive(tmp_path):
    """A shared sweep: card A has the first ten cases of the baseline and card B the others. All are measured on A now."""
    base, new, (A, B) = stored(dice(1), 10, cells=20), stored(dice(2), 3, cells=20), ("host/0/0000000a", "host/1/0000000b")
    cells = {cell._replace(unit=A if cell.N <= 10 else B): samples for cell, samples in base.cells.items()}
    base = replace(base, cells=cells, units={unit: {**GPU, "unit": unit} for unit in (A, B)}, command="softbench run --devices=0,1")

    def measure(request):
        return stored_run(tmp_path, new, environment={**GPU, "unit": A})

    request = baseline_run.baseline_request(replace(asked(), output=tmp_path), base)
    report = baseline_run.compare(measure, request, base, RULES)
    assert {verdict.cell.N for verdict in report.verdicts if verdict.state is State.AMBIGUOUS} == set(range(11, 21))
    assert report.exit_code == 3
    step = next_step.after_new_processes(report, "softbench gate --baseline two", base, 3)
    assert step.startswith("10 cells were measured on another card than in the baseline; measure a baseline that has every cell of")
    assert step.endswith("softbench run --devices=0,1 --processes 10 --spread replicate")


def test_a_baseline_of_few_processes_is_refused_before_measuring(tmp_path):
    with pytest.raises(InconclusiveError, match="needs 5 processes"):
        compare(tmp_path, stored(dice(1), 4))


def test_another_number_of_threads_is_refused_before_measuring():
    base = stored(dice(1), 10, cells=2, source="here.json")
    base = replace(base, environment={**base.environment, "device": "cpu", "torch_threads": 1})
    request = baseline_run.baseline_request(replace(asked(), flags={**asked().flags, "threads": 2}), base)
    with pytest.raises(InconclusiveError, match=r"--threads 2: cannot be compared with here\.json: torch_threads was 1"):
        baseline_run.compare(None, request, base, RULES)


def test_a_baseline_of_a_gpu_is_not_compared_with_the_cpu():
    base = stored(dice(1), 10, cells=2, source="h200.json")
    request = baseline_run.baseline_request(replace(asked(), flags={**asked().flags, "device": "cpu"}), base)
    with pytest.raises(InconclusiveError, match=r"--device cpu: cannot be compared with h200\.json, which was measured on .*; leave out"):
        baseline_run.compare(None, request, base, RULES)


def test_a_baseline_of_a_gpu_names_its_card_where_there_is_none():
    def measure(request):
        choose_device(request.settings().device, Machine("2.11", "torch has no CUDA", (), "EPYC", 0, {}))

    base = stored(dice(1), 10, cells=2, source="h200.json")
    with pytest.raises(UsageError, match=r"h200\.json was measured on NVIDIA H200, and there is no GPU here \(torch has no CUDA\); "):
        baseline_run.compare(measure, baseline_run.baseline_request(asked(), base), base, RULES)


def test_a_backend_that_is_gone_is_named_with_its_flag(tmp_path):
    def measure(request):
        raise UsageError("--backends: unknown 'ours'; known are torch")

    base = stored(dice(1), 10, cells=2, source="h200.json")
    with pytest.raises(UsageError, match=r"h200\.json: its backends need --plugin: unknown 'ours'"):
        baseline_run.compare(measure, baseline_run.baseline_request(asked(), base), base, RULES)


def test_the_plan_says_what_it_finds():
    base = Stored(np.random.default_rng(1), Noise(tau=0.01), 40).base
    found, first = power.found_by_processes(base, 6, RULES), make(("copy", "new"), cases=300, rounds=3, processes=3)
    plan, seconds = baseline_run.plan_text(first, base, RULES), estimate.run_seconds(first)
    assert "3 new process sets of 3 rounds against 10 processes of the baseline, then undecided cells again in 6 more; " in plan
    assert f"; about {duration(seconds)}, and up to {duration(3 * seconds)} if all cells are undecided; margin 5%; " in plan
    assert f"finds a slowdown of {found:.0%} with probability .95" in plan


STEADY = [noise for noise, of in STORED.items() if max(of.sitting, of.common_sitting) <= 0.003]
"""Noises in which sittings hardly differ; test_sittings has the others."""


@pytest.mark.parametrize("noise", sampled(STEADY, lambda noise: noise == "machine 4 %"))
def test_identical_cells_raise_no_alarm(noise):
    result = families(60, STORED[noise], 20, 0.0, 3, RULES.margin, 3, Stored)
    assert result.exits[1] == 0
    assert proportion_bounds(0, 60)[1] <= 0.05
    assert noise == "tau 4 %" or result.exits[0] >= 57


SLOWER = ["quiet", "tau 1 %", "slow batches", "machine 4 %", "bad process", "sitting 0.3 %"]


@pytest.mark.parametrize("noise", sampled(SLOWER, lambda noise: noise == "bad process"))
def test_slower_cells_are_found(noise):
    result = families(80, STORED[noise], 20, 0.10, 3, RULES.margin, 4, Stored)
    assert proportion_bounds(result.found, result.slow)[0] >= 0.95
    assert result.others == 0


@pytest.mark.parametrize("noise", sampled([*STORED, "machine 30 %"], lambda noise: noise in UNLIKE))
def test_a_large_slowdown_never_passes(noise):
    changed = Noise(machine=0.3) if noise == "machine 30 %" else STORED[noise]
    assert families(10, changed, 20, 0.3, 3, RULES.margin, 5, Stored).exits[0] == 0


@pytest.mark.parametrize(("change", "slowdown", "code"), [(0.04, 0, 0), (0.08, 0, 3), (-0.08, 0, 0), (-0.08, 0.1, 3), (0.5, 0, 3)])
def test_a_change_of_the_machine_is_always_reported(change, slowdown, code):
    """Copy and all cells change alike. It was subtracted without a word."""
    new = stored(dice(9), 3, copy=lambda process: 1 + change, slowdown=lambda i: slowdown)
    base = stored(dice(10), 10)
    report = unpaired.compare(new, base, RULES)
    assert report.exit_code == code
    size, direction = re.match(r"the machine changed: copy is ([0-9.]+)% (slower|faster) over all cases", report.notes[0]).groups()
    assert float(size) / 100 == pytest.approx(abs(change), abs=0.003)
    assert direction == ("slower" if change > 0 else "faster")
    if report.exit_code:
        assert re.fullmatch(r"copy is .*% (slower|faster) over all cases, too much to be subtracted", report.verdicts[0].reason)
        step = next_step.after_files(report, "softbench gate new.csv --baseline h200", [Path("new.csv")], new, base)
        assert step.startswith("measure the baseline anew on the machine as it is now: softbench run --M 4096 --processes 10")


def test_one_slow_stored_process_blinds_no_cell():
    base, new = stored(dice(11), 10), stored(dice(12), 3, slowdown=lambda i: 0.1 if i == 4 else 0)
    values = list(base.cells[key("ours", 5)].medians_us().values())
    base.cells[key("ours", 5)] = cell_samples(*[(us * (2 if process == 6 else 1),) for process, us in enumerate(values)])
    report = unpaired.compare(new, base, RULES)
    assert [(v.cell.N, v.n) for v in report.verdicts if v.fails] == [(5, "9+3 processes, 1 outlying left out")]


def test_five_stored_processes_with_an_outlying_one_are_enough():
    base = stored(dice(11), 5)
    values = list(base.cells[key("ours", 5)].medians_us().values())
    base.cells[key("ours", 5)] = cell_samples(*[(us * (2 if process == 2 else 1),) for process, us in enumerate(values)])
    (verdict,) = [v for v in unpaired.compare(stored(dice(12), 3), base, RULES).verdicts if v.cell.N == 5]
    assert (verdict.state, verdict.n) == (State.SAME, "4+3 processes, 1 outlying left out")
