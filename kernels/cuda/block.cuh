// Rows in registers: a CTA a row, or a cluster of CTAs a row where few rows have to fill the card. One read, one exchange, one write.
//
// K vectors a thread at a run-time thread count cover every N without compiling anew. Not persistent: a grid of one CTA a row keeps the
// addresses in flight close together (a static loop over rows costs 4-8 %), and the next CTA's loads overlap this one's exchange as long as
// two or more share an SM. Hence 32 registers a thread for up to 4 vectors (2048 threads an SM), 64 for 8.
#pragma once

#include "memory.cuh"

namespace softbench {

constexpr int BLOCK_THREADS = 1024;

// Most threads of a CTA. A cluster's chunk is at most 64 KB and a little, so its largest kernel can have more registers.
constexpr int block_threads(int words, bool clusters) { return words == 8 && clusters ? 640 : BLOCK_THREADS; }

template <typename Op, int K, bool CLUSTERS>
__global__ void __launch_bounds__(block_threads(K * Op::READS, CLUSTERS), K * Op::READS <= 4 ? 2 : 1) block(Tensors<Op> tensors, int log2_cluster, int floor_bytes) {
    __shared__ Part parts[MAX_WARPS];
    int start = 0;
#if SOFTBENCH_CLUSTERS
    __shared__ Message box[MAX_CLUSTER];
    __shared__ uint64_t news;
    int rank = 0;
    if constexpr (CLUSTERS) {
        rank = cluster_rank();
        start = rank * K * blockDim.x;
        if (threadIdx.x == 0) {
            barrier_init(&news);
            barrier_inits_done();
            barrier_expect(&news, sizeof(Message) << log2_cluster);
        }
        cluster_arrive();  // "my barrier is ready"; the wait comes after the loads
    }
#endif
    Row<Op> row(tensors, blockIdx.x >> (CLUSTERS ? log2_cluster : 0), floor_bytes);
    start += threadIdx.x;
    const int at = row.odd(start);
    uint32_t odd[Op::READS];
    row.read_odd(at, odd);
    Item<Op::READS> item[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * int(blockDim.x);
        read(item[k], row, i, i >= row.first && i < row.last);
    }
    const Part own = Op::take(item, odd);
    Part part = join_block<Op>(own, parts);
#if SOFTBENCH_CLUSTERS
    if constexpr (CLUSTERS) {
        int size = 1 << log2_cluster;
        cluster_wait();
        if (threadIdx.x < size) send(&box[rank], &news, threadIdx.x, part, 0);
        barrier_wait(&news, 0);  // all messages are in: no one writes here any more, and this CTA may exit
        Message message = box[threadIdx.x & (size - 1)];
        part = Op::join_lanes({message.top, message.sum}, size);
    }
#endif
    const Part whole = Op::finish(part);
    forget_unpacked<Op>(item, floor_bytes == 0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * int(blockDim.x);
        if (i >= row.first && i < row.last) row.give(i, item[k], whole, own);
    }
    row.write_odd(at, odd, whole);
}

}  // namespace softbench
