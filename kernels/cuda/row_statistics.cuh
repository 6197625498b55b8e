// Kernels that read rows and write a few numbers of each: the sums of exponentials behind a loss.
//
// Rows are read once, by plain loads: each thread has U vectors in flight, and many warps on an SM are at different places of their loops. A thread
// keeps its own maximum, and takes the maximum of U vectors before their exponentials. So an element takes one exponential.
//
// Short rows have a warp each. Other rows have one CTA, or several anywhere on the device. Each of these stores its Sums in a slot and counts itself
// as finished. The last one merges the slots, so no CTA waits for another. The CTAs of a cluster send their Sums to its first CTA, which waits.
#pragma once

#include "cluster_exchange.cuh"
#include "launch_plan.cuh"
#include "loss_ops.cuh"

namespace softbench {

constexpr int STATISTICS_THREADS = 256;  // the most of a CTA
constexpr int STATISTICS_WARPS = 4;      // rows of a CTA in which a warp has a row
constexpr int COUNTED_ROWS = 1 << 14;    // the most rows that several CTAs share in one launch
constexpr int COUNTED_SLOTS = 1 << 17;   // the most CTAs of all such rows

template <typename Op> struct StatisticsRows : Op::Given {
    const typename Op::Element* x;
    int64_t stride, M;  // elements between rows; rows
    int N;
    int chunk;  // vectors of a CTA, a multiple of LINE_VECTORS
    Sums* slots;
    unsigned* counters;  // of finished CTAs of each row; 0 before and after each launch
};

// The row of a CTA in a grid of (CTAs of a row, rows, thousands of rows): grid_of_rows.
__device__ __forceinline__ int64_t grid_row() { return int64_t(blockIdx.z) * gridDim.y + blockIdx.y; }
inline dim3 grid_of_rows(int ctas, int64_t rows) {
    const int64_t most = 65535, z = ceil_div(rows, most);
    return dim3(unsigned(ctas), unsigned(ceil_div(rows, z)), unsigned(z));
}

template <typename Op> __device__ __forceinline__ Sums merged_over_warp(const Sums& sums) {
    const Sums mine = Op::rescaled(sums, max_over_warp(sums.maximum));
    return {mine.maximum, sum_over_lanes(mine.sum, WARP), sum_over_lanes(mine.third, WARP), Op::COUNTS ? sum_over_lanes(mine.count, WARP) : 0.0f};
}

// Merges the Sums of a CTA; the first warp gets the result.
template <typename Op> __device__ __forceinline__ Sums merged_over_block(Sums sums, Sums* warp_sums) {
    const int warps = blockDim.x / WARP, lane = threadIdx.x % WARP;
    sums = merged_over_warp<Op>(sums);
    if (warps == 1) return sums;
    if (lane == 0) warp_sums[threadIdx.x / WARP] = sums;
    __syncthreads();
    if (threadIdx.x >= WARP) return sums;
    return merged_over_warp<Op>(lane < warps ? warp_sums[lane] : Sums{MINUS_INFINITY, 0.0f, 0.0f, 0.0f});
}

// Which of a thread's vectors are added: ALL belong to the row. PADDED: some are padding of -inf, which adds 0. SOME: those that begin before `left`.
enum Vectors { ALL, PADDED, SOME };

template <typename Op, int U, Vectors WHICH, bool NEAR>
__device__ __forceinline__ void add_vectors(const typename Op::Given& given, float base, Sums& sums, const uint32_t (&packed)[U][4], int left, int lanes) {
    Sums fresh[2] = {};  // two sums, so that an addition does not wait for the one before
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (WHICH != SOME || u * lanes < left) {  // the exponentials of padding would take time that logits need
#pragma unroll
            for (int i = 0; i < Op::V; ++i)
                Op::template add<NEAR>(Op::logit(given, Packed<typename Op::Element>::element(packed[u][i / Op::E], i % Op::E)), base, fresh[i % 2]);
            if constexpr (Op::COUNTS) sums.count += float(Op::V);
        }
    sums.sum += fresh[0].sum + fresh[1].sum;
    sums.third += fresh[0].third + fresh[1].third;
}
// Adds U vectors that are `lanes` vectors apart.
template <typename Op, int U, Vectors WHICH>
__device__ __forceinline__ void accumulate(const typename Op::Given& given, Sums& sums, const uint32_t (&packed)[U][4], int left, int lanes) {
    using P = Packed<typename Op::Element>;
    uint32_t running = packed[0][0];
#pragma unroll
    for (int i = 1; i < 4 * U; ++i) running = P::elementwise_max(running, packed[i / 4][i % 4]);
    float maximum = P::element(running, 0);
    if constexpr (Op::E == 2) maximum = fmaxf(maximum, P::element(running, 1));
    sums = Op::rescaled(sums, fmaxf(sums.maximum, Op::logit(given, maximum)));
    const float base = finite_or_zero(sums.maximum);
    if constexpr (Op::CLAMPS && WHICH == ALL) {
        uint32_t least = packed[0][0];
#pragma unroll
        for (int i = 1; i < 4 * U; ++i) least = P::elementwise_min(least, packed[i / 4][i % 4]);
        float minimum = P::element(least, 0);
        if constexpr (Op::E == 2) minimum = fminf(minimum, P::element(least, 1));
        if (minimum - base >= FAR_BELOW) return add_vectors<Op, U, WHICH, true>(given, base, sums, packed, left, lanes);
    }
    add_vectors<Op, U, WHICH, false>(given, base, sums, packed, left, lanes);
}
template <typename Op> __device__ __forceinline__ void accumulate_one(const typename Op::Given& given, Sums& sums, float x) {
    const float z = Op::logit(given, x);
    sums = Op::rescaled(sums, fmaxf(sums.maximum, z));
    Op::template add<false>(z, finite_or_zero(sums.maximum), sums);
    sums.count += 1.0f;
}

// The Sums of a thread: of the vectors from `from` to `to` that begin at `base`, `lanes` vectors apart. SHORT: a warp has the row, and all its lanes go
// the same way, so it adds padding too, unless elements are counted.
template <typename Op, int U, bool SHORT>
__device__ __forceinline__ Sums thread_sums(const typename Op::Given& given, const typename Op::Element* base, int from, int to, int lanes) {
    constexpr Vectors LAST = SHORT && !Op::COUNTS ? PADDED : SOME;
    const uint4* next = reinterpret_cast<const uint4*>(base) + from;
    Sums sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    uint32_t packed[U][4];
    int left = to - from;  // also of the other threads
    if constexpr (LAST != PADDED)
        for (; left > (U - 1) * lanes; left -= U * lanes, next += U * lanes) {
#pragma unroll
            for (int u = 0; u < U; ++u) assign(packed[u], next[u * lanes]);
            accumulate<Op, U, ALL>(given, sums, packed, left, lanes);
        }
    for (; left > 0; left -= U * lanes, next += U * lanes) {  // once, unless LAST is PADDED
#pragma unroll
        for (int u = 0; u < U; ++u) load16_if<false>(u * lanes < left, packed[u], Packed<typename Op::Element>::MINUS_INFINITY_BITS, next + u * lanes, 0);
        accumulate<Op, U, LAST>(given, sums, packed, left, lanes);
    }
    return sums;
}

// The least CTAs an SM for __launch_bounds__, as registers allow.
constexpr int statistics_min_ctas(int U, bool counts, bool several_ctas) {
    return counts ? 3 : U > 4 ? 4 : !several_ctas || BEFORE_HOPPER || AFTER_HOPPER ? 5 : 6;
}

// Counts a CTA as finished, and returns how many were before. What it stored before is visible to CTAs that count later.
__device__ __forceinline__ unsigned count_finished(unsigned* counter) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

template <typename Op> __device__ __forceinline__ Sums merged(const Sums& one, const Sums& other) {
    const float maximum = fmaxf(one.maximum, other.maximum);
    const Sums a = Op::rescaled(one, maximum), b = Op::rescaled(other, maximum);
    return {maximum, a.sum + b.sum, a.third + b.third, a.count + b.count};
}

// Merges the Sums of all CTAs of a row by the counter. True in the CTA that finishes the row: it counted itself last, and its first warp has all Sums.
template <typename Op>
__device__ __forceinline__ bool merged_by_last(const StatisticsRows<Op>& rows, int64_t row, int cta, int ctas, Sums& sums, Sums* warp_sums) {
    __shared__ bool is_last;
    Sums* const slots = rows.slots + row * ctas;
    if (threadIdx.x == 0) {
        __stcg(reinterpret_cast<float4*>(slots + cta), make_float4(sums.maximum, sums.sum, sums.third, sums.count));
        is_last = count_finished(rows.counters + row) == unsigned(ctas - 1);
    }
    __syncthreads();  // also: all threads have read warp_sums
    if (!is_last) return false;
    sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    for (int other = threadIdx.x; other < ctas; other += blockDim.x) {
        const float4 v = __ldcg(reinterpret_cast<const float4*>(slots + other));
        sums = merged<Op>(sums, {v.x, v.y, v.z, v.w});
    }
    sums = merged_over_block<Op>(sums, warp_sums);
    if (threadIdx.x == 0) rows.counters[row] = 0;
    return true;
}

// What the CTAs of a cluster need to merge their Sums: the first one has a message from each.
struct SumsMailbox {
    alignas(sizeof(Sums)) Sums messages[MAX_CLUSTER];  // each is written as a whole
    uint64_t barrier;  // its phase ends when all messages have come
};
// Called before the loads. The wait for the other CTAs comes after them.
__device__ __forceinline__ void prepare_mailbox(SumsMailbox& mailbox, int size) {
#if SOFTBENCH_CLUSTERS
    if (threadIdx.x == 0) {
        barrier_init(&mailbox.barrier);
        barrier_inits_done();
        barrier_expect(&mailbox.barrier, uint32_t(sizeof(Sums)) * size);
    }
    cluster_arrive();
#endif
}
// Merges the Sums of all CTAs of a cluster. True in the warp that finishes the row: the first one of the first CTA.
template <typename Op> __device__ __forceinline__ bool merged_by_first(int rank, int size, Sums& sums, SumsMailbox& mailbox) {
#if SOFTBENCH_CLUSTERS
    cluster_wait();
    if (threadIdx.x == 0)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote_address(&mailbox.messages[rank], 0)),
                     "r"(__float_as_uint(sums.maximum)), "r"(__float_as_uint(sums.sum)), "r"(__float_as_uint(sums.third)), "r"(__float_as_uint(sums.count)),
                     "r"(remote_address(&mailbox.barrier, 0))
                     : "memory");
    if (rank != 0 || threadIdx.x >= WARP) return false;
    barrier_wait(&mailbox.barrier, 0);
    sums = merged_over_warp<Op>(int(threadIdx.x) < size ? mailbox.messages[threadIdx.x] : Sums{MINUS_INFINITY, 0.0f, 0.0f, 0.0f});
#endif
    return true;
}

// What has a row. SEVERAL_CTAS (or one) are anywhere on the device.
enum Share { ONE_WARP_EACH, SEVERAL_CTAS, ONE_CLUSTER };

// The row of a thread, the number of its CTA among those of the row, and how many these are.
struct Place {
    int64_t row;
    int cta, ctas;
};
template <Share SHARE> __device__ __forceinline__ Place place_of() {
    if constexpr (SHARE == ONE_WARP_EACH) return {int64_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP, 0, 1};
#if SOFTBENCH_CLUSTERS
    if constexpr (SHARE == ONE_CLUSTER) return {cluster_index(), cluster_rank(), cluster_size()};
#endif
    return {grid_row(), int(blockIdx.x), int(gridDim.x)};
}

// U: the vectors of a thread in flight.
template <typename Op, int U, Share SHARE>
__global__ void __launch_bounds__(STATISTICS_THREADS, statistics_min_ctas(U, Op::COUNTS, SHARE == SEVERAL_CTAS)) row_statistics(StatisticsRows<Op> rows) {
    constexpr bool WARP_PER_ROW = SHARE == ONE_WARP_EACH;
    constexpr int V = Op::V, BASE_ALIGNMENT = WARP_PER_ROW ? VECTOR_BYTES : LINE_BYTES;
    using Element = typename Op::Element;
    __shared__ Sums warp_sums[STATISTICS_THREADS / WARP];
    const int lanes = WARP_PER_ROW ? WARP : blockDim.x, lane = WARP_PER_ROW ? threadIdx.x % WARP : threadIdx.x;
    const Place place = place_of<SHARE>();
    const int64_t row = place.row;
    const int cta = place.cta, ctas = place.ctas;
    if (row >= rows.M) return;  // only whole warps return, and their path has no barrier
    __shared__ SumsMailbox mailbox;
    if constexpr (SHARE == ONE_CLUSTER) prepare_mailbox(mailbox, ctas);
    int64_t target = 0;
    if (lane == 0) target = load_word(rows.target + row);  // early: x at the target waits for it

    const Element* const x = rows.x + row * rows.stride;
    const int offset = int(reinterpret_cast<uintptr_t>(x) & (BASE_ALIGNMENT - 1)) / int(sizeof(Element)), row_end = offset + rows.N;
    const int first = (offset + V - 1) / V, end = max(first, row_end / V);  // of the whole vectors, counted from the base
    int from = lane, to = end;
    if constexpr (!WARP_PER_ROW) {
        from += cta * rows.chunk;
        to = min(end, (cta + 1) * rows.chunk);
    }
    if (from < first) from += lanes;  // `first` is at most LINE_VECTORS
    const int edge_index = lane < FIRST_TAIL_THREAD ? offset + lane : end * V + lane - FIRST_TAIL_THREAD;
    const bool has_edge = cta == 0 && lane < EDGE_THREADS && edge_index < row_end && (lane >= FIRST_TAIL_THREAD || edge_index < first * V);
    Element edge = from_float<Element>(0.0f);
    if (has_edge) edge = (x - offset)[edge_index];  // it is converted after the vectors, which do not wait for it
    Sums sums = thread_sums<Op, U, WARP_PER_ROW>(rows, x - offset, from, to, lanes);
    if (has_edge) accumulate_one<Op>(rows, sums, to_float(edge));
    float x_target = 0.0f;
    if (lane == 0 && target >= 0 && target < rows.N) x_target = to_float(x[target]);

    if constexpr (WARP_PER_ROW) {
        sums = merged_over_warp<Op>(sums);
    } else {
        sums = merged_over_block<Op>(sums, warp_sums);
        if constexpr (SHARE == ONE_CLUSTER) {
            if (!merged_by_first<Op>(cta, ctas, sums, mailbox)) return;
        } else if (ctas > 1 && !merged_by_last<Op>(rows, row, cta, ctas, sums, warp_sums)) return;
    }
    if (lane == 0) Op::finish(rows, row, rows.N, target, x_target, sums);
}

}  // namespace softbench
