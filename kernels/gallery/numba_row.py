"""Softmax in Numba's CUDA Python: the threads of CUDA C++, in Python.

A block of threads takes a row. float32 only: Numba's arrays have no bfloat16.

softbench run --plugin numba_row.py --dtype fp32
"""

import math

import torch
from numba import cuda, float32

THREADS = 256


@cuda.jit
def forward_row(x, y):
    shared = cuda.shared.array(THREADS, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    top = float32(-math.inf)
    for i in range(thread, columns, THREADS):
        top = max(top, x[row, i])
    shared[thread] = top
    half = THREADS // 2
    while half > 0:  # a tree over the threads: each step halves the values
        cuda.syncthreads()
        if thread < half:
            shared[thread] = max(shared[thread], shared[thread + half])
        half //= 2
    cuda.syncthreads()
    top = shared[0]
    cuda.syncthreads()
    total = float32(0.0)
    for i in range(thread, columns, THREADS):
        total += math.exp(x[row, i] - top)
    shared[thread] = total
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            shared[thread] += shared[thread + half]
        half //= 2
    cuda.syncthreads()
    for i in range(thread, columns, THREADS):
        y[row, i] = math.exp(x[row, i] - top) / shared[0]


@cuda.jit
def backward_row(dy, y, dx):
    shared = cuda.shared.array(THREADS, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, y.shape[1]
    total = float32(0.0)
    for i in range(thread, columns, THREADS):
        total += dy[row, i] * y[row, i]
    shared[thread] = total
    half = THREADS // 2
    while half > 0:
        cuda.syncthreads()
        if thread < half:
            shared[thread] += shared[thread + half]
        half //= 2
    cuda.syncthreads()
    for i in range(thread, columns, THREADS):
        dx[row, i] = y[row, i] * (dy[row, i] - shared[0])


def launch(kernel, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of tensors on torch's current stream; it writes the last one."""
    stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
    kernel[len(tensors[0]), THREADS, stream](*(cuda.as_cuda_array(tensor.detach()) for tensor in tensors))
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M * case.N and case.dtype == "fp32" else "it takes fp32 only, as Numba's arrays have no bf16, and no empty tensors"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch(forward_row, x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch(backward_row, dy, y, torch.empty_like(y))
