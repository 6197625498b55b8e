// Tier block: a CTA has a row, and its threads hold the row in registers. It reads and writes each element once, with one exchange between.
//
// K vectors a thread, and a number of threads that is chosen at run time, cover each N without compiling anew. The kernel is not persistent.
// With a CTA for each row, the addresses in flight stay close together; a static loop over rows costs 4 to 8 %. The loads of a CTA overlap the
// exchange of another CTA on the same SM. So up to 4 vectors have 32 registers a thread (2048 threads an SM), and 8 vectors have 64 registers.
#pragma once

#include "row_access.cuh"

namespace softbench {

constexpr int BLOCK_THREADS = 1024;

// The least CTAs an SM for __launch_bounds__, which fill the SM. `thread_vectors`: the vectors of all tensors that a thread holds.
constexpr int block_min_ctas(int thread_vectors, int max_threads) {
    return thread_vectors > 4 ? 1 : max_threads == BLOCK_THREADS ? 2 : 3;
}

// The most threads of a CTA. With a policy, 4 vectors that give wider results do not fit in 32 registers.
template <typename Op, int K, int T, bool KEEP_IN_L2>
constexpr int BLOCK_MAX_THREADS = KEEP_IN_L2 && K == 4 && sizeof(typename Op::Out) > sizeof(typename Op::Element) ? 3 * T / 4 : T;

// T: the most threads of a CTA; see BLOCK_MAX_THREADS. KNOWN_NO_EDGES: NO_EDGES of the Row, if registers suffice. KEEP_IN_L2: see Row.
template <typename Op, int K, int T, bool KNOWN_NO_EDGES, bool KEEP_IN_L2>
__global__ void __launch_bounds__(BLOCK_MAX_THREADS<Op, K, T, KEEP_IN_L2>, block_min_ctas(K * Op::READS, T)) block(Tensors<Op> tensors, int base_alignment) {
    // More than this would spill registers of kernels that give wider results from 4 vectors.
    constexpr bool NO_EDGES = KNOWN_NO_EDGES && !(AFTER_HOPPER && STORES_IN_PAIRS<Op> && K == 4 && Op::SCALED);
    constexpr bool IN_PAIRS = STORES_IN_PAIRS<Op> && (K != 4 || KEEP_IN_L2 || (NO_EDGES && !Op::SCALED && ARCHITECTURE == 900));
    __shared__ Partial warp_partials[MAX_WARPS];
    const int thread = threadIdx.x;
    const Row<Op, NO_EDGES, KEEP_IN_L2> row(tensors, blockIdx.x, base_alignment);
    const int edge_index = row.edge_index(thread);
    uint32_t edge[Op::READS];
    row.load_edge(edge_index, edge);
    Operands<Op::READS> operands[K];
    load_vectors(operands, row, thread, blockDim.x, row.end);
    const Partial thread_partial = row.op.init_partial(operands, edge);
    const typename Op::Total total = row.op.finalize(block_reduce<T>(row.op, thread_partial, warp_partials));
    rematerialize<Op>(operands, base_alignment == 0);
    write_vectors<IN_PAIRS, false>(row, operands, nullptr, total, thread_partial, thread, blockDim.x, row.end);
    row.write_edge(edge_index, edge, total);
}

}  // namespace softbench
