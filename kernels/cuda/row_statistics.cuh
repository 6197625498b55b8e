// Kernels that read rows and write a few numbers of each: the sums of exponentials behind a loss.
//
// Rows are read once, by plain loads: each thread has U vectors in flight, and many warps on an SM are at different places of their loops. A thread
// keeps its own maximum, and takes the maximum of U vectors before their exponentials. So an element takes one exponential.
//
// Short rows have a warp each. Other rows have one CTA, or several anywhere on the device. Each of these stores its Sums in a slot and counts itself
// as finished. The last one merges the slots, so no CTA waits for another. The warps of a cluster send their Sums to its first CTA, which waits.
#pragma once

#include "by_column.cuh"
#include "launch_plan.cuh"
#include "loss_ops.cuh"

namespace softbench {

constexpr int STATISTICS_THREADS = 256;  // the most of a CTA
constexpr int STATISTICS_WARPS = 4;      // rows of a CTA in which a warp has a row
constexpr int DEEP = 8;                  // vectors in flight of a thread, where many CTAs have long parts
constexpr int COUNTED_ROWS = 1 << 14;    // the most rows that several CTAs share in one launch
constexpr int COUNTED_SLOTS = 1 << 17;   // the most CTAs of all such rows

template <typename Op> struct StatisticsRows : Op::Given {
    const typename Op::Element* x;
    int64_t stride, M;  // elements between rows; rows
    int N;
    int chunk;  // vectors of a CTA, a multiple of LINE_VECTORS
    int in_turns;  // vectors of the whole turns of a CTA that has a whole chunk
    Sums* slots;
    unsigned* counters;  // of finished CTAs of each row; 0 before and after each launch
    int base_alignment = LINE_BYTES;  // bytes: a row that CTAs read counts its vectors from a base so aligned
};

// The row of a CTA in a grid of (CTAs of a row, rows, thousands of rows): grid_of_rows.
__device__ __forceinline__ int64_t grid_row() { return int64_t(blockIdx.z) * gridDim.y + blockIdx.y; }
inline dim3 grid_of_rows(int ctas, int64_t rows) {
    const int64_t most = 65535, z = ceil_div(rows, most);
    return dim3(unsigned(ctas), unsigned(ceil_div(rows, z)), unsigned(z));
}

template <typename Op> __device__ __forceinline__ Sums merged_over_warp(const Sums& sums) {
    const Sums mine = Op::rescaled(sums, max_over_warp(sums.maximum));
    return {mine.maximum, sum_over_lanes(mine.sum, WARP), Op::HAS_THIRD ? sum_over_lanes(mine.third, WARP) : 0.0f,
            Op::COUNTS ? sum_over_lanes(mine.count, WARP) : 0.0f};
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
        if (Op::logit(given, minimum) - base >= FAR_BELOW) return add_vectors<Op, U, WHICH, true>(given, base, sums, packed, left, lanes);
    }
    add_vectors<Op, U, WHICH, false>(given, base, sums, packed, left, lanes);
}
template <typename Op> __device__ __forceinline__ void accumulate_one(const typename Op::Given& given, Sums& sums, float x) {
    const float z = Op::logit(given, x);
    sums = Op::rescaled(sums, fmaxf(sums.maximum, z));
    Op::template add<false>(z, finite_or_zero(sums.maximum), sums);
    sums.count += 1.0f;
}

// How many vectors a CTA reads before its first turn, from `begin` on: those that would be a last turn of at most a vector a thread. Such a turn would
// wait for memory with little in flight. Whole lines, so that turns begin at a line.
template <typename Op> __device__ __forceinline__ int early_vectors(const StatisticsRows<Op>& rows, int begin, int to, int lanes) {
    const int over = to - begin - rows.in_turns;
    return over > 0 && over <= lanes ? (over + LINE_VECTORS - 1) / LINE_VECTORS * LINE_VECTORS : 0;
}

// The Sums of a thread: of the vectors from `from` to `to` that begin at `base`, `lanes` vectors apart. SHORT: a warp has the row, and all its lanes go
// the same way, so it adds padding too, unless elements are counted. `farthest`: the vector at which a lane of the warp begins, at most. All lanes
// leave the first loop together. Otherwise one warp would issue its last loads only when the other half of it has computed.
template <typename Op, int U, bool SHORT>
__device__ __forceinline__ Sums thread_sums(const typename Op::Given& given, const typename Op::Element* base, int from, int farthest, int to, int lanes) {
    constexpr Vectors LAST = SHORT && !Op::COUNTS ? PADDED : SOME;
    const uint4* next = reinterpret_cast<const uint4*>(base) + from;
    Sums sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    uint32_t packed[U][4];
    int left = to - from;  // also of the other threads
    const int most = (U - 1) * lanes + farthest - from;  // left - most is the same in all lanes
    if constexpr (LAST != PADDED)
        for (; left > most; left -= U * lanes, next += U * lanes) {
#pragma unroll
            for (int u = 0; u < U; ++u) assign(packed[u], next[u * lanes]);
            accumulate<Op, U, ALL>(given, sums, packed, left, lanes);
        }
    for (; left > 0; left -= U * lanes, next += U * lanes) {  // once, unless LAST is PADDED or the warp begins before the first whole vector
#pragma unroll
        for (int u = 0; u < U; ++u) load16_if<false>(u * lanes < left, packed[u], Packed<typename Op::Element>::MINUS_INFINITY_BITS, next + u * lanes, 0);
        accumulate<Op, U, LAST>(given, sums, packed, left, lanes);
    }
    return sums;
}
// As thread_sums, where few rows have the device: `meanwhile` is done after the first loads, which are in flight then.
template <typename Op, int U, typename F>
__device__ __forceinline__ Sums thread_sums_soon(const typename Op::Given& given, const typename Op::Element* base, int from, int farthest, int to, int lanes, F meanwhile) {
    const uint4* next = reinterpret_cast<const uint4*>(base) + from;
    Sums sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    uint32_t packed[U][4];
    int left = to - from;
    const int most = (U - 1) * lanes + farthest - from;
    auto load = [&] {
#pragma unroll
        for (int u = 0; u < U; ++u) load16_if<false>(u * lanes < left, packed[u], Packed<typename Op::Element>::MINUS_INFINITY_BITS, next + u * lanes, 0);
    };
    load();
    meanwhile();
    while (left > 0) {
        if (left > most) accumulate<Op, U, ALL>(given, sums, packed, left, lanes);
        else accumulate<Op, U, SOME>(given, sums, packed, left, lanes);
        left -= U * lanes, next += U * lanes;
        if (left > 0) load();
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

// What the CTAs of a cluster need to merge their Sums: the first one has a message from each warp of each CTA.
struct SumsMailbox {
    alignas(sizeof(Sums)) Sums messages[MAX_CLUSTER * STATISTICS_THREADS / WARP];  // each is written as a whole
    uint64_t barrier;  // its phase ends when all messages have come
};
// Called after the first loads. The wait for the other CTAs comes after all of them.
__device__ __forceinline__ void prepare_mailbox(SumsMailbox& mailbox, int size) {
#if SOFTBENCH_CLUSTERS
    if (threadIdx.x == 0) {
        barrier_init(&mailbox.barrier);
        barrier_inits_visible();
        barrier_expect(&mailbox.barrier, uint32_t(sizeof(Sums)) * size * (blockDim.x / WARP));
    }
    cluster_arrive();
#endif
}
// Merges `count` Sums in shared memory, at most LANE_SUMS a lane; each lane of the warp gets the result.
template <typename Op, int LANE_SUMS> __device__ __forceinline__ Sums merged_from_shared(const Sums* all, int count) {
    Sums mine[LANE_SUMS];
    float maximum = MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < LANE_SUMS; ++i) {
        const int from = i * WARP + int(threadIdx.x % WARP);
        mine[i] = from < count ? all[from] : Sums{MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
        maximum = fmaxf(maximum, mine[i].maximum);
    }
    maximum = max_over_warp(maximum);
    Sums sums = {maximum, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < LANE_SUMS; ++i) {
        const Sums part = Op::rescaled(mine[i], maximum);
        sums.sum += part.sum;
        sums.third += part.third;
        sums.count += part.count;
    }
    return {maximum, sum_over_lanes(sums.sum, WARP), Op::HAS_THIRD ? sum_over_lanes(sums.third, WARP) : 0.0f,
            Op::COUNTS ? sum_over_lanes(sums.count, WARP) : 0.0f};
}
// Merges the Sums of all threads of a cluster. True in the warp that finishes the row: the first one of the first CTA.
//
// Each warp sends to the first CTA, so a CTA has no barrier of its own. The first CTA stays until all messages have come. The others only send, in
// registers, and may exit. No warp sends before all CTAs have passed cluster_arrive. Then the mailbox exists and its barrier is ready.
template <typename Op> __device__ __forceinline__ bool merged_by_first(int rank, int size, Sums& sums, SumsMailbox& mailbox) {
#if SOFTBENCH_CLUSTERS
    const int warps = blockDim.x / WARP, warp = threadIdx.x / WARP;
    sums = merged_over_warp<Op>(sums);
    cluster_wait();
    if (threadIdx.x % WARP == 0)
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                         remote_address(&mailbox.messages[rank * warps + warp], 0)),
                     "r"(__float_as_uint(sums.maximum)), "r"(__float_as_uint(sums.sum)), "r"(__float_as_uint(sums.third)), "r"(__float_as_uint(sums.count)),
                     "r"(remote_address(&mailbox.barrier, 0))
                     : "memory");
    if (rank != 0 || warp != 0) return false;
    barrier_wait(&mailbox.barrier, 0);
    sums = merged_from_shared<Op, MAX_CLUSTER * STATISTICS_THREADS / WARP / WARP>(mailbox.messages, size * warps);
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
__global__ void __launch_bounds__(STATISTICS_THREADS, statistics_min_ctas(U, Op::COUNTS, SHARE == SEVERAL_CTAS) - (AFTER_HOPPER && Op::COUNTS && SHARE == ONE_CLUSTER))
    row_statistics(StatisticsRows<Op> rows) {
    constexpr bool WARP_PER_ROW = SHARE == ONE_WARP_EACH;
    constexpr int V = Op::V;
    const int base_alignment = WARP_PER_ROW ? VECTOR_BYTES : rows.base_alignment;
    using Element = typename Op::Element;
    __shared__ Sums warp_sums[STATISTICS_THREADS / WARP];
    const int lanes = WARP_PER_ROW ? WARP : blockDim.x, lane = WARP_PER_ROW ? threadIdx.x % WARP : threadIdx.x;
    const Place place = place_of<SHARE>();
    const int64_t row = place.row;
    const int cta = place.cta, ctas = place.ctas;
    if (SHARE != ONE_CLUSTER && row >= rows.M) return;  // only whole warps return, and their path has no barrier; each cluster has a row
    __shared__ SumsMailbox mailbox;
    int64_t target = 0;
    if (lane == 0 && (SHARE != ONE_CLUSTER || cta == 0)) target = load_word(rows.target + row);  // early: x at the target waits for it

    const Element* const x = rows.x + row * rows.stride;
    const int offset = int(reinterpret_cast<uintptr_t>(x) & (base_alignment - 1)) / int(sizeof(Element)), row_end = offset + rows.N;
    const int first = (offset + V - 1) / V, end = max(first, row_end / V);  // of the whole vectors, counted from the base
    int from = lane, to = end;
    if constexpr (!WARP_PER_ROW) {
        from += cta * rows.chunk;
        to = min(end, (cta + 1) * rows.chunk);
    }
    constexpr bool HAS_EARLY = U == DEEP && SHARE == SEVERAL_CTAS;
    uint32_t early[1][4];
    bool is_early = false;
    if constexpr (HAS_EARLY) {
        const int count = early_vectors(rows, cta * rows.chunk, to, lanes);
        is_early = lane < count && from >= first && from < to;
        load16_if<false>(is_early, early[0], Packed<Element>::MINUS_INFINITY_BITS, reinterpret_cast<const uint4*>(x - offset) + from, 0);
        from += count;
    }
    int farthest = from + WARP - 1 - int(threadIdx.x % WARP);
    if (farthest - (WARP - 1) < first) farthest += lanes;
    if (from < first) from += lanes;  // `first` is at most LINE_VECTORS
    // In a cluster, the last warp of all has the edges: it has the fewest vectors, and the first one merges.
    const int edge_lane = SHARE == ONE_CLUSTER ? lane - (lanes - WARP) : lane, edge_cta = SHARE == ONE_CLUSTER ? ctas - 1 : 0;
    const int edge_index = edge_lane < FIRST_TAIL_THREAD ? offset + edge_lane : end * V + edge_lane - FIRST_TAIL_THREAD;
    const bool has_edge =
        cta == edge_cta && unsigned(edge_lane) < EDGE_THREADS && edge_index < row_end && (edge_lane >= FIRST_TAIL_THREAD || edge_index < first * V);
    uint32_t edge = 0;  // it is converted after the vectors, which do not wait for it
    Sums sums;
    if constexpr (SHARE == ONE_CLUSTER) {
        sums = thread_sums_soon<Op, U>(rows, x - offset, from, farthest, to, lanes, [&] {
            load_element_if(has_edge, edge, x - offset + edge_index);
            prepare_mailbox(mailbox, ctas);
        });
    } else {
        load_element_if(has_edge, edge, x - offset + edge_index);
        sums = thread_sums<Op, U, WARP_PER_ROW>(rows, x - offset, from, farthest, to, lanes);
    }
    uint32_t x_target = 0;
    if (SHARE != ONE_CLUSTER || cta == 0) load_element_if(lane == 0 && target >= 0 && target < rows.N, x_target, x + target);
    if constexpr (HAS_EARLY) {
        if (is_early) accumulate<Op, 1, SOME>(rows, sums, early, 1, 1);
    }
    if (has_edge) accumulate_one<Op>(rows, sums, Packed<Element>::element(edge, 0));

    if constexpr (WARP_PER_ROW) {
        sums = merged_over_warp<Op>(sums);
    } else if constexpr (SHARE == ONE_CLUSTER) {
        if (!merged_by_first<Op>(cta, ctas, sums, mailbox)) return;
    } else {
        sums = merged_over_block<Op>(sums, warp_sums);
        if (ctas > 1 && !merged_by_last<Op>(rows, row, cta, ctas, sums, warp_sums)) return;
    }
    x_target = __shfl_sync(~0u, x_target, 0);  // the compiler leaves it here, and so the wait for this load
    if (lane == 0) Op::finish(rows, row, rows.N, target, Packed<Element>::element(x_target, 0), sums);
}

// The row of a CTA, or of a cluster, begins at any element, and the order of its sums follows from the numbers of its columns (by_column.cuh).
template <typename Op, Share SHARE> __global__ void __launch_bounds__(STATISTICS_THREADS, Op::COUNTS ? 3 : 4) row_statistics_by_column(StatisticsRows<Op> rows) {
    constexpr int U = 4, V = Op::V;
    using Element = typename Op::Element;
    __shared__ Sums warp_sums[STATISTICS_THREADS / WARP];
    __shared__ SumsMailbox mailbox;
    const Place place = SHARE == ONE_CLUSTER ? place_of<SHARE>() : Place{int64_t(blockIdx.x), 0, 1};
    const int lane = threadIdx.x % WARP, warps = blockDim.x / WARP, whole = rows.N / V;
    const Element* const x = rows.x + place.row * rows.stride;
    const RowEnds ends(x, rows.N);
    if constexpr (SHARE == ONE_CLUSTER) prepare_mailbox(mailbox, place.ctas);
    int64_t target = 0;
    uint32_t x_target = 0;
    if (threadIdx.x == 0) {
        target = load_word(rows.target + place.row);
        load_element_if(target >= 0 && target < rows.N, x_target, x + target);
    }
    Sums sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    for (int turn = (place.cta * warps + int(threadIdx.x) / WARP) * U * WARP; turn < whole; turn += place.ctas * warps * U * WARP) {
        uint32_t packed[U + 1][4], columns[U][4];
        load_window<false, Element, U>(packed, Packed<Element>::MINUS_INFINITY_BITS, x - ends.offset, turn + lane, ends, 0);
#pragma unroll
        for (int u = 0; u < U; ++u) columns_of<Element, U>(columns[u], packed, u, ends.offset);
        if (turn + U * WARP <= whole) accumulate<Op, U, ALL>(rows, sums, columns, whole - turn - lane, WARP);
        else accumulate<Op, U, SOME>(rows, sums, columns, whole - turn - lane, WARP);
    }
    if (place.cta == 0 && int(threadIdx.x) < rows.N % V) accumulate_one<Op>(rows, sums, to_float(x[whole * V + threadIdx.x]));
    if constexpr (SHARE == ONE_CLUSTER) {
        if (!merged_by_first<Op>(place.cta, place.ctas, sums, mailbox)) return;
    } else sums = merged_over_block<Op>(sums, warp_sums);
    if (threadIdx.x == 0) Op::finish(rows, place.row, rows.N, target, Packed<Element>::element(x_target, 0), sums);
}

}  // namespace softbench
