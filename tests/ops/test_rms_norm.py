"""The bounds of RMSNorm beside `test_ways.py`: what is said of results, references, and inputs."""

import math

import numpy
import pytest
import torch
from rms_norms import RIGHT, WRONG

from softbench.backends import naive, torch_eager
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops import second_opinion
from softbench.ops.registry import operation
from softbench.ops.rms_norm import NUMERICS
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck

CPU = torch.device("cpu")
F, B = Direction.FORWARD, Direction.BACKWARD
OP = "rms_norm"
dtypes = pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])


def case_of(M, N, dtype, direction, op=OP):
    return Case(M, N, dtype, direction, "cpu", op)


def graded(call, case, seed=3):
    """The verdict of a run's check: structured rows, then normal ones."""
    return PreCheck(case, call, NUMERICS.make(case, seed, CPU), object(), None).run(seed)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("name", ["zeros", "no EPS", "EPS outside the root", "sum for mean", "mean removed", "no weight", "root missing"])
def test_gross_errors_are_rejected_in_16_bits(name, dtype):
    assert graded(WRONG[name](), case_of(40, 512, dtype, F)).grade is Grade.WRONG


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_mean_in_16_bits_is_wrong(dtype):
    def eager(x, w):
        return x * torch.rsqrt((x * x).cumsum(-1)[:, -1:] / x.shape[1] + 1e-6) * w  # each partial sum is rounded

    assert graded(eager, case_of(40, 4096, dtype, F)).grade is Grade.WRONG


@dtypes
def test_the_code_of_transformers_is_of_low_precision_in_16_bits(dtype):
    case = case_of(64, 1024, dtype, F)
    found = graded(naive.backend.prepare(case), case)
    assert found.grade is (Grade.PASS if dtype == "fp32" else Grade.LOW_PRECISION), found
    if dtype != "fp32":
        assert found.detail.startswith("rounds x * rstd, or its product of dy and w, to 16 bits: y[")


def test_the_parameter_is_added_to_the_mean():
    for eps in (1e-5, 1.0):
        case = case_of(40, 256, "fp32", F, f"{OP}(eps={eps})")
        assert graded(torch_eager.backend.prepare(case), case).grade is Grade.PASS
        assert graded(RIGHT["float32"], case).grade is Grade.WRONG  # it has the default


@pytest.mark.parametrize("eps", [1e-6, 1e-3])
def test_the_reference_is_that_of_torch_and_of_numpy(eps):
    op = f"{OP}(eps={eps})"
    x, dy = torch.randn((2, 20, 33), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    w = torch.rand(33, dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    y = torch.nn.functional.rms_norm(leaf, (33,), w, eps)
    (dx,) = torch.autograd.grad(y, leaf, dy)
    rstd = 1 / (x.square().mean(-1) + eps).sqrt()
    for direction, given, expected in ((F, (x, w), y.detach()), (B, (dy, x, w, rstd), dx)):
        case = case_of(20, 33, "fp32", direction, op)
        torch.testing.assert_close(NUMERICS.reference(case, *given)[0], expected, rtol=1e-12, atol=1e-12)
        again = NUMERICS.again(case, *(tensor.numpy() for tensor in given))[0]
        numpy.testing.assert_allclose(again.expected, expected.numpy(), rtol=1e-12, atol=1e-12)


@dtypes
@pytest.mark.parametrize("direction", [F, B])
def test_honest_outputs_never_disagree_with_numpy(direction, dtype, monkeypatch):
    monkeypatch.setattr(second_opinion, "chosen", lambda M: frozenset(range(M)))  # every row
    for N in (1, 33, 600):
        case = case_of(60, N, dtype, direction)
        given = NUMERICS.make(case, 0, CPU)
        NUMERICS.make_structured(given, case, 0)
        for backend in (naive.backend, torch_eager.backend):
            found = NUMERICS.check(case, given, (backend.prepare(case)(*given),))
            assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), (N, found)


def test_no_row_of_infinities_is_taken_for_a_mask():
    """-inf in x is no mask: its row is NaN or zero, and NaN elsewhere is wrong."""
    case = case_of(4, 64, "fp32", F)
    x, w = NUMERICS.make(case, 0, CPU)
    x[1, 3] = -math.inf
    assert NUMERICS.check(case, (x, w), (RIGHT["float32"](x, w),)).grade is Grade.PASS
    lost = RIGHT["float32"](x, w).index_fill(0, torch.tensor([1]), math.nan)
    assert NUMERICS.check(case, (x, w), (lost,)).grade is Grade.WRONG


def test_gradients_of_float16_stay_finite():
    case = case_of(60, 40, "fp16", B, f"{OP}(eps=1e-12)")
    given = NUMERICS.make(case, 0, CPU)
    given[1].mul_(1e-4)
    NUMERICS.derived(case, given)
    assert naive.backend.prepare(case)(*given).isfinite().all()


def test_bytes_are_the_rows_the_weight_and_rstd():
    assert operation(OP).bytes_moved(case_of(8, 1000, "bf16", F)) == 2 * (2 * 8 * 1000 + 1000)
    assert operation(OP).bytes_moved(case_of(8, 1000, "bf16", B)) == 2 * (3 * 8 * 1000 + 1000) + 4 * 8


SOME = ("shape 37x33", "structured 3x1000", "shape 0x16", "twice the same", "outputs held over later calls", "many calls")


@pytest.mark.parametrize("direction", [F, B])
def test_backends_pass_the_check_cases(direction):
    for backend in (naive.backend, torch_eager.backend):
        runner = CheckCaseRunner(backend, "cpu", operation=OP)
        assert {runner.run(name, direction, "fp32", 0).grade for name in SOME} == {Grade.PASS}
