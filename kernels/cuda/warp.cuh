// Tier warp: rows of 1 to 4 KB that consist of whole vectors. A warp has one row or two, with three to eight vectors a lane.
//
// The kernel knows the vectors a lane, so that it masks no vector that is present. A row of 640 floats has five vectors a lane and not six. For
// the rest, it matters how many rows an SM holds. If all rows run at once (4096 rows are 31 an SM), a row in registers is fastest. It
// is also fastest if SMs take new rows all the time. Between these, a second wave would be half empty: with 8192 rows, an SM has 62 and its
// registers hold 40. There a warp copies two rows at once into shared memory, which has room for both.
#pragma once

#include "async_copy.cuh"
#include "logical_warp.cuh"

namespace softbench {

// The most vectors a lane, or 0 if the operation has no such kernel. Eight vectors of 16-bit elements would not fit in registers. With a
// target, only rows of up to four have been measured.
template <typename Op>
constexpr int WARP_MAX_VECTORS = Op::READS == 2 || sizeof(typename Op::Element) != sizeof(typename Op::Out) ? 0 : Op::E == 1 ? 8 : Op::HAS_TARGET ? 4 : 6;

constexpr int WARP_THREADS = 128;  // the most of a CTA

// The least CTAs an SM for __launch_bounds__, as registers allow.
template <typename Op> constexpr int warp_min_ctas(int K) {
    if (Op::HAS_TARGET) return 8;
    return Op::E == 1 ? (K <= 4 ? 16 : K == 5 ? 12 : K == 6 ? 10 : K == 7 ? 9 : 8) : (K == 3 ? 12 : K == 4 ? 10 : K == 5 ? 9 : 8);
}

// The same as compute_and_write_row, for an operation with a target. The lane that has the target's element also writes it and the loss. It loads the
// logit a second time, from L1: a choice among registers takes some 300 instructions. Where the target is outside of the row, the first element stands
// for it.
template <typename Op, int K>
__device__ __forceinline__ void compute_and_write_loss(const Op& op, const Tensors<Op>& tensors, unsigned row, uint32_t (&packed)[K][4], int lane, int remaining) {
    constexpr int E = Op::E, V = Op::V;
    using Element = typename Op::Element;
    const float maximum = max_over_warp(packed_maximum<Element>(reinterpret_cast<const uint32_t(&)[K * 4]>(packed))), base = finite_or_zero(maximum);
    const unsigned hot = unsigned(op.target) < unsigned(tensors.N) ? unsigned(op.target) : 0;
    const bool has_hot = hot / V % WARP == lane;
    float logit = 0.0f;
    if (has_hot) logit = op.load_logit(tensors.source[0] + int64_t(row) * tensors.source_stride[0] + hot);
    float value[K * V], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int c = 0; c < K * V; ++c) {
        value[c] = exp2_fast(op.exponent(Packed<Element>::element(packed[c / V][c % V / E], c % E), base));
        sum[c % 2] += value[c];
    }
    const typename Op::Total total = op.finalize({maximum, sum_over_lanes(sum[0] + sum[1], WARP)});
    typename Op::Out *const begin = tensors.target + int64_t(row) * tensors.target_stride, *const to = begin + lane * V;
    if (total.hot & 1) {  // an ignored row
#pragma unroll
        for (int k = 0; k < K; ++k)
            store16_if(k * WARP < remaining, to + k * WARP * V, 0, 0, 0, 0);
    } else {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            float result[V];
#pragma unroll
            for (int v = 0; v < V; ++v) result[v] = value[k * V + v] * total.scale;
            store_vector_if<typename Op::Out, V>(k * WARP < remaining, to + k * WARP * V, result);
        }
    }
    if (has_hot) op.write_target(begin + hot, logit, total);
}

// Computes and writes a row that exists. K: the vectors a lane. `remaining`: the vectors from the lane's first to the end of the row.
template <typename Op, int K>
__device__ __forceinline__ void compute_and_write_row(const Op& op, const Tensors<Op>& tensors, unsigned row, uint32_t (&packed)[K][4], int lane, int remaining) {
    constexpr int E = Op::E, V = Op::V;
    if constexpr (Op::HAS_TARGET) return compute_and_write_loss<Op, K>(op, tensors, row, packed, lane, remaining);
    float value[K * V][1];
#pragma unroll
    for (int c = 0; c < K * V; ++c) value[c][0] = Packed<typename Op::Element>::element(packed[c / V][c % V / E], c % E);
    const float maximum = packed_maximum<typename Op::Element>(reinterpret_cast<const uint32_t(&)[K * 4]>(packed));
    compute_in_place(op, value, maximum, LogicalWarp<WARP>{WARP, lane, 0, true});
    typename Op::Out* to = tensors.target + int64_t(row) * tensors.target_stride + lane * V;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float result[V];
#pragma unroll
        for (int v = 0; v < V; ++v) result[v] = value[k * V + v][0];
        if (k * WARP < remaining) store_vector<typename Op::Out, V>(to + k * WARP * V, result);
    }
}

template <typename Op, int K, bool KEEP_IN_L2> __global__ void __launch_bounds__(WARP_THREADS, warp_min_ctas<Op>(K)) warp_row(Tensors<Op> tensors) {
    const int lane = threadIdx.x % WARP, remaining = tensors.N / Op::V - lane;
    const unsigned row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;  // less than 2^31 plus a CTA's rows
    if (row >= tensors.M) return;
    const Op op(tensors, row);
    const uint64_t policy = l2_policy<KEEP_IN_L2>();
    const uint4* from = reinterpret_cast<const uint4*>(tensors.source[0] + int64_t(row) * tensors.source_stride[0]) + lane;
    uint32_t packed[K][4];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        assign(packed[k], padding_vector<Op>());
        if (k * WARP < remaining) load_packed<KEEP_IN_L2, 4>(packed[k], from + k * WARP, policy);
    }
    compute_and_write_row<Op, K>(op, tensors, row, packed, lane, remaining);
}

// A warp has two rows, which are `row_stride` vectors apart in shared memory. A lane reads only what it has copied, so there is no barrier.
// After Hopper, a scale and five or six vectors of 16-bit elements need more registers than the bound of warp_row leaves.
template <typename Op, int K>
__global__ void __launch_bounds__(WARP_THREADS, warp_min_ctas<Op>(K) - (AFTER_HOPPER && Op::SCALED && Op::E == 2 && K >= 5)) warp_two_rows(Tensors<Op> tensors, int row_stride) {
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    const int lane = threadIdx.x % WARP, remaining = tensors.N / Op::V - lane, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const unsigned first = blockIdx.x * warps * 2 + warp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const unsigned row = first + r * warps;
        const uint4* from = reinterpret_cast<const uint4*>(tensors.source[0] + int64_t(row) * tensors.source_stride[0]) + lane;
        uint4* smem = reinterpret_cast<uint4*>(dynamic) + (r * warps + warp) * row_stride + lane;
        if (row < tensors.M)
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (k * WARP < remaining) copy_async<false>(smem + k * WARP, from + k * WARP, 0);
        copy_async_group();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const unsigned row = first + r * warps;
        if (row >= tensors.M) return;
        const Op op(tensors, row);
        if (r == 0) copy_async_wait_but<1>();
        else copy_async_wait();
        const uint4* smem = reinterpret_cast<const uint4*>(dynamic) + (r * warps + warp) * row_stride + lane;
        uint32_t packed[K][4];
#pragma unroll
        for (int k = 0; k < K; ++k) assign(packed[k], k * WARP < remaining ? smem[k * WARP] : padding_vector<Op>());
        compute_and_write_row<Op, K>(op, tensors, row, packed, lane, remaining);
    }
}

}  // namespace softbench
