// Reductions over the threads of a CTA.
#pragma once

#include "softmax_ops.cuh"

namespace softbench {

constexpr int MAX_WARPS = 32;

// Merges the Partials of a CTA of at most MAX_THREADS threads; each thread gets the result. It takes one barrier, and `warp_partials` must not
// be written again before another one.
template <int MAX_THREADS = MAX_WARPS * WARP, typename Op>
__device__ __forceinline__ Partial block_reduce(const Op& op, Partial partial, Partial* warp_partials) {
    constexpr int WARPS = MAX_THREADS <= 8 * WARP ? 8 : MAX_THREADS <= 16 * WARP ? 16 : 32;  // each step of the merge waits for a shuffle
    constexpr bool REPLICATED = MAX_THREADS <= 16 * WARP;  // CTAs of 1024 threads have 32 registers a thread, and would spill two of them
    partial = REPLICATED ? op.reduce_replicated(partial, WARP) : op.reduce_lanes(partial, WARP);
    const int warps = blockDim.x / WARP, warp = threadIdx.x % WARPS;
    if (warps == 1) return partial;
    if (threadIdx.x % WARP == 0) warp_partials[threadIdx.x / WARP] = partial;
    __syncthreads();
    partial = warp < warps ? warp_partials[warp] : Op::identity();
    return REPLICATED ? op.reduce_replicated(partial, WARPS) : op.reduce_lanes(partial, WARPS);
}

}  // namespace softbench
