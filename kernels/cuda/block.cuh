// Rows in registers: a CTA a row, or a cluster of CTAs a row where few rows have to fill the card. One read, one exchange, one write.
//
// K vectors a thread at a run-time thread count cover every N without compiling anew. Not persistent: a grid of one CTA a row keeps the
// addresses in flight close together (a static loop over rows costs 4-8 %), and the next CTA's loads overlap this one's exchange as long as
// two or more share an SM. Hence 32 registers a thread for up to 4 vectors (2048 threads an SM), 64 for 8, 72 and 96 for 12 and 16.
#pragma once

#include "memory.cuh"

namespace softbench {

constexpr int BLOCK_THREADS = 1024;

// CTAs of a block an SM, so that all it can hold is on its way: {vectors of all tensors a thread, most threads}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int SIXTEEN = 4;  // ptxas needs some registers more there
#else
constexpr int SIXTEEN = 5;
#endif
constexpr int block_ctas(int words, int threads) { return words <= 4 ? 2 : threads == BLOCK_THREADS ? 1 : words <= 12 ? 7 : SIXTEEN; }

template <typename Op, int K, int T, bool LINES, bool STAY>
__global__ void __launch_bounds__(T, block_ctas(K * Op::READS, T)) block(Tensors<Op> tensors, int floor_bytes) {
    __shared__ Part parts[MAX_WARPS];
    const int thread = threadIdx.x;
    const Row<Op, LINES, STAY> row(tensors, blockIdx.x, floor_bytes);
    const int at = row.odd(thread);
    uint32_t odd[Op::READS];
    row.read_odd(at, odd);
    Item<Op::READS> item[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = thread + k * int(blockDim.x);
        read(item[k], row, i, (LINES || i >= row.first) && i < row.last);
    }
    const Part own = Op::take(item, odd);
    const Part whole = Op::finish(join_block<Op, T>(own, parts));
    forget_unpacked<Op>(item, floor_bytes == 0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = thread + k * int(blockDim.x);
        if ((LINES || i >= row.first) && i < row.last) row.give(i, item[k], whole, own);
    }
    row.write_odd(at, odd, whole);
}

// CTAs of a cluster an SM, so that all rows are on their way at once: {vectors of all tensors a thread, most threads}
constexpr int cluster_ctas(int words, int threads, bool keeps) {
    return words == 2 ? (keeps ? 1536 : 2048) / threads : words == 4 ? 1536 / threads : words == 8 ? 1024 / threads : words == 12 ? 768 / threads : 640 / threads;
}

template <typename Op, int K, int T, bool LINES, bool STAY>
__global__ void __launch_bounds__(T, cluster_ctas(K * Op::READS, T, KEEPS<Op, K>)) cluster(Tensors<Op> tensors, int size, int floor_bytes, Turns turns) {
#if SOFTBENCH_CLUSTERS
    __shared__ Part parts[MAX_WARPS];
    __shared__ Message box[MAX_CLUSTER];
    __shared__ uint64_t news;
    const int thread = threadIdx.x, lane = thread % WARP, rank = cluster_rank(), start = rank * K * int(blockDim.x) + thread;
    if (thread == 0) {
        barrier_init(&news);
        barrier_inits_done();
        barrier_expect(&news, sizeof(Message) * size);
    }
    cluster_arrive();  // "my barrier is ready"; the wait comes after the loads
    const int index = cluster_index();
    await_turn(turns, index);
    const Row<Op, LINES, STAY> row(tensors, index, floor_bytes);
    const int at = row.odd(start);
    uint32_t odd[Op::READS];
    row.read_odd(at, odd);
    Item<Op::READS> item[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * int(blockDim.x);
        read(item[k], row, i, (LINES || i >= row.first) && i < row.last);
    }
    constexpr bool KEEP = KEEPS<Op, K>;
    float kept[KEEP ? K * Op::V : 1];
    Part own;
    if constexpr (KEEP) own = Op::take(item, odd, kept);
    else own = Op::take(item, odd);
    Part part = join_block<Op, T>(own, parts);
    cluster_wait();
    if (thread < size) send(&box[rank], &news, thread, part);
    barrier_wait(&news, 0);  // all messages are in: no one writes here any more, and this CTA may exit
    const int other = lane % MAX_CLUSTER;
    part = other < size ? Part{box[other].top, box[other].sum} : Op::empty();
    const Part whole = Op::finish(Op::join_alike(part, MAX_CLUSTER));
    if (!KEEP) forget_unpacked<Op>(item, floor_bytes == 0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * int(blockDim.x);
        if (!((LINES || i >= row.first) && i < row.last)) continue;
        if constexpr (KEEP) Op::give(row.target + int64_t(i) * Op::V, kept + k * Op::V, whole, own);
        else row.give(i, item[k], whole, own);
    }
    row.write_odd(at, odd, whole);
#endif
}

}  // namespace softbench
