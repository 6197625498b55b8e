"""Softmax in TileLang: tiles in Python, laid out and compiled through nvcc.

A block of threads takes a row. TileLang compiles a kernel for each N and dtype; the number of rows is a variable.

softbench run --plugin tilelang_row.py
"""

import functools

import tilelang
import tilelang.language as T
import torch

MAX_COLUMNS = 65536  # a longer row does not fit the registers of a block


def shape_of(N: int) -> tuple[int, int]:
    """Elements and threads of a block: the next power of two, and 16 elements a thread, more in long rows."""
    block = max(512, 1 << (N - 1).bit_length())
    return block, min(1024, block // 16)


@functools.cache
def forward_rows(N: int, dtype: str):
    """The forward kernel for rows of N elements."""
    block, threads = shape_of(N)
    shape = T.dynamic("M"), N

    @T.prim_func
    def rows(x: T.Tensor(shape, dtype), y: T.Tensor(shape, dtype)):
        with T.Kernel(x.shape[0], threads=threads) as row:
            values = T.alloc_fragment((1, block), "float32")
            top = T.alloc_fragment((1,), "float32")
            total = T.alloc_fragment((1,), "float32")
            for i, j in T.Parallel(1, block):
                values[i, j] = T.if_then_else(j < N, T.cast(x[row, j], "float32"), -T.infinity("float32"))
            T.reduce_max(values, top, dim=1)
            for i, j in T.Parallel(1, block):
                values[i, j] = T.exp(values[i, j] - top[i])
            T.reduce_sum(values, total, dim=1)
            for i, j in T.Parallel(1, block):
                if j < N:
                    y[row, j] = T.cast(values[i, j] / total[i], dtype)

    return tilelang.compile(rows)


@functools.cache
def backward_rows(N: int, dtype: str):
    """The backward kernel for rows of N elements."""
    block, threads = shape_of(N)
    shape = T.dynamic("M"), N

    @T.prim_func
    def rows(dy: T.Tensor(shape, dtype), y: T.Tensor(shape, dtype), dx: T.Tensor(shape, dtype)):
        with T.Kernel(dy.shape[0], threads=threads) as row:
            gradients = T.alloc_fragment((1, block), "float32")
            values = T.alloc_fragment((1, block), "float32")
            products = T.alloc_fragment((1, block), "float32")
            dot = T.alloc_fragment((1,), "float32")
            for i, j in T.Parallel(1, block):
                gradients[i, j] = T.if_then_else(j < N, T.cast(dy[row, j], "float32"), 0.0)
            for i, j in T.Parallel(1, block):
                values[i, j] = T.if_then_else(j < N, T.cast(y[row, j], "float32"), 0.0)
            for i, j in T.Parallel(1, block):
                products[i, j] = gradients[i, j] * values[i, j]
            T.reduce_sum(products, dot, dim=1)
            for i, j in T.Parallel(1, block):
                if j < N:
                    dx[row, j] = T.cast(values[i, j] * (gradients[i, j] - dot[i]), dtype)

    return tilelang.compile(rows)


def launch(kernel, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of contiguous tensors; it writes the last one."""
    N = tensors[0].shape[1]
    kernel(N, str(tensors[0].dtype).removeprefix("torch."))(*tensors)
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M and 0 < case.N <= MAX_COLUMNS else f"it takes at least one row, of 1 to {MAX_COLUMNS} elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(forward_rows, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(backward_rows, dy, y, torch.empty_like(y))
