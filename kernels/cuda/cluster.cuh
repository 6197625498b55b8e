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
    __shared__ Message mailbox[MAX_CLUSTER];
    __shared__ uint64_t exchange_barrier;
    const int thread = threadIdx.x, lane = thread % WARP, rank = cluster_rank(), start = rank * K * int(blockDim.x) + thread;
    if (thread == 0) {
        barrier_init(&exchange_barrier);
        barrier_inits_done();
        barrier_expect(&exchange_barrier, sizeof(Message) * size);
    }
    cluster_arrive();  // this CTA's barrier is ready; the wait for the other CTAs comes after the loads
    const int index = cluster_index();
    staggered_start(stagger, index);
    const Row<Op, NO_EDGES, KEEP_IN_L2> row(tensors, index, base_alignment);
    const int edge_index = row.edge_index(start);
    uint32_t edge[Op::READS];
    row.load_edge(edge_index, edge);
    Operands<Op::READS> operands[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * int(blockDim.x);
        load_operands(operands[k], row, i, (NO_EDGES || i >= row.first) && i < row.end);
    }
    constexpr bool CACHED = CACHES_EXPONENTIALS<Op, K>;
    float exponentials[CACHED ? K * Op::V : 1];
    Partial thread_partial;
    if constexpr (CACHED) thread_partial = row.op.init_partial(operands, edge, exponentials);
    else thread_partial = row.op.init_partial(operands, edge);
    Partial partial = block_reduce<T>(row.op, thread_partial, warp_partials);
    cluster_wait();
    if (thread < size) send_partial(&mailbox[rank], &exchange_barrier, thread, partial);
    barrier_wait(&exchange_barrier, 0);  // all messages have come: no CTA writes here any more, and this CTA may exit
    const int other = lane % MAX_CLUSTER;
    partial = other < size ? Partial{mailbox[other].maximum, mailbox[other].sum} : Op::identity();
    const typename Op::Total total = row.op.finalize(row.op.reduce_replicated(partial, MAX_CLUSTER));
    if (!CACHED) rematerialize<Op>(operands, base_alignment == 0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * int(blockDim.x);
        if constexpr (STORES_IN_PAIRS<Op>) {
            if (!warp_has_vector(i, row.first, row.end)) continue;
            const PairTarget pair = row.pair_target(i, row.first, row.end);
            if constexpr (CACHED) row.op.write(pair, exponentials + k * Op::V, total, thread_partial);
            else row.op.write(pair, operands[k], total, thread_partial);
            continue;
        }
        if (!((NO_EDGES || i >= row.first) && i < row.end)) continue;
        if constexpr (CACHED) row.op.write(row.target + int64_t(i) * Op::V, exponentials + k * Op::V, total, thread_partial);
        else row.write(i, operands[k], total, thread_partial);
    }
    row.write_edge(edge_index, edge, total);
#endif
}

}  // namespace softbench
