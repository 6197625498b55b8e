"""numpy's results agree with the float64 reference, and the check holds if a plugin replaces operators of torch for its process."""

import itertools
import math
from contextlib import contextmanager

import numpy
import pytest
import torch
from cross_entropies import RIGHT
from log_softmaxes import RIGHT_FORWARD as RIGHT_LOGS
from logprobs import RIGHT as LOGPROBS, RIGHT_BACKWARD
from rms_norms import RIGHT as RIGHT_NORMS
from sampled import sampled
from wrongs import PLUGINS, load

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import log_softmax, second_opinion, softmax
from softbench.ops.check import OVERRIDDEN
from softbench.ops.registry import numerics, operation
from softbench.ops.second_opinion import wide
from softbench.ops.softmax import NUMERICS
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
    given = NUMERICS.make(case, 0, CPU)
    return NUMERICS.check(case, given, (function(*given),))


def test_numpy_agrees_with_torch_on_special_rows():
    x = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    x[1] += 1e7
    x[2] *= 100
    x[3, :100] = -math.inf
    x[4, 7], x[5, 8], x[6] = math.nan, math.inf, -math.inf
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        given = x.to(dtype)
        assert numpy.array_equal(wide(given), given.double().numpy(), equal_nan=True)
        numpy.testing.assert_allclose(softmax.numpy_forward(wide(given)), softmax.forward(given).numpy(), rtol=1e-12)


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
    assert (found.grade, found.detail) == (Grade.UNVERIFIED, OVERRIDDEN)


def test_a_maximum_that_drops_nan_does_not_hide_it(monkeypatch):
    monkeypatch.setattr(second_opinion, "chosen", lambda M: frozenset())  # not in the rows of numpy
    x = torch.randn(CASE.M, CASE.N)
    y = torch.softmax(x, -1)
    y[3, 5] = math.nan
    with replaced(amax=lambda x, dim=(), keepdim=False: x.nan_to_num(0.0).max(dim[0], keepdim)[0] if dim else x.nan_to_num(0.0).max()):
        assert NUMERICS.check(CASE, (x,), (y,)).grade is Grade.WRONG


def test_the_rows_that_are_computed_again_cannot_be_predicted():
    assert len({second_opinion.chosen(10**6) for _ in range(3)}) == 3
    assert second_opinion.chosen(2) == {0, 1}


def test_a_replaced_exponential_of_the_bound_is_unverified():
    with replaced(log2=lambda x: x, sqrt=lambda x: torch.full(x.shape, 1e30, dtype=x.dtype)):
        assert verdict(torch.zeros_like).grade is Grade.UNVERIFIED


@pytest.mark.parametrize("direction", operation("softmax").directions)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_honest_outputs_never_disagree_with_numpy(direction, dtype, monkeypatch):
    plugin = next(plugin for plugin in load(PLUGINS / "correct" / "arithmetic.py") if plugin.name == "fused-exponent")
    monkeypatch.setattr(second_opinion, "chosen", lambda M: frozenset(range(M)))  # every row
    for N, scale in ((1, 1), (33, 100), (4096, 1), (4096, 30)):
        case = Case(16, N, dtype, direction, "cpu")
        given = NUMERICS.make(case, 0, CPU)
        given[0].data.mul_(scale)
        if direction is not Direction.BACKWARD:
            forward = Case(16, N, dtype, Direction.FORWARD, "cpu")
            NUMERICS.make_structured((given[0].data,), forward, 0)
        outputs = plugin.prepare(case)(*given)
        found = NUMERICS.check(case, given, outputs if direction is Direction.BOTH else (outputs,))
        assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), found


def test_inputs_that_are_not_normal_are_noticed():
    for shape in ((1, 1), (16, 1), (1, 31), (64, 256), (4, 50257)):
        for seed in range(50):
            case = Case(*shape, "bf16", Direction.FORWARD, "cpu")
            assert second_opinion.drawn(NUMERICS.make(case, seed, CPU))
    for odd in (torch.zeros(64, 256), torch.full((64, 256), 3.0), torch.randn(64, 256) * 3, torch.randn(64, 256) + 1, torch.rand(1024, 1)):
        assert not second_opinion.drawn((odd,))


def test_a_replaced_generator_leaves_the_case_unverified():
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("normal_", lambda x, mean=0.0, std=1.0, *, generator=None: x.fill_(1.0), "CPU", allow_override=True)
        given = NUMERICS.make(CASE, 0, CPU)
        found = PreCheck(CASE, eager, given, object(), None).run(0)
    finally:
        library._destroy()
    assert (found.grade, found.detail[:24]) == (Grade.UNVERIFIED, "the inputs are not norma")


SHAPES = ((5, 1), (5, 2), (16, 33), (4, 20011))


def extended(tensor):
    return wide(tensor).astype(numpy.longdouble)


@pytest.mark.parametrize(("M", "N"), SHAPES)
@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_the_reference_of_log_softmax_agrees_with_extended_precision(M, N, scale):
    assert numpy.finfo(numpy.longdouble).eps < numpy.finfo(numpy.float64).eps
    generator = torch.Generator().manual_seed(1)
    x, dy = scale * torch.randn((2, M, N), generator=generator)
    below = extended(x) - extended(x).max(-1, keepdims=True)
    y = below - numpy.log(numpy.exp(below).sum(-1, keepdims=True))
    numpy.testing.assert_allclose(log_softmax.forward(x).numpy(), y.astype(float), rtol=1e-13, atol=1e-13)
    numpy.testing.assert_allclose(log_softmax.numpy_forward(wide(x)), y.astype(float), rtol=1e-13, atol=1e-13)
    given = log_softmax.forward(x).float()
    dx = extended(dy) - numpy.exp(extended(given)) * extended(dy).sum(-1, keepdims=True)
    numpy.testing.assert_allclose(log_softmax.backward(dy, given).numpy(), dx.astype(float), rtol=1e-12, atol=1e-12 * scale)
    numpy.testing.assert_allclose(log_softmax.numpy_gradient(wide(dy), wide(given)), dx.astype(float), rtol=1e-12, atol=1e-12 * scale)


def test_special_rows_of_log_softmax_are_as_in_torch():
    nan, inf = math.nan, math.inf
    x = torch.tensor([[0, -inf, 1], [-inf, -inf, -inf], [0, inf, 1], [0, nan, -inf], [0, 0, 0]], dtype=torch.float64)
    y = torch.log_softmax(x, -1)
    assert y[0, 1] == -inf and y[0, 0].isfinite()
    assert y[1:4].isnan().all()
    numpy.testing.assert_allclose(log_softmax.numpy_forward(x.numpy()), y.numpy(), rtol=1e-15)
    assert torch.equal(log_softmax.forward(x)[0], y[0])


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
def test_honest_losses_never_disagree_with_numpy(op, dtype, monkeypatch):
    monkeypatch.setattr(second_opinion, "chosen", lambda M: frozenset(range(M)))  # every row
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


REPLACED = {
    "cross_entropy": {"logsumexp": lambda x, dim, keepdim=False: x.amax(dim, keepdim=keepdim)},
    "logprob": {"logsumexp": lambda x, dim, keepdim=False: x.amax(dim, keepdim=keepdim)},
    "log_softmax": {"_log_softmax": zeros},
    "rms_norm": {"rsqrt": torch.ones_like},
}


@pytest.mark.parametrize("op", REPLACED)
def test_a_replaced_operator_does_not_replace_the_reference(op):
    case = Case(16, 256, "fp32", Direction.FORWARD, "cpu", op)
    given = numerics(op).make(case, 0, CPU)
    way = RIGHT_NORMS["float32"] if op == "rms_norm" else RIGHT_LOGS["torch"] if op == "log_softmax" else ways(case)[0]
    right = way(*given)
    with replaced(**REPLACED[op]):
        wrong = way(*given)
        assert not torch.equal(right[-1], wrong[-1])
        tuples = [out if isinstance(out, tuple) else (out,) for out in (wrong, right)]
        assert numerics(op).check(case, given, tuples[0]).grade is not Grade.PASS
        assert numerics(op).check(case, given, tuples[1]).grade is not Grade.WRONG


def test_a_replaced_comparison_of_losses_is_unverified():
    case = Case(16, 256, "fp32", Direction.FORWARD, "cpu", "cross_entropy")
    given = numerics(case.op).make(case, 0, CPU)
    with replaced(abs=lambda x: torch.zeros(x.shape, dtype=x.dtype)):
        found = numerics(case.op).check(case, given, (torch.zeros(16), torch.zeros(16)))
    assert (found.grade, found.detail) == (Grade.UNVERIFIED, OVERRIDDEN)
