// Tiers cluster_bulk and split_bulk: long rows. Each CTA has a chunk of a row. A part of it is in registers; the copy engine copies the rest
// into shared memory. The row is read once, exchanged once and written once.
//
// In cluster_bulk, the CTAs of a row are a cluster and exchange through distributed shared memory. (A hand-made plan may use one CTA a row.) In
// split_bulk, they run anywhere on the device and exchange through global memory. The kernel is not persistent, so rows follow each other in
// memory as CTAs come and go.
//
// All loads are issued before anything is computed. ptxas would mix them to save registers, so the computation depends on a barrier after the
// loads. The first pass takes the stages of the bulk copies in the order of their arrival, and measures each from the maximum so far. So early
// stages are computed while later stages are still on their way. The number of threads is a constant, so that addresses take one register plus
// immediate offsets. The other registers are for vectors. A CTA may exit after its exchange: all messages to it have come, and its own messages
// travel in registers.
#pragma once

#include "cluster_exchange.cuh"
#include "grid_exchange.cuh"

namespace softbench {

constexpr int MAX_STAGES = 32;

// The least CTAs an SM for __launch_bounds__, as registers allow. `thread_vectors`: the vectors of all tensors that a thread holds.
constexpr int bulk_min_ctas(int thread_vectors, int threads) {
    return thread_vectors * threads <= 3072 ? 4 : thread_vectors * threads <= 6144 ? 2 : 1;
}

// THREAD_VECTORS: the vectors of all tensors that a thread has in registers. OVER_GRID: the CTAs of a row are no cluster (split_bulk).
// `size`: the CTAs of a row. `chunk`: the vectors of a CTA.
template <typename Op, int THREAD_VECTORS, int T, bool OVER_GRID, bool KEEP_IN_L2>
__global__ void __launch_bounds__(T, bulk_min_ctas(THREAD_VECTORS, T))
    bulk(Tensors<Op> tensors, int size, int chunk, int base_alignment, int max_polls, Workspace* workspace, Stagger stagger, bool leave_first) {
#if SOFTBENCH_CLUSTERS
    constexpr int R = Op::READS, K = THREAD_VECTORS / R, STAGE_VECTORS = 4 / R, STAGE = STAGE_VECTORS * T;
    static_assert(K % STAGE_VECTORS == 0);
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    __shared__ Partial warp_partials[2][MAX_WARPS];
    __shared__ ClusterExchange exchange;
    __shared__ uint64_t stage_barriers[MAX_STAGES];
    // What only the second pass needs is saved here, so that the registers hold vectors: where results go, and the edge elements.
    __shared__ typename Op::Out* saved_target;
    __shared__ const uint4* saved_source[R];  // of the vectors that go to shared memory
    __shared__ int saved_first, saved_rank, saved_begin, saved_end, saved_edge_index[EDGE_THREADS];
    __shared__ uint32_t saved_edge[EDGE_THREADS][R];
    __shared__ int timed_out;
    __shared__ uint32_t saved_tag;
    const int thread = threadIdx.x;
    const int index = int(blockIdx.x / unsigned(size)), rank = OVER_GRID ? int(blockIdx.x) - index * size : size > 1 ? cluster_rank() : 0;
    uint32_t tag = 0;
    if (OVER_GRID && thread == 0) {  // only one thread: a thousand warps that read one cache line wait for each other
        timed_out = 0;
        tag = launch_tag(workspace);
        prefetch_l2(workspace->slots + int64_t(index) * size + rank);  // otherwise polls wait for memory and not for the Partial
    }
    if (!OVER_GRID && size > 1) exchange.begin(size);
    staggered_start(stagger, index);
    const Row<Op, false, KEEP_IN_L2> row(tensors, index, base_alignment, OVER_GRID && leave_first);
    const int begin = rank * chunk, end = min(row.end, begin + chunk);
    const int smem_capacity = max(chunk - K * T, 0), smem_vectors = max(end - begin - K * T, 0);  // of each tensor: the room, and those of this row

    if (thread == 0) {
        saved_target = row.target;
#pragma unroll
        for (int r = 0; r < R; ++r) saved_source[r] = row.vector(r, begin + K * T);
        saved_first = row.first;
        saved_rank = rank;
        saved_begin = begin;
        saved_end = end;
        for (int p = 0; p * STAGE < smem_vectors; ++p) barrier_init(&stage_barriers[p]);
        barrier_inits_done();
    }
    const int start = begin + thread;
    uint32_t edge[R];
    {
        const int edge_index = rank == 0 ? row.edge_index(thread) : -1;
        row.load_edge(edge_index, edge);
        if (thread < EDGE_THREADS) saved_edge_index[thread] = edge_index;
    }
    Operands<R> operands[K];
#pragma unroll
    for (int k = 0; k < K; ++k) load_operands(operands[k], row, start + k * T, (k > 0 || start >= row.first) && start + k * T < end);
    const uint32_t zero = uint32_t(__syncthreads_or(base_alignment == 0));
    if (thread == 0) {  // not earlier, because these copies would delay the loads to registers
        const uint64_t policy = row.policy;
#pragma unroll 1
        for (int p = 0; p * STAGE < smem_vectors; ++p) {
            const int bytes = min(STAGE, smem_vectors - p * STAGE) * VECTOR_BYTES;
            barrier_expect(&stage_barriers[p], R * bytes);
#pragma unroll
            for (int r = 0; r < R; ++r)
                copy_bulk<KEEP_IN_L2>(dynamic + size_t(r * smem_capacity + p * STAGE) * VECTOR_BYTES, saved_source[r] + p * STAGE, bytes, &stage_barriers[p],
                                      policy);
        }
    }

    Partial partial = row.op.edge_partial(edge);
    if (thread < EDGE_THREADS)
#pragma unroll
        for (int r = 0; r < R; ++r) saved_edge[thread][r] = edge[r];
#pragma unroll
    for (int k = 0; k < K; k += STAGE_VECTORS) row.op.accumulate(partial, reinterpret_cast<const Operands<R>(&)[STAGE_VECTORS]>(operands[k]), zero);
    auto fetch = [&](Operands<R>(&stage)[STAGE_VECTORS], int from, int smem_vectors) {
        const int smem_capacity = max(chunk - K * T, 0);
        const uint4* stored = reinterpret_cast<const uint4*>(dynamic) + thread;
#pragma unroll
        for (int u = 0; u < STAGE_VECTORS; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const bool inside = from + u * T + thread < smem_vectors;
                assign(stage[u].packed[r], inside ? stored[r * smem_capacity + from + u * T] : padding_vector<Op>());
            }
    };
#pragma unroll 1
    for (int p = 0; p * STAGE < smem_vectors; ++p) {
        barrier_wait(&stage_barriers[p], 0);
        Operands<R> stage[STAGE_VECTORS];
        fetch(stage, p * STAGE, smem_vectors);
        row.op.accumulate(partial, stage);
    }
    auto write_edges = [&](typename Op::Total total) {
        if (thread >= EDGE_THREADS || saved_edge_index[thread] < 0) return;
        float value[R];
#pragma unroll
        for (int r = 0; r < R; ++r) value[r] = Packed<typename Op::Element>::element(saved_edge[thread][r], 0);
        row.op.write_one(saved_target + saved_edge_index[thread], value, total);
    };
    if (OVER_GRID && thread == 0) saved_tag = tag;
    partial = block_reduce<T>(row.op, partial, warp_partials[0]);
    if (OVER_GRID) {
        Slot* slots = workspace->slots + int64_t(blockIdx.x / unsigned(size)) * size;
        if (thread == 0) publish(slots + saved_rank, partial, tag, workspace);
        partial = block_reduce<T>(row.op, gather(row.op, slots, size, saved_tag, max_polls, timed_out), warp_partials[1]);
        if (timed_out) {  // uses nothing that is in registers or shared memory, but reads the chunk again
            const Row<Op, false, KEEP_IN_L2> again(tensors, blockIdx.x / unsigned(size), base_alignment, leave_first);
            const typename Op::Total total = row.op.finalize(reduce_whole_row(again, warp_partials[0]));
            const int end = saved_end;
            for (int i = max(saved_begin, again.first) + thread; i < end; i += T) {
                Operands<R> one;
                load_operands(one, again, i, true);
                again.write(i, one, total);
            }
            write_edges(total);
            return;
        }
    } else if (size > 1) partial = exchange.merge(row.op, partial, saved_rank, size);

    const typename Op::Total total = row.op.finalize(partial);
    rematerialize<Op>(operands, base_alignment == 0);
    const int own_start = saved_begin + thread, limit = saved_end - own_start;
    typename Op::Out* const out = saved_target + int64_t(own_start) * Op::V;
    // Where lanes store the vector `from` after their first in pairs.
    [[maybe_unused]] auto pair = [&](int from) {
        const int other = (thread ^ 1) - thread;
        return PairTarget{reinterpret_cast<float*>(out) + int64_t(from) * Op::V, from < limit && own_start + from >= saved_first,
                          from + other < limit && own_start + from + other >= saved_first};
    };
    [[maybe_unused]] auto warp_writes = [&](int from) { return warp_has_vector(own_start + from, saved_first, saved_end); };
    if constexpr (STORES_IN_PAIRS<Op>) {
        if (warp_writes(0)) row.op.write(pair(0), operands[0], total);
    } else if (own_start >= saved_first && limit > 0) row.op.write(out, operands[0], total);
#pragma unroll
    for (int k = 1; k < K; ++k)
        if constexpr (STORES_IN_PAIRS<Op>) {
            if (warp_writes(k * T)) row.op.write(pair(k * T), operands[k], total);
        } else if (k * T < limit) row.op.write(out + k * T * Op::V, operands[k], total);
#pragma unroll 1
    for (int from = 0; K * T + from < limit + thread; from += STAGE) {
        Operands<R> stage[STAGE_VECTORS];
        fetch(stage, from, limit + thread - K * T);
#pragma unroll
        for (int u = 0; u < STAGE_VECTORS; ++u)
            if constexpr (STORES_IN_PAIRS<Op>) {
                if (warp_writes(K * T + from + u * T)) row.op.write(pair(K * T + from + u * T), stage[u], total);
            } else if (K * T + from + u * T < limit) row.op.write(out + int64_t(K * T + from + u * T) * Op::V, stage[u], total);
    }
    write_edges(total);
#endif
}

}  // namespace softbench
