"""Runs Python code under Triton's interpreter, in a fork that has not imported Triton, because the interpreter must be chosen before."""

import os
from pathlib import Path

from forks import Forks

PUBLIC_FUNCTION = """
import torch
from softbench.kernels.triton.{module} import softmax
torch.manual_seed(0)
for shape, dim in (((5, 7), -1), ((2, 3, 4), 1), ((6,), 0), ((), -1), ((0, 3), 1)):
    x = torch.randn(shape, requires_grad=True)
    dy = torch.randn(shape)
    y = softmax(x, dim)
    (dx,) = torch.autograd.grad(y, x, dy)
    z = x.detach().double().requires_grad_()
    expected = torch.softmax(z, dim)
    (slope,) = torch.autograd.grad(expected, z, dy.double())
    assert y.shape == x.shape and torch.allclose(y.double(), expected, atol=1e-6), shape
    assert dx.shape == x.shape and torch.allclose(dx.double(), slope, atol=1e-6), shape
for bad, error in ((lambda: softmax(torch.ones(3, dtype=torch.int32)), TypeError), (lambda: softmax(torch.ones(3), 1), IndexError)):
    try:
        bad()
    except error:
        continue
    raise AssertionError("no error was raised")
print("fine")
"""
"""Checks a module's `softmax` on several shapes, with its gradient and its errors."""


QUICK = f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import quick_interpreter\n"


def interpreted(forks: Forks, code: str, timeout: float = 120) -> None:
    """Runs code that prints `fine` if it succeeds."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = forks.run_code(QUICK + code, environment, timeout)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]
