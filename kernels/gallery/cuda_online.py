"""Softmax in CUDA C++, online: maximum and sum in one loop, by vectors.

A block of threads takes a row of any length. The online sum is rescaled when the maximum grows (Milakov and Gimelshein, 2018), so
the row is read twice and not three times. Each thread loads whole vectors; the elements before the first and after the last whole
vector are read one by one.

softbench run --plugin cuda_online.py
"""

import torch

import softbench

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>

struct Online {  // the maximum of some elements, and the sum of exp(x - maximum)
    float top = -INFINITY, sum = 0;
    __device__ void merge(float other_top, float other_sum) {
        const float higher = other_top != other_top || other_top > top ? other_top : top;
        // Equal maxima need no factor; so two sums of -inf stay 0 and are not multiplied by exp(-inf + inf).
        sum = (top == higher ? sum : sum * expf(top - higher)) + (other_top == higher ? other_sum : other_sum * expf(other_top - higher));
        top = higher;
    }
    __device__ void add(float x) { merge(x, 1); }
};

template <typename Value>
__device__ Value shuffled(Value value, int lanes) { return __shfl_xor_sync(~0u, value, lanes); }

__device__ Online over_block(Online mine) {
    __shared__ float tops[32], sums[32];
    for (int lanes = 16; lanes > 0; lanes /= 2) mine.merge(shuffled(mine.top, lanes), shuffled(mine.sum, lanes));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = mine.top, sums[threadIdx.x / 32] = mine.sum;
    __syncthreads();
    Online all;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) all.merge(tops[warp], sums[warp]);
    return all;
}

__device__ float over_block(float mine) {
    __shared__ float sums[32];
    for (int lanes = 16; lanes > 0; lanes /= 2) mine += shuffled(mine, lanes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = mine;
    __syncthreads();
    float all = 0;
    for (int warp = 0; warp < blockDim.x / 32; ++warp) all += sums[warp];
    return all;
}

template <typename T>
struct alignas(16) Vector { T of[16 / sizeof(T)]; };

// Calls single(i) for elements and whole(i) for vectors that begin at element i. `row` decides which elements make whole vectors.
template <typename T, typename Single, typename Whole>
__device__ void each(const T* row, int64_t N, Single single, Whole whole) {
    constexpr int V = 16 / sizeof(T);
    const int64_t before = min(N, int64_t((16 - (uintptr_t)row % 16) % 16 / sizeof(T))), vectors = (N - before) / V;
    for (int64_t i = threadIdx.x; i < before; i += blockDim.x) single(i);
    for (int64_t v = threadIdx.x; v < vectors; v += blockDim.x) whole(before + v * V);
    for (int64_t i = before + vectors * V + threadIdx.x; i < N; i += blockDim.x) single(i);
}

template <typename T>
__device__ Vector<T> load(const T* at) { return *reinterpret_cast<const Vector<T>*>(at); }

template <typename T>
__device__ void store(T* at, Vector<T> vector) { *reinterpret_cast<Vector<T>*>(at) = vector; }

// All tensors of a launch start at addresses with the same remainder by 16, so that their vectors begin at the same elements.
template <typename T>
__global__ void forward_row(const T* x, T* y, int64_t N) {
    x += blockIdx.x * N;
    y += blockIdx.x * N;
    Online mine;
    each(x, N, [&](int64_t i) { mine.add(float(x[i])); }, [&](int64_t i) {
        for (T one : load(x + i).of) mine.add(float(one));
    });
    Online row = over_block(mine);
    row.sum += row.top - row.top;  // an infinite maximum makes the row NaN, as in torch
    const auto probability = [&](T one) { return T(expf(float(one) - row.top) / row.sum); };
    each(x, N, [&](int64_t i) { y[i] = probability(x[i]); }, [&](int64_t i) {
        Vector<T> vector = load(x + i);
        for (T& one : vector.of) one = probability(one);
        store(y + i, vector);
    });
}

template <typename T>
__global__ void backward_row(const T* dy, const T* y, T* dx, int64_t N) {
    dy += blockIdx.x * N;
    y += blockIdx.x * N;
    dx += blockIdx.x * N;
    constexpr int V = 16 / sizeof(T);
    float mine = 0;
    each(y, N, [&](int64_t i) { mine += float(dy[i]) * float(y[i]); }, [&](int64_t i) {
        const Vector<T> dys = load(dy + i), ys = load(y + i);
        for (int k = 0; k < V; ++k) mine += float(dys.of[k]) * float(ys.of[k]);
    });
    const float dot = over_block(mine);
    each(y, N, [&](int64_t i) { dx[i] = T(float(y[i]) * (float(dy[i]) - dot)); }, [&](int64_t i) {
        Vector<T> dys = load(dy + i), ys = load(y + i);
        for (int k = 0; k < V; ++k) ys.of[k] = T(float(ys.of[k]) * (float(dys.of[k]) - dot));
        store(dx + i, ys);
    });
}

#define OF_DTYPE(NAME, T)                                                                                                              \
    extern "C" void forward_##NAME(const void* x, void* y, int64_t M, int64_t N, int64_t threads, cudaStream_t stream) {               \
        forward_row<T><<<M, threads, 0, stream>>>((const T*)x, (T*)y, N);                                                              \
    }                                                                                                                                  \
    extern "C" void backward_##NAME(const void* dy, const void* y, void* dx, int64_t M, int64_t N, int64_t threads, cudaStream_t stream) { \
        backward_row<T><<<M, threads, 0, stream>>>((const T*)dy, (const T*)y, (T*)dx, N);                                              \
    }
OF_DTYPE(float32, float)
OF_DTYPE(float16, __half)
OF_DTYPE(bfloat16, __nv_bfloat16)
"""
library = softbench.build(SOURCE)


def launch(name: str, *tensors: torch.Tensor) -> torch.Tensor:
    """Run a kernel over the rows of contiguous tensors on the current stream; it writes the last one."""
    M, N = tensors[0].shape
    remainder = tensors[-1].data_ptr() % 16
    tensors = tuple(one if one.data_ptr() % 16 == remainder else one.clone() for one in tensors)
    threads = min(1024, max(32, 32 * (N * tensors[0].element_size() // 2048)))  # four vectors a thread
    of_dtype = getattr(library, f"{name}_{str(tensors[0].dtype).removeprefix('torch.')}")
    of_dtype(*tensors, M, N, threads, torch.cuda.current_stream())
    return tensors[-1]


def supports(case) -> str | None:
    """None, or why a run skips the case."""
    return None if case.M * case.N else "it takes no tensors without elements"


def softmax(x: torch.Tensor) -> torch.Tensor:
    return launch("forward", x, torch.empty_like(x))


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return launch("backward", dy, y, torch.empty_like(y))
