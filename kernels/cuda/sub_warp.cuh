// Tier sub_warp: rows of at most 2.5 KB, each on a logical warp, directly from and to global memory. Many short rows must be in flight to use the
// memory's bandwidth.
#pragma once

#include "logical_warp.cuh"

namespace softbench {

constexpr int SUB_WARP_THREADS = 256;

// The least CTAs an SM for __launch_bounds__. They fill the SM as far as registers allow, since a lane has only a few bytes in flight.
// `elements`: those of all tensors that a lane holds. `widens`: the result has more bytes than the input.
constexpr int aligned_min_ctas(int K, int elements, int READS, bool widens) {
    if (widens && elements == 16) return 6;
    return (elements <= 8 && K < 4) || (elements >= 8 && elements <= 16 && READS == 1) ? 8 : elements <= 16 ? 5 : 3;
}

// Rows whose starts and lengths are multiples of an access of W 32-bit registers. K: the accesses a lane. LANES: see LogicalWarp. If the compiler
// knows LANES, a short row takes a third fewer instructions. `lanes_log2`: of the lanes of a row, for LANES = 0.
template <typename Op, int K, int W, int LANES, bool KEEP_IN_L2>
__global__ void __launch_bounds__(SUB_WARP_THREADS,
                                  aligned_min_ctas(K, K * W * Op::E * Op::READS, Op::READS, sizeof(typename Op::Out) > sizeof(typename Op::Element)))
    sub_warp_aligned(Tensors<Op> tensors, int lanes_log2) {
    constexpr int R = Op::READS, E = Op::E, V = W * E;
    const int lanes = LANES ? LANES : 1 << lanes_log2, lane = threadIdx.x & (lanes - 1);
    auto rows_of = [&](unsigned threads) { return LANES ? threads / LANES : threads >> lanes_log2; };
    const LogicalWarp<LANES> logical_warp = {lanes};
    const unsigned index = blockIdx.x * rows_of(blockDim.x) + rows_of(threadIdx.x);  // less than 2^31 plus a CTA's rows
    const bool active = index < tensors.M;  // inactive lanes take part in the shuffles
    // Accesses from this lane's first to the end of the row. A lane that stores in pairs looks one access back, so -1 keeps an inactive one from it.
    const int remaining = active ? tensors.N / V - lane : STORES_IN_PAIRS<Op> ? -1 : 0;
    const uint64_t policy = l2_policy<KEEP_IN_L2>();
    const Op op(tensors, active ? index : 0);
    uint32_t packed[K][R][W];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const typename Op::Element* from = tensors.source[r] + int64_t(index) * tensors.source_stride[r] + lane * V;
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
            for (int w = 0; w < W; ++w) packed[k][r][w] = Op::padding();
            if (k * lanes < remaining) load_packed<KEEP_IN_L2, W>(packed[k][r], from + k * lanes * V, policy);
        }
    }
    float value[K * V][R], maximum = 0.0f;
#pragma unroll
    for (int c = 0; c < K * V; ++c)
#pragma unroll
        for (int r = 0; r < R; ++r) value[c][r] = Packed<typename Op::Element>::element(packed[c / V][r][c % V / E], c % E);
    if constexpr (R == 1) maximum = packed_maximum<typename Op::Element>(reinterpret_cast<const uint32_t(&)[K * W]>(packed));
    compute_in_place(op, value, maximum, logical_warp);
    typename Op::Out* to = tensors.target + int64_t(index) * tensors.target_stride + lane * V;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float result[V];
#pragma unroll
        for (int v = 0; v < V; ++v) result[v] = value[k * V + v][0];
        if constexpr (STORES_IN_PAIRS<Op> && W == 4 && LANES >= 2)
            store_vector<typename Op::Out, V>(PairTarget{to + k * lanes * V, k * lanes < remaining, k * lanes + (lane ^ 1) - lane < remaining}, result);
        else if (k * lanes < remaining) store_results<typename Op::Out, V>(to + k * lanes * V, result);
    }
}

// The most vectors a lane of `sub_warp_unaligned` for rows on a whole warp. For rows on half a warp it is 3.
template <typename Op>
constexpr int UNALIGNED_MAX_VECTORS = Op::READS == 2 ? 3 : Op::E == 1 || sizeof(typename Op::Element) != sizeof(typename Op::Out) ? 4 : 5;

// The least CTAs an SM for __launch_bounds__.
constexpr int unaligned_min_ctas(int K, int READS, int E) {
    return READS * K >= 4 ? 4 : READS * K >= 3 ? 5 : READS == 1 && E == 2 && K == 2 ? 6 : 8;
}

// Rows that begin and end anywhere, on 16 or 32 lanes. All warps of an SM begin together, so each instruction before the loads delays all of
// them. The loads of vectors therefore come first, and those of edge elements after them.
template <typename Op, int K, int LANES, bool KEEP_IN_L2>
__global__ void __launch_bounds__(SUB_WARP_THREADS, unaligned_min_ctas(K, Op::READS, Op::HAS_TARGET ? 2 : Op::E)) sub_warp_unaligned(Tensors<Op> tensors) {
    const int lane = threadIdx.x % LANES;
    const unsigned index = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;  // less than 2^31 plus a CTA's rows
    const bool active = index < tensors.M;  // inactive lanes take the last row, take part in the shuffles, and write nothing
    const Row<Op, false, KEEP_IN_L2> row(tensors, active ? index : tensors.M - 1, VECTOR_BYTES);
    Operands<Op::READS> operands[K];
    bool inside[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int i = k * LANES + lane;
        inside[k] = i >= row.first && i < row.end;
        load_operands(operands[k], row, i, inside[k]);
    }
    const int edge_index = row.edge_index(lane);
    uint32_t edge[Op::READS];
    row.load_edge(edge_index, edge);
    if constexpr (Op::READS == 1 && Op::E == 2 && !Op::HAS_TARGET) {  // a second exponential of each element would be a fifth of all instructions
        constexpr int V = Op::V, E = Op::E;
        float value[K * V + 1][1];
        value[K * V][0] = Packed<typename Op::Element>::element(edge[0], 0);
#pragma unroll
        for (int c = 0; c < K * V; ++c) value[c][0] = Packed<typename Op::Element>::element(operands[c / V].packed[0][c % V / E], c % E);
        compute_in_place(row.op, value, Op::thread_maximum(operands, edge), LogicalWarp<LANES>{LANES});
        if (!STORES_IN_PAIRS<Op> && !active) return;  // else the lane takes part in the exchange
#pragma unroll
        for (int k = 0; k < K; ++k) {
            float result[V];
#pragma unroll
            for (int v = 0; v < V; ++v) result[v] = value[k * V + v][0];
            if constexpr (STORES_IN_PAIRS<Op>)
                store_vector<typename Op::Out, V>(row.pair_target(k * LANES + lane, row.first, active ? row.end : 0), result);
            else store_vector_if<typename Op::Out, V>(inside[k], row.target + (k * LANES + lane) * V, result);
        }
        if ((!STORES_IN_PAIRS<Op> || active) && edge_index >= 0) row.target[edge_index] = from_float<typename Op::Out>(value[K * V][0]);
        return;
    }
    const Partial thread_partial = row.op.init_partial(operands, edge);
    const typename Op::Total total = row.op.finalize(LANES == WARP ? row.op.reduce_replicated(thread_partial, LANES) : row.op.reduce_lanes(thread_partial, LANES));
    if (!active) return;
    rematerialize<Op>(operands, tensors.N == 0);
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (inside[k]) row.write(k * LANES + lane, operands[k], total, thread_partial);
    row.write_edge(edge_index, edge, total);
}

}  // namespace softbench
