"""The product of matrices: its bound, its operations, and the rate of the fastest one."""

import pytest
import torch

from softbench.backends import torch_eager
from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.worker.checking.check_case import CheckCaseRunner
from softbench.worker.checking.pre_check import PreCheck
from softbench.worker.timing import matrix_products

CPU = torch.device("cpu")


def case_of(dtype="fp32", K=128):
    return Case(48, 96, dtype, Direction.FORWARD, "cpu", f"matmul(K={K})")


def rounded(tensor, bits):
    """float32 with so many bits of its fraction, rounded to nearest."""
    unit = 1 << (23 - bits)
    return ((tensor.view(torch.int32) + unit // 2) & -unit).view(torch.float32)


WAYS = {
    "torch": (lambda a, b: a @ b, Grade.PASS),
    "TF32": (lambda a, b: rounded(a, 10) @ rounded(b, 10), Grade.LOW_PRECISION),
    "bf16": (lambda a, b: (a.bfloat16() @ b.bfloat16()).float(), Grade.WRONG),
    "without the last k": (lambda a, b: a[:, :-1] @ b[:-1], Grade.WRONG),
    "b of the next column": (lambda a, b: a @ b.roll(1, 1), Grade.WRONG),
    "zeros in the last row": (lambda a, b: (a @ b).index_fill(0, torch.tensor([len(a) - 1]), 0), Grade.WRONG),
}


@pytest.mark.parametrize("name", WAYS)
def test_right_and_wrong_products_are_told_apart(name):
    call, grade = WAYS[name]
    case = case_of()
    assert PreCheck(case, call, numerics(case.op).make(case, 0, CPU), object(), None).run(1).grade is grade


def test_the_backend_passes_the_check_cases():
    runner = CheckCaseRunner(torch_eager.backend, "cpu", operation="matmul")
    for dtype in ("fp32", "bf16"):
        assert {runner.run(name, direction, dtype, 0).grade for name, direction in runner.items} <= {Grade.PASS, Grade.LOW_PRECISION}


def test_operations_and_bytes_follow_from_the_axes():
    found = operation(case_of().op)
    assert (found.flops(case_of()), found.bytes_moved(case_of())) == (2 * 48 * 96 * 128, 4 * (48 * 128 + 128 * 96 + 48 * 96))
    assert operation("rms_norm").flops(Case(8, 8, "fp32", Direction.FORWARD, "cpu", "rms_norm")) == 0


def test_the_fastest_product_has_a_rate(monkeypatch):
    monkeypatch.setattr(matrix_products, "SIDES", {"cpu": (64, 128)})
    monkeypatch.setattr(matrix_products, "SECONDS", 0.01)
    assert 0 < matrix_products.tflops(torch.float32, "cpu") < 1000
    monkeypatch.setattr(matrix_products, "SECONDS_ALONE", 0.01)
    assert 0 < matrix_products.tflops_alone((64, 16, 96), torch.bfloat16, "cpu", gradients=True) < 1000
