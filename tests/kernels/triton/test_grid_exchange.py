"""The workspace of programs that share a row."""

import pytest
import torch
from softbench.kernels.triton import grid_exchange


def test_cpu_launches_get_fresh_zeros():
    counter, slots = grid_exchange.workspace(torch.device("cpu"), 100)
    assert (counter.shape, slots.shape, counter.dtype, slots.dtype) == ((1,), (100,), torch.int64, torch.int64)
    assert not counter.any() and not slots.any()
    assert grid_exchange.workspace(torch.device("cpu"), 100)[0].data_ptr() != counter.data_ptr()


@pytest.fixture
def allocations(monkeypatch):
    """Sizes of persistent allocations, which are on the CPU here; the current stream has number 7."""
    sizes = []
    monkeypatch.setattr(grid_exchange, "_workspaces", {})
    monkeypatch.setattr(grid_exchange, "persistent_zeros", lambda _index, size, dtype: sizes.append(size) or torch.zeros(size, dtype=dtype))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: 7, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return sizes


def test_launches_of_one_stream_share_a_workspace_that_grows(allocations):
    device = torch.device("cuda", 0)
    small = grid_exchange.workspace(device, 100)
    assert grid_exchange.workspace(device, 200)[1].data_ptr() == small[1].data_ptr()
    large = grid_exchange.workspace(device, 2 * grid_exchange.MIN_WORDS)
    assert len(large[1]) >= 2 * grid_exchange.MIN_WORDS
    assert allocations == [grid_exchange.MIN_WORDS, 2 * grid_exchange.MIN_WORDS + grid_exchange.COUNTER_WORDS]


def test_counter_has_lines_of_its_own(allocations):
    counter, slots = grid_exchange.workspace(torch.device("cuda", 0), 100)
    assert slots.data_ptr() - counter.data_ptr() == 256
