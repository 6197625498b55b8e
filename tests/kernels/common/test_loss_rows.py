"""Checks of what the losses' kernels are given."""

import pytest
import torch
from softbench.kernels.common.loss_rows import logits_and_targets, number_of_rows

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
