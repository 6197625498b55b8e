"""The tool that judges training steps: its verdicts and its time, with processes that only tell what they measured."""

import json

import pytest
import training_step
from torch.nn import functional
from training_step import Processes, library

from softbench import kernels
from softbench.gate import fresh_pairs
from softbench.gate.samples import CellKey
from softbench.gate.verdicts import Rules, State

CELL = CellKey("library", "both", "bf16", 1, 128, "training_step(model=gpt2,batch=1)")


def told(ratio, number):
    """What a process tells of a cell; its step takes so many times torch's, give or take a percent."""
    noise = [0.0, 0.01, -0.01, 0.005, -0.005, 0.01][number % 6]
    us = {"library": 10_000 * ratio * (1 + noise), "torch": 10_000}
    return {"rounds": {side: [(n, (side == "torch") ^ (n % 4 in (1, 2)), us[side], us[side]) for n in range(24)] for side in us}}


@pytest.fixture
def judged(monkeypatch):
    """The verdict on a cell, the exit code and the number of processes, which answer as they are told, by their number."""

    def judge(answer, seconds=900.0):
        class Told:
            returncode = -9

            def communicate(self, line):
                number, cells = json.loads(line)
                return "\n".join(json.dumps(one) for _ in cells if (one := answer(number)) is not None), None

        monkeypatch.setattr(Processes, "_start", lambda self: Told())
        processes = Processes("library", "cpu", seconds)
        report = fresh_pairs.compare(processes.measure([CELL], 6), processes.measure, "library", "torch", Rules(0.03), fresh_pairs.looks(6))
        return report.verdicts[0], report.exit_code, processes.used

    return judge


@pytest.mark.parametrize(("ratio", "state", "code"), [(1.0, State.SAME, 0), (0.9, State.FASTER, 0), (1.1, State.SLOWER, 1)])
def test_the_gate_judges_what_processes_measured(judged, ratio, state, code):
    verdict, *rest = judged(lambda number: told(ratio, number))

    assert (verdict.state, *rest) == (state, code, 6)
    assert verdict.ratio == pytest.approx(ratio, rel=0.01)


@pytest.mark.parametrize(("seconds", "processes"), [(900, 24), (0, 5)])
def test_undecided_cells_are_measured_again_until_the_time_is_over(judged, seconds, processes):
    verdict, *rest = judged(lambda number: told(1.03, number), seconds)

    assert (verdict.n, *rest) == (f"{processes} process pairs", 3, processes)


def test_a_step_with_other_results_fails_and_a_lost_process_decides_nothing(judged):
    wrong, *of_wrong = judged(lambda number: {"wrong": "loss is nan"})
    lost, *of_lost = judged(lambda number: told(1.0, number) if number < 3 else None)

    assert (wrong.state, *of_wrong) == (State.BROKEN, 1, 6)
    assert (lost.state, *of_lost) == (State.FAILED, 3, 6)


def test_torchs_functions_come_back_after_an_exception():
    theirs = functional.cross_entropy
    with pytest.raises(KeyError), library():
        assert functional.cross_entropy is kernels.cross_entropy
        raise KeyError

    assert functional.cross_entropy is theirs
    assert training_step.SIDES["library"] is library
