"""The workspace of programs that share a row."""

import pytest
import torch
from softbench.kernels.triton import workspace


def test_cpu_launches_get_fresh_zeros():
    counter, slots = workspace.workspace(torch.device("cpu"), 100)
    assert (counter.shape, slots.shape, counter.dtype, slots.dtype) == ((1,), (100,), torch.int64, torch.int64)
    assert not counter.any() and not slots.any()
    assert workspace.workspace(torch.device("cpu"), 100)[0].data_ptr() != counter.data_ptr()


@pytest.fixture
def allocations(monkeypatch):
    """Sizes of persistent allocations, which are on the CPU here; the current stream has number 7."""
    sizes = []
    monkeypatch.setattr(workspace, "_workspaces", {})
    monkeypatch.setattr(workspace, "persistent_zeros", lambda _index, size, dtype: sizes.append(size) or torch.zeros(size, dtype=dtype))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _index: 7, raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return sizes


def test_launches_of_one_stream_share_a_workspace_that_grows(allocations):
    device = torch.device("cuda", 0)
    small = workspace.workspace(device, 100)
    assert workspace.workspace(device, 200)[1].data_ptr() == small[1].data_ptr()
    large = workspace.workspace(device, 2 * workspace.MIN_WORDS)
    assert len(large[1]) >= 2 * workspace.MIN_WORDS
    assert allocations == [workspace.MIN_WORDS, 2 * workspace.MIN_WORDS + workspace.COUNTER_WORDS]


def test_counter_has_lines_of_its_own(allocations):
    counter, slots = workspace.workspace(torch.device("cuda", 0), 100)
    assert slots.data_ptr() - counter.data_ptr() == 256
