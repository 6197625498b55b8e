"""A call leaves its caller's inputs in place, and torch's settings as they were."""

import gc
import random
import sys
from contextlib import suppress

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking.pre_check import PreCheck
from softbench.worker.guarding import caller_state

CASE = Case(8, 16, "fp32", Direction.FORWARD, "cpu")

DAMAGES = {
    "changed autograd's mode": lambda x: torch.set_grad_enabled(False),
    "changed torch's default dtype": lambda x: torch.set_default_dtype(torch.float64),
    "changed torch's number of threads": lambda x: torch.set_num_threads(torch.get_num_threads() + 1),
    "changed torch's backends for the CPU or attention": lambda x: torch.backends.cuda.enable_mem_efficient_sdp(False),
    "set the seed of torch's default generator": lambda x: torch.manual_seed(0),
    "set the seed of Python's random generator": lambda x: random.seed(1),
    "left a gradient in the .grad of its input": lambda x: setattr(x, "grad", torch.ones_like(x)),
    "moved its input to other memory": lambda x: setattr(x, "data", x.data.clone()),
}


@pytest.fixture
def restored():
    threads, state = torch.get_num_threads(), random.getstate()
    yield
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    random.setstate(state)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("message", DAMAGES)
def test_a_call_that_changes_its_callers_state_is_wrong(message):
    def call(x):
        y = torch.softmax(x, -1)
        DAMAGES[message](x)
        return y

    given = NUMERICS.make(CASE, 0, torch.device("cpu"))
    before = caller_state.of(given)
    assert before.changed(lambda: None) == ""
    found = PreCheck(CASE, call, given, object(), None).run(0)
    assert found.detail.startswith(message)


@pytest.mark.parametrize("draw", [lambda: torch.randperm(16), random.random, lambda: random.shuffle([1, 2, 3])])
def test_a_call_may_draw_random_numbers(draw):
    def call(x):
        draw()
        return torch.softmax(x, -1)

    assert PreCheck(CASE, call, NUMERICS.make(CASE, 0, torch.device("cpu")), object(), None).run(0).grade is Grade.PASS


def test_a_call_that_raises_leaves_the_collector_as_it_was():
    x, enabled, thresholds = torch.ones(2), gc.isenabled(), gc.get_threshold()

    def check():
        before = caller_state.of((x,))
        raise ValueError(before)

    with suppress(ValueError):
        check()
    assert (gc.isenabled(), gc.get_threshold()) == (enabled, thresholds)


def test_a_later_call_may_compile_and_must_not_change_the_limits():
    x, compiled = torch.randn(8, 16), torch.compile(lambda x: torch.softmax(x, -1) * 2)
    before = caller_state.of_first((x,))
    compiled(x)
    assert before.changed() == ""
    before = caller_state.of((x,))
    compiled(x[:5])
    torch.compile(lambda x: torch.softmax(x, -1) * 3)(x)
    assert before.changed() == ""
    limit = sys.getrecursionlimit()
    for other in (limit, 1000, 2000, 5000):
        before = caller_state.of((x,))
        sys.setrecursionlimit(other)
        assert before.changed() == "changed Python's limits, which its caller uses"
        assert sys.getrecursionlimit() == limit
