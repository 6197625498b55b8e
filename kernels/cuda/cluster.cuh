// Tier cluster: a cluster of CTAs has a row and holds it in registers. Otherwise it is like tier block.
//
// It serves few rows, which must fill the device, and rows too long for one CTA. More rows wait for their exchanges at the same time, and each
// waits shorter.
#pragma once

#include "cluster_exchange.cuh"

namespace softbench {

// The least CTAs an SM for __launch_bounds__. `thread_vectors`: the vectors of all tensors that a thread holds.
constexpr int cluster_min_ctas(int thread_vectors, int max_threads, bool caches_exponentials) {
    return thread_vectors == 2 ? (caches_exponentials ? 1536 : 2048) / max_threads
         : thread_vectors == 4 ? 1536 / max_threads
         : thread_vectors == 8 ? (max_threads == 192 ? 6 : max_threads == 224 ? 5 : 1024 / max_threads)
                               : 768 / max_threads;
}

// Beside a target, some kernels would spill registers after Hopper with as many CTAs.
template <typename Op, int K, int T> constexpr int CLUSTER_MIN_CTAS = cluster_min_ctas(K * Op::READS, T, CACHES_EXPONENTIALS<Op, K>) -
                                                                     (AFTER_HOPPER && Op::HAS_TARGET && K >= 4 && K != 8);

// `size`: the CTAs of a cluster. T: the most threads of a CTA. NO_EDGES and KEEP_IN_L2: see Row.
template <typename Op, int K, int T, bool NO_EDGES, bool KEEP_IN_L2>
__global__ void __launch_bounds__(T, CLUSTER_MIN_CTAS<Op, K, T>)
    cluster(Tensors<Op> tensors, int size, int base_alignment, Stagger stagger) {
#if SOFTBENCH_CLUSTERS
    __shared__ Partial warp_partials[MAX_WARPS];
    __shared__ ClusterExchange exchange;
    const int rank = cluster_rank(), start = rank * K * int(blockDim.x) + int(threadIdx.x);
    exchange.begin(size);
    const int index = cluster_index();
    staggered_start(stagger, index);
    const Row<Op, NO_EDGES, KEEP_IN_L2> row(tensors, index, base_alignment);
    const int edge_index = row.edge_index(start);
    uint32_t edge[Op::READS];
    row.load_edge(edge_index, edge);
    Operands<Op::READS> operands[K];
    load_vectors(operands, row, start, blockDim.x, row.end);
    constexpr bool CACHED = CACHES_EXPONENTIALS<Op, K>;
    float exponentials[CACHED ? K * Op::V : 1];
    Partial thread_partial;
    if constexpr (CACHED) thread_partial = row.op.init_partial(operands, edge, exponentials);
    else thread_partial = row.op.init_partial(operands, edge);
    const Partial partial = block_reduce<T>(row.op, thread_partial, warp_partials);
    const typename Op::Total total = row.op.finalize(exchange.merge(row.op, partial, rank, size));
    if (!CACHED) rematerialize<Op>(operands, base_alignment == 0);
    write_vectors<STORES_IN_PAIRS<Op>, CACHED>(row, operands, exponentials, total, thread_partial, start, blockDim.x, row.end);
    row.write_edge(edge_index, edge, total);
#endif
}

}  // namespace softbench
