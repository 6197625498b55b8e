"""Softmax in Gluon: Triton with layouts and asynchronous copies by hand.

A program takes row after row, on a persistent grid. BlockedLayout says which thread holds which elements: VECTOR neighbours, so
that a load moves 16 bytes. While a row is computed, the next one is copied into shared memory (cp.async). Rows of no multiple of 16
elements are loaded directly.

softbench run --plugin gluon_row.py
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

MAX_COLUMNS = 65536  # a longer row does not fit a program
SHARED_BYTES = 128 * 1024  # for two rows of each input; a longer row is loaded directly
PROGRAMS = 4  # resident on each SM

copy = async_copy.async_load if "async_load" in async_copy.__all__ else async_copy.async_copy_global_to_shared  # its name in Triton 3.6


@gluon.jit
def larger(a, b):
    return gl.maximum(a, b)


@gluon.jit
def added(a, b):
    return a + b


@gluon.jit
def fetch(buffers, turn, ptr, row, columns, M, N):
    """Begin to copy a row into one of the two buffers. Beyond the last row nothing is copied, but the group is counted."""
    copy(buffers.index(turn % 2), ptr + row.to(gl.int64) * N + columns, mask=(columns < N) & (row < M))


@gluon.jit
def taken(buffers, turn, ptr, row, columns, N, layout: gl.constexpr, COPIES: gl.constexpr, outside: gl.constexpr):
    """A row in float32, from its buffer or from memory. Columns beyond the last one have the value `outside`."""
    if COPIES:
        value = buffers.index(turn % 2).load(layout)
    else:
        value = gl.load(ptr + row.to(gl.int64) * N + columns, mask=columns < N, other=0.0)
    return gl.where(columns < N, value.to(gl.float32), outside)


@gluon.jit
def forward_rows(x_ptr, y_ptr, M, N, BLOCK: gl.constexpr, VECTOR: gl.constexpr, WARPS: gl.constexpr, COPIES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [WARPS], [0])
    in_shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    columns = gl.arange(0, BLOCK, layout=layout)
    x_rows = gl.allocate_shared_memory(x_ptr.dtype.element_ty, [2, BLOCK if COPIES else 1], in_shared)
    if COPIES:
        fetch(x_rows, 0, x_ptr, gl.program_id(0), columns, M, N)
        async_copy.commit_group()
    turn = 0
    for row in range(gl.program_id(0), M, gl.num_programs(0)):
        if COPIES:
            fetch(x_rows, turn + 1, x_ptr, row + gl.num_programs(0), columns, M, N)
            async_copy.commit_group()
            async_copy.wait_group(1)  # all but the newest group have arrived
        x = taken(x_rows, turn, x_ptr, row, columns, N, layout, COPIES, -float("inf"))
        numerator = gl.exp(x - gl.reduce(x, 0, larger))
        y = numerator / gl.reduce(numerator, 0, added)
        gl.store(y_ptr + row.to(gl.int64) * N + columns, y.to(y_ptr.dtype.element_ty), mask=columns < N)
        turn += 1


@gluon.jit
def backward_rows(dy_ptr, y_ptr, dx_ptr, M, N, BLOCK: gl.constexpr, VECTOR: gl.constexpr, WARPS: gl.constexpr, COPIES: gl.constexpr):
    layout: gl.constexpr = gl.BlockedLayout([VECTOR], [32], [WARPS], [0])
    in_shared: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, order=[0])
    columns = gl.arange(0, BLOCK, layout=layout)
    dy_rows = gl.allocate_shared_memory(dy_ptr.dtype.element_ty, [2, BLOCK if COPIES else 1], in_shared)
    y_rows = gl.allocate_shared_memory(y_ptr.dtype.element_ty, [2, BLOCK if COPIES else 1], in_shared)
    if COPIES:
        fetch(dy_rows, 0, dy_ptr, gl.program_id(0), columns, M, N)
        fetch(y_rows, 0, y_ptr, gl.program_id(0), columns, M, N)
        async_copy.commit_group()
    turn = 0
    for row in range(gl.program_id(0), M, gl.num_programs(0)):
        if COPIES:
            fetch(dy_rows, turn + 1, dy_ptr, row + gl.num_programs(0), columns, M, N)
            fetch(y_rows, turn + 1, y_ptr, row + gl.num_programs(0), columns, M, N)
            async_copy.commit_group()
            async_copy.wait_group(1)
        dy = taken(dy_rows, turn, dy_ptr, row, columns, N, layout, COPIES, 0.0)
        y = taken(y_rows, turn, y_ptr, row, columns, N, layout, COPIES, 0.0)
        dx = y * (dy - gl.reduce(dy * y, 0, added))
        gl.store(dx_ptr + row.to(gl.int64) * N + columns, dx.to(dx_ptr.dtype.element_ty), mask=columns < N)
        turn += 1


def launch(kernel, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of contiguous tensors; it writes the last one."""
    M, N = tensors[0].shape
    vector, item = 16 // tensors[0].element_size(), tensors[0].element_size()
    block = max(32 * vector, triton.next_power_of_2(N))
    warps = min(32, max(1, block // (32 * vector * 2)))  # two vectors a thread, more in long rows
    aligned = N % 16 == 0 and all(tensor.data_ptr() % 16 == 0 for tensor in tensors)  # the multiples that the compiler is told of
    copies = aligned and 2 * block * item * (len(tensors) - 1) <= SHARED_BYTES
    programs = torch.cuda.get_device_properties(tensors[0].device).multi_processor_count * PROGRAMS
    kernel[(min(M, programs),)](*tensors, M, N, block, vector if aligned else 1, warps, copies, num_warps=warps)
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M and 0 < case.N <= MAX_COLUMNS else f"it takes at least one row, of 1 to {MAX_COLUMNS} elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(forward_rows, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(backward_rows, dy, y, torch.empty_like(y))
