"""Softmax in CUDA C++ through CuPy: compiled for each N by NVRTC, without nvcc.

A block of threads takes a row. The first loop finds maximum and sum, the second one writes. Loads are single elements.

softbench run --plugin cupy_row.py
"""

import functools

import cupy
import torch

THREADS = 512
KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
# PTX converts 16-bit numbers: pip's CuPy has no CUDA headers for NVRTC.
SOURCE = r"""
#if KIND == 0
typedef float Number;
__device__ float widened(Number bits) { return bits; }
__device__ Number narrowed(float value) { return value; }
#elif KIND == 1
typedef unsigned short Number;
__device__ float widened(Number bits) { float value; asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits)); return value; }
__device__ Number narrowed(float value) { Number bits; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value)); return bits; }
#else
typedef unsigned short Number;
__device__ float widened(Number bits) { return __uint_as_float((unsigned)bits << 16); }
__device__ Number narrowed(float value) { Number bits; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value)); return bits; }
#endif
#define NOTHING __int_as_float(0xff800000)

// Rescales a sum from the maximum `top` to the maximum `higher`. A sum without a finite maximum stays as it is.
__device__ float moved(float sum, float top, float higher) { return top == NOTHING ? sum : sum * expf(top - higher); }

extern "C" __global__ void softmax_forward(const Number* x, Number* y) {
    __shared__ float tops[THREADS], sums[THREADS];
    const long long row = (long long)blockIdx.x * COLUMNS;
    float top = NOTHING, sum = 0;
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) {
        const float value = widened(x[row + i]);
        if (value == NOTHING) continue;
        const float higher = value > top ? value : top;
        sum = moved(sum, top, higher) + expf(value - higher);
        top = higher;
    }
    tops[threadIdx.x] = top;
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            const float other = tops[threadIdx.x + half], mine = tops[threadIdx.x], higher = other > mine ? other : mine;
            sums[threadIdx.x] = moved(sums[threadIdx.x], mine, higher) + moved(sums[threadIdx.x + half], other, higher);
            tops[threadIdx.x] = higher;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) y[row + i] = narrowed(expf(widened(x[row + i]) - tops[0]) / sums[0]);
}

extern "C" __global__ void softmax_backward(const Number* dy, const Number* y, Number* dx) {
    __shared__ float sums[THREADS];
    const long long row = (long long)blockIdx.x * COLUMNS;
    float sum = 0;
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) sum = fmaf(widened(dy[row + i]), widened(y[row + i]), sum);
    sums[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMNS; i += THREADS) dx[row + i] = narrowed(widened(y[row + i]) * (widened(dy[row + i]) - sums[0]));
}
"""


@functools.cache
def module(N: int, dtype: torch.dtype) -> cupy.RawModule:
    """The kernels for rows of N columns. The row length and the number format are compile-time constants."""
    return cupy.RawModule(code=SOURCE, options=("-std=c++17", f"-DKIND={KINDS[dtype]}", f"-DCOLUMNS={N}", f"-DTHREADS={THREADS}"))


@functools.cache
def stream_of(number: int) -> cupy.cuda.ExternalStream:
    return cupy.cuda.ExternalStream(number)


def launch(name: str, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of contiguous tensors on torch's current stream; it writes the last one."""
    M, N = tensors[0].shape
    with stream_of(torch.cuda.current_stream().cuda_stream):
        function = module(N, tensors[0].dtype).get_function(name)
        function((M,), (THREADS,), tuple(tensor.data_ptr() for tensor in tensors))
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M * case.N else "it takes no tensors without elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch("softmax_forward", x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch("softmax_backward", dy, y, torch.empty_like(y))
