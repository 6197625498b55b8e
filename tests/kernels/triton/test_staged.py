"""The generic kernels under the interpreter, and the rows of a staged pass. `test_dispatch.py` runs the tier staged."""

LOOPS = """
import torch
from softbench.kernels.triton.generic import gradient_loop, loop_over_row
torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
    x, dy = torch.randn(2, 3, 100, dtype=dtype).unbind()
    x[0, :20] = -float("inf")  # a lane sees only -inf at first
    y, dx = torch.empty_like(x), torch.empty_like(x)
    loop_over_row[(3,)](x, y, 100, 100, 3, 100, 16, False, None)
    gradient_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16, False, None)
    assert torch.allclose(y, torch.softmax(x, -1), atol=tolerance)
    assert torch.allclose(dx, y * (dy - (dy * y).sum(-1, keepdim=True)), atol=tolerance)
    loop_over_row[(3,)](x, y, 100, 100, 3, 100, 16, True, None)
    gradient_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16, True, None)
    assert torch.allclose(y, torch.log_softmax(x, -1), atol=20 * tolerance)
    assert torch.allclose(dx, dy - y.exp() * dy.sum(-1, keepdim=True), atol=20 * tolerance)
    scale = torch.tensor([0.5, 2.0, 1.5])
    loop_over_row[(3,)](x, y, 100, 100, 3, 100, 16, False, scale)
    gradient_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16, False, scale)
    assert torch.allclose(y, torch.softmax(x * scale[:, None], -1), atol=tolerance)
    assert torch.allclose(dx, scale[:, None] * y * (dy - (dy * y).sum(-1, keepdim=True)), atol=2 * tolerance)
print("fine")
"""


def test_loops_are_right_in_float32_and_float64(run_interpreted):
    run_interpreted(LOOPS)
