// Kernels that read rows and write a few numbers of each: the sums of exponentials behind a loss.
//
// Rows are read once, by plain loads: each thread has U vectors in flight, and many warps on an SM are at different places of their loops. A thread
// keeps its own maximum, and takes the maximum of U vectors before their exponentials. So an element takes one exponential.
//
// Short rows have a warp each. Other rows have one CTA, or several anywhere on the device. Each of these stores its Sums in a slot and counts itself
// as finished. The last one merges the slots. No CTA waits for another.
#pragma once

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

// Adds U vectors, all of which the row has, or padding where elements are not counted.
template <typename Op, int U> __device__ __forceinline__ void accumulate(const typename Op::Given& given, Sums& sums, const uint32_t (&packed)[U][4]) {
    using P = Packed<typename Op::Element>;
    uint32_t running = packed[0][0];
#pragma unroll
    for (int i = 1; i < 4 * U; ++i) running = P::elementwise_max(running, packed[i / 4][i % 4]);
    float maximum = P::element(running, 0);
    if constexpr (Op::E == 2) maximum = fmaxf(maximum, P::element(running, 1));
    sums = Op::rescaled(sums, fmaxf(sums.maximum, Op::logit(given, maximum)));
    const float base = finite_or_zero(sums.maximum);
    Sums fresh[2] = {};  // two sums, so that an addition does not wait for the one before
#pragma unroll
    for (int i = 0; i < U * Op::V; ++i)
        Op::add(Op::logit(given, P::element(packed[i / Op::V][i % Op::V / Op::E], i % Op::E)), base, fresh[i % 2]);
    sums.sum += fresh[0].sum + fresh[1].sum;
    sums.third += fresh[0].third + fresh[1].third;
    if constexpr (Op::COUNTS) sums.count += float(U * Op::V);
}
template <typename Op> __device__ __forceinline__ void accumulate_one(const typename Op::Given& given, Sums& sums, float x) {
    const float z = Op::logit(given, x);
    sums = Op::rescaled(sums, fmaxf(sums.maximum, z));
    Op::add(z, finite_or_zero(sums.maximum), sums);
    sums.count += 1.0f;
}

// The Sums of a thread: of the vectors from `from` to `to` that begin at `base`, `lanes` vectors apart. Padding takes the place of vectors behind `to`,
// except where elements are counted. SHORT: a warp has the row, and all its lanes go the same way.
template <typename Op, int U, bool SHORT>
__device__ __forceinline__ Sums thread_sums(const typename Op::Given& given, const typename Op::Element* base, int from, int to, int lanes) {
    const uint4* next = reinterpret_cast<const uint4*>(base) + from;
    Sums sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    uint32_t packed[U][4];
    int left = to - from;  // also of the other threads
    if constexpr (!SHORT || Op::COUNTS)
        for (; left > (U - 1) * lanes; left -= U * lanes, next += U * lanes) {
#pragma unroll
            for (int u = 0; u < U; ++u) assign(packed[u], next[u * lanes]);
            accumulate<Op, U>(given, sums, packed);
        }
    for (; left > 0; left -= U * lanes, next += U * lanes) {  // once, unless SHORT
#pragma unroll
        for (int u = 0; u < U; ++u) load16_if<false>(u * lanes < left, packed[u], Packed<typename Op::Element>::MINUS_INFINITY_BITS, next + u * lanes, 0);
        if constexpr (!Op::COUNTS) accumulate<Op, U>(given, sums, packed);
        else
#pragma unroll
            for (int u = 0; u < U; ++u)
                if (u * lanes < left) accumulate<Op, 1>(given, sums, reinterpret_cast<const uint32_t(&)[1][4]>(packed[u]));
    }
    return sums;
}

// The least CTAs an SM for __launch_bounds__, as registers allow.
constexpr int statistics_min_ctas(int U, bool counts, bool warp_per_row) {
    return counts ? 3 : U > 4 ? 4 : warp_per_row || BEFORE_HOPPER || AFTER_HOPPER ? 5 : 6;
}

// Counts a CTA as finished, and returns how many were before. What it stored before is visible to CTAs that count later.
__device__ __forceinline__ unsigned count_finished(unsigned* counter) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    return before;
}

// U: the vectors of a thread in flight. WARP_PER_ROW: the rows of a CTA are as many as its warps.
template <typename Op, int U, bool WARP_PER_ROW>
__global__ void __launch_bounds__(STATISTICS_THREADS, statistics_min_ctas(U, Op::COUNTS, WARP_PER_ROW)) row_statistics(StatisticsRows<Op> rows) {
    constexpr int V = Op::V, BASE_ALIGNMENT = WARP_PER_ROW ? VECTOR_BYTES : LINE_BYTES;
    using Element = typename Op::Element;
    __shared__ Sums warp_sums[STATISTICS_THREADS / WARP];
    __shared__ bool is_last;
    const int lanes = WARP_PER_ROW ? WARP : blockDim.x, lane = WARP_PER_ROW ? threadIdx.x % WARP : threadIdx.x;
    const int64_t row = WARP_PER_ROW ? int64_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP : grid_row();
    if (row >= rows.M) return;  // only whole warps return, and their path has no barrier
    const int cta = WARP_PER_ROW ? 0 : blockIdx.x, ctas = WARP_PER_ROW ? 1 : gridDim.x;
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
    Sums sums = thread_sums<Op, U, WARP_PER_ROW>(rows, x - offset, from, to, lanes);
    if (cta == 0 && lane < EDGE_THREADS) {
        const int index = lane < FIRST_TAIL_THREAD ? offset + lane : end * V + lane - FIRST_TAIL_THREAD;
        if (index < row_end && (lane >= FIRST_TAIL_THREAD || index < first * V)) accumulate_one<Op>(rows, sums, to_float((x - offset)[index]));
    }
    float x_target = 0.0f;
    if (lane == 0 && target >= 0 && target < rows.N) x_target = to_float(x[target]);

    if constexpr (WARP_PER_ROW) {
        sums = merged_over_warp<Op>(sums);
    } else {
        sums = merged_over_block<Op>(sums, warp_sums);
        if (ctas > 1) {
            Sums* const slots = rows.slots + row * ctas;
            if (lane == 0) {
                __stcg(reinterpret_cast<float4*>(slots + cta), make_float4(sums.maximum, sums.sum, sums.third, sums.count));
                is_last = count_finished(rows.counters + row) == unsigned(ctas - 1);
            }
            __syncthreads();  // also: all threads have read warp_sums
            if (!is_last) return;
            sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
            for (int other = lane; other < ctas; other += lanes) {
                const float4 v = __ldcg(reinterpret_cast<const float4*>(slots + other));
                const Sums another = {v.x, v.y, v.z, v.w};
                const float maximum = fmaxf(sums.maximum, another.maximum);
                const Sums a = Op::rescaled(sums, maximum), b = Op::rescaled(another, maximum);
                sums = {maximum, a.sum + b.sum, a.third + b.third, a.count + b.count};
            }
            sums = merged_over_block<Op>(sums, warp_sums);
            if (lane == 0) rows.counters[row] = 0;
        }
    }
    if (lane == 0) Op::finish(rows, row, rows.N, target, x_target, sums);
}

// Plans: ONE_WARP, or SPLIT with the CTAs of a row in `per_row`. `vectors` is U.
constexpr int64_t STATISTICS_CHUNK = 4096;  // vectors of a CTA, at most: 64 KB

inline Plan statistics_plan(int64_t M, int64_t vectors) {
    const int64_t sms = device().sms;
    if (vectors <= 64 || (vectors <= 256 && M >= 16 * sms) || (vectors <= 1024 && M >= 128 * sms))
        return {ONE_WARP, 4, STATISTICS_WARPS * WARP, 1, 0, VECTOR_BYTES, 0, 0};
    const int64_t wanted = ceil_div<int64_t>(16 * sms, M), few = ceil_div<int64_t>(2 * sms, M), in_flight = 4 * STATISTICS_THREADS;
    int64_t ctas = std::max<int64_t>(ceil_div(vectors, STATISTICS_CHUNK), std::min(wanted, ceil_div(vectors, in_flight)));
    if (M * ctas < sms) ctas = std::max(ctas, std::min(few, ceil_div<int64_t>(vectors, STATISTICS_THREADS)));
    ctas = M > COUNTED_ROWS ? 1 : std::max<int64_t>(1, std::min(ctas, COUNTED_SLOTS / M));
    const int64_t each = ceil_div(vectors, ctas), quarter = ceil_div<int64_t>(each, 4);
    const int threads = each > 4 * STATISTICS_THREADS || M * ctas <= 2 * sms ? STATISTICS_THREADS : int(std::max<int64_t>(2 * WARP, round_up<int64_t>(quarter, WARP)));
    return {SPLIT, 4, threads, int(ctas), 0, LINE_ALIGNMENT, 0, 0};
}

// Launches the kernel of a plan; see `run`. The workspace has the counters first.
template <typename Op> int64_t run_statistics(StatisticsRows<Op> rows, Plan* p, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    constexpr int64_t counter_bytes = COUNTED_ROWS * int64_t(sizeof(unsigned));
    const int64_t vectors = ceil_div<int64_t>(rows.N, Op::V) + LINE_VECTORS;  // at most, counted from the base
    Plan chosen = p && p->tier != AUTO ? *p : statistics_plan(rows.M, vectors);
    if (p && p->tier == AUTO) *p = chosen;
    if (chosen.threads < WARP || chosen.threads > STATISTICS_THREADS || chosen.threads % WARP || chosen.per_row < 1) return cudaErrorInvalidValue;
    if (chosen.vectors != 4 && !(chosen.vectors == 8 && chosen.tier == SPLIT && !Op::COUNTS)) return cudaErrorInvalidValue;
    if (chosen.tier == ONE_WARP) {
        row_statistics<Op, 4, true><<<unsigned(ceil_div<int64_t>(rows.M, chosen.threads / WARP)), chosen.threads, 0, stream>>>(rows);
        return cudaGetLastError();
    }
    const int64_t ctas = chosen.per_row;
    if (chosen.tier != SPLIT || (ctas > 1 && (rows.M > COUNTED_ROWS || rows.M * ctas > COUNTED_SLOTS))) return cudaErrorInvalidValue;
    if (ctas > 1) {
        const int64_t bytes = counter_bytes + rows.M * ctas * int64_t(sizeof(Sums));
        if (workspace_bytes < bytes) return -bytes;
        rows.counters = static_cast<unsigned*>(workspace);
        rows.slots = reinterpret_cast<Sums*>(static_cast<char*>(workspace) + counter_bytes);
    }
    rows.chunk = int(round_up<int64_t>(ceil_div(vectors, ctas), LINE_VECTORS));
    const dim3 grid = grid_of_rows(int(ctas), rows.M);
    if constexpr (!Op::COUNTS) {
        if (chosen.vectors == 8) return row_statistics<Op, 8, false><<<grid, chosen.threads, 0, stream>>>(rows), cudaGetLastError();
    }
    row_statistics<Op, 4, false><<<grid, chosen.threads, 0, stream>>>(rows);
    return cudaGetLastError();
}

}  // namespace softbench
