"""The tool that judges training steps: its verdicts and its time, with processes that only tell what they measured."""

import json

import pytest
import training_step
from torch.nn import functional
from training_step import Processes, judge, library

from softbench import kernels
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import Rules, State

CELL = CellKey("library", "both", "bf16", 1, 128, "training_step(model=gpt2,batch=1)")


def told(ratio, number):
    """What a process tells of a cell; its step takes so many times torch's, give or take a percent."""
    noise = [0.0, 0.01, -0.01, 0.005, -0.005, 0.01][number % 6]
    us = {"library": 10_000 * ratio * (1 + noise), "torch": 10_000}
    return {"rounds": {side: [(n, (side == "torch") ^ (n % 4 in (1, 2)), us[side], us[side]) for n in range(24)] for side in us}}


@pytest.fixture
def processes(monkeypatch):
    """Processes that answer as they are told, by their number."""

    def make(answer):
        class Told:
            returncode = -9

            def communicate(self, line):
                number, cells = json.loads(line)
                return "\n".join(json.dumps(one) for _ in cells if (one := answer(number)) is not None), None

        monkeypatch.setattr(Processes, "_start", lambda self: Told())
        return Processes("library", "cpu")

    return make


@pytest.mark.parametrize(("ratio", "state", "code"), [(1.0, State.SAME, 0), (0.9, State.FASTER, 0), (1.1, State.SLOWER, 1)])
def test_the_gate_judges_what_processes_measured(processes, ratio, state, code):
    report = judge(processes(lambda number: told(ratio, number)), [CELL], 6, 900, Rules(0.03))

    assert (report.verdicts[0].state, report.exit_code) == (state, code)
    assert report.verdicts[0].ratio == pytest.approx(ratio, rel=0.01)


def test_undecided_cells_are_measured_again_until_the_time_is_over(processes):
    undecided = [processes(lambda number: told(1.03, number)) for _ in range(3)]
    reports = [judge(one, [CELL], 6, seconds, Rules(0.03)) for one, seconds in zip(undecided, (900, 70, 0), strict=True)]

    assert [one.used for one in undecided] == [24, 12, 6]
    assert [report.exit_code for report in reports] == [3, 3, 3]


def test_a_step_with_other_results_fails_and_a_lost_process_decides_nothing(processes):
    wrong = judge(processes(lambda number: {"wrong": "loss is nan"}), [CELL], 6, 900, Rules(0.03))
    lost = judge(processes(lambda number: told(1.0, number) if number < 3 else None), [CELL], 6, 900, Rules(0.03))

    assert (wrong.verdicts[0].state, wrong.exit_code) == (State.BROKEN, 1)
    assert (lost.verdicts[0].state, lost.exit_code) == (State.FAILED, 3)


def test_torchs_functions_come_back_after_an_exception():
    theirs = functional.cross_entropy
    with pytest.raises(KeyError), library():
        assert functional.cross_entropy is kernels.cross_entropy
        raise KeyError

    assert functional.cross_entropy is theirs
    assert training_step.SIDES["library"] is library
