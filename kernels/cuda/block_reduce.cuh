// Reductions over the threads of a CTA.
#pragma once

#include "softmax_ops.cuh"

namespace softbench {

constexpr int MAX_WARPS = 32;

// Merges the Partials of a CTA of at most MAX_THREADS threads; each thread gets the result. It takes one barrier, and `warp_partials` must not
// be written again before another one.
template <typename Op, int MAX_THREADS = MAX_WARPS * WARP> __device__ __forceinline__ Partial block_reduce(Partial partial, Partial* warp_partials) {
    constexpr int WARPS = MAX_THREADS <= 8 * WARP ? 8 : MAX_THREADS <= 16 * WARP ? 16 : 32;  // each step of the merge waits for a shuffle
    constexpr bool REPLICATED = MAX_THREADS <= 16 * WARP;  // CTAs of 1024 threads have 32 registers a thread, and would spill two of them
    partial = REPLICATED ? Op::reduce_replicated(partial, WARP) : Op::reduce_lanes(partial, WARP);
    const int warps = blockDim.x / WARP, warp = threadIdx.x % WARPS;
    if (warps == 1) return partial;
    if (threadIdx.x % WARP == 0) warp_partials[threadIdx.x / WARP] = partial;
    __syncthreads();
    partial = warp < warps ? warp_partials[warp] : Op::identity();
    return REPLICATED ? Op::reduce_replicated(partial, WARPS) : Op::reduce_lanes(partial, WARPS);
}

}  // namespace softbench
