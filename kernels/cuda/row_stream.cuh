// As row_statistics.cuh, for many vectors, on sm_90 and later: the CTAs that the device holds at once read equal parts of all rows.
//
// One warp copies the vectors of the CTA's part into a ring of stages in shared memory, by bulk copies. It goes on into the next row while the
// other warps still compute. So the bytes in flight do not depend on where rows end, nor on how long the Sums of a row take to merge.
//
// A part is a range of the vectors of all rows, in order. A row that lies in several parts is finished by the CTA that counts itself last, as in
// row_statistics.cuh.
#pragma once

#include "async_copy.cuh"
#include "row_statistics.cuh"

namespace softbench {

constexpr int STREAM_THREADS = STATISTICS_THREADS;  // that compute; WARP others copy
constexpr int STREAM_VECTORS = 4;                   // of a thread and a stage
constexpr int RING_VECTORS = STREAM_VECTORS * STREAM_THREADS;
constexpr int RING_STAGES = 12;
constexpr int STREAM_SLOTS = 2;  // of a CTA: for a row that begins before its part, and for one that ends behind it

// The vectors of a CTA in one row: [from, to) of the row's vectors, counted from its base.
struct Segment {
    int64_t row;
    int from, to;
    int64_t left;  // vectors of the CTA's part in later rows

    __device__ __forceinline__ Segment(int64_t begin, int64_t stop, int row_vectors)
        : row(begin / row_vectors), from(int(begin % row_vectors)), to(int(from + stop - begin < row_vectors ? from + stop - begin : row_vectors)), left(stop - begin - (to - from)) {}
    __device__ __forceinline__ void next(int row_vectors) {
        ++row;
        from = 0;
        to = int(left < row_vectors ? left : row_vectors);
        left -= to;
    }
};

// The first vector of a CTA's part, as the vectors of all rows are counted. Parts begin at cache lines.
__device__ __forceinline__ int64_t part_begin(int64_t lines, unsigned cta) { return lines * cta / gridDim.x * LINE_VECTORS; }
// The CTA whose part has a vector.
__device__ __forceinline__ unsigned part_with(int64_t lines, int64_t vector) {
    const int64_t line = vector / LINE_VECTORS;
    return unsigned(((line + 1) * gridDim.x - 1) / lines);
}

// The slot of a CTA for a row whose first vector is in the part of CTA `first`.
__device__ __forceinline__ unsigned slot_of(unsigned cta, unsigned first) { return STREAM_SLOTS * cta + (cta == first); }

// Called by a warp with the Sums of a segment. It finishes the row, unless other CTAs have parts of it and have not counted themselves yet.
template <typename Op>
__device__ __forceinline__ void finish_segment(const StatisticsRows<Op>& rows, const Segment& segment, int row_vectors, int64_t lines, int64_t target, float x_target,
                                               Sums sums) {
    const int lane = threadIdx.x % WARP;
    if (segment.to - segment.from < row_vectors) {
        const int64_t vector = segment.row * row_vectors;
        const unsigned first = part_with(lines, vector), last = part_with(lines, vector + row_vectors - 1);
        unsigned before = 0;
        if (lane == 0) {
            __stcg(reinterpret_cast<float4*>(rows.slots + slot_of(blockIdx.x, first)), make_float4(sums.maximum, sums.sum, sums.third, sums.count));
            before = count_finished(rows.counters + first);
        }
        if (__shfl_sync(~0u, before, 0) != last - first) return;
        sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
        for (unsigned cta = first + lane; cta <= last; cta += WARP) {
            const float4 v = __ldcg(reinterpret_cast<const float4*>(rows.slots + slot_of(cta, first)));
            sums = merged<Op>(sums, {v.x, v.y, v.z, v.w});
        }
        sums = merged_over_warp<Op>(sums);
        if (lane == 0) rows.counters[first] = 0;
    }
    if (lane == 0) Op::finish(rows, segment.row, rows.N, target, x_target, sums);
}

// The whole vectors of a row within a segment, counted from the row's base.
template <typename Element> struct WholeVectors {
    const Element* base;
    int offset, first, end;  // `offset`: elements from the base to the row

    template <typename Op> __device__ __forceinline__ WholeVectors(const StatisticsRows<Op>& rows, int64_t row) {
        constexpr int V = Op::V;
        const Element* const x = rows.x + row * rows.stride;
        offset = int(reinterpret_cast<uintptr_t>(x) & (LINE_BYTES - 1)) / int(sizeof(Element));
        base = x - offset;
        first = (offset + V - 1) / V;
        end = max(first, (offset + rows.N) / V);
    }
};

#if SOFTBENCH_CLUSTERS

struct StreamBarriers {
    uint64_t full[RING_STAGES], empty[RING_STAGES];
};
// The place in the ring, and the parity of its barriers' phases.
struct RingPlace {
    int stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next(int stages) {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// Copies the vectors of a part into the stages, in order. Called by one thread.
template <typename Op>
__device__ __forceinline__ void fill_stages(const StatisticsRows<Op>& rows, Segment segment, int row_vectors, int stages, uint4* ring, StreamBarriers& barriers) {
    for (RingPlace place;; segment.next(row_vectors)) {
        const WholeVectors<typename Op::Element> row(rows, segment.row);
        for (int at = segment.from; at < segment.to; at += RING_VECTORS, place.next(stages)) {
            const int from = max(at, row.first), to = min(min(at + RING_VECTORS, segment.to), row.end);
            barrier_wait(&barriers.empty[place.stage], place.parity ^ 1);  // the first phase is the one before: it has ended
            uint64_t* const full = &barriers.full[place.stage];
            barrier_expect(full, uint32_t(max(0, to - from)) * VECTOR_BYTES);
            if (from < to)
                copy_bulk<false>(ring + place.stage * RING_VECTORS + (from - at), reinterpret_cast<const uint4*>(row.base) + from, uint32_t(to - from) * VECTOR_BYTES, full, 0);
        }
        if (segment.left <= 0) return;
    }
}

// A thread's Sums of a segment.
template <typename Op>
__device__ __forceinline__ Sums sums_of_stages(const StatisticsRows<Op>& rows, const Segment& segment, const WholeVectors<typename Op::Element>& row, int stages,
                                               const uint4* ring, StreamBarriers& barriers, RingPlace& place) {
    constexpr int U = STREAM_VECTORS, T = STREAM_THREADS;
    constexpr uint32_t bits = Packed<typename Op::Element>::MINUS_INFINITY_BITS;
    const int thread = threadIdx.x, end = min(row.end, segment.to);
    Sums sums = {MINUS_INFINITY, 0.0f, 0.0f, 0.0f};
    for (int at = segment.from; at < segment.to; at += RING_VECTORS, place.next(stages)) {
        const uint4* const stage = ring + place.stage * RING_VECTORS + thread;
        barrier_wait(&barriers.full[place.stage], place.parity);
        if (at >= row.first && at + RING_VECTORS <= end) {
            uint32_t packed[U][4];
#pragma unroll
            for (int u = 0; u < U; ++u) assign(packed[u], stage[u * T]);
            accumulate<Op, U>(rows, sums, packed);
        } else {
#pragma unroll 1
            for (int u = 0; u < U; ++u) {
                const int i = at + u * T + thread, of_warp = i - thread % WARP;
                if (of_warp >= end || of_warp + WARP <= row.first) continue;
                uint32_t packed[1][4];
                assign(packed[0], i >= row.first && i < end ? stage[u * T] : make_uint4(bits, bits, bits, bits));
                accumulate<Op, 1>(rows, sums, packed);
            }
        }
        __syncwarp();
        if (thread % WARP == 0) barrier_arrive(&barriers.empty[place.stage]);
    }
    return sums;
}

#endif

// `row_vectors`: of each row, counted from its base, a multiple of LINE_VECTORS. `stages`: of the ring.
template <typename Op> __global__ void __launch_bounds__(STREAM_THREADS + WARP, 2) row_stream(StatisticsRows<Op> rows, int row_vectors, int stages) {
#if SOFTBENCH_CLUSTERS
    using Element = typename Op::Element;
    constexpr int WARPS = STREAM_THREADS / WARP;
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    __shared__ StreamBarriers barriers;
    __shared__ Sums warp_sums[2][WARPS];
    const int thread = threadIdx.x, lane = thread % WARP, warp = thread / WARP;
    uint4* const ring = reinterpret_cast<uint4*>(dynamic);
    const int64_t lines = rows.M * (row_vectors / LINE_VECTORS), begin = part_begin(lines, blockIdx.x), stop = part_begin(lines, blockIdx.x + 1);
    Segment segment(begin, stop, row_vectors);
    if (thread == 0) {
        for (int i = 0; i < stages; ++i) barrier_init(&barriers.full[i]), barrier_init(&barriers.empty[i], WARPS);
        barrier_inits_done();
    }
    __syncthreads();
    if (warp == WARPS) {
        if (lane == 0) fill_stages(rows, segment, row_vectors, stages, ring, barriers);
        return;
    }

    int64_t next_target = 0;
    if (lane == 0) next_target = load_word(rows.target + segment.row);
    RingPlace place;
    for (unsigned turn = 0;; ++turn, segment.next(row_vectors)) {
        const bool finishes = warp == int(turn % WARPS);  // warps take turns, since the one that finishes a row comes late to the next one
        const WholeVectors<Element> row(rows, segment.row);
        const int64_t target = next_target;
        Element x_target = from_float<Element>(0.0f), edge = x_target;
        if (lane == 0) {
            if (finishes && target >= 0 && target < rows.N) x_target = row.base[row.offset + target];
            if (segment.left > 0) next_target = load_word(rows.target + segment.row + 1);
        }
        const int index = thread < FIRST_TAIL_THREAD ? row.offset + thread : row.end * Op::V + thread - FIRST_TAIL_THREAD;
        const bool has_edge = segment.from == 0 && thread < EDGE_THREADS && index < row.offset + rows.N && (thread >= FIRST_TAIL_THREAD || index < row.first * Op::V);
        if (has_edge) edge = row.base[index];
        Sums sums = sums_of_stages(rows, segment, row, stages, ring, barriers, place);
        if (has_edge) accumulate_one<Op>(rows, sums, to_float(edge));

        // Two arrays take turns, so that one barrier a row suffices.
        sums = merged_over_warp<Op>(sums);
        Sums* const of_warps = warp_sums[turn % 2];
        if (lane == 0) of_warps[warp] = sums;
        sync_threads<STREAM_THREADS>();
        if (finishes) {
            sums = merged_over_warp<Op>(lane < WARPS ? of_warps[lane] : Sums{MINUS_INFINITY, 0.0f, 0.0f, 0.0f});
            finish_segment<Op>(rows, segment, row_vectors, lines, target, to_float(x_target), sums);
        }
        if (segment.left <= 0) break;
    }
#endif
}

}  // namespace softbench
