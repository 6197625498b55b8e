// Long rows: a cluster of CTAs that meet in distributed shared memory (of one CTA by hand only), or CTAs anywhere on the card that meet in global memory
// (spread): W vectors a thread in registers and the rest of the CTA's chunk in shared memory, where the copy engine puts it. One read, one
// exchange, one write; not persistent, so that rows follow each other in memory as CTAs come and go.
//
// Every load is issued before anything is computed (ptxas would mix them, to need fewer registers; what is computed depends on a barrier
// after the loads), and the first pass takes pieces in the order of their arrival, each measured from the maximum so far: its exponentials
// are done while later pieces are still on their way.
// Threads are a constant here: addresses are then one register and immediate offsets, and the vectors have the other registers.
//
// A CTA may exit when its exchange is over: all messages to it have come, and its own travel in registers.
#pragma once

#include "meet.cuh"

namespace softbench {

constexpr int MAX_PIECES = 32;

// CTAs an SM of a shape: what registers allow. {vectors of all tensors a thread, threads}
constexpr int wide_ctas(int words, int threads) {
    return words * threads <= 2048 ? 4 : words * threads <= 6144 ? 2 : 1;
}

// SPREAD: the row's CTAs are no cluster, and meet in slots (meet.cuh).
template <typename Op, int W, int T, bool SPREAD, bool STAY>
__global__ void __launch_bounds__(T, wide_ctas(W, T)) wide(Tensors<Op> tensors, int size, int chunk, int floor_bytes, int patience, Workspace* workspace, Turns turns) {
#if SOFTBENCH_CLUSTERS
    constexpr int R = Op::READS, K = W / R, PIECE = 4 / R;
    static_assert(K % PIECE == 0);
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    __shared__ Part parts[2][MAX_WARPS];
    __shared__ Message box[MAX_CLUSTER];
    __shared__ uint64_t news, full[MAX_PIECES];
    // What the second pass needs waits here, so that registers are the row's: where it goes, and the odd elements.
    __shared__ typename Op::Out* target;
    __shared__ int first, own_rank, own_begin, own_end, odd_at[2 * TAIL_THREAD];
    __shared__ uint32_t odd_kept[2 * TAIL_THREAD][R];
    __shared__ int missed;
    __shared__ uint32_t own_tag;
    const int thread = threadIdx.x, lane = thread % WARP;
    const int index = int(blockIdx.x / unsigned(size)), rank = SPREAD ? int(blockIdx.x) - index * size : size > 1 ? cluster_rank() : 0;
    uint32_t tag = 0;
    if (SPREAD && thread == 0) {  // one of them: a thousand warps that read one line wait for each other
        missed = 0;
        tag = tag_of(workspace);
        fetch_line(workspace->slots + int64_t(index) * size + rank);  // a poll would else wait for the memory, not for the part
    }
    if (!SPREAD && size > 1) {  // "my barrier is ready"; the wait comes after the loads
        if (thread == 0) {
            barrier_init(&news);
            barrier_inits_done();
            barrier_expect(&news, sizeof(Message) * size);
        }
        cluster_arrive();
    }
    await_turn(turns, index);
    const Row<Op, false, STAY> row(tensors, index, floor_bytes);
    const int begin = rank * chunk, end = min(row.last, begin + chunk);
    const int spare = max(chunk - K * T, 0), kept = max(end - begin - K * T, 0);  // vectors of a tensor in shared memory: room, and here

    if (thread == 0) {
        target = row.target;
        first = row.first;
        own_rank = rank;
        own_begin = begin;
        own_end = end;
        for (int p = 0; p * PIECE * T < kept; ++p) barrier_init(&full[p]);
        barrier_inits_done();
        for (int p = 0; p * PIECE * T < kept; ++p) {
            const int from = p * PIECE * T, bytes = min(PIECE * T, kept - from) * VECTOR_BYTES;
            barrier_expect(&full[p], R * bytes);
#pragma unroll
            for (int r = 0; r < R; ++r) copy_bulk<STAY>(dynamic + size_t(r * spare + from) * VECTOR_BYTES, row.vector(r, begin + K * T + from), bytes, &full[p], row.policy);
        }
    }
    const int start = begin + thread;
    uint32_t odd[R];
    {
        const int at = rank == 0 ? row.odd(thread) : -1;
        row.read_odd(at, odd);
        if (thread < 2 * TAIL_THREAD) odd_at[thread] = at;
    }
    Item<R> item[K];
#pragma unroll
    for (int k = 0; k < K; ++k) read(item[k], row, start + k * T, (k > 0 || start >= row.first) && start + k * T < end);
    const uint32_t zero = uint32_t(__syncthreads_or(floor_bytes == 0));

    Part part = Op::alone(odd);
    if (thread < 2 * TAIL_THREAD)
#pragma unroll
        for (int r = 0; r < R; ++r) odd_kept[thread][r] = odd[r];
#pragma unroll
    for (int k = 0; k < K; k += PIECE) Op::absorb(part, reinterpret_cast<const Item<R>(&)[PIECE]>(item[k]), zero);
    auto fetch = [&](Item<R>(&some)[PIECE], int from, int kept) {
        const int spare = max(chunk - K * T, 0);
        const uint4* stored = reinterpret_cast<const uint4*>(dynamic) + thread;
#pragma unroll
        for (int u = 0; u < PIECE; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const uint32_t none = Op::blank();
                put(some[u].word[r], from + u * T + thread < kept ? stored[r * spare + from + u * T] : make_uint4(none, none, none, none));
            }
    };
#pragma unroll 1
    for (int p = 0; p * PIECE * T < kept; ++p) {
        barrier_wait(&full[p], 0);
        Item<R> some[PIECE];
        fetch(some, p * PIECE * T, kept);
        Op::absorb(part, some);
    }
    auto finish_odd = [&](Part whole) {
        if (thread >= 2 * TAIL_THREAD || odd_at[thread] < 0) return;
        float value[R];
#pragma unroll
        for (int r = 0; r < R; ++r) value[r] = Word<typename Op::Element>::element(odd_kept[thread][r], 0);
        target[odd_at[thread]] = narrow<typename Op::Out>(Op::result(value, whole));
    };
    if (SPREAD && thread == 0) own_tag = tag;
    part = join_block<Op, T>(part, parts[0]);
    if (SPREAD) {
        uint4* slots = workspace->slots + int64_t(blockIdx.x / unsigned(size)) * size;
        if (thread == 0) publish(slots + own_rank, part, tag, workspace);
        part = join_block<Op, T>(gather<Op>(slots, size, own_tag, patience, missed), parts[1]);
        if (missed) {  // nothing that is held is used: the chunk is read again
            const Row<Op, false, STAY> again(tensors, blockIdx.x / unsigned(size), floor_bytes);
            const Part whole = Op::finish(whole_row(again, parts[0]));
            const int end = own_end;
            for (int i = max(own_begin, again.first) + thread; i < end; i += T) {
                Item<R> one;
                read(one, again, i, true);
                again.store(i, one, whole);
            }
            finish_odd(whole);
            return;
        }
    } else if (size > 1) {
        cluster_wait();
        if (thread < size) send(&box[own_rank], &news, thread, part);
        barrier_wait(&news, 0);
        const int other = lane % MAX_CLUSTER;
        part = other < size ? Part{box[other].top, box[other].sum} : Op::empty();
        part = Op::join_alike(part, MAX_CLUSTER);
    }

    const Part whole = Op::finish(part);
    forget_unpacked<Op>(item, floor_bytes == 0);
    const int from_here = own_begin + thread, limit = own_end - from_here;
    typename Op::Out* const out = target + int64_t(from_here) * Op::V;
    if (from_here >= first && limit > 0) Op::store(out, item[0], whole);
#pragma unroll
    for (int k = 1; k < K; ++k)
        if (k * T < limit) Op::store(out + k * T * Op::V, item[k], whole);
#pragma unroll 1
    for (int from = 0; K * T + from < limit + thread; from += PIECE * T) {
        Item<R> some[PIECE];
        fetch(some, from, limit + thread - K * T);
#pragma unroll
        for (int u = 0; u < PIECE; ++u)
            if (K * T + from + u * T < limit) Op::store(out + int64_t(K * T + from + u * T) * Op::V, some[u], whole);
    }
    finish_odd(whole);
#endif
}

}  // namespace softbench
