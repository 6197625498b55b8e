// How the CTAs of a row exchange their Partials through global memory, wherever on the device they run.
//
// Each CTA publishes its Partial in a slot. A slot has two 8-byte halves; each has a value and a tag, and is written as a whole. A reader that
// sees both tags has both values, so no fence is needed. All CTAs of a row poll its slots. Slots that share a cache line delay each other, so each
// slot has two lines for itself.
//
// The tag is the number of launches that have used this workspace. So slots are never cleared, and a CUDA graph can be replayed. The count is on
// the device. Each CTA adds 1 to it, and CTA 0 adds what makes the launch's total exactly 2^32. So the high half steps when the last CTA has
// finished, and not before.
//
// A waiting CTA needs the other CTAs of its row to run. They do if CTAs start in the order of their index and the device holds all CTAs of a
// row. CUDA does not promise the first, and other streams may occupy SMs. So a CTA that has polled `max_polls` times reduces the whole row from
// the input. That is slow, but its result is correct and it always ends.
#pragma once

#include "row_access.cuh"

namespace softbench {

constexpr int REREAD_VECTORS = 4;  // vectors that a thread has in flight when it reads a row or a chunk again

// The Partial of one CTA of one row.
struct alignas(2 * LINE_BYTES) Slot {
    uint4 words;  // {maximum, tag, sum, tag}
};
// What launches on one stream share; the host sets it to zero once.
struct Workspace {
    unsigned long long launches;  // high half: finished launches; low half: CTAs of the current launch that have finished
    Slot slots[1];
};
static_assert(sizeof(Slot) == 256 && sizeof(Workspace) == 512);

__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* p) {
    unsigned long long v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
__device__ __forceinline__ uint4 load_slot(const Slot* slot) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(slot) : "memory");
    return v;
}
__device__ __forceinline__ void store_slot(Slot* slot, Partial partial, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot), "r"(__float_as_uint(partial.maximum)), "r"(tag),
                 "r"(__float_as_uint(partial.sum)), "r"(tag)
                 : "memory");
}


// Called by one thread: stores the CTA's Partial and counts the CTA as finished. After that, the launch must not read its tag again.
__device__ __forceinline__ void publish(Slot* slot, Partial partial, uint32_t tag, Workspace* workspace) {
    store_slot(slot, partial, tag);
    atomicAdd(&workspace->launches, blockIdx.x == 0 ? (1ull << 32) - (gridDim.x - 1) : 1ull);
}
// An odd number, so that it differs from the zeros of a fresh workspace.
__device__ __forceinline__ uint32_t launch_tag(const Workspace* workspace) {
    return uint32_t(load_relaxed(&workspace->launches) >> 32) * 2 + 1;
}

// Called by all threads: merges the slots that this thread polls. `timed_out` becomes 1 if a slot did not get its tag.
template <typename Op>
__device__ __forceinline__ Partial gather(const Op& op, const Slot* slots, int ctas, uint32_t tag, int max_polls, int& timed_out) {
    Partial partial = Op::identity();
    for (int other = threadIdx.x; other < ctas; other += blockDim.x) {
        uint4 slot = load_slot(slots + other);
        for (int polls = 0; (slot.y != tag || slot.w != tag) && polls < max_polls; ++polls) slot = load_slot(slots + other);
        if (slot.y != tag || slot.w != tag || max_polls < 0) timed_out = 1;
        Partial other_partial = {__uint_as_float(slot.x), __uint_as_float(slot.z)};
        partial = other == int(threadIdx.x) ? other_partial : op.merge(partial, other_partial);
    }
    return partial;
}

// Accumulates a thread's vectors of [from, to), read from global memory.
template <typename Op, bool NO_EDGES, bool KEEP_IN_L2>
__device__ __forceinline__ void accumulate_from_memory(Partial& partial, const Row<Op, NO_EDGES, KEEP_IN_L2>& row, int from, int to) {
    for (int i = from; i < to; i += REREAD_VECTORS * int(blockDim.x)) {
        Operands<Op::READS> operands[REREAD_VECTORS];
#pragma unroll
        for (int u = 0; u < REREAD_VECTORS; ++u) load_operands(operands[u], row, i + u * int(blockDim.x), i + u * int(blockDim.x) < to);
        row.op.accumulate(partial, operands);
    }
}

// Reduces the whole row by one CTA.
template <typename Op, bool NO_EDGES, bool KEEP_IN_L2>
__device__ __forceinline__ Partial reduce_whole_row(const Row<Op, NO_EDGES, KEEP_IN_L2>& row, Partial* warp_partials) {
    Partial partial = Op::identity();
    accumulate_from_memory<Op>(partial, row, row.first + int(threadIdx.x), row.end);
    int edge_index = row.edge_index(threadIdx.x);
    uint32_t edge[Op::READS];
    row.load_edge(edge_index, edge);
    Operands<Op::READS> no_operands[1];
    load_operands(no_operands[0], row, 0, false);
    partial = row.op.merge(partial, row.op.init_partial(no_operands, edge));
    return block_reduce(row.op, partial, warp_partials);
}

}  // namespace softbench
