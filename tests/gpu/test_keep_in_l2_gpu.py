"""Kernels with a policy for L2 (`evict_last`, `evict_first`) are as fast if the inputs rotate, on a GPU.

Otherwise they would only seem fast, because do_bench's flush leaves lines with `evict_last` in L2.
"""

from statistics import median

import pytest
import torch
from softbench.kernels.cuda import launch as cuda, softmax as cuda_softmax
from softbench.kernels.triton import dispatch, softmax as triton_softmax
from softbench.kernels.triton.generic import tile_of_rows

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.timeout(300)]

ROTATED_BYTES = 400 << 20  # far more than an L2 holds
SAMPLES, FIRST = 40, 5
MOST = SAMPLES + FIRST  # operands, one for each call
AHEAD_CYCLES = 1_000_000  # half a millisecond, in which the host issues the timed call


def times_us(call, operands):
    """Times of calls on the operands in rotation, each after a flush like do_bench's."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    found = []
    for number in range(MOST):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(AHEAD_CYCLES)
        flush.zero_()
        begin.record()
        call(operands[number % len(operands)])
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) * 1e3)
    return found[FIRST:]


def excess(call, operands):
    """Median microseconds on operands that rotate, and on the first alone. The two alternate, so that drift affects both."""
    one, many = [], []
    for number in range(4):
        rounds = [(one, operands[:1]), (many, operands)]
        for found, given in rounds if number % 2 else rounds[::-1]:
            found += times_us(call, given)
    return median(many), median(one)


def as_fast(many, one):
    return many <= max(1.03 * one, one + 0.2)


def rows(M, N, dtype, count):
    return [torch.randn(M, N, device="cuda", dtype=dtype) for _ in range(count)]


SHAPES = [(64, 32768), (4096, 1024), (4096, 2048), (4096, 4096), (4096, 8192)]


@pytest.mark.parametrize("softmax", [cuda_softmax, triton_softmax], ids=["cuda", "triton"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernels_are_as_fast_on_rotating_buffers(softmax, dtype, shape):
    M, N = shape
    many, one = excess(softmax, rows(M, N, dtype, min(MOST, max(2, ROTATED_BYTES // (dtype.itemsize * M * N)))))
    assert as_fast(many, one), (many, one)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0), reason="seen on Hopper only")
def test_a_small_input_kept_in_l2_is_detected():
    """What the test above would measure if small launches kept their inputs too."""
    M, N = 64, 32768

    def call(x):
        tile_of_rows[(M,)](x, y, N, N, M, N, 1, N, "evict_last", False, None, num_warps=16)

    y = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)
    many, one = excess(call, rows(M, N, torch.bfloat16, MOST))
    assert not as_fast(many, one), (many, one)


GRADIENTS = [(3, 5, 1046460, torch.float32), (3, 12, 850432, torch.bfloat16)]
FORWARDS = [(2, 12, 594560, torch.float32), (2, 21, 635232, torch.bfloat16)]
"""The tensors of a launch, M, N and dtype."""


@pytest.mark.parametrize("package", [cuda, dispatch], ids=["cuda", "triton"])
@pytest.mark.parametrize(("tensors", "M", "N", "dtype"), GRADIENTS + FORWARDS)
def test_leaving_first_is_as_fast_on_rotating_buffers(package, tensors, M, N, dtype):
    launch = package.launch_forward if tensors == 2 else package.launch_backward
    operands = [rows(M, N, dtype, tensors) for _ in range(2 + ROTATED_BYTES // (tensors * dtype.itemsize * M * N))]
    many, one = excess(lambda given: launch(*given), operands)
    assert as_fast(many, one), (many, one)
