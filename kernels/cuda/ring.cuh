// Many long rows: a persistent cluster takes row after row, a chunk of the row to each CTA.
//
// The copy engine fills two or three stages of shared memory ahead; a CTA takes a stage to registers, joins its part with the cluster's
// through distributed shared memory (which stands the load of the loads, unlike an exchange through global memory), and hands the stage
// back to the engine at once: the row is in registers. Rows are handed out as they are needed, by a counter: the first CTA of a cluster
// draws the row after next, and the number travels with the parts. A static order costs 4 %.
//
// One barrier among a CTA's threads and one exchange a row. What keeps them apart from the row before and after:
// - parts and boxes alternate by the parity of the turn. A CTA sends its message of turn j + 1 after the barrier of that turn, which all
//   its threads reach after reading the box of turn j; a peer sends that of turn j + 2 after it has got the former. So a box is never
//   written before it has been read, and the phase of its mbarrier is never passed twice unseen.
// - a stage is refilled after the barrier that follows its last read.
// - a CTA's last wait has seen every message sent to it: nobody writes to a CTA that is gone.
#pragma once

#include "memory.cuh"

namespace softbench {

constexpr int RING_THREADS = 512;
constexpr int MAX_STAGES = 3;

template <typename Op, int K>
__global__ void __launch_bounds__(RING_THREADS, K * Op::READS <= 4 ? 2 : 1)
    ring(Tensors<Op> tensors, int log2_cluster, int chunk, int stages, int floor_bytes, Workspace* workspace) {
#if SOFTBENCH_CLUSTERS
    constexpr int R = Op::READS;
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ uint64_t full[MAX_STAGES], news[2];
    __shared__ Message box[2][MAX_CLUSTER];
    __shared__ Part parts[2][MAX_WARPS];
    const int T = blockDim.x, thread = threadIdx.x, lane = thread % WARP, size = 1 << log2_cluster, rank = cluster_rank();
    const unsigned M = unsigned(tensors.M), clusters = gridDim.x >> log2_cluster, begin = rank * chunk;

    auto fill = [&](int stage, unsigned index) {  // by one thread
        Row<Op> row(tensors, index, floor_bytes);
        int from = max(row.first, int(begin)), to = min(row.last, int(begin) + chunk);
        uint32_t bytes = to > from ? (to - from) * VECTOR_BYTES : 0;
        barrier_expect(&full[stage], R * bytes);
        if (bytes == 0) return;
#pragma unroll
        for (int r = 0; r < R; ++r)
            copy_bulk(dynamic + (size_t(stage * R + r) * chunk + (from - begin)) * VECTOR_BYTES, row.vector(r, from), bytes, &full[stage]);
    };

    // The first `stages` rows of a cluster are fixed; later ones are drawn.
    unsigned now = blockIdx.x >> log2_cluster, next = now + clusters, after = stages > 2 ? now + 2 * clusters : ~0u;
    if (thread == 0) {
        for (int s = 0; s < stages; ++s) barrier_init(&full[s]);
        barrier_init(&news[0]);
        barrier_init(&news[1]);
        barrier_inits_done();
        for (int s = 0; s < stages; ++s)
            if (now + s * clusters < M) fill(s, now + s * clusters);
    }
    cluster_arrive();
    uint32_t odd[R];
    int at;
    auto read_odd = [&](unsigned index, uint32_t(&value)[R]) {
        Row<Op> row(tensors, index, floor_bytes);
        at = rank == 0 ? row.odd(thread) : -1;
        row.read_odd(at, value);
    };
    read_odd(now, odd);
    cluster_wait();

    int stage = 0;
    unsigned lap = 0, drawn = 0;
    if (rank == 0 && thread == 0) drawn = atomicAdd(&workspace->rows, 1);
    for (unsigned turn = 0; now < M; ++turn) {
        const unsigned parity = turn & 1;
        const Row<Op> row(tensors, now, floor_bytes);
        const int from = row.first - int(begin), to = row.last - int(begin);
        const int at_now = at;
        uint32_t odd_now[R];
#pragma unroll
        for (int r = 0; r < R; ++r) odd_now[r] = odd[r];
        if (next < M) read_odd(next, odd);

        barrier_wait(&full[stage], lap & 1);
        const uint4* kept = reinterpret_cast<const uint4*>(dynamic) + size_t(stage * R) * chunk;
        Item<R> item[K];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            int i = k * T + thread;
            bool inside = i < chunk && i >= from && i < to;
#pragma unroll
            for (int r = 0; r < R; ++r) {
                uint32_t none = Op::blank();
                put(item[k].word[r], inside ? kept[r * chunk + i] : make_uint4(none, none, none, none));
            }
        }
        const Part own = Op::take(item, odd_now);
        Part part = Op::join_lanes(own, WARP);
        if (lane == 0) parts[parity][thread / WARP] = part;
        __syncthreads();
        if (thread < WARP) {
            part = Op::join_lanes(lane < T / WARP ? parts[parity][lane] : Op::empty(), WARP);
            if (thread == 0) {
                barrier_expect(&news[parity], sizeof(Message) << log2_cluster);
                if (rank == 0 && drawn == M - 1) atomicExch(&workspace->rows, 0);  // M draws in all, one a turn: the next launch starts anew
            }
            const unsigned fresh = __shfl_sync(~0u, drawn, 0) + unsigned(stages) * clusters;
            if (lane < size) send(&box[parity][rank], &news[parity], lane, part, fresh);
        }
        barrier_wait(&news[parity], (turn >> 1) & 1);
        Message message = box[parity][lane & (size - 1)];
        const unsigned fresh = box[parity][0].next_row;
        if (thread == 0) {
            if (rank == 0 && next < M) drawn = atomicAdd(&workspace->rows, 1);  // a turn ahead: the answer takes as long as a row does
            if (fresh < M) fill(stage, fresh);
        }
        Part whole = Op::finish(Op::join_lanes({message.top, message.sum}, size));
        forget_unpacked<Op>(item, floor_bytes == 0);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            int i = k * T + thread;
            if (i < chunk && i >= from && i < to) row.give(int(begin) + i, item[k], whole, own);
        }
        row.write_odd(at_now, odd_now, whole);

        now = next;
        if (stages > 2) {
            next = after;
            after = fresh;
        } else {
            next = fresh;
        }
        if (++stage == stages) stage = 0, ++lap;
    }
#endif
}

}  // namespace softbench
