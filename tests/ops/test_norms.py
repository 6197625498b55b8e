"""layer_norm and add_rms_norm: wrong ways are found, right ones are not, and a sum over rows is compared as a whole."""

from functools import partial

import pytest
import torch

from softbench.backends import naive, torch_eager
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck, verify_outputs
from softbench.worker.timing.rotating_inputs import RotatingInputs

CPU = torch.device("cpu")
F, B = Direction.FORWARD, Direction.BACKWARD
LN, ARN = "layer_norm", "add_rms_norm"


def case_of(op, direction, dtype="fp32", shape=(48, 96)):
    return Case(*shape, dtype, direction, "cpu", op)


def right(op, direction, dtype="fp32"):
    return naive.backend.prepare(case_of(op, direction, dtype))


def graded(call, case, seed=3):
    return PreCheck(case, call, numerics(case.op).make(case, seed, CPU), object(), None).run(seed)


def norm(x, w, b, *, variance=lambda below: below.square().mean(-1), root=lambda variance: torch.rsqrt(variance + 1e-5)):
    mean = x.float().mean(-1)
    below = x.float() - mean[:, None]
    rstd = root(variance(below))
    return (below * rstd[:, None] * w.float() + b.float()).to(x.dtype), mean, rstd


def replaced(op, direction, place, change):
    """The right outputs, of which one is changed; `change` gets it and the inputs."""

    def call(*given):
        out = list(right(op, direction)(*given))
        out[place] = change(out[place], *given).to(out[place].dtype)
        return tuple(out)

    return call


def cached(place):
    """An output of the first call in every call."""
    kept = []

    def call(*given):
        out = list(right(LN, B)(*given))
        kept.append(out[place])
        out[place] = kept[0].clone()
        return tuple(out)

    return call


WRONG = {
    "eps outside the root": (LN, F, lambda *given: norm(*given, root=lambda variance: 1 / (variance.sqrt() + 1e-5))),
    "variance of N - 1": (LN, F, lambda *given: norm(*given, variance=lambda below: below.square().sum(-1) / (below.shape[1] - 1))),
    "variance in one pass": (LN, F, lambda x, w, b: norm(x, w, b, variance=lambda below: x.square().mean(-1) - x.mean(-1).square())),
    "statistics not saved": (LN, F, replaced(LN, F, 2, lambda rstd, *given: torch.zeros_like(rstd))),
    "variance saved": (LN, F, replaced(LN, F, 2, lambda rstd, *given: rstd**-2)),
    "dW of the first rows": (LN, B, replaced(LN, B, 1, lambda dw, dy, x, w, m, r: (dy * (x - m[:, None]) * r[:, None])[:-1].sum(0))),
    "dW with the mean": (LN, B, replaced(LN, B, 1, lambda dw, dy, x, w, m, r: (dy * x * r[:, None]).sum(0))),
    "dB of the last row": (LN, B, replaced(LN, B, 2, lambda db, dy, *given: dy[-1])),
    "dX without its mean": (LN, B, replaced(LN, B, 0, lambda dx, dy, x, w, m, r: dx + r[:, None] * (w * dy).mean(-1, keepdim=True))),
    "residual not updated": (ARN, F, replaced(ARN, F, 1, lambda s, x, residual, w: residual)),
    "norm of x": (ARN, F, replaced(ARN, F, 0, lambda y, x, residual, w: torch.nn.functional.rms_norm(x, w.shape, w, 1e-6))),
    "rstd not saved": (ARN, F, replaced(ARN, F, 2, lambda rstd, *given: torch.ones_like(rstd))),
    "ds lost": (ARN, B, replaced(ARN, B, 0, lambda dx, dy, ds, *given: dx - ds)),
    "dW of the first half": (ARN, B, replaced(ARN, B, 1, lambda dw, dy, ds, s, w, r: (dy * s * r[:, None])[: len(dy) // 2].sum(0))),
    "dW without rstd": (ARN, B, replaced(ARN, B, 1, lambda dw, dy, ds, s, w, r: (dy * s).sum(0))),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ways_are_found(name):
    op, direction, call = WRONG[name]
    assert graded(call, case_of(op, direction)).grade is Grade.WRONG


@pytest.mark.parametrize("op", [LN, ARN])
@pytest.mark.parametrize("direction", [F, B])
def test_right_ways_are_accepted(op, direction):
    other = f"{op}(eps=0.01,saved=false)"
    for text, dtype, shape in ((op, "fp32", (48, 96)), (op, "bf16", (5, 1031)), (other, "fp16", (300, 33)), (other, "fp32", (5, 1031))):
        case = case_of(text, direction, dtype, shape)
        for backend in (naive.backend, torch_eager.backend):
            assert graded(backend.prepare(case), case).grade in (Grade.PASS, Grade.LOW_PRECISION), (text, dtype)


@pytest.mark.parametrize("op", [LN, ARN])
def test_gradients_are_those_of_autograd(op):
    case = case_of(op, B, shape=(20, 33))
    dy, x, ds = torch.randn((3, 20, 33), dtype=torch.float64)
    leaves = x.clone().requires_grad_(), torch.ones(33, dtype=torch.float64).requires_grad_(), torch.zeros(33, dtype=torch.float64)
    given = (x, leaves[1].detach(), leaves[2]) if op == LN else (x, torch.zeros_like(x), leaves[1].detach())
    saved = numerics(op).reference(case_of(op, F, shape=(20, 33)), *given)
    if op == LN:
        bias = leaves[2].requires_grad_()
        y = torch.nn.functional.layer_norm(leaves[0], (33,), leaves[1], bias, 1e-5)
        expected = torch.autograd.grad(y, (leaves[0], leaves[1], bias), dy)
        found = numerics(op).reference(case, dy, x, given[1], *saved[1:])
    else:
        y = torch.nn.functional.rms_norm(leaves[0], (33,), leaves[1], 1e-6)
        expected = torch.autograd.grad((y, leaves[0] * 1), leaves[:2], (dy, ds))
        found = numerics(op).reference(case, dy, ds, x, given[2], saved[2])
    for got, want in zip(found, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


SOME = ("shape 37x33", "structured 5x4102", "shape 0x16", "twice the same", "outputs held over later calls")


@pytest.mark.parametrize("op", [LN, ARN])
def test_backends_pass_the_check_cases(op):
    for direction in (F, B):
        runner = CheckCaseRunner(torch_eager.backend, "cpu", operation=op)
        assert {runner.run(name, direction, "fp32", 0).grade for name in SOME} == {Grade.PASS}


@pytest.mark.parametrize("place", [0, 1])
def test_an_output_of_an_earlier_call_is_found_in_timed_calls(place):
    """One call of a batch is compared, and the first one is right, so one batch in eight finds nothing."""
    case = case_of(LN, B)
    rotation = RotatingInputs(case, numerics(LN).make(case, 0, CPU), cached(place), overwrites=False)
    found = []
    for _ in range(6):
        body = rotation.renew()
        rotation.stir()
        for _ in range(12):
            body()
        rotation.collect()
        found.append(rotation.verify(partial(verify_outputs, object())))
    wrong = [one for one in found if one.grade is Grade.WRONG]
    assert wrong and "in a timed call" in wrong[0].detail


def test_bytes_are_those_of_all_tensors_of_a_pass():
    rows, column, each = 2 * 8 * 1000, 2 * 1000, 4 * 8
    found = [operation(op).bytes_moved(case_of(op, direction, "bf16", (8, 1000))) for op in (LN, ARN) for direction in (F, B)]
    assert found == [
        2 * rows + 2 * column + 2 * each,
        3 * rows + 3 * column + 2 * each,
        4 * rows + column + each,
        4 * rows + 2 * column + each,
    ]
