"""The derived bound: correct implementations pass and each mutant gets its class."""

import itertools
import math
import re

import pytest
import torch
from sampled import sampled
from torch.utils._python_dispatch import TorchDispatchMode
from wrongs import PLUGINS, load

from softbench.backends.naive import naive_backward, naive_forward
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import check
from softbench.ops.dtypes import DTYPES
from softbench.ops.error_terms import U
from softbench.ops.softmax import NUMERICS, OPERATION

CPU = torch.device("cpu")
ARITHMETIC = {plugin.name: plugin for plugin in load(PLUGINS / "correct" / "arithmetic.py")}


def grade(case, function, given=None):
    given = given or NUMERICS.make(case, 0, CPU)
    out = function(*given)
    return NUMERICS.check(case, given, out if case.direction is Direction.BOTH else (out,))


def torch_forward(x):
    return torch.softmax(x, dim=-1)


def torch_both(x, dy):
    y = torch.softmax(x, dim=-1)
    (dx,) = torch.autograd.grad(y, x, dy)
    return y.detach(), dx


def fp32_backward(dy, y):
    return naive_backward(dy.float(), y.float()).to(y.dtype)


@pytest.mark.parametrize("N", [1, 2, 31, 255, 781, 4096, 50257])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_torch_passes_forward_and_both_at_every_size(N, dtype):
    assert grade(Case(8, N, dtype, Direction.FORWARD, "cpu"), torch_forward).grade is Grade.PASS
    assert grade(Case(8, N, dtype, Direction.BOTH, "cpu"), torch_both).grade in (Grade.PASS, Grade.LOW_PRECISION)


@pytest.mark.parametrize("N", [1, 33, 1024, 50257])
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_a_backward_in_float32_passes(N, dtype):
    assert grade(Case(8, N, dtype, Direction.BACKWARD, "cpu"), fp32_backward).grade is Grade.PASS


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rounding_intermediates_to_16_bits_is_low_precision(dtype):
    assert grade(Case(8, 1024, dtype, Direction.FORWARD, "cpu"), naive_forward).grade is Grade.LOW_PRECISION
    assert grade(Case(8, 1024, dtype, Direction.BACKWARD, "cpu"), naive_backward).grade is Grade.LOW_PRECISION


@pytest.mark.parametrize("scale", [0.1, 1, 10, 100])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_eager_operations_are_low_precision_at_every_scale(scale, dtype):
    case = Case(64, 1023, dtype, Direction.FORWARD, "cpu")
    x = (torch.randn(64, 1023, generator=torch.Generator().manual_seed(3)) * scale).to(DTYPES[dtype])
    assert grade(case, naive_forward, (x,)).grade in (Grade.PASS, Grade.LOW_PRECISION)


MUTANTS_FORWARD = {
    "zeros": torch.zeros_like,
    "the constant 1/N": lambda x: torch.full_like(x, 1 / x.shape[-1]),
    "no maximum subtracted": lambda x: (30 * x).exp() / (30 * x).exp().sum(-1, keepdim=True),
    "a dropped column": lambda x: torch.cat([torch.softmax(x[:, :-1].float(), -1), 0 * x[:, :1].float()], -1).to(x.dtype),
    "the wrong axis": lambda x: torch.softmax(x, dim=0),
    "one NaN": lambda x: torch.softmax(x, -1).index_fill(1, torch.tensor([3]), math.nan),
    "1 % off": lambda x: (torch.softmax(x.float(), -1) * 1.01).to(x.dtype),
}


@pytest.mark.parametrize("mutant", MUTANTS_FORWARD)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("N", [192, 32768])
def test_forward_mutants_are_wrong(mutant, dtype, N):
    if mutant == "1 % off" and dtype == "bf16":
        pytest.skip("1 % is within what 16-bit intermediates of bf16 may honestly cost")
    assert grade(Case(4, N, dtype, Direction.FORWARD, "cpu"), MUTANTS_FORWARD[mutant]).grade is Grade.WRONG


MUTANTS_BACKWARD = {
    "zeros": lambda dy, y: torch.zeros_like(y),
    "the missing dot": lambda dy, y: y * dy,
    "the sum of dy for the dot": lambda dy, y: (y.float() * (dy.float() - dy.float().sum(-1, keepdim=True))).to(y.dtype),
}


@pytest.mark.parametrize("mutant", MUTANTS_BACKWARD)
@pytest.mark.parametrize("N", [192, 32768])
def test_backward_mutants_are_wrong_in_float32(mutant, N):
    assert grade(Case(4, N, "fp32", Direction.BACKWARD, "cpu"), MUTANTS_BACKWARD[mutant]).grade is Grade.WRONG


def test_bf16_arithmetic_inside_fp32_is_wrong():
    case = Case(8, 1024, "fp32", Direction.FORWARD, "cpu")
    assert grade(case, lambda x: torch.softmax(x.bfloat16(), -1).float()).grade is Grade.WRONG


def structured(direction, N=4096):
    """A case in float32 whose x has every kind of adversarial rows, and its inputs."""
    case = Case(32, N, "fp32", direction, "cpu")
    given = NUMERICS.make(case, 0, CPU)
    NUMERICS.make_structured((given[0].detach(),), Case(32, N, "fp32", Direction.FORWARD, "cpu"), 0)
    return case, given


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BOTH])
def test_a_fused_exponent_is_low_precision_and_says_where(direction):
    case, given = structured(direction)
    found = grade(case, ARITHMETIC["fused-exponent"].prepare(case), given)
    assert found.grade is Grade.LOW_PRECISION, found.detail
    said = re.search(r"rounds max\*log2\(e\) in its exponent: relative error (\S+) in a row whose maximum is (\S+):", found.detail)
    assert said, found.detail
    assert float(said[1]) < math.expm1(2 * U * abs(float(said[2])))


def test_a_fused_exponent_on_normal_rows_passes():
    case = Case(8, 4096, "fp32", Direction.FORWARD, "cpu")
    assert grade(case, ARITHMETIC["fused-exponent"].forward).grade is Grade.PASS


@pytest.mark.parametrize("shift", [2e7, -2e7, 3e38])
def test_an_exponent_without_a_fraction_is_wrong(shift):
    case = Case(8, 4096, "fp32", Direction.FORWARD, "cpu")
    x = 4 * torch.randn(8, 4096, generator=torch.Generator().manual_seed(1)) + shift
    assert grade(case, torch_forward, (x,)).grade is Grade.PASS
    assert grade(case, ARITHMETIC["fused-exponent"].forward, (x,)).grade is Grade.WRONG


SERIAL = {"serial-sum": 4096, "reversed-sum": 257, "over-another-axis": 50257}
"""Ways to add up, and the columns of each that are tried by default."""


@pytest.mark.parametrize(("N", "name"), sampled(itertools.product((257, 4096, 50257), SERIAL), lambda N, name: SERIAL[name] == N))
def test_a_serial_float32_sum_passes_on_structured_rows(name, N):
    case, given = structured(Direction.FORWARD, N)
    found = grade(case, ARITHMETIC[name].forward, given)
    assert (found.grade, found.worst <= 0.7) == (Grade.PASS, True), found
    for shift in (1e4, 1e5, 1e6, 4e6, -1e7):
        x = NUMERICS.make(case, 1, CPU)[0] + shift
        assert grade(case, ARITHMETIC[name].forward, (x,)).worst <= 0.7


@pytest.mark.parametrize("N", [257, 4096, 50257])
def test_a_serial_float32_dot_passes(N):
    case = Case(32, N, "fp32", Direction.BACKWARD, "cpu")
    dy, y = NUMERICS.make(case, 0, CPU)
    for gradient in (dy, torch.ones_like(dy), dy + 5, dy * 1e-6):
        assert grade(case, ARITHMETIC["serial-sum"].backward, (gradient, y)).worst <= 0.7


def test_a_sum_without_its_last_column_is_wrong():
    for N in (33, 257, 1024, 4096):
        case = Case(64, N, "fp32", Direction.FORWARD, "cpu")
        e = torch.exp(NUMERICS.make(case, 0, CPU)[0])
        assert grade(case, lambda x, e=e: e / e[:, :-1].sum(-1, keepdim=True)).grade is Grade.WRONG


MUTANTS_SHIFTED = {
    "zeros": torch.zeros_like,
    "the constant 1/N": lambda x: torch.full_like(x, 1 / x.shape[-1]),
    "no maximum subtracted": lambda x: x.exp() / x.exp().sum(-1, keepdim=True),
    "bf16 arithmetic": lambda x: torch.softmax(x.bfloat16(), -1).float(),
    "a dropped column": lambda x: torch.cat([torch.softmax(x[:, :-1], -1), 0 * x[:, :1]], -1),
    "four times as much": lambda x: 4 * torch.softmax(x, -1),
    "a quarter": lambda x: torch.softmax(x, -1) / 4,
    "the wrong axis": lambda x: torch.softmax(x, dim=0),
}


@pytest.mark.parametrize("mutant", MUTANTS_SHIFTED)
def test_mutants_stay_wrong_on_rows_shifted_by_ten_million(mutant):
    case = Case(8, 4096, "fp32", Direction.FORWARD, "cpu")
    x = NUMERICS.make(case, 0, CPU)[0] + 1e7
    assert grade(case, MUTANTS_SHIFTED[mutant], (x,)).grade is Grade.WRONG


def test_both_is_wrong_when_only_its_gradient_is():
    case = Case(8, 1024, "fp32", Direction.BOTH, "cpu")
    verdict = grade(case, lambda x, dy: (torch.softmax(x.detach(), -1), torch.softmax(x.detach(), -1) * dy))
    assert verdict.grade is Grade.WRONG
    assert verdict.detail.startswith("dx[")


def test_nan_and_infinities_must_be_where_the_reference_has_them():
    case = Case(3, 8, "fp32", Direction.FORWARD, "cpu")
    x = torch.randn(3, 8)
    x[0, 2], x[1, :], x[2, 1] = -math.inf, -math.inf, math.inf
    assert grade(case, torch_forward, (x,)).grade is Grade.PASS
    assert grade(case, lambda x: torch.softmax(x, -1).nan_to_num(), (x,)).grade is Grade.WRONG
    lost = torch.full((3, 8), math.nan)
    assert grade(case, lambda _: lost, (x,)).grade is Grade.FINITE_ONLY
    assert grade(case, lambda _: lost, (x.nan_to_num(neginf=0),)).worst == math.inf


@pytest.mark.parametrize("scale", [0.1, 1, 10, 100])
def test_structured_and_scaled_rows_stay_within_the_bound(scale):
    case = Case(4, 50257, "fp32", Direction.FORWARD, "cpu")
    for x in (torch.randn(4, 50257) * scale + 1e7 * (scale == 1), torch.arange(50257.0).repeat(4, 1) * scale / 1000):
        assert grade(case, torch_forward, (x,)).grade is Grade.PASS


def test_a_verdict_names_the_worst_element():
    case = Case(4, 64, "fp32", Direction.FORWARD, "cpu")
    verdict = grade(case, lambda x: torch.softmax(x, -1).index_put((torch.tensor(2), torch.tensor(7)), torch.tensor(0.5)))
    assert verdict.detail.startswith("y[2, 7] is 0.5 and should be")


def test_the_check_does_not_depend_on_the_chunks(monkeypatch):
    case = Case(64, 128, "bf16", Direction.FORWARD, "cpu")
    whole = grade(case, naive_forward)
    monkeypatch.setitem(check.CHUNK_BYTES, "cpu", 1)
    assert grade(case, naive_forward) == whole


def test_inputs_are_repeatable_and_differ_by_seed():
    case = Case(4, 32, "fp16", Direction.BACKWARD, "cpu")
    first, again, other = NUMERICS.make(case, 0, CPU), NUMERICS.make(case, 0, CPU), NUMERICS.make(case, 1, CPU)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    assert torch.allclose(first[1].float().sum(-1), torch.ones(4), atol=1e-2)


def online(guarded, x, parts=8):
    """An online softmax; without a guard a part of -inf alone is NaN."""
    high, total = torch.full_like(x[:, :1], -math.inf), torch.zeros_like(x[:, :1])
    for part in x.chunk(parts, dim=-1):
        higher = torch.maximum(high, part.amax(-1, keepdim=True))
        safe = torch.where(higher == -math.inf, 0.0, higher) if guarded else higher
        total = total * torch.exp(high - safe) + torch.exp(part - safe).sum(-1, keepdim=True)
        high = higher
    return torch.exp(x - high) / total


@pytest.fixture
def rows_with_masks():
    x = torch.randn(6, 4096, generator=torch.Generator().manual_seed(3))
    x[2, :1000] = -math.inf
    x[4, ::2] = -math.inf
    return x


def test_nan_in_rows_with_masks_alone_is_finite_only(rows_with_masks):
    case, x = Case(6, 4096, "fp32", Direction.FORWARD, "cpu"), rows_with_masks
    assert NUMERICS.check(case, (x,), (online(True, x),)).grade is Grade.PASS
    out = online(False, x)
    assert out[2].isnan().all()
    found = NUMERICS.check(case, (x,), (out,))
    assert (found.grade, found.worst <= 1) == (Grade.FINITE_ONLY, True)
    assert found.detail == "gives NaN in rows that hold -inf, and is right in all others"


def test_nan_in_rows_of_large_values_alone_is_not_put_down_to_masks(rows_with_masks):
    case, x = Case(6, 4096, "fp32", Direction.FORWARD, "cpu"), rows_with_masks
    x[2] += 100
    found = NUMERICS.check(case, (x,), (x.exp() / x.exp().sum(-1, keepdim=True),))
    assert found.grade is Grade.FINITE_ONLY
    assert found.detail == f"gives NaN in rows whose maximum is {x[2].max():.3g} or more, and is right in all others"


def test_finite_only_names_low_precision_of_other_rows(rows_with_masks):
    case, x = Case(6, 4096, "fp32", Direction.FORWARD, "cpu"), rows_with_masks
    x[0] += 1e5
    out = online(False, x)
    out[:1] = ARITHMETIC["fused-exponent"].forward(x[:1])
    found = NUMERICS.check(case, (x,), (out,))
    assert (found.grade, found.worst > 1) == (Grade.FINITE_ONLY, True), found
    assert found.detail.startswith("gives NaN in rows that hold -inf, and in others rounds max*log2(e)"), found.detail


@pytest.mark.parametrize("spoil", [(0, 5, math.nan), (0, 5, 0.5), (4, 0, 0.25), (2, 7, 0.0), (4, 1, math.inf)])
def test_other_errors_beside_such_nan_stay_wrong(rows_with_masks, spoil):
    case, x = Case(6, 4096, "fp32", Direction.FORWARD, "cpu"), rows_with_masks
    out = online(False, x)
    row, column, value = spoil
    out[row, column] = value
    expected = Grade.FINITE_ONLY if (row, value) == (2, 0.0) else Grade.WRONG  # 0 is right where x is -inf
    assert NUMERICS.check(case, (x,), (out,)).grade is expected


def test_nan_of_both_in_rows_with_masks_is_finite_only(rows_with_masks):
    case, x = Case(6, 4096, "fp32", Direction.BOTH, "cpu"), rows_with_masks
    dy = torch.randn(6, 4096, generator=torch.Generator().manual_seed(4))
    y = online(False, x)
    dx = y * (dy - (y * dy).sum(-1, keepdim=True))
    assert NUMERICS.check(case, (x, dy), (y, dx)).grade is Grade.FINITE_ONLY


class Reads(TorchDispatchMode):
    """Counts the numbers that Python reads of tensors."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("direction", "function", "most"), [("forward", torch_forward, 2), ("backward", fp32_backward, 1)])
def test_checking_right_outputs_waits_little_for_the_gpu(direction, function, most):
    """Each number that Python reads waits for the GPU. Only wrong outputs need the place of the worst element."""
    case = Case(64, 1000, "fp32", Direction(direction), "cpu")
    given = NUMERICS.make(case, 0, CPU)
    out = function(*given)
    with Reads() as reads:
        found = NUMERICS.check(case, given, (out,))
    assert (found.grade, found.detail) == (Grade.PASS, "")
    assert reads.count <= most
    assert "should be" in NUMERICS.check(case, given, (out * 1.5,)).detail


@pytest.mark.parametrize(("direction", "moved", "distinct"), [("forward", 2, 2), ("backward", 3, 3), ("both", 5, 4)])
def test_each_direction_has_its_moved_and_distinct_bytes(direction, moved, distinct):
    one = Case(8, 1024, "bf16", Direction(direction))
    assert OPERATION.at({}).bytes_moved(one) == moved * 8 * 1024 * 2
    assert OPERATION.at({}).distinct_bytes(one) == distinct * 8 * 1024 * 2
    assert OPERATION.at({}).largest_bytes(one) == 8 * 1024 * 2


def test_bandwidth_is_decimal_gigabytes_a_second():
    assert OPERATION.at({}).gbps(Case(8, 1024, "bf16", Direction.FORWARD), 1.0) == pytest.approx(2 * 8 * 1024 * 2 / 1000)
