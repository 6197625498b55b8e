"""Softmax as in Triton's tutorial: a row per program, on a persistent grid.

Source: tutorial 02, fused softmax. A row is whole in a program's registers, in a block of the next power of two. So a row just
above a power of two costs as much as one of the next. The grid has as many programs as the GPU runs at once, by the registers and
the shared memory that the compiler reports.

softbench run --plugin triton_row.py
"""

import functools

import torch
import triton
import triton.language as tl

MAX_COLUMNS = 131072  # a longer row does not fit a program


@triton.jit
def forward_rows(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        start = tl.cast(row, tl.int64) * N  # rows may lie beyond 2^31 elements
        x = tl.load(x_ptr + start + columns, mask=inside, other=-float("inf")).to(tl.float32)
        numerator = tl.exp(x - tl.max(x, 0))
        tl.store(y_ptr + start + columns, numerator / tl.sum(numerator, 0), mask=inside)


@triton.jit
def backward_rows(dy_ptr, y_ptr, dx_ptr, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    inside = columns < N
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        start = tl.cast(row, tl.int64) * N
        dy = tl.load(dy_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        y = tl.load(y_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx_ptr + start + columns, y * (dy - tl.sum(dy * y, 0)), mask=inside)


@functools.cache
def resident_programs(kernel, device: torch.device, dtype: torch.dtype, tensors: int, N: int, constants: tuple, warps: int) -> int:
    """How many programs of a kernel the GPU runs at once."""
    rows = [torch.empty(1, N, dtype=dtype, device=device) for _ in range(tensors)]
    compiled = kernel.warmup(*rows, 1, N, *constants, num_warps=warps, grid=(1,))
    compiled._init_handles()
    gpu = triton.runtime.driver.active.utils.get_device_properties(device.index or 0)
    by_registers = gpu["max_num_regs"] // max(1, compiled.n_regs * 32 * warps)
    by_shared_memory = gpu["max_shared_mem"] // max(1, compiled.metadata.shared)
    return gpu["multiprocessor_count"] * max(1, min(by_registers, by_shared_memory))


def launch(kernel, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of contiguous tensors; it writes the last one."""
    M, N = tensors[0].shape
    block = triton.next_power_of_2(N)
    warps = 8 if block <= 32768 else 16 if block <= 65536 else 32
    row_bytes = block * tensors[0].element_size() * (len(tensors) - 1)
    constants = block, 2 if row_bytes <= 128 * 1024 else 1  # two stages: the next row is loaded while this one is computed
    programs = resident_programs(kernel, tensors[0].device, tensors[0].dtype, len(tensors), N, constants, warps)
    kernel[(min(M, programs),)](*tensors, M, N, *constants, num_warps=warps)
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M and 0 < case.N <= MAX_COLUMNS else f"it takes at least one row, of 1 to {MAX_COLUMNS} elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(forward_rows, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(backward_rows, dy, y, torch.empty_like(y))
