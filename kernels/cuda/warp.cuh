// Rows of 1 to 4 KB that begin and end at vectors: a warp a row, three to eight vectors a lane, or a warp two rows.
//
// With the vectors a lane known exactly, nothing is masked that could be there: a row of 640 floats is five vectors a lane, and not six of
// which one waits for nothing. How many rows an SM holds decides the rest. As long as all are under way at once (4096 rows are 31 an SM),
// or so many that SMs take new ones all the time, a row in registers is the fastest. In between, say 8192 rows where an SM's registers
// hold 40 of its 62, the second wave would be half empty: there a warp asks for two rows at once, into shared memory, which has room for both.
#pragma once

#include "short.cuh"

namespace softbench {

// Most vectors a lane of an operation's rows, 0 where it has no such kernels: of 16 bits eight would not fit registers.
template <typename Op> constexpr int ON_WARP = Op::READS == 2 || sizeof(typename Op::Element) != sizeof(typename Op::Out) ? 0 : Op::E == 1 ? 8 : 6;

constexpr int WARP_THREADS = 128;  // of a CTA, at most

// CTAs of so many threads an SM: what registers allow.
template <typename Op> constexpr int warp_ctas(int K) { return Op::E == 1 ? (K <= 4 ? 16 : K == 5 ? 12 : K == 6 ? 10 : K == 7 ? 9 : 8) : (K == 3 ? 12 : K == 4 ? 10 : K == 5 ? 9 : 8); }

// Of a row that is there, K vectors a lane.
template <typename Op, int K> __device__ __forceinline__ void settle_row(const Tensors<Op>& tensors, unsigned index, uint32_t (&word)[K][4], int lane, int last) {
    constexpr int E = Op::E, V = Op::V;
    float value[K * V][1];
#pragma unroll
    for (int c = 0; c < K * V; ++c) value[c][0] = Word<typename Op::Element>::element(word[c / V][c % V / E], c % E);
    const float top = largest_of<typename Op::Element>(reinterpret_cast<const uint32_t(&)[K * 4]>(word));
    settle<Op>(value, top, Group<WARP>{WARP, lane, 0, true});
    typename Op::Out* to = tensors.target + int64_t(index) * tensors.target_stride + lane * V;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float result[V];
#pragma unroll
        for (int v = 0; v < V; ++v) result[v] = value[k * V + v][0];
        if (k * WARP < last) write<typename Op::Out, V>(to + k * WARP * V, result);
    }
}

template <typename Op, int K, bool STAY> __global__ void __launch_bounds__(WARP_THREADS, warp_ctas<Op>(K)) warp_row(Tensors<Op> tensors) {
    const int lane = threadIdx.x % WARP, last = tensors.N / Op::V - lane;  // vectors from this lane's first to the row's end
    const unsigned index = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;  // below 2^31 and a CTA's rows
    if (index >= tensors.M) return;
    const uint64_t policy = policy_of<STAY>();
    const uint4* from = reinterpret_cast<const uint4*>(tensors.source[0] + int64_t(index) * tensors.source_stride[0]) + lane;
    uint32_t word[K][4];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        put(word[k], make_uint4(Op::blank(), Op::blank(), Op::blank(), Op::blank()));
        if (k * WARP < last) read_words<STAY, 4>(word[k], from + k * WARP, policy);
    }
    settle_row<Op, K>(tensors, index, word, lane, last);
}

// Two rows a warp, `stride` vectors apart in shared memory. A lane reads there what it has copied itself: there is nobody to wait for.
template <typename Op, int K> __global__ void __launch_bounds__(WARP_THREADS, warp_ctas<Op>(K)) warp_rows(Tensors<Op> tensors, int stride) {
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    const int lane = threadIdx.x % WARP, last = tensors.N / Op::V - lane, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const unsigned first = blockIdx.x * warps * 2 + warp;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const unsigned index = first + r * warps;
        const uint4* from = reinterpret_cast<const uint4*>(tensors.source[0] + int64_t(index) * tensors.source_stride[0]) + lane;
        uint4* own = reinterpret_cast<uint4*>(dynamic) + (r * warps + warp) * stride + lane;
        if (index < tensors.M)
#pragma unroll
            for (int k = 0; k < K; ++k)
                if (k * WARP < last) copy_async<false>(own + k * WARP, from + k * WARP, 0);
        copy_async_group();
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const unsigned index = first + r * warps;
        if (index >= tensors.M) return;
        if (r == 0) copy_async_wait_but<1>();
        else copy_async_wait();
        const uint4* own = reinterpret_cast<const uint4*>(dynamic) + (r * warps + warp) * stride + lane;
        uint32_t word[K][4];
#pragma unroll
        for (int k = 0; k < K; ++k) put(word[k], k * WARP < last ? own[k * WARP] : make_uint4(Op::blank(), Op::blank(), Op::blank(), Op::blank()));
        settle_row<Op, K>(tensors, index, word, lane, last);
    }
}

}  // namespace softbench
