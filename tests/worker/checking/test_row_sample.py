"""Large tensors are compared on a sample of rows, which has every kind, the edges, and the rows that differ most."""

import pytest
import torch

from softbench.core.case import Case, Direction
from softbench.core.outcome import Grade
from softbench.ops.registry import numerics, operation
from softbench.ops.softmax import NUMERICS
from softbench.worker.checking import row_sample
from softbench.worker.checking.pre_check import PreCheck, one_thread

CPU = torch.device("cpu")


def test_small_tensors_are_compared_in_full():
    assert row_sample.rows_to_compare(Case(1024, 4096, "fp32", Direction.FORWARD, "cpu"), 0) is None
    assert row_sample.rows_to_compare(Case(2048, 4096, "fp32", Direction.FORWARD, "cuda"), 0) is None


@pytest.mark.parametrize(("M", "N", "rows"), [(4096, 4096, 1024), (100, 2**18, 16), (16, 2**22, 4), (10**6, 781, 5370)])
def test_a_sample_has_edges_and_every_kind(M, N, rows):
    case = Case(M, N, "fp32", Direction.FORWARD, "cpu")
    for seed in range(5):
        numbers = row_sample.rows_to_compare(case, seed, 16)
        assert numbers == sorted(set(numbers))
        assert {0, M - 1} <= set(numbers)
        assert 0.95 * rows <= len(numbers) <= rows + 6  # some rows are chosen twice
        assert len({number % 16 for number in numbers}) >= min(16, rows)
    assert row_sample.rows_to_compare(case, 0) != row_sample.rows_to_compare(case, 1)


@pytest.mark.parametrize("direction", operation("softmax").directions)
def test_a_single_wrong_row_of_a_large_tensor_is_found(direction, monkeypatch):
    monkeypatch.setitem(row_sample.WHOLE_ELEMENTS, "cpu", 2**12)
    case = Case(2000, 64, "fp32", direction, "cpu")

    def call(first, second=None):
        if direction is Direction.BACKWARD:
            out = (second * (first - (first * second).sum(-1, keepdim=True)),)
        else:
            y = torch.softmax(first, -1)
            out = (y.detach(), *([] if second is None else torch.autograd.grad(y, first, second)))
        if normal(first):
            out[-1][wrong_row, 5] *= 1.01
        return out if len(out) > 1 else out[0]

    def normal(x):
        return bool(x.isfinite().all())

    for wrong_row in (0, 1999, 333, 1234):
        found = PreCheck(case, call, NUMERICS.make(case, 0, CPU), object(), None).run(wrong_row)
        assert found.grade is Grade.WRONG
        assert f"[{wrong_row}, 5] is" in found.detail


def test_exact_zeros_are_no_suspects():
    case = Case(64, 32, "fp32", Direction.FORWARD, "cpu", "cross_entropy")
    x, target = numerics(case.op).make(case, 0, CPU)
    target[:60] = -100  # their losses are 0
    loss, *others = (one.clone() for one in numerics(case.op).estimate(case, (x, target)))
    loss[62] *= 1.1
    assert row_sample.suspects(case, (x, target), (loss, *others))[0] == 62


def test_a_comparison_uses_one_thread_and_restores_their_number():
    before = torch.get_num_threads()
    with one_thread("cpu"):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_sample_of_short_rows_has_a_limit():
    found = row_sample.rows_to_compare(Case(2**22, 128, "fp32", Direction.FORWARD, "cuda"), 0, 16)
    assert len(found) <= row_sample.MOST_ROWS
    assert {0, 2**22 - 1} <= set(found)
