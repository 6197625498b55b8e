"""The generic kernels under the interpreter, and the rows of a staged pass. `test_dispatch.py` runs the tier staged."""

import pytest
import torch
from softbench.kernels.triton import generic

PROBE = """
import torch, triton, triton.language as tl
from softbench.kernels.triton.staged import rows_of_pass

@triton.jit
def probe(out_ptr, distance, ROWS: tl.constexpr, PASSES: tl.constexpr, LANES: tl.constexpr):
    for number in range(PASSES):
        tl.store(out_ptr + number * ROWS + tl.arange(0, ROWS), rows_of_pass(number, distance, ROWS, LANES))

def check(distance, ROWS, PASSES, LANES):
    out = torch.full((PASSES * ROWS,), -1, dtype=torch.int32)
    probe[(1,)](out, distance, ROWS, PASSES, LANES)
    assert sorted(out.tolist()) == list(range(PASSES * ROWS)), out
    of_warp = out.view(-1, 32 // LANES)
    assert (of_warp[:, 1:] - of_warp[:, :-1] == distance).all(), of_warp
"""


def test_rows_of_a_warp_are_apart_and_each_comes_once(run_interpreted, tmp_path):
    (tmp_path / "probe.py").write_text(PROBE)
    calls = "check(1, 8, 3, 16), check(16, 8, 4, 16), check(4, 8, 1, 16), check(2, 128, 2, 1), check(8, 32, 2, 4), check(1, 4, 2, 32)"
    run_interpreted(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from probe import check; {calls}; print('fine')")


LOOPS = """
import torch
from softbench.kernels.triton.generic import backward_loop, forward_loop, gradient_loop, loop_over_row
torch.manual_seed(0)
for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
    x, dy = torch.randn(2, 3, 100, dtype=dtype).unbind()
    x[0, :20] = -float("inf")  # a lane sees only -inf at first
    y, dx = torch.empty_like(x), torch.empty_like(x)
    forward_loop[(3,)](x, y, 100, 100, 3, 100, 16)
    backward_loop[(3,)](dy, y, dx, 100, 100, 100, 3, 100, 16)
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


@pytest.mark.parametrize("N", [1, 3, 128, 129, 4097, generic.TILE_COLUMNS])
def test_a_tile_holds_a_row_and_short_rows_share_one(N):
    assert generic.block_n(N) // 2 < N <= generic.block_n(N)
    assert generic.block_m(N) * generic.block_n(N) == max(generic.TILE_ELEMENTS, generic.block_n(N))


def test_programs_of_amds_gpus_have_1024_threads(monkeypatch):
    """A warp of their data-center GPUs has 64 threads."""
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    assert [generic.warps(elements) for elements in (512, 8192, 16384, 1 << 20)] == [1, 16, 16, 16]
