"""The public functions of the Triton kernels, and rows."""

import os
import subprocess
import sys

import pytest
import torch
from softbench.kernels.common import rows

INTERPRETED = """
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
    raise AssertionError("it was taken")
print("fine")
"""


@pytest.mark.parametrize("module", ["tiers", "row", "tile"])
def test_the_public_functions_take_any_shape_and_dim_and_differentiate(module):
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED.format(module=module)],
        env={**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_rows_are_views_where_strides_allow_and_come_back_as_they_were():
    x = torch.randn(4, 5, 6)
    assert rows.as_rows(x, -1).data_ptr() == x.data_ptr()
    wide = torch.randn(4, 128)[:, :100]
    assert rows.as_rows(wide, -1).data_ptr() == wide.data_ptr()
    assert rows.as_rows(wide, -1).stride() == (128, 1)
    for dim in range(3):
        assert torch.equal(rows.from_rows(rows.as_rows(x, dim).contiguous(), x, dim), x)
    assert rows.as_rows(x.t() if x.dim() == 2 else x.transpose(0, 2), -1).stride(-1) == 1
