"""numpy's losses agree with the float64 reference, and replaced operators of torch neither hide nor make errors."""

import itertools
from contextlib import contextmanager

import pytest
import torch
from cross_entropies import RIGHT
from logprobs import RIGHT as LOGPROBS, RIGHT_BACKWARD
from sampled import sampled

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.ops.rowwise import independent
from softbench.ops.rowwise.tolerance import OVERRIDDEN

CPU = torch.device("cpu")
SET = "cross_entropy(ignore_index=7,label_smoothing=0.3,z_loss=0.001,softcap=5)"
OPS = ("cross_entropy", "cross_entropy(label_smoothing=0.3)", "cross_entropy(z_loss=0.01)", SET, "logprob")


def ways(case):
    """Honest results, precise and less precise."""
    if case.operation == "logprob":
        found = LOGPROBS if case.direction is Direction.FORWARD else RIGHT_BACKWARD
        return [found[name] for name in ("float64", "lse - mean", "from the mean") if name in found]
    return [RIGHT[name][0](case) for name in ("float64", "powers of two")]


@pytest.mark.parametrize(
    ("op", "dtype"),
    sampled(itertools.product(OPS, ("fp32", "bf16")), lambda op, dtype: (op, dtype) in ((SET, "bf16"), ("logprob", "fp32"))),
)
def test_honest_outputs_never_disagree_with_numpy(op, dtype, monkeypatch):
    monkeypatch.setattr(independent, "chosen", lambda M: frozenset(range(M)))  # every row
    for direction in operation(op).directions:
        for M, N in ((60, 33), (60, 600)):
            case = Case(M, N, dtype, direction, "cpu", op)
            given = numerics(op).make(case, 0, CPU)
            numerics(op).make_structured(given, case, 0)
            for way in ways(case):
                outputs = way(*given)
                found = numerics(op).check(case, given, outputs if isinstance(outputs, tuple) else (outputs,))
                assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), (direction, N, found)


@pytest.mark.parametrize("direction", operation("cross_entropy").directions)
def test_an_ignored_row_that_is_nan_is_compared_with_zero(direction):
    """With one column and an ignore_index of 0 all rows are ignored, also those of -inf."""
    case = Case(40, 1, "fp32", direction, "cpu", "cross_entropy(ignore_index=0)")
    given = numerics(case.op).make(case, 0, CPU)
    given[0][::2], given[0][1::2] = float("nan"), -float("inf")
    outputs = RIGHT["two passes"][0](case)(*given)
    found = numerics(case.op).check(case, given, outputs if isinstance(outputs, tuple) else (outputs,))
    assert found.grade is Grade.PASS, found


@contextmanager
def replaced(**operators):
    """Operators of torch on the CPU, replaced."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, function in operators.items():
            library.impl(name, function, "CPU", allow_override=True)
        yield
    finally:
        library._destroy()


@pytest.mark.parametrize("op", ["cross_entropy", "logprob"])
def test_a_replaced_logsumexp_does_not_replace_the_reference(op):
    case = Case(16, 256, "fp32", Direction.FORWARD, "cpu", op)
    given = numerics(op).make(case, 0, CPU)
    right = ways(case)[0](*given)
    with replaced(logsumexp=lambda x, dim, keepdim=False: x.amax(dim, keepdim=keepdim)):
        wrong = ways(case)[0](*given)
        assert not torch.equal(right[-1], wrong[-1])
        assert numerics(op).check(case, given, wrong).grade is not Grade.PASS
        assert numerics(op).check(case, given, right).grade is not Grade.WRONG


def test_a_replaced_comparison_is_unverified():
    case = Case(16, 256, "fp32", Direction.FORWARD, "cpu", "cross_entropy")
    given = numerics(case.op).make(case, 0, CPU)
    with replaced(abs=lambda x: torch.zeros(x.shape, dtype=x.dtype)):
        found = numerics(case.op).check(case, given, (torch.zeros(16), torch.zeros(16)))
    assert (found.grade, found.detail) == (Grade.UNVERIFIED, OVERRIDDEN)
