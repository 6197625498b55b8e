"""Softmax as in Triton's tutorial 02, fused softmax: a row per program at a time, on a persistent grid.

A program takes row after row. Each row is whole in its registers, in a block of the next power of two. A row just above a power of two
therefore costs as much as the next one. The grid has as many programs as the device runs at once, by the registers and shared memory that
the compiler reports.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from .dispatch import softmax_of
from .generic import CONTRACTION, most_warps
from .interpreter import INTERPRETED

MAX_COLUMNS = 131072  # a longer row does not fit a program.
PREFETCH_BYTES = 128 * 1024  # of a row of all inputs: the most of an SM's 227 KiB shared memory that the next row may take.


@triton.jit
def forward_row(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        row_64 = tl.zeros((), tl.int64) + row
        x = tl.load(x_ptr + row_64 * x_stride + columns, mask=mask, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + row_64 * y_stride + columns, numerator / tl.sum(numerator, 0), mask=mask)


@triton.jit
def backward_row(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        row_64 = tl.zeros((), tl.int64) + row
        dy = tl.load(dy_ptr + row_64 * dy_stride + columns, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + row_64 * y_stride + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + row_64 * dx_stride + columns, y * (dy - tl.sum(dy * y, 0)), mask=mask)


def warps_of_block(block: int) -> int:
    """The tutorial's 8, and more if a thread would have over 128 elements."""
    return 8 if block <= 32768 else 16 if block <= 65536 else most_warps()


def options(block: int) -> dict[str, int]:
    """The options of a launch."""
    return {"num_warps": warps_of_block(block), **CONTRACTION}


def pipeline_stages(block: int, dtypes: tuple[torch.dtype, ...]) -> int:
    """2, to fetch the next row while this one is computed, if shared memory holds it; otherwise 1."""
    return 2 if block * sum(dtype.itemsize for dtype in dtypes[:-1]) <= PREFETCH_BYTES else 1


@functools.cache
def resident_programs(kernel: triton.JITFunction, dtypes: tuple[torch.dtype, ...], device: int, N: int) -> int:
    """How many programs of `kernel` the device runs at once, for rows of N elements."""
    block = triton.next_power_of_2(N)
    tensors = [torch.empty((1, N), dtype=dtype, device=f"cuda:{device}") for dtype in dtypes]
    constants = block, pipeline_stages(block, dtypes)
    compiled = kernel.warmup(*tensors, *[N] * len(tensors), 1, N, *constants, **options(block), grid=(1,))
    compiled._init_handles()
    properties = triton.runtime.driver.active.utils.get_device_properties(device)
    by_registers = properties["max_num_regs"] // max(1, compiled.n_regs * 32 * warps_of_block(block))
    by_shared = properties["max_shared_mem"] // max(1, compiled.metadata.shared)
    return properties["multiprocessor_count"] * max(1, min(by_registers, by_shared))


def launch(kernel: triton.JITFunction, tensors: tuple[torch.Tensor, ...]) -> None:
    """Runs `kernel` over the rows of the tensors. It writes the last one.

    Raises:
        ValueError: a row has more than MAX_COLUMNS elements.
    """
    M, N = tensors[0].shape
    if N > MAX_COLUMNS:
        raise ValueError(f"a row of {N} elements does not fit a program; at most {MAX_COLUMNS}")
    block = triton.next_power_of_2(N)
    dtypes = tuple(tensor.dtype for tensor in tensors)
    resident = M if INTERPRETED else resident_programs(kernel, dtypes, tensors[0].device.index or 0, N)
    strides = [tensor.stride(0) for tensor in tensors]
    kernel[(min(M, resident),)](*tensors, *strides, M, N, block, pipeline_stages(block, dtypes), **options(block))


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows. Raises as `launch`."""
    launch(forward_row, (x, y))


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx by rows. Raises as `launch`."""
    launch(backward_row, (dy, y, dx))


softmax = softmax_of(launch_forward, launch_backward)
"""softmax(x, dim=-1), rows of at most MAX_COLUMNS; see `softbench.kernels.common.softmax.Softmax`."""
