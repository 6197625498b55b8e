// Tier split: several CTAs anywhere on the device share a row (or one CTA has it), and each has a chunk of the row.
//
// It serves few rows, and rows too long for the other tiers. A chunk is partly in registers and partly in shared memory. What fits neither is read
// a second time. Each part of shared memory belongs to one thread, which fills it by cp.async: this needs no barrier. Two to four CTAs share an
// SM, so that one loads while another waits for its row's other CTAs. Waiting with nothing else to do costs a quarter of the bandwidth.
// grid_exchange.cuh describes the exchange.
#pragma once

#include "async_copy.cuh"
#include "cluster_exchange.cuh"
#include "grid_exchange.cuh"

namespace softbench {

constexpr int SPLIT_THREADS = 512;
constexpr int SMEM_VECTORS_AT_ONCE = 2;  // vectors of all tensors that a thread reads from shared memory at once

// The most vectors of all tensors that a thread has in registers. A target takes registers too.
template <typename Op> constexpr int SPLIT_VECTORS = Op::HAS_TARGET ? 4 : 8;

// `ctas`: the CTAs of a row. `chunk`: the vectors of a CTA. `smem_per_thread`: the vectors of each tensor that a thread holds in shared memory.
// CHUNK_IN_REGISTERS: the compiler knows that registers hold each chunk. KNOWN_NO_EDGES: NO_EDGES of the Row, if registers suffice.
template <typename Op, int K, bool CHUNK_IN_REGISTERS, bool KNOWN_NO_EDGES, bool KEEP_IN_L2>
__global__ void __launch_bounds__(SPLIT_THREADS, 2)
    split(Tensors<Op> tensors, int ctas, int chunk, int smem_per_thread, int base_alignment, int max_polls, Workspace* workspace,
          Stagger stagger, bool leave_first) {
    constexpr int R = Op::READS;
    constexpr bool EDGES_LATE = R == 2 && sizeof(typename Op::Element) == 4 && (ARCHITECTURE == 860 || ARCHITECTURE == 890);
    constexpr bool NO_EDGES = KNOWN_NO_EDGES && !(AFTER_HOPPER && K * R == 8);
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    __shared__ Partial warp_partials[2][MAX_WARPS];
    __shared__ int timed_out;
    __shared__ uint32_t tag;
    const int T = blockDim.x, thread = threadIdx.x;
    const unsigned index = gridDim.x == unsigned(ctas) ? 0 : blockIdx.x / unsigned(ctas), cta = blockIdx.x - index * unsigned(ctas);

    uint32_t tag_register = 0;
    if (ctas > 1 && thread == 0) {  // only one thread: a thousand warps that read one cache line wait for each other
        timed_out = 0;
        tag_register = launch_tag(workspace);
        prefetch_l2(workspace->slots + int64_t(index) * ctas + cta);  // otherwise polls wait for memory and not for the Partial
    }
    staggered_start(stagger, int(index));
    const Row<Op, NO_EDGES, KEEP_IN_L2> row(tensors, index, base_alignment, leave_first);
    const int start = int(cta) * chunk + thread;
    const int end = int(min(int64_t(cta + 1) * chunk, int64_t(row.end)));
    const int smem_start = start + K * T, reread_start = CHUNK_IN_REGISTERS ? end : smem_start + smem_per_thread * T;

    Partial partial = Op::identity();
    if constexpr (!CHUNK_IN_REGISTERS) accumulate_from_memory<Op>(partial, row, reread_start, end);  // first, while the registers are free
    const int edge_index = cta == 0 ? row.edge_index(thread) : -1;
    uint32_t edge[R];
    if constexpr (!EDGES_LATE) row.load_edge(edge_index, edge);
    Operands<R> operands[K];
    load_vectors(operands, row, start, T, end);
    uint4* smem = reinterpret_cast<uint4*>(dynamic) + thread;
    for (int s = 0; !CHUNK_IN_REGISTERS && s < smem_per_thread; ++s) {
        int i = smem_start + s * T;
        if (i >= end) break;
#pragma unroll
        for (int r = 0; r < R; ++r) copy_async<KEEP_IN_L2>(smem + (s * R + r) * T, row.vector(r, i), row.policy);
    }

    if constexpr (EDGES_LATE) row.load_edge(edge_index, edge);  // here, because the copies above need registers

    constexpr bool CACHED = CHUNK_IN_REGISTERS && CACHES_EXPONENTIALS<Op, K>;
    float exponentials[CACHED ? K * Op::V : 1];
    Partial thread_partial;
    if constexpr (CACHED) thread_partial = row.op.init_partial(operands, edge, exponentials);
    else thread_partial = row.op.init_partial(operands, edge);
    partial = CHUNK_IN_REGISTERS ? thread_partial : row.op.merge(partial, thread_partial);
    if (!CHUNK_IN_REGISTERS) {
        rematerialize<Op>(operands, base_alignment == 0);
        copy_async_wait();
    }
    const int in_smem = CHUNK_IN_REGISTERS ? 0 : min(smem_per_thread, max(0, (end - smem_start + T - 1) / T));  // of this thread
    auto fetch = [&](Operands<R>(&batch)[SMEM_VECTORS_AT_ONCE / R], int s) {
#pragma unroll
        for (int u = 0; u < SMEM_VECTORS_AT_ONCE / R; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) assign(batch[u].packed[r], s + u < in_smem ? smem[((s + u) * R + r) * T] : padding_vector<Op>());
    };
#pragma unroll 1
    for (int s = 0; s < in_smem; s += SMEM_VECTORS_AT_ONCE / R) {
        Operands<R> batch[SMEM_VECTORS_AT_ONCE / R];
        fetch(batch, s);
        row.op.accumulate(partial, batch);
    }

    bool recompute = false;
    if (ctas > 1) {
        if (thread == 0) tag = tag_register;
        partial = block_reduce<SPLIT_THREADS>(row.op, partial, warp_partials[0]);
        Slot* slots = workspace->slots + int64_t(index) * ctas;
        if (thread == 0) publish(slots + cta, partial, tag, workspace);
        partial = block_reduce<SPLIT_THREADS>(row.op, gather(row.op, slots, ctas, tag, max_polls, timed_out), warp_partials[1]);
        recompute = timed_out;
    } else partial = block_reduce<SPLIT_THREADS>(row.op, partial, warp_partials[0]);

    int memory_start = reread_start;  // from here on, vectors are read from memory a first or second time
    typename Op::Total total;
    if (!recompute) {
        total = row.op.finalize(partial);
        if (!CACHED) rematerialize<Op>(operands, base_alignment == 0);
        write_vectors<STORES_IN_PAIRS<Op>, CACHED>(row, operands, exponentials, total, thread_partial, start, T, end);
#pragma unroll 1
        for (int s = 0; s < in_smem; s += SMEM_VECTORS_AT_ONCE / R) {
            Operands<R> batch[SMEM_VECTORS_AT_ONCE / R];
            fetch(batch, s);
#pragma unroll
            for (int u = 0; u < SMEM_VECTORS_AT_ONCE / R; ++u)
                if (s + u < in_smem) row.write(smem_start + (s + u) * T, batch[u], total);
        }
    } else {
        total = row.op.finalize(reduce_whole_row(row, warp_partials[0]));
        memory_start = start < row.first ? start + T : start;
    }
    row.write_edge(edge_index, edge, total);
    for (int i = memory_start; i < end; i += REREAD_VECTORS * T) {
        Operands<R> batch[REREAD_VECTORS];
#pragma unroll
        for (int u = 0; u < REREAD_VECTORS; ++u) load_operands(batch[u], row, i + u * T, i + u * T < end);
#pragma unroll
        for (int u = 0; u < REREAD_VECTORS; ++u)
            if (i + u * T < end) row.write(i + u * T, batch[u], total);
    }
}

}  // namespace softbench
