// Where a row lies, how its vectors and its few odd elements are reached, and how threads, CTAs of a cluster and CTAs of a grid tell each
// other their parts.
//
// A row begins anywhere. Its 16-byte vectors are counted from an aligned floor at or before its first element (128 bytes for long rows:
// from a 16-byte floor every warp's access would straddle one more cache line, .93 of copy instead of .96). Whole vectors are
// [first, last); the `head` elements before and the `tail` elements after them, fewer than a vector each, are read and written one by
// one by as many threads. So nothing outside the row is ever touched, and no vector needs a mask within.
#pragma once

#include "arithmetic.cuh"

namespace softbench {

constexpr int TAIL_THREAD = 8;  // threads 0..6 take the head's elements, 8..14 the tail's
constexpr int MAX_WARPS = 32;
constexpr int MAX_CLUSTER = 16;

// The operands of a launch: R tensors read, one written; strides in elements.
template <typename Op> struct Tensors {
    const typename Op::Element* source[Op::READS];
    typename Op::Out* target;
    int64_t source_stride[Op::READS], target_stride;
    int64_t M;
    int N;
};

// Reads that are to STAY: their lines leave L2 after those that are written, which then leave it soon after they were written, presumably in
// their order: memory takes them the faster (softmax.cu has by how much). Not for launches that read little: what those have read would survive
// a flush such as do_bench's, and they would only seem fast. The policy is made once a kernel: made at each load it would be five instructions,
// whose registers wait for the load before.
template <bool STAY> __device__ __forceinline__ uint64_t policy_of() {
    uint64_t policy = 0;
    if constexpr (STAY) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
template <bool STAY> __device__ __forceinline__ uint4 load16(const void* from, uint64_t policy) {
    if constexpr (!STAY) return *static_cast<const uint4*>(from);
    uint4 v;
    asm volatile("ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(policy));
    return v;
}
template <bool STAY> __device__ __forceinline__ uint2 load8(const void* from, uint64_t policy) {
    if constexpr (!STAY) return *static_cast<const uint2*>(from);
    uint2 v;
    asm volatile("ld.global.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;" : "=r"(v.x), "=r"(v.y) : "l"(from), "l"(policy));
    return v;
}
template <bool STAY> __device__ __forceinline__ uint32_t load4(const void* from, uint64_t policy) {
    if constexpr (!STAY) return *static_cast<const uint32_t*>(from);
    uint32_t v;
    asm volatile("ld.global.L2::cache_hint.u32 %0, [%1], %2;" : "=r"(v) : "l"(from), "l"(policy));
    return v;
}

// LINES: known when compiling that each row begins at its floor and is whole vectors: no head, no tail, nothing to find out before the first
// load. STAY: as of a load.
template <typename Op, bool LINES, bool STAY> struct Row {
    static constexpr int V = Op::V;
    using Element = typename Op::Element;
    using Out = typename Op::Out;

    const Element* source[Op::READS];  // at the floor: before the row, unless it is aligned
    Out* target;
    int lead;         // elements from the floor to the row
    int first, last;  // whole vectors
    int N;
    uint64_t policy;

    // `floor_bytes` is 16 or 128. Every tensor's row has the same distance from its own 16-byte floor; the plan has seen to that.
    __device__ __forceinline__ Row(const Tensors<Op>& tensors, int64_t row, int floor_bytes) : N(tensors.N), policy(policy_of<STAY>()) {
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) source[r] = tensors.source[r] + row * tensors.source_stride[r];
        target = tensors.target + row * tensors.target_stride;
        if constexpr (LINES) {
            lead = first = 0;
            last = N / V;
            return;
        }
        lead = int(reinterpret_cast<uintptr_t>(source[0]) & (floor_bytes - 1)) / int(sizeof(Element));
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) source[r] -= lead;
        target -= lead;
        first = (lead + V - 1) / V;
        last = (lead + N) / V;
        if (last < first) last = first;  // the row lies within a vector: it is all head
    }
    // The odd element of a thread, counted from the floor, or -1.
    __device__ __forceinline__ int odd(int thread) const {
        if constexpr (LINES) return -1;
        int end = lead + N;
        if (thread < TAIL_THREAD) {
            int at = lead + thread;
            return at < first * V && at < end ? at : -1;
        }
        int at = last * V + (thread - TAIL_THREAD);
        return at < end && thread < 2 * TAIL_THREAD ? at : -1;
    }
    // As a word, whose lower half is the element where it has 16 bits. Nothing is done to what was read: that would wait for it.
    __device__ __forceinline__ void read_odd(int at, uint32_t (&word)[Op::READS]) const {
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) {
            word[r] = Op::blank();
            if (at >= 0) {
                if constexpr (sizeof(Element) == 4) word[r] = reinterpret_cast<const uint32_t*>(source[r])[at];
                else word[r] = reinterpret_cast<const uint16_t*>(source[r])[at];
            }
        }
    }
    __device__ __forceinline__ void write_odd(int at, const uint32_t (&word)[Op::READS], Part whole) const {
        if (at < 0) return;
        float value[Op::READS];
#pragma unroll
        for (int r = 0; r < Op::READS; ++r) value[r] = Word<Element>::element(word[r], 0);
        target[at] = narrow<Out>(Op::result(value, whole));
    }
    __device__ __forceinline__ const uint4* vector(int r, int i) const { return reinterpret_cast<const uint4*>(source[r]) + i; }
    __device__ __forceinline__ void store(int i, const Item<Op::READS>& item, Part whole) const { Op::store(target + int64_t(i) * V, item, whole); }
    __device__ __forceinline__ void give(int i, const Item<Op::READS>& item, Part whole, Part own) const { Op::give(target + int64_t(i) * V, item, whole, own); }
};

__device__ __forceinline__ void put(uint32_t (&word)[4], uint4 v) {
    word[0] = v.x;
    word[1] = v.y;
    word[2] = v.z;
    word[3] = v.w;
}

// A load that may not be is one by predicate, not a branch, where a branch took more registers: with a policy, and before Hopper.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool BY_PREDICATE = true;
#else
constexpr bool BY_PREDICATE = false;
#endif

// Vector i of a row where `inside`, else blanks, which change neither maximum, sum nor dot.
template <typename Op, bool LINES, bool STAY> __device__ __forceinline__ void read(Item<Op::READS>& item, const Row<Op, LINES, STAY>& row, int i, bool inside) {
#pragma unroll
    for (int r = 0; r < Op::READS; ++r) {
        uint32_t none = Op::blank();
        if constexpr (STAY || BY_PREDICATE) {  // into where the blanks are
            uint32_t(&word)[4] = item.word[r];
            put(word, make_uint4(none, none, none, none));
            if constexpr (STAY)
                asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n@p ld.global.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%5], %6;\n}"
                             : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3])
                             : "r"(unsigned(inside)), "l"(row.vector(r, i)), "l"(row.policy));
            else
                asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n@p ld.global.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
                             : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3])
                             : "r"(unsigned(inside)), "l"(row.vector(r, i)));
        } else {
            put(item.word[r], inside ? *row.vector(r, i) : make_uint4(none, none, none, none));
        }
    }
}

// Whether a thread's exponentials of 16-bit vectors are kept over the exchange: of few rows, whose threads have two vectors.
template <typename Op, int K> constexpr bool KEEPS = Op::READS == 1 && Op::E == 2 && K <= 2;

// The join over a CTA of at most MOST threads, given to every thread; one barrier. `parts` is not written again before another barrier.
template <typename Op, int MOST = MAX_WARPS * WARP> __device__ __forceinline__ Part join_block(Part part, Part* parts) {
    constexpr int WARPS = MOST <= 8 * WARP ? 8 : MOST <= 16 * WARP ? 16 : 32;  // each step of a join is a wait for a shuffle
    constexpr bool ALIKE = MOST <= 16 * WARP;  // with 32 registers a thread, as 1024 threads have, it would spill two of them
    part = ALIKE ? Op::join_alike(part, WARP) : Op::join_lanes(part, WARP);
    const int warps = blockDim.x / WARP, warp = threadIdx.x % WARPS;
    if (warps == 1) return part;
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = part;
    __syncthreads();
    part = warp < warps ? parts[warp] : Op::empty();
    return ALIKE ? Op::join_alike(part, WARPS) : Op::join_lanes(part, WARPS);
}

// ---- turns ----------------------------------------------------------------------------------------------------------------------------

// Rows that begin at once wait for their exchanges at once, and meanwhile nothing moves. So the first ones, as many as the card holds, begin
// so many cycles after each other; later ones follow as these end. first = 0: no turns.
struct Turns {
    int first, cycles;
};
__device__ __forceinline__ void await_turn(Turns turns, int index) {
    if (index >= turns.first) return;
    const uint64_t begin = uint64_t(clock64()), wait = uint64_t(index) * uint64_t(turns.cycles);
    while (uint64_t(clock64()) - begin < wait) {}
    asm volatile("" ::: "memory");  // no load moves up
}

// ---- copies past the registers ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// On sm_90 only: ptxas of CUDA 12.8 to 13.3 makes of such a copy, for sm_100, one with a policy that it never set.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr bool COPIES_STAY = true;
#else
constexpr bool COPIES_STAY = false;
#endif
template <bool STAY> __device__ __forceinline__ void copy_async(void* shared, const void* global, uint64_t policy) {  // 16 bytes; seen by this thread after copy_async_wait
    if constexpr (STAY && COPIES_STAY)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "l"(policy) : "memory");
    else asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }
__device__ __forceinline__ void copy_async_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void copy_async_wait_but() { asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory"); }  // all groups but so many

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define SOFTBENCH_CLUSTERS 1

// ---- clusters: sm_90 and later ------------------------------------------------------------------------------------------------------

__device__ __forceinline__ int cluster_rank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return int(r);
}
__device__ __forceinline__ int cluster_index() {  // of the grid's clusters: no division by their size
    uint32_t i;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(i));
    return int(i);
}
// Relaxed: as a release, which is the default, it waits for the whole card's memory (MEMBAR.GPU) before the first load is issued, .04 of a
// copy's speed. What the others have to see before they write here is that the barrier is ready, and barrier_inits_done says that.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ uint32_t peer_address(const void* shared, int rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
    return address;
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_inits_done() {  // for the cluster's other CTAs, and for the copy engine
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The one arrival of a phase, which also says how many bytes the phase has to see.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}
// Bulk copy by one thread: global to this CTA's shared memory, both 16-byte aligned, bytes a multiple of 16 and not 0.
template <bool STAY> __device__ __forceinline__ void copy_bulk(void* shared, const void* global, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
    if constexpr (STAY)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
}

// The mailbox of a CTA: each CTA of the cluster, itself included, writes its part there, and the barrier's phase ends when all have.
struct alignas(8) Message {
    float top, sum;
};
// Sent by one lane a receiver. The bytes travel in registers: nothing of the sender's is read later, so it may exit.
__device__ __forceinline__ void send(Message* box, uint64_t* barrier, int to, Part part) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(peer_address(box, to)),
                 "r"(__float_as_uint(part.top)), "r"(__float_as_uint(part.sum)), "r"(peer_address(barrier, to))
                 : "memory");
}
#endif

// ---- between the CTAs of a grid -----------------------------------------------------------------------------------------------------

// What launches on one stream share; zeroed once. See split.cuh.
struct Workspace {
    unsigned long long launches;  // high word: launches done; low word: CTAs of the running one that are through
    unsigned long long reserved[15];  // a line of its own
    uint4 slots[1];  // {top, tag, sum, tag} of each part of each row
};

__device__ __forceinline__ unsigned long long load_relaxed(const unsigned long long* p) {
    unsigned long long v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void fetch_line(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }  // to the L2
__device__ __forceinline__ uint4 load_slot(const uint4* slot) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(slot) : "memory");
    return v;
}
__device__ __forceinline__ void store_slot(uint4* slot, Part part, uint32_t tag) {
    asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(slot), "r"(__float_as_uint(part.top)), "r"(tag),
                 "r"(__float_as_uint(part.sum)), "r"(tag)
                 : "memory");
}

}  // namespace softbench
