"""Tensors as rows for the kernels, and back."""

import pytest
import torch
from softbench.kernels.common import rows


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
