"""A call leaves its caller's inputs in place, and torch's settings as they were."""

import random

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.ops.softmax import inputs
from softbench.worker import caller_state
from softbench.worker.pre_check import PreCheck

CASE = Case(8, 16, "fp32", Direction.FORWARD, "cpu")

DAMAGES = {
    "changed autograd's mode": lambda x: torch.set_grad_enabled(False),
    "changed torch's default dtype": lambda x: torch.set_default_dtype(torch.float64),
    "changed torch's number of threads": lambda x: torch.set_num_threads(torch.get_num_threads() + 1),
    "changed torch's default generator": lambda x: torch.rand(1),
    "changed Python's random generator": lambda x: random.random(),
    "moved its input to other memory": lambda x: setattr(x, "data", x.data.clone()),
}


@pytest.fixture
def restored():
    threads, state = torch.get_num_threads(), random.getstate()
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    random.setstate(state)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("message", DAMAGES)
def test_a_call_that_changes_its_callers_state_is_wrong(message):
    def call(x):
        y = torch.softmax(x, -1)
        DAMAGES[message](x)
        return y

    given = inputs.make(CASE, 0, torch.device("cpu"))
    before = caller_state.of(given)
    assert before.changed() == ""
    found = PreCheck(CASE, call, given, object(), None).run(0)
    assert found.detail.startswith(message)
