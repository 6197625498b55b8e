// Tier generic: the rows that no other tier takes. Their tensors differ in the offset from a 16-byte boundary, or a row has nearly 2^31 elements
// or more. A warp or a CTA has a row. It reads the row twice, element by element.
#pragma once

#include "row_access.cuh"

namespace softbench {

constexpr int GENERIC_THREADS = 512;

template <typename Op, bool WARP_PER_ROW>
__global__ void __launch_bounds__(GENERIC_THREADS) generic(Tensors<Op> tensors, int64_t N) {
    constexpr int R = Op::READS;
    __shared__ Partial warp_partials[MAX_WARPS];
    const int step = WARP_PER_ROW ? WARP : blockDim.x, thread = WARP_PER_ROW ? threadIdx.x % WARP : threadIdx.x;
    int64_t index = WARP_PER_ROW ? int64_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP : blockIdx.x;
    if (index >= tensors.M) return;  // only whole warps return, and their path has no barrier
    const typename Op::Element* source[R];
#pragma unroll
    for (int r = 0; r < R; ++r) source[r] = tensors.source[r] + index * tensors.source_stride[r];
    typename Op::Out* target = tensors.target + index * tensors.target_stride;
    const Op op(tensors, index);
    Partial partial = Op::identity();
    float operand[R];
    for (int64_t i = thread; i < N; i += step) {
#pragma unroll
        for (int r = 0; r < R; ++r) operand[r] = to_float(source[r][i]);
        op.accumulate(partial, operand);
    }
    partial = WARP_PER_ROW ? op.reduce_replicated(partial, WARP) : block_reduce(op, partial, warp_partials);
    const typename Op::Total total = op.finalize(partial);
    for (int64_t i = thread; i < N; i += step) {
#pragma unroll
        for (int r = 0; r < R; ++r) operand[r] = to_float(source[r][i]);
        op.write_one(target + i, operand, total);
    }
}

}  // namespace softbench
