// Where a row lies in memory, and how its vectors and its edge elements are loaded and written.
//
// A row can begin at any element. Its 16-byte vectors are counted from an aligned base at or before its first element. Long rows use a base
// aligned to 128 bytes. With 16 bytes, each access of a warp would touch one more cache line, which costs 3 % of the bandwidth. The whole
// vectors of a row are [first, end). The edge is what remains: a head before them and a tail after them, each shorter than a vector. Each edge
// element belongs to one thread. So a kernel touches no address outside the row, and no vector needs a mask.
#pragma once

#include "softmax_ops.cuh"

namespace softbench {

constexpr int FIRST_TAIL_THREAD = 8;  // threads 0..6 have the elements of the head, threads 8..14 those of the tail
constexpr int EDGE_THREADS = 2 * FIRST_TAIL_THREAD;

// The tensors of a launch: those that are read, and the one that is written. Strides between rows are in elements.
template <typename Op> struct Tensors : Op::Inputs {
    const typename Op::Element* source[Op::READS];
    typename Op::Out* target;
    int64_t source_stride[Op::READS], target_stride;
    int64_t M;
    int N;
};

// Loads with KEEP_IN_L2 have a policy. With evict_last their lines leave L2 after the lines that are written. Written lines then leave L2 early and
// presumably in the order of the writes, which memory handles faster. Launches that read little
// do not use evict_last. Their inputs would survive a flush of L2 such as do_bench's, and the launch would only seem fast. A kernel makes the policy
// once. At each load it would take five instructions, whose registers wait for the load before. `leave_first`: the policy is evict_first;
// `leaves_first` says when.
template <bool KEEP_IN_L2> __device__ __forceinline__ uint64_t l2_policy(bool leave_first = false) {
    uint64_t policy = 0;
    if constexpr (KEEP_IN_L2) {
        if (leave_first) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        else asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    }
    return policy;
}
template <bool KEEP_IN_L2> __device__ __forceinline__ uint4 load16(const void* from, uint64_t policy) {
    if constexpr (!KEEP_IN_L2) return *static_cast<const uint4*>(from);
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(policy));
    return v;
}
template <bool KEEP_IN_L2> __device__ __forceinline__ uint2 load8(const void* from, uint64_t policy) {
    if constexpr (!KEEP_IN_L2) return *static_cast<const uint2*>(from);
    uint2 v;
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(v.x), "=r"(v.y) : "l"(from), "l"(policy));
    return v;
}
template <bool KEEP_IN_L2> __device__ __forceinline__ uint32_t load4(const void* from, uint64_t policy) {
    if constexpr (!KEEP_IN_L2) return *static_cast<const uint32_t*>(from);
    uint32_t v;
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(from), "l"(policy));
    return v;
}

// Loads a vector if `inside`; else its registers have `padding`. The compiler leaves the load where it is.
template <bool KEEP_IN_L2> __device__ __forceinline__ void load16_if(bool inside, uint32_t (&packed)[4], uint32_t padding, const void* from, uint64_t policy) {
#pragma unroll
    for (int w = 0; w < 4; ++w) packed[w] = padding;
    if constexpr (KEEP_IN_L2)
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n@p ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;\n}"
                     : "+r"(packed[0]), "+r"(packed[1]), "+r"(packed[2]), "+r"(packed[3])
                     : "r"(unsigned(inside)), "l"(from), "l"(policy));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
                     : "+r"(packed[0]), "+r"(packed[1]), "+r"(packed[2]), "+r"(packed[3])
                     : "r"(unsigned(inside)), "l"(from));
}

// A row of all tensors. NO_EDGES: the compiler knows that the row begins at its base and consists of whole vectors. Then nothing has to be
// computed before the first load. KEEP_IN_L2: loads have a policy. `leave_first`: it is evict_first.
template <typename Op, bool NO_EDGES, bool KEEP_IN_L2> struct Row {
    static constexpr int V = Op::V;
    using Element = typename Op::Element;
    using Out = typename Op::Out;

    const Element* source[Op::READS];  // the bases: before the row, unless it is aligned
    Out* target;
    int offset;      // elements from the base to the row
    int first, end;  // of the whole vectors
    int N;
    uint64_t policy;
    Op op;

    // `base_alignment` is 16 or 128 bytes. The launch plan ensures that the row has the same offset from a 16-byte boundary in each tensor.
    __device__ __forceinline__ Row(const Tensors<Op>& tensors, int64_t row, int base_alignment, bool leave_first = false)
        : N(tensors.N), policy(l2_policy<KEEP_IN_L2>(leave_first)), op(tensors, row) {
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) source[r] = tensors.source[r] + row * tensors.source_stride[r];
        target = tensors.target + row * tensors.target_stride;
        if constexpr (NO_EDGES) {
            offset = first = 0;
            end = N / V;
            return;
        }
        offset = int(reinterpret_cast<uintptr_t>(source[0]) & (base_alignment - 1)) / int(sizeof(Element));
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) source[r] -= offset;
        target -= offset;
        first = (offset + V - 1) / V;
        end = (offset + N) / V;
        if (end < first) end = first;  // the row lies within one vector: all of it is head
    }
    // The index of a thread's edge element, counted from the base; -1 if the thread has none.
    __device__ __forceinline__ int edge_index(int thread) const {
        if constexpr (NO_EDGES) return -1;
        int row_end = offset + N;
        if (thread < FIRST_TAIL_THREAD) {
            int index = offset + thread;
            return index < first * V && index < row_end ? index : -1;
        }
        int index = end * V + (thread - FIRST_TAIL_THREAD);
        return index < row_end && thread < EDGE_THREADS ? index : -1;
    }
    // Loads an edge element of each tensor; a 16-bit one goes to the lower half. It converts nothing, since that would wait for the load.
    __device__ __forceinline__ void load_edge(int index, uint32_t (&packed)[Op::READS]) const {
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) {
            packed[r] = Op::padding();
            if (index >= 0) {
                if constexpr (sizeof(Element) == 4) packed[r] = reinterpret_cast<const uint32_t*>(source[r])[index];
                else packed[r] = reinterpret_cast<const uint16_t*>(source[r])[index];
            }
        }
    }
    __device__ __forceinline__ void write_edge(int index, const uint32_t (&packed)[Op::READS], typename Op::Total total) const {
        if (index < 0) return;
        float value[Op::READS];
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) value[r] = Packed<Element>::element(packed[r], 0);
        op.write_one(target + index, value, total);
    }
    __device__ __forceinline__ const uint4* vector(int r, int i) const { return reinterpret_cast<const uint4*>(source[r]) + i; }
    __device__ __forceinline__ void write(int i, const Operands<Op::READS>& operands, typename Op::Total total) const {
        op.write(target + int64_t(i) * V, operands, total);
    }
    __device__ __forceinline__ void write(int i, const Operands<Op::READS>& operands, typename Op::Total total, Partial thread_partial) const {
        op.write(target + int64_t(i) * V, operands, total, thread_partial);
    }
    // Where lanes store vector i in pairs. The row has the vectors of [from, to). All lanes of the warp have consecutive i, the first one even.
    __device__ __forceinline__ PairTarget pair_target(int i, int from, int to) const {
        return {reinterpret_cast<float*>(target) + int64_t(i) * V, i >= from && i < to, (i ^ 1) >= from && (i ^ 1) < to};
    }
};

__device__ __forceinline__ void assign(uint32_t (&packed)[4], uint4 v) {
    packed[0] = v.x;
    packed[1] = v.y;
    packed[2] = v.z;
    packed[3] = v.w;
}

template <typename Op> __device__ __forceinline__ uint4 padding_vector() {
    const uint32_t padding = Op::padding();
    return make_uint4(padding, padding, padding, padding);
}

// The compute capability, times 100. ptxas takes more registers before and after Hopper. So that they do not spill, some kernels load by predicates,
// take NO_EDGES for false, or do not store in pairs there.
#ifdef __CUDA_ARCH__
constexpr int ARCHITECTURE = __CUDA_ARCH__;
#else
constexpr int ARCHITECTURE = 900;  // host code has no kernel
#endif
constexpr bool BEFORE_HOPPER = ARCHITECTURE < 900, AFTER_HOPPER = ARCHITECTURE > 900;

// Loads vector i of a row if `inside`, else padding, which changes neither maximum nor sum. It uses a predicate where a branch would take more
// registers: with a policy, and before Hopper.
template <typename Op, bool NO_EDGES, bool KEEP_IN_L2>
__device__ __forceinline__ void load_operands(Operands<Op::READS>& operands, const Row<Op, NO_EDGES, KEEP_IN_L2>& row, int i, bool inside) {
#pragma unroll
    for (int r = 0; r < Op::READS; ++r) {
        if constexpr (KEEP_IN_L2 || BEFORE_HOPPER) load16_if<KEEP_IN_L2>(inside, operands.packed[r], Op::padding(), row.vector(r, i), row.policy);
        else assign(operands.packed[r], inside ? *row.vector(r, i) : padding_vector<Op>());
    }
}

// Loads a thread's vectors of a row before `end`: from `start` on, `step` vectors apart.
template <typename Op, bool NO_EDGES, bool KEEP_IN_L2, int K>
__device__ __forceinline__ void load_vectors(Operands<Op::READS> (&operands)[K], const Row<Op, NO_EDGES, KEEP_IN_L2>& row, int start, int step, int end) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int i = start + k * step;
        load_operands(operands[k], row, i, (NO_EDGES || i >= row.first) && i < end);
    }
}
// Stores their results. CACHED: init_partial has stored `exponentials`.
template <bool IN_PAIRS, bool CACHED, typename Op, bool NO_EDGES, bool KEEP_IN_L2, int K>
__device__ __forceinline__ void write_vectors(const Row<Op, NO_EDGES, KEEP_IN_L2>& row, const Operands<Op::READS> (&operands)[K], [[maybe_unused]] const float* exponentials,
                                              typename Op::Total total, Partial thread_partial, int start, int step, int end) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int i = start + k * step;
        if constexpr (IN_PAIRS) {
            if (!warp_has_vector(i, row.first, end)) continue;
            const PairTarget pair = row.pair_target(i, row.first, end);
            if constexpr (CACHED) row.op.write(pair, exponentials + k * Op::V, total, thread_partial);
            else row.op.write(pair, operands[k], total, thread_partial);
            continue;
        }
        if (!((NO_EDGES || i >= row.first) && i < end)) continue;
        if constexpr (CACHED) row.op.write(row.target + int64_t(i) * Op::V, exponentials + k * Op::V, total, thread_partial);
        else row.write(i, operands[k], total, thread_partial);
    }
}

}  // namespace softbench
