"""Tensors as rows, and checks of what the kernels of losses are given."""

import pytest
import torch
from softbench.kernels.common import rows
from softbench.kernels.common.losses import logits_and_targets, number_of_rows


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
