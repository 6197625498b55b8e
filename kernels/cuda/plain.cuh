// Whatever the other tiers do not take: tensors that lie differently against 16 bytes, and rows of 2^31 elements or more. Element by
// element, two reads, a warp or a CTA a row.
#pragma once

#include "memory.cuh"

namespace softbench {

constexpr int PLAIN_THREADS = 512;

template <typename Op, bool WARP_A_ROW>
__global__ void __launch_bounds__(PLAIN_THREADS) plain(Tensors<Op> tensors, int64_t N) {
    constexpr int R = Op::READS;
    __shared__ Part parts[MAX_WARPS];
    const int step = WARP_A_ROW ? WARP : blockDim.x, thread = WARP_A_ROW ? threadIdx.x % WARP : threadIdx.x;
    int64_t index = WARP_A_ROW ? int64_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP : blockIdx.x;
    if (index >= tensors.M) return;  // whole warps, and no barrier follows for them
    const typename Op::Element* source[R];
#pragma unroll
    for (int r = 0; r < R; ++r) source[r] = tensors.source[r] + index * tensors.source_stride[r];
    typename Op::Out* target = tensors.target + index * tensors.target_stride;
    Part part = Op::empty();
    float value[R];
    for (int64_t i = thread; i < N; i += step) {
#pragma unroll
        for (int r = 0; r < R; ++r) value[r] = widen(source[r][i]);
        Op::absorb(part, value);
    }
    part = WARP_A_ROW ? Op::join_alike(part, WARP) : join_block<Op>(part, parts);
    Part whole = Op::finish(part);
    for (int64_t i = thread; i < N; i += step) {
#pragma unroll
        for (int r = 0; r < R; ++r) value[r] = widen(source[r][i]);
        target[i] = narrow<typename Op::Out>(Op::result(value, whole));
    }
}

}  // namespace softbench
