// Rows too long for one CTA's registers, and few rows that must fill the card: G CTAs a row (or one), each with a chunk of it partly in
// registers, partly in shared memory, and what fits neither read a second time. One read, as long as the row fits the card's CTAs.
//
// Shared memory is thread-private here: a thread's own cp.async, no barrier. Two to four CTAs share an SM, so that one loads while another
// waits for its row's other parts; waiting on global memory with nothing else to do costs a quarter of the bandwidth.
//
// The parts meet in slots of global memory. A slot's two 8-byte halves each carry a tag beside their value and are written whole, so a
// reader that sees both tags has the values: no fence. The tag is the number of launches that this workspace has seen: slots are never
// cleared, and a CUDA graph can be replayed. It is kept on the device: each CTA adds 1 to a counter, and CTA 0 adds what makes the launch
// add up to 2^32 exactly, so the high word steps when the last CTA is through, and not before.
//
// A waiting CTA relies on its row's other CTAs to run, which follows from CTAs being started in the order of their index, and G not being
// more than the card holds. Nothing promises the first, and other streams may hold SMs. So a CTA that has waited very long computes the
// row's part by itself, from the input: slow, never wrong, never stuck.
#pragma once

#include "memory.cuh"

namespace softbench {

constexpr int SPLIT_THREADS = 512;
constexpr int AT_ONCE = 2;  // vectors of all tensors taken from shared memory at once
constexpr int REREAD = 4;  // vectors in flight a thread where a chunk is read twice

template <typename Op>
__device__ __forceinline__ void absorb_stream(Part& part, const Row<Op>& row, int from, int to) {
    for (int i = from; i < to; i += REREAD * int(blockDim.x)) {
        Item<Op::READS> item[REREAD];
#pragma unroll
        for (int u = 0; u < REREAD; ++u) read(item[u], row, i + u * int(blockDim.x), i + u * int(blockDim.x) < to);
        Op::absorb(part, item);
    }
}

// The whole row's part, by one CTA.
template <typename Op> __device__ __forceinline__ Part whole_row(const Row<Op>& row, Part* parts) {
    Part part = Op::empty();
    absorb_stream<Op>(part, row, row.first + int(threadIdx.x), row.last);
    int at = row.odd(threadIdx.x);
    uint32_t odd[Op::READS];
    row.read_odd(at, odd);
    Item<Op::READS> none[1];
    read(none[0], row, 0, false);
    part = Op::joined(part, Op::take(none, odd));
    return join_block<Op>(part, parts);
}

template <typename Op, int K>
__global__ void __launch_bounds__(SPLIT_THREADS, 2)
    split(Tensors<Op> tensors, int G, int chunk, int kept, int floor_bytes, int patience, Workspace* workspace) {
    constexpr int R = Op::READS;
    extern __shared__ __align__(16) unsigned char dynamic[];
    __shared__ Part parts[2][MAX_WARPS];
    __shared__ int missed;
    const int T = blockDim.x, thread = threadIdx.x;
    const unsigned index = blockIdx.x / unsigned(G), number = blockIdx.x - index * unsigned(G);

    uint32_t tag = 0;
    if (G > 1) {
        tag = uint32_t(load_relaxed(&workspace->launches) >> 32) * 2 + 1;  // odd: not the zeros of a fresh workspace
        if (thread == 0) {
            missed = 0;
            fetch_line(workspace->slots + int64_t(index) * G + number);  // a poll would else wait for the memory, not for the part
        }
    }
    const Row<Op> row(tensors, index, floor_bytes);
    const int start = int(number) * chunk + thread;
    const int end = min(row.last, int(min(int64_t(number + 1) * chunk, int64_t(row.last))));
    const int from_shared = start + K * T, again = from_shared + kept * T;

    Part part = Op::empty();
    absorb_stream<Op>(part, row, again, end);  // first, while no register holds anything
    const int at = number == 0 ? row.odd(thread) : -1;
    uint32_t odd[R];
    row.read_odd(at, odd);
    Item<R> item[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int i = start + k * T;
        read(item[k], row, i, i >= row.first && i < end);
    }
    uint4* mine = reinterpret_cast<uint4*>(dynamic) + thread;
    for (int s = 0; s < kept; ++s) {
        int i = from_shared + s * T;
        if (i >= end) break;
#pragma unroll
        for (int r = 0; r < R; ++r) copy_async(mine + (s * R + r) * T, row.vector(r, i));
    }

    const Part own = Op::take(item, odd);
    part = Op::joined(part, own);
    forget_unpacked<Op>(item, floor_bytes == 0);
    copy_async_wait();
    const int stored = min(kept, max(0, (end - from_shared + T - 1) / T));  // of this thread
    auto fetch = [&](Item<R>(&some)[AT_ONCE / R], int s) {
#pragma unroll
        for (int u = 0; u < AT_ONCE / R; ++u)
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const uint32_t none = Op::blank();
                put(some[u].word[r], s + u < stored ? mine[((s + u) * R + r) * T] : make_uint4(none, none, none, none));
            }
    };
#pragma unroll 1
    for (int s = 0; s < stored; s += AT_ONCE / R) {
        Item<R> some[AT_ONCE / R];
        fetch(some, s);
        Op::absorb(part, some);
    }

    part = join_block<Op>(part, parts[0]);
    bool alone = false;
    if (G > 1) {
        // The join's barrier (the plan gives two warps or more) lies between reading the tag and counting, and after clearing the flag.
        uint4* slots = workspace->slots + int64_t(index) * G;
        if (thread == 0) {
            store_slot(slots + number, part, tag);
            atomicAdd(&workspace->launches, blockIdx.x == 0 ? (1ull << 32) - (gridDim.x - 1) : 1ull);
        }
        part = Op::empty();
        for (int other = thread; other < G; other += T) {
            uint4 news = load_slot(slots + other);
            for (int tries = 0; (news.y != tag || news.w != tag) && tries < patience; ++tries) news = load_slot(slots + other);
            if (news.y != tag || news.w != tag || patience < 0) missed = 1;
            Part theirs = {__uint_as_float(news.x), __uint_as_float(news.z)};
            part = other == thread ? theirs : Op::joined(part, theirs);
        }
        part = join_block<Op>(part, parts[1]);
        alone = missed;
    }

    int rest = again;  // what is read now, for the first or the second time
    Part whole;
    if (!alone) {
        whole = Op::finish(part);
        forget_unpacked<Op>(item, floor_bytes == 0);
#pragma unroll
        for (int k = 0; k < K; ++k) {
            int i = start + k * T;
            if (i >= row.first && i < end) row.give(i, item[k], whole, own);
        }
#pragma unroll 1
        for (int s = 0; s < stored; s += AT_ONCE / R) {
            Item<R> some[AT_ONCE / R];
            fetch(some, s);
#pragma unroll
            for (int u = 0; u < AT_ONCE / R; ++u)
                if (s + u < stored) row.store(from_shared + (s + u) * T, some[u], whole);
        }
    } else {
        whole = Op::finish(whole_row(row, parts[0]));
        rest = start < row.first ? start + T : start;
    }
    row.write_odd(at, odd, whole);
    for (int i = rest; i < end; i += REREAD * T) {
        Item<R> some[REREAD];
#pragma unroll
        for (int u = 0; u < REREAD; ++u) read(some[u], row, i + u * T, i + u * T < end);
#pragma unroll
        for (int u = 0; u < REREAD; ++u)
            if (i + u * T < end) row.store(i + u * T, some[u], whole);
    }
}

}  // namespace softbench
