"""A plain softmax in Numba's CUDA Python: a CTA per row, float32. Needs `numba-cuda`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from numba import cuda, float32

from softbench.backends.calls import Pair

if TYPE_CHECKING:
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from numba.cuda.dispatcher import CUDADispatcher

THREADS = 256


def _forward(x: DeviceNDArray, y: DeviceNDArray) -> None:
    shared = cuda.shared.array(THREADS, float32)
    row, thread, columns = cuda.blockIdx.x, cuda.threadIdx.x, x.shape[1]
    top = float32(-math.inf)
    for i in range(thread, columns, THREADS):
        top = max(top, x[row, i])
    shared[thread] = top
    half = THREADS // 2
    while half > 0:
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


def _backward(dy: DeviceNDArray, y: DeviceNDArray, dx: DeviceNDArray) -> None:
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


def kernels() -> Pair:
    """Newly compiled forward and backward functions; both run on torch's current stream."""
    compiled_forward, compiled_backward = cuda.jit(_forward), cuda.jit(_backward)

    def launch(kernel: CUDADispatcher, *tensors: torch.Tensor) -> None:
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        kernel[len(tensors[0]), THREADS, stream](*(cuda.as_cuda_array(tensor.detach()) for tensor in tensors))

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x, requires_grad=False)
        launch(compiled_forward, x, y)
        return y

    def backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dy, dx = dy.contiguous(), torch.empty_like(y)
        launch(compiled_backward, dy, y, dx)
        return dx

    return forward, backward
