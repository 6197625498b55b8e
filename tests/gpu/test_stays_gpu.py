"""That kernels are no faster by lines they read that a flush leaves in L2 (`evict_last`), on a real GPU."""

from statistics import median

import pytest
import torch
from softbench.kernels.cuda import softmax as cuda_softmax
from softbench.kernels.triton import softmax as triton_softmax

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(300)]

ROTATED_BYTES = 400 << 20  # far more than an L2 holds
SAMPLES = 40
AHEAD_CYCLES = 1_000_000  # half a millisecond, in which the host issues what is timed


def times_us(call, operands):
    """Of calls on each operand in turn, after a flush as do_bench's."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    found = []
    for number in range(SAMPLES + 5):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(AHEAD_CYCLES)
        flush.zero_()
        begin.record()
        call(operands[number % len(operands)])
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3)
    return found[5:]


@pytest.mark.parametrize("softmax", [cuda_softmax, triton_softmax], ids=["cuda", "triton"])
@pytest.mark.parametrize("shape", [(64, 32768), (4096, 1024), (4096, 2048), (4096, 4096), (4096, 8192)], ids=str)
def test_a_kernel_is_as_fast_on_buffers_that_rotate(softmax, shape):
    M, N = shape
    count = max(2, ROTATED_BYTES // (2 * M * N))
    operands = [torch.randn(M, N, device="cuda", dtype=torch.bfloat16) for _ in range(count)]
    one, many = [], []
    for _ in range(3):
        one += times_us(softmax, operands[:1])
        many += times_us(softmax, operands)
    assert median(many) == pytest.approx(median(one), rel=0.03, abs=0.2)
