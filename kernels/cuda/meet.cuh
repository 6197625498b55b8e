// CTAs all over the card that share a row meet in global memory.
//
// Their parts go to slots. A slot's two 8-byte halves each carry a tag beside their value and are written whole, so a
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

constexpr int REREAD = 4;  // vectors in flight a thread where a row, or a chunk of one, is read again

// By one thread: the CTA's part to its slot, and one more CTA through. Nothing of the launch may read its tag after that.
__device__ __forceinline__ void publish(uint4* slot, Part part, uint32_t tag, Workspace* workspace) {
    store_slot(slot, part, tag);
    atomicAdd(&workspace->launches, blockIdx.x == 0 ? (1ull << 32) - (gridDim.x - 1) : 1ull);
}
__device__ __forceinline__ uint32_t tag_of(const Workspace* workspace) {
    return uint32_t(load_relaxed(&workspace->launches) >> 32) * 2 + 1;  // odd: not the zeros of a fresh workspace
}

// By all threads: the join of the slots that are this thread's to poll. `missed` becomes 1 where one did not come.
template <typename Op> __device__ __forceinline__ Part gather(const uint4* slots, int G, uint32_t tag, int patience, int& missed) {
    Part part = Op::empty();
    for (int other = threadIdx.x; other < G; other += blockDim.x) {
        uint4 news = load_slot(slots + other);
        for (int tries = 0; (news.y != tag || news.w != tag) && tries < patience; ++tries) news = load_slot(slots + other);
        if (news.y != tag || news.w != tag || patience < 0) missed = 1;
        Part theirs = {__uint_as_float(news.x), __uint_as_float(news.z)};
        part = other == int(threadIdx.x) ? theirs : Op::joined(part, theirs);
    }
    return part;
}

template <typename Op, bool LINES, bool STAY>
__device__ __forceinline__ void absorb_stream(Part& part, const Row<Op, LINES, STAY>& row, int from, int to) {
    for (int i = from; i < to; i += REREAD * int(blockDim.x)) {
        Item<Op::READS> item[REREAD];
#pragma unroll
        for (int u = 0; u < REREAD; ++u) read(item[u], row, i + u * int(blockDim.x), i + u * int(blockDim.x) < to);
        Op::absorb(part, item);
    }
}

// The whole row's part, by one CTA.
template <typename Op, bool LINES, bool STAY> __device__ __forceinline__ Part whole_row(const Row<Op, LINES, STAY>& row, Part* parts) {
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

}  // namespace softbench
