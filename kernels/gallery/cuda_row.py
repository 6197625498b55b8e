"""Softmax in CUDA C++: a block of threads a row, three loops over it.

nvcc compiles it once, for all shapes. Threads read neighbouring elements, so a warp reads whole lines of memory. A row of up to
some hundred kilobytes stays in the L1 and L2 caches between the loops. The block agrees on the maximum and the sum by shuffles
within a warp and shared memory between warps.

softbench run --plugin cuda_row.py
"""

import torch

import softbench

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int THREADS = 256;

struct Max { __device__ float operator()(float a, float b) const { return a != a || a > b ? a : b; } };  // keeps NaN, as torch does
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };

// The value over all threads of the block; every thread gets it.
template <typename Combine>
__device__ float over_block(float value, Combine combine) {
    __shared__ float of_warps[THREADS / 32];
    for (int lanes = 16; lanes > 0; lanes /= 2) value = combine(value, __shfl_xor_sync(~0u, value, lanes));
    __syncthreads();  // the last use of of_warps is over
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warps[0];
    for (int warp = 1; warp < THREADS / 32; ++warp) value = combine(value, of_warps[warp]);
    return value;
}

template <typename T>
__global__ void forward_row(const T* x, T* y, int64_t N) {
    x += blockIdx.x * N;
    y += blockIdx.x * N;
    float top = -INFINITY, sum = 0;
    for (int64_t i = threadIdx.x; i < N; i += THREADS) top = Max()(float(x[i]), top);
    top = over_block(top, Max());
    for (int64_t i = threadIdx.x; i < N; i += THREADS) sum += expf(float(x[i]) - top);
    sum = over_block(sum, Sum());
    for (int64_t i = threadIdx.x; i < N; i += THREADS) y[i] = T(expf(float(x[i]) - top) / sum);
}

template <typename T>
__global__ void backward_row(const T* dy, const T* y, T* dx, int64_t N) {
    dy += blockIdx.x * N;
    y += blockIdx.x * N;
    dx += blockIdx.x * N;
    float dot = 0;
    for (int64_t i = threadIdx.x; i < N; i += THREADS) dot += float(dy[i]) * float(y[i]);
    dot = over_block(dot, Sum());
    for (int64_t i = threadIdx.x; i < N; i += THREADS) dx[i] = T(float(y[i]) * (float(dy[i]) - dot));
}

#define OF_DTYPE(NAME, T)                                                                                                    \
    extern "C" void forward_##NAME(const void* x, void* y, int64_t M, int64_t N, cudaStream_t stream) {                      \
        forward_row<T><<<M, THREADS, 0, stream>>>((const T*)x, (T*)y, N);                                                    \
    }                                                                                                                        \
    extern "C" void backward_##NAME(const void* dy, const void* y, void* dx, int64_t M, int64_t N, cudaStream_t stream) {    \
        backward_row<T><<<M, THREADS, 0, stream>>>((const T*)dy, (const T*)y, (T*)dx, N);                                    \
    }
OF_DTYPE(float32, float)
OF_DTYPE(float16, __half)
OF_DTYPE(bfloat16, __nv_bfloat16)
"""
library = softbench.build(SOURCE)


def launch(name: str, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of contiguous tensors on the current stream; it writes the last one."""
    of_dtype = getattr(library, f"{name}_{str(tensors[0].dtype).removeprefix('torch.')}")
    of_dtype(*tensors, *tensors[0].shape, torch.cuda.current_stream())
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M * case.N else "it takes no tensors without elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch("forward", x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch("backward", dy, y, torch.empty_like(y))
