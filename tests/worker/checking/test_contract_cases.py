"""The check cases with several calls find bugs in what a call leaves behind, and pass honest backends."""

import random
import time
from types import SimpleNamespace

import pytest
import torch
from sampled import sampled
from wrongs import CALLS, HONEST, grade, honest_ones_pass

from softbench.core.case import Case, Direction
from softbench.core.outcome import Accuracy, Grade
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking import contract_cases
from softbench.worker.checking.check_case import CheckCaseRunner, contract_case
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def restored():
    state, threads = random.getstate(), torch.get_num_threads()
    yield
    torch.set_grad_enabled(True)
    torch.set_num_threads(threads)
    random.setstate(state)


@pytest.mark.parametrize(
    "bug", sampled([bug for bug in CALLS if not bug.gpu_only], lambda bug: CALLS.index(bug) % 2 == 0), ids=lambda bug: bug.name
)
def test_a_bug_between_calls_is_found_by_its_case(bug):
    verdict, reason = grade(bug, bug.item, Direction.FORWARD, "fp32", "cpu")
    assert verdict == "wrong", (verdict, reason)
    assert bug.rule in reason
    torch.set_grad_enabled(True)
    assert honest_ones_pass(bug.item, Direction.FORWARD, "fp32")


def test_a_busy_machine_makes_as_many_calls_as_an_idle_one():
    """There a call waits for torch's other threads: here for 20 ms, nine times of ten."""
    race = next(bug for bug in CALLS if bug.name == "race-once-in-400")
    calls = []

    def waiting(x):
        calls.append(torch.get_num_threads())
        end = time.thread_time() + (0.02 if calls[-1] > 1 and len(calls) % 10 else 0)
        while time.thread_time() < end:
            pass
        return race.function(x)

    torch.set_num_threads(2)
    verdict, reason = grade(type(race)(race.name, waiting, race.item, race.rule), race.item, Direction.FORWARD, "fp32", "cpu")
    assert verdict == "wrong", (verdict, reason)
    assert calls.count(2) < 400 < calls.count(1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("bug", [bug for bug in CALLS if bug.in_run], ids=lambda bug: bug.name)
def test_a_run_finds_changed_state_before_timing(bug):
    case = Case(64, 256, "fp32", Direction.FORWARD, "cpu")
    found = PreCheck(case, bug.function, NUMERICS.make(case, 0, CPU), bug, None).run(0)
    assert found.grade is Grade.WRONG
    assert bug.in_run in found.detail


class Reusing:
    """Overwrites its last output, as it declares."""

    name, reuses_output = "reusing", True

    def supports(self, case):
        return None

    def prepare(self, case):
        buffer = torch.empty(case.M, case.N)
        return lambda x: buffer.copy_(torch.softmax(x, -1))


def test_a_declared_overwriting_output_passes_over_later_calls():
    for item in ("outputs held over later calls", "many calls", "structured 37x1002"):
        assert grade(Reusing(), item, Direction.FORWARD, "fp32", "cpu")[0] == "pass"


def test_a_first_call_may_draw_random_numbers():
    calls = []

    def tuned(x):
        if not calls:
            torch.rand(3)
        calls.append(0)
        return torch.softmax(x, -1)

    case = Case(4, 8, "fp32", Direction.FORWARD, "cpu")
    assert contract_case(object(), case, tuned, NUMERICS.make(case, 0, CPU), None, 0).judge("held").grade is Grade.PASS


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
def test_a_huge_tensor_is_compared_at_its_ends_and_middle(direction, monkeypatch):
    monkeypatch.setattr(contract_cases, "EDGE_ROWS", 4)
    case = Case(2000, 16, "fp32", direction, "cpu")

    def call(first, second=None):
        out = torch.softmax(first, -1) if second is None else second * (first - (first * second).sum(-1, keepdim=True))
        out[wrong] = 2
        return out

    for row, found in ((0, Grade.WRONG), (1999, Grade.WRONG), (1000, Grade.PASS)):
        wrong = row
        given = NUMERICS.make(case, 0, CPU)
        assert contract_case(object(), case, call, given, None, 0).judge("sampled").grade is found


def test_check_cases_of_both_need_no_other_shapes():
    runner = CheckCaseRunner(HONEST[0], "cpu")
    both = [key for key in runner.items if key[1] is Direction.BOTH]
    assert len(both) > 6
    assert {item.repeat for key, item in runner.items.items() if key in both} == {"once", "structured", "held", "late", "streams"}


@pytest.mark.parametrize(
    ("rounds", "grade"), [(["leak", "leak", None, "leak"], Grade.WRONG), (["leak", ""], Grade.PASS), ([None], Grade.PASS)]
)
def test_a_round_of_too_few_calls_does_not_hide_a_leak(monkeypatch, rounds, grade):
    """None: a round that measured nothing, as on a busy machine."""
    made = iter(rounds)

    def growth(device, step):
        found = next(made)
        return SimpleNamespace(called=None, measured=found is not None, leak=lambda: found or "")

    monkeypatch.setattr(contract_cases, "Growth", growth)
    calls = SimpleNamespace(case=SimpleNamespace(device="cpu"), _many=lambda *given, **options: Accuracy(Grade.PASS, 0.0, ""))
    assert contract_cases.ContractCase.late(calls).grade is grade
    assert not list(made)
