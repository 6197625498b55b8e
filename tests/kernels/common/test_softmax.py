"""The differentiable function of two launchers, here launchers of torch's softmax on the CPU."""

import pytest
import torch
from softbench.kernels.common.softmax import Softmax


def softmax_of_torch():
    def forward(x, y):
        y.copy_(torch.softmax(x, 1))

    def backward(dy, y, dx):
        dx.copy_(y * (dy - (dy * y).sum(1, keepdim=True)))

    return Softmax(forward, backward, ("cpu",))


@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((5, 7), 0), ((2, 3, 4), 1), ((6,), 0), ((), -1), ((0, 3), 1)])
def test_result_and_gradient_are_those_of_torch(shape, dim):
    x, dy = torch.randn(shape, requires_grad=True), torch.randn(shape)
    y = softmax_of_torch()(x, dim)
    expected = torch.softmax(x, dim)
    assert torch.allclose(y, expected)
    assert torch.allclose(*(torch.autograd.grad(out, x, dy)[0] for out in (y, expected)), atol=1e-6)


def test_rows_are_computed_without_checks():
    x, dy = torch.randn(2, 4, 6).unbind()
    softmax = softmax_of_torch()
    y = softmax.forward_rows(x)
    assert torch.equal(y, softmax.forward(x))
    assert torch.equal(softmax.backward_rows(dy, y), softmax.backward(dy, y))


def test_other_dtypes_and_devices_and_mismatched_gradients_are_refused():
    softmax = softmax_of_torch()
    with pytest.raises(TypeError, match="the kernels take float32, float16 and bfloat16"):
        softmax(torch.ones(3, dtype=torch.int32))
    with pytest.raises(TypeError, match="the kernels run on cpu"):
        softmax(torch.ones(3, device="meta"))
    with pytest.raises(TypeError, match="they must agree"):
        softmax.backward(torch.ones(3), torch.ones(4))
