"""Softmax over a dimension that is not the last, under the interpreter: any inner extent and alignment, and strides without a copy."""

ANY_DIMENSION = """
import torch
from softbench.kernels.triton import strided

def launch(*tensors, log=False, scale=None):
    kernel, programs, arguments, options = strided.prepare(tensors)
    kernel[(programs,)](*tensors, *arguments, log, scale, **options)
    return tensors[-1]

torch.manual_seed(0)
for dtype, unit in ((torch.float32, 3e-7), (torch.bfloat16, 2**-7)):
    for shape in ((2, 21, 64), (3, 40, 28), (5, 5, 7), (3, 9, 1), (1, 130, 6)):
        for log in (False, True):
            x = torch.randn(shape).to(dtype)
            x[0, :-1, 0], x[-1, 0] = -torch.inf, 9.0
            y = launch(x, torch.empty_like(x), log=log)
            wide = x.double()
            expected = torch.log_softmax(wide, 1) if log else torch.softmax(wide, 1)
            assert torch.allclose(y.double(), expected, rtol=unit, atol=4 * unit), (dtype, shape, log)
            y, dy = torch.log_softmax(torch.randn(shape), 1).to(dtype), torch.randn(shape).to(dtype)
            y = y if log else y.exp()
            dx = launch(dy, y, torch.empty_like(y), log=log)
            a, b = y.double(), dy.double()
            expected = b - a.exp() * b.sum(1, keepdim=True) if log else a * (b - (a * b).sum(1, keepdim=True))
            assert torch.allclose(dx.double(), expected, rtol=unit, atol=8 * unit), (dtype, shape, log)
x = torch.randn(6, 40, 8)
for given in (x.transpose(1, 2), x.permute(2, 0, 1), x[:, 3:, 1:]):  # columns beside each other or not, rows that begin anywhere
    y = launch(given, torch.empty(given.shape))
    assert torch.allclose(y.double(), torch.softmax(given.double(), 1), atol=1e-6)
print("fine")
"""


def test_any_dimension_is_right_without_copies(run_interpreted):
    run_interpreted(ANY_DIMENSION)
