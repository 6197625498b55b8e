"""Softmax the way of Triton's fused-softmax tutorial: a row per program at a time, on a persistent grid.

A program takes row after row, each whole in its registers, in a block of the next power of two: a row just above a power of two pays
for the next. There are as many programs as the card runs at once, by the registers and shared memory that the compiler reports.
(Method: Triton's tutorial 02, fused softmax.)
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl

from .plain import INTERPRETED
from .tiers import softmax_of

MAX_COLUMNS = 131072  # beyond, a row no longer fits a program in any useful way
STAGED_BYTES = 128 * 1024  # of a row of every input: what the next row may take of an SM's 227 KiB shared memory while this one is computed


@triton.jit
def forward_row(x_ptr, y_ptr, x_stride, y_stride, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        wide = tl.zeros((), tl.int64) + row
        x = tl.load(x_ptr + wide * x_stride + columns, mask=mask, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + wide * y_stride + columns, numerator / tl.sum(numerator, 0), mask=mask)


@triton.jit
def backward_row(dy_ptr, y_ptr, dx_ptr, dy_stride, y_stride, dx_stride, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    mask = columns < N
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        wide = tl.zeros((), tl.int64) + row
        dy = tl.load(dy_ptr + wide * dy_stride + columns, mask=mask, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + wide * y_stride + columns, mask=mask, other=0.0).to(tl.float32)
        tl.store(dx_ptr + wide * dx_stride + columns, y * (dy - tl.sum(dy * y, 0)), mask=mask)


def row_warps(block: int) -> int:
    """The tutorial's 8, and more where a block would leave a thread over 128 elements."""
    return 8 if block <= 32768 else 16 if block <= 65536 else 32


def stages(block: int, dtypes: tuple[torch.dtype, ...]) -> int:
    """2, so that the next row is fetched while this one is computed, where shared memory holds it; else 1."""
    return 2 if block * sum(dtype.itemsize for dtype in dtypes[:-1]) <= STAGED_BYTES else 1


@functools.cache
def programs(kernel: triton.JITFunction, dtypes: tuple[torch.dtype, ...], device: int, N: int) -> int:
    """How many programs of `kernel` the device runs at once."""
    block = triton.next_power_of_2(N)
    tensors = [torch.empty((1, N), dtype=dtype, device=f"cuda:{device}") for dtype in dtypes]
    compiled = kernel.warmup(*tensors, *[N] * len(tensors), 1, N, block, stages(block, dtypes), num_warps=row_warps(block), grid=(1,))
    compiled._init_handles()
    card = triton.runtime.driver.active.utils.get_device_properties(device)
    by_registers = card["max_num_regs"] // max(1, compiled.n_regs * 32 * row_warps(block))
    by_shared = card["max_shared_mem"] // max(1, compiled.metadata.shared)
    return card["multiprocessor_count"] * max(1, min(by_registers, by_shared))


def launch(kernel: triton.JITFunction, tensors: tuple[torch.Tensor, ...]) -> None:
    """Run `kernel` over the rows of the tensors, the last of which is written."""
    M, N = tensors[0].shape
    if N > MAX_COLUMNS:
        raise ValueError(f"a row of {N} elements does not fit a program; at most {MAX_COLUMNS}")
    block = triton.next_power_of_2(N)
    dtypes = tuple(tensor.dtype for tensor in tensors)
    at_once = M if INTERPRETED else programs(kernel, dtypes, tensors[0].device.index or 0, N)
    strides = [tensor.stride(0) for tensor in tensors]
    kernel[(min(M, at_once),)](*tensors, *strides, M, N, block, stages(block, dtypes), num_warps=row_warps(block))


def launch_forward(x: torch.Tensor, y: torch.Tensor) -> None:
    """y = softmax(x) by rows of at most MAX_COLUMNS; raises ValueError for longer ones."""
    launch(forward_row, (x, y))


def launch_backward(dy: torch.Tensor, y: torch.Tensor, dx: torch.Tensor) -> None:
    """dx by rows of at most MAX_COLUMNS; raises ValueError for longer ones."""
    launch(backward_row, (dy, y, dx))


softmax = softmax_of(launch_forward, launch_backward)
"""softmax(x, dim=-1), rows of at most MAX_COLUMNS; see `softbench.kernels.common.softmax.Softmax`."""
