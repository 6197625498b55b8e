"""The check holds if a plugin replaces operators of torch for its process."""

import math
from contextlib import contextmanager

import numpy
import pytest
import torch
from wrongs import PLUGINS, load

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.ops.rowwise import independent as rowwise
from softbench.ops.softmax import independent, inputs, reference, structured_rows, tolerance
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
CASE = Case(16, 256, "fp32", Direction.FORWARD, "cpu")


@contextmanager
def replaced(**operators):
    """Operators of aten in this process, as a plugin replaces them."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, function in operators.items():
            library.impl(name, function, "CPU", allow_override=True)
        yield
    finally:
        library._destroy()


def eager(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def short(x, dim, half_to_float):
    """A library's softmax that computes in bf16, whatever it is given."""
    e = torch.exp((x - x.amax(dim, keepdim=True)).bfloat16().float())
    return (e / e.sum(dim, keepdim=True)).to(x.dtype)


def zeros(x, dim, half_to_float):
    return torch.zeros_like(x)


def verdict(function, case=CASE):
    given = inputs.make(case, 0, CPU)
    return tolerance.check(case, given, (function(*given),))


def test_numpy_agrees_with_torch_on_special_rows():
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    x[1] += 1e7
    x[2] *= 100
    x[3, :100] = -math.inf
    x[4, 7], x[5, 8], x[6] = math.nan, math.inf, -math.inf
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = x.to(dtype)
        assert numpy.array_equal(rowwise.wide(given), given.double().numpy(), equal_nan=True)
        numpy.testing.assert_allclose(independent.forward(rowwise.wide(given)), reference.forward(given).numpy(), rtol=1e-12)


def test_a_replaced_softmax_does_not_replace_the_reference():
    with replaced(_softmax=zeros):
        assert verdict(lambda x: torch.softmax(x, -1)).grade is Grade.WRONG
        assert verdict(eager).grade is Grade.PASS


def test_a_library_of_low_precision_does_not_accuse_others():
    with replaced(_softmax=short):
        assert verdict(eager).grade is Grade.PASS
        assert verdict(lambda x: torch.softmax(x, -1)).grade is Grade.WRONG


def test_a_replaced_comparison_is_unverified():
    with replaced(abs=lambda x: torch.zeros(x.shape, dtype=x.dtype)):
        found = verdict(torch.zeros_like)
    assert (found.grade, found.detail) == (Grade.UNVERIFIED, tolerance.OVERRIDDEN)


def test_a_replaced_exponential_of_the_bound_is_unverified():
    with replaced(log2=lambda x: x, sqrt=lambda x: torch.full(x.shape, 1e30, dtype=x.dtype)):
        assert verdict(torch.zeros_like).grade is Grade.UNVERIFIED


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_outputs_never_disagree_with_numpy(direction, dtype, monkeypatch):
    plugin = next(plugin for plugin in load(PLUGINS / "correct" / "arithmetic.py") if plugin.name == "fused-exponent")
    monkeypatch.setattr(rowwise, "chosen", lambda M: frozenset(range(M)))  # every row
    for N, scale in ((1, 1), (33, 100), (4096, 1), (4096, 30)):
        case = Case(16, N, dtype, direction, "cpu")
        given = inputs.make(case, 0, CPU)
        given[0].data.mul_(scale)
        if direction is not Direction.BACKWARD:
            forward = Case(16, N, dtype, Direction.FORWARD, "cpu")
            structured_rows.make_structured((given[0].data,), forward, 0)
        outputs = plugin.prepare(case)(*given)
        found = tolerance.check(case, given, outputs if direction is Direction.BOTH else (outputs,))
        assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), found


def test_inputs_that_are_not_normal_are_noticed():
    for shape in ((1, 1), (16, 1), (1, 31), (64, 256), (4, 50257)):
        for seed in range(50):
            case = Case(*shape, "bf16", Direction.FORWARD, "cpu")
            assert rowwise.drawn(inputs.make(case, seed, CPU))
    for odd in (torch.zeros(64, 256), torch.full((64, 256), 3.0), torch.randn(64, 256) * 3, torch.randn(64, 256) + 1, torch.rand(1024, 1)):
        assert not rowwise.drawn((odd,))


def test_a_replaced_generator_leaves_the_case_unverified():
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("normal_", lambda x, mean=0.0, std=1.0, *, generator=None: x.fill_(1.0), "CPU", allow_override=True)
        given = inputs.make(CASE, 0, CPU)
        found = PreCheck(CASE, eager, given, object(), None).run(0)
    finally:
        library._destroy()
    assert (found.grade, found.detail[:24]) == (Grade.UNVERIFIED, "the inputs are not norma")
