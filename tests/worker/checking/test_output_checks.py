"""What an output owes its caller: memory of its own, which may be a part of an allocation."""

import itertools
import math
import random

import pytest
import torch

from softbench.worker.checking.output_checks import NO_RESULT, _poison, like, misformed, shared

M, N = 4, 8
FORM = like(torch.zeros(M, N))


def slices_of_one_allocation():
    rows = torch.empty(2, M, N)
    yield "one after the other", rows[0], rows[1]
    between = torch.empty(M, 2, N)
    yield "rows in turn", between[:, 0], between[:, 1]
    columns = torch.empty(M, N, 2)
    yield "columns in turn", columns[..., 0], columns[..., 1]
    flat = torch.empty(2 * M * N + 3)
    yield "with an offset", flat[1 : 1 + M * N].view(M, N), flat[3 + M * N :].view(M, N)
    yield "one transposed", rows[0], torch.empty(2, N, M)[1].t()


@pytest.mark.parametrize(("name", "y", "dx"), list(slices_of_one_allocation()), ids=lambda value: value if isinstance(value, str) else "")
def test_distinct_slices_of_one_allocation_are_accepted(name, y, dx):
    assert not shared((y, dx))
    assert misformed((torch.zeros(M, N), torch.zeros(M, N)), (y, dx), 2 * like(y)) == ""


def overlapping():
    flat = torch.empty(4 * M * N)
    y = flat[: M * N].view(M, N)
    yield "the same", y, y
    yield "one element", y, flat[M * N - 1 : 2 * M * N - 1].view(M, N)
    wide = flat.view(M, 4 * N)
    yield "columns that overlap", wide[:, :N], wide[:, N - 1 : 2 * N - 1]
    yield "rows and columns", y, flat[: M * N].view(N, M).t()


@pytest.mark.parametrize(("name", "y", "dx"), list(overlapping()), ids=lambda value: value if isinstance(value, str) else "")
def test_outputs_that_overlap_are_wrong(name, y, dx):
    assert shared((y, dx))
    assert "share their memory" in misformed((torch.zeros(M, N), torch.zeros(M, N)), (y, dx), 2 * like(y))


def test_overlap_is_exact_for_equal_strides():
    draw = random.Random(0)
    flat = torch.arange(4000)
    for _ in range(300):
        sizes = [draw.randint(1, 4) for _ in range(3)]
        strides, reach = [], 0
        for size in sizes:
            strides.append(reach + draw.randint(1, 5))
            reach += (size - 1) * strides[-1]
        one, other = (flat.as_strided(sizes, strides, draw.randint(0, 60)) for _ in range(2))
        assert shared((one, other)) == bool(set(one.flatten().tolist()) & set(other.flatten().tolist())), (sizes, strides)


@pytest.mark.parametrize("strides", [(0, 1), (1, 0), (N - 1, 1), (1, 1)])
def test_an_output_whose_elements_share_memory_is_wrong(strides):
    pool = torch.empty(100)
    assert "expanded" in misformed((torch.zeros(M, N),), (pool.as_strided((M, N), strides),), FORM)


def test_the_memory_of_an_input_is_wrong():
    x, dy = torch.zeros(2, M, N).unbind()
    assert "input's memory" in misformed((x,), (x,), FORM)
    assert "input's memory" in misformed((dy,), (x,), FORM)  # the same storage
    alias = torch.from_numpy(dy.numpy())  # another storage object over the input's memory
    assert "input's memory" in misformed((dy,), (alias,), FORM)
    inside = torch.frombuffer(memoryview(bytearray(4 * M * N)), dtype=torch.float32).view(M, N)
    assert misformed((dy,), (inside,), FORM) == ""


def test_any_float_is_poisoned_with_nan_or_a_finite_number():
    assert all(
        math.isnan(_poison(dtype, math.nan)) and math.isfinite(_poison(dtype, NO_RESULT)) for dtype in (torch.float32, torch.float16)
    )


def test_many_live_outputs_of_one_pool_are_distinct():
    pool = torch.empty(5, M, N)
    assert not shared(pool.unbind())
    assert all(shared(pair) for pair in itertools.pairwise([pool[0], pool[0], pool[0, :1]]))
