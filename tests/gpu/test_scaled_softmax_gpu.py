"""Softmax with a scale and a float32 result on a GPU: right kernels are accepted, wrong ones are not, and the backends are right."""

import pytest
import torch
from scaled import HONEST, graded, wrong_ones

from softbench.backends import naive, third_party, torch_compile, torch_eager
from softbench.core.case import Case
from softbench.core.outcome import Grade
from softbench.ops.registry import operation
from softbench.plugins.traits import unsupported

pytestmark = pytest.mark.gpu

CASES = (
    ("softmax(scale=0.7)", "fp32"),
    ("softmax(scale=30)", "fp16"),
    ("softmax(scale=row)", "bf16"),
    ("softmax(scale=row,out_dtype=fp32)", "bf16"),
)


@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_right_kernels_are_accepted_and_wrong_ones_found(op, dtype, direction):
    for name, make in HONEST.items():
        found = graded(make, op, dtype, direction, device="cuda")
        assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), (name, found.detail)
        assert found.grade is Grade.PASS or name == "folded", (name, found.detail)
    for name, make in wrong_ones(op, direction).items():
        assert graded(make, op, dtype, direction, device="cuda").grade is Grade.WRONG, name


@pytest.mark.parametrize(("op", "dtype"), CASES)
@pytest.mark.parametrize(
    "backend", [torch_eager.backend, naive.backend, torch_compile.backend, third_party.flashinfer], ids=lambda one: one.name
)
def test_backends_with_parameters_are_right(backend, op, dtype):
    if reason := backend.available():
        pytest.skip(reason)
    for direction in operation("softmax").directions:
        if not unsupported(backend, Case(66, 257, dtype, direction, "cuda", op)):
            found = graded(backend.prepare, op, dtype, direction, device="cuda")
            assert found.grade in (Grade.PASS, Grade.LOW_PRECISION), (direction, found.detail)
    torch.cuda.synchronize()
