"""`Softmax`, tensors as rows, and checks of what the kernels of losses are given."""

import numpy as np
import pytest
import torch
from softbench.kernels.common import rows
from softbench.kernels.common.losses import logits_and_targets, number_of_rows
from softbench.kernels.common.softmax import Softmax


def by_row(scale):
    return scale[:, None] if isinstance(scale, torch.Tensor) else scale


def softmax_of_torch():
    def forward(x, y, scale=1.0):
        y.copy_(torch.softmax(x.double() * by_row(scale), 1))

    def backward(dy, y, dx, scale=1.0):
        dy, y = dy.double(), y.double()
        dx.copy_(by_row(scale) * y * (dy - (dy * y).sum(1, keepdim=True)))

    return Softmax(forward, backward, ("cpu",))


@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((5, 7), 0), ((2, 3, 4), 1), ((6,), 0), ((), -1), ((0, 3), 1)])
def test_result_and_gradient_are_those_of_torch(shape, dim):
    x, dy = torch.randn(shape, requires_grad=True), torch.randn(shape)
    y = softmax_of_torch()(x, dim)
    expected = torch.softmax(x, dim)
    assert torch.allclose(y, expected)
    assert torch.allclose(*(torch.autograd.grad(out, x, dy)[0] for out in (y, expected)), atol=1e-6)


@pytest.mark.parametrize(("shape", "dim"), [((5, 7), -1), ((5, 7), 0), ((2, 3, 4), 1), ((6,), 0), ((), -1), ((0, 3), 1), ((3, 0), 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_scaled_and_wider_results_have_their_gradients(shape, dim, dtype):
    x, dy = torch.randn(shape, dtype=dtype, requires_grad=True), torch.randn(shape)
    rows = x.numel() // x.shape[dim] if shape and x.shape[dim] else 1 if x.numel() else 3
    for scale in (0.7, torch.rand(2 * rows)[::2] + 0.5):
        y = softmax_of_torch()(x, dim, dtype=torch.float32, scale=scale)
        (dx,) = torch.autograd.grad(y, x, dy)
        assert (y.dtype, dx.dtype, y.shape, dx.shape) == (torch.float32, dtype, x.shape, x.shape)
        wide = x.detach().double().requires_grad_()
        if not shape or not x.numel() or not isinstance(scale, torch.Tensor):
            factor = scale if isinstance(scale, float) else 1.0
        else:
            factor = scale.view(wide.movedim(dim, -1).shape[:-1]).unsqueeze(dim)
        expected = torch.softmax(wide * factor, dim)
        assert torch.allclose(y.double(), expected, atol=1e-6)
        (gradient,) = torch.autograd.grad(expected, wide, dy.double())
        assert torch.allclose(dx.double(), gradient, atol=2e-2 if dtype is torch.bfloat16 else 1e-5)


def test_a_gradient_of_a_gradient_is_refused():
    x = torch.randn(5, 7, requires_grad=True)
    (dx,) = torch.autograd.grad(softmax_of_torch()(x)[:, 0].sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiable once; torch's own functions have gradients of any order"):
        torch.autograd.grad(dx.square().sum() + x.sum(), x)


def test_invalid_scales_and_dtypes_are_refused():
    softmax, x = softmax_of_torch(), torch.ones(3, 4)
    for scale in (0.0, -1.0, float("nan"), float("inf"), 1e39, 10**400, 1e-60):
        with pytest.raises(ValueError, match="it must be positive and finite"):
            softmax(x, scale=scale)
    for scale in (torch.ones(4), torch.ones(3, dtype=torch.float64), torch.ones(3, 1), torch.ones(3, device="meta")):
        with pytest.raises(TypeError, match=r"it must be \(3,\) float32 on cpu, one number a row"):
            softmax.backward(x, x, scale=scale)
    with pytest.raises(TypeError, match="scale requires a gradient"):
        softmax(x, scale=torch.ones(3, requires_grad=True))
    with pytest.raises(TypeError, match=r"softmax of torch\.float32 as torch\.float16"):
        softmax(x, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"dx as torch\.float16 of y as torch\.bfloat16"):
        softmax.backward(x.bfloat16(), x.bfloat16(), dtype=torch.float16)
    without = Softmax(softmax.launch_forward, softmax.launch_backward, ("cpu",), "log_softmax", scales=False)
    for call in (without, lambda x, scale: without.backward(x, x, scale=scale)):
        with pytest.raises(TypeError, match="log_softmax takes no scale here"):
            call(x, scale=0.7)


def test_no_grad_takes_a_scale_with_a_gradient():
    softmax, x, scale = softmax_of_torch(), torch.randn(3, 4), torch.full((3,), 0.5, requires_grad=True)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert torch.equal(softmax(x, scale=scale), softmax(x, scale=0.5))


def test_numbers_of_other_types_are_scales():
    softmax, x = softmax_of_torch(), torch.randn(3, 4)
    for scale in (2, np.float32(2), np.int64(2)):
        assert torch.equal(softmax(x, scale=scale), softmax(x, scale=2.0))


def test_rows_are_computed_without_checks():
    x, dy = torch.randn(2, 4, 6).unbind()
    softmax = softmax_of_torch()
    y = softmax.forward_rows(x)
    assert torch.equal(y, softmax.forward(x))
    assert torch.equal(softmax.backward_rows(dy, y), softmax.backward(dy, y))
    wide = softmax.forward_rows(x.bfloat16(), dtype=torch.float32, scale=0.7)
    assert torch.equal(wide, softmax.forward(x.bfloat16(), dtype=torch.float32, scale=0.7))
    narrow = softmax.backward_rows(dy, y, dtype=torch.bfloat16, scale=0.7)
    assert torch.equal(narrow, softmax.backward(dy, y, dtype=torch.bfloat16, scale=0.7))


def test_other_dtypes_and_devices_and_mismatched_gradients_are_refused():
    softmax = softmax_of_torch()
    with pytest.raises(TypeError, match="the kernels take float32, float16 and bfloat16"):
        softmax(torch.ones(3, dtype=torch.int32))
    with pytest.raises(TypeError, match="the kernels run on cpu"):
        softmax(torch.ones(3, device="meta"))
    with pytest.raises(TypeError, match="they must agree"):
        softmax.backward(torch.ones(3), torch.ones(4))


def test_rows_are_views_if_strides_allow_and_round_trip():
    x = torch.randn(4, 5, 6)
    assert rows.as_rows(x, -1).data_ptr() == x.data_ptr()
    wide = torch.randn(4, 128)[:, :100]
    assert rows.as_rows(wide, -1).data_ptr() == wide.data_ptr()
    assert rows.as_rows(wide, -1).stride() == (128, 1)
    for dim in range(3):
        assert torch.equal(rows.from_rows(rows.as_rows(x, dim).contiguous(), x, dim), x)
    assert rows.as_rows(x.t() if x.dim() == 2 else x.transpose(0, 2), -1).stride(-1) == 1


@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 4), (6,), (), (0, 3), (4, 1, 1)])
def test_apply_to_rows_returns_contiguous_results_over_any_dim(shape):
    def launch(x, y):
        assert x.dim() == y.dim() == 2 and x.stride(1) == 1
        y.copy_(torch.softmax(x, 1))

    x = torch.randn(shape)
    for dim in range(max(1, len(shape))):
        for dtype in (None, torch.float64):
            y = rows.apply_to_rows(launch, (x,), dim, dtype)
            assert y.is_contiguous() and y.shape == x.shape and y.dtype == (dtype or x.dtype)
            assert torch.allclose(y, torch.softmax(x, dim, dtype=dtype))


def test_canonical_dim_counts_from_zero_and_refuses_others():
    assert [rows.canonical_dim(dim, 3) for dim in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    assert rows.canonical_dim(-1, 0) == 0
    for dim, dimensions in ((3, 3), (-4, 3), (1, 0)):
        with pytest.raises(IndexError, match="Dimension out of range"):
            rows.canonical_dim(dim, dimensions)


X, TARGET = torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)
CPU = ("cpu",)


def test_rows_with_adjacent_elements_are_not_copied():
    wide = torch.zeros(3, 9)[:, :5]
    assert logits_and_targets(wide, TARGET, CPU)[0] is wide
    assert logits_and_targets(torch.zeros(5, 3).T, TARGET, CPU)[0].stride() == (5, 1)
    assert logits_and_targets(X, torch.zeros(6, dtype=torch.int64)[::2], CPU)[1].is_contiguous()


@pytest.mark.parametrize(
    ("x", "target", "error", "said"),
    [
        (X[0], TARGET, ValueError, r"x is \(5,\); it must be \(M, N\) with an N from 1"),
        (X[:, :0], TARGET, ValueError, r"x is \(3, 0\); it must be \(M, N\)"),
        (X.double(), TARGET, TypeError, "x is torch.float64 on cpu; the kernels take float32, float16 and bfloat16 on cpu"),
        (X, TARGET.int(), TypeError, r"target is \(3,\) torch.int32 on cpu; it must be \(3,\) int64 on cpu"),
        (X, TARGET[:2], TypeError, r"target is \(2,\) torch.int64 on cpu; it must be \(3,\) int64 on cpu"),
    ],
)
def test_logits_or_targets_that_do_not_fit_are_named(x, target, error, said):
    with pytest.raises(error, match=said):
        logits_and_targets(x, target, CPU)


def test_a_number_of_rows_has_their_dtype_and_shape():
    with pytest.raises(TypeError, match=r"dloss is \(3,\) torch.float64 on cpu; it must be \(3,\) float32 on cpu"):
        number_of_rows(torch.ones(3, dtype=torch.float64), X, "dloss")
    assert number_of_rows(torch.ones(6)[::2], X, "lse").is_contiguous()
