// Plans with which the bits of a row's result are the same in every launch: they do not depend on the number of rows, nor on the row's place.
//
// Such a plan follows from the length of a row and the dtypes alone, so that all rows of a length are added in one order. In a tier that counts vectors
// from a boundary, the order depends on how far behind it a row begins. So the caller aligns rows: those of whole lines to 128 bytes, others of whole
// vectors to 16. Rows of other lengths begin anywhere, so tiers staged and by_column add them by the numbers of their columns; very long ones take tier
// generic. Tiers split and split_bulk are left out where CTAs share a row: one that waits too long adds the row in another order.
#pragma once

#include "block.cuh"
#include "bulk.cuh"
#include "by_column.cuh"
#include "cluster.cuh"
#include "generic.cuh"
#include "launch_plan.cuh"
#include "staged.cuh"
#include "sub_warp.cuh"

namespace softbench {

constexpr int INVARIANT_STAGED = 256;       // the most columns of tier staged, whose rows follow each other from a 16-byte boundary
constexpr int INVARIANT_TILE = 8192;        // bytes of such rows in a CTA, of each tensor
constexpr int INVARIANT_BULK = 256;         // threads of a CTA of tier cluster_bulk
constexpr int INVARIANT_COLUMNS = 256;      // threads of a CTA of tier by_column, if more of them can have the row
constexpr int64_t INVARIANT_BLOCK = 2304;   // vectors of all tensors read: longer rows have a cluster, where there are clusters

template <typename Op> bool plan_fits(const Tensors<Op>& t, int64_t N, const Plan& p);  // dispatch.cuh

inline bool begins_at_lines(int64_t row_bytes) { return row_bytes % LINE_BYTES == 0; }

// The multiple of 32 threads that holds `vectors` at k vectors a thread, at most `max_threads`.
inline int invariant_threads(int64_t vectors, int k, int max_threads) {
    return int(std::min<int64_t>(max_threads, round_up<int64_t>(ceil_div<int64_t>(vectors, k), WARP)));
}

// Rows of at most INVARIANT_STAGED columns.
inline Plan invariant_staged_plan(int N, int size) {
    const int lanes = 1 << log2_ceil(ceil_div(N, STAGED_ELEMENTS)), unit = std::max(WARP, STAGED_THREADS / lanes);
    const int rows = std::min(INVARIANT_TILE / (N * size), 16 * STAGED_THREADS / lanes);
    return {STAGED, ceil_div(N, lanes), STAGED_THREADS, lanes, std::max(unit, rows / unit * unit), VECTOR_BYTES, 0};
}

// Rows of `vectors` whole vectors in each of R tensors; AUTO if no tier holds them.
inline Plan invariant_plan_of_vectors(int64_t vectors, int R, bool lines, bool has_target) {
    const int base = lines ? LINE_ALIGNMENT : VECTOR_BYTES;
    if (vectors <= 2 * WARP && has_target) return {SUB_WARP, int(ceil_div<int64_t>(vectors, WARP)), SUB_WARP_THREADS / 2, WARP, 1, VECTOR_BYTES, 0};
    if (vectors <= 2 * WARP) {
        const int k = vectors > (R == 1 ? 4 : 16) ? 2 : 1;
        return {SUB_WARP, k, SUB_WARP_THREADS / 2, 1 << log2_ceil(ceil_div<int64_t>(vectors, k)), 0, VECTOR_BYTES, 0};
    }
    const int most_k = 8 / R, k = vectors <= 512 / R ? 2 : R == 1 && vectors > 2048 ? 8 : 4;
    const bool clusters = device().clusters();
    if (vectors * R <= INVARIANT_BLOCK || (!clusters && vectors <= int64_t(most_k) * BLOCK_THREADS))
        return {BLOCK, k, invariant_threads(vectors, k, BLOCK_THREADS), 1, 0, base, 0};
    if (clusters)
        for (int threads : {192, 256, 512}) {
            const int64_t ctas = std::max<int64_t>(2, ceil_div<int64_t>(vectors, int64_t(most_k) * threads));
            if (ctas <= MAX_CLUSTER) return {CLUSTER, most_k, invariant_threads(vectors, int(most_k * ctas), threads), int(ctas), 0, base, 0};
        }
    if (clusters && lines) return {CLUSTER_BULK, 24 / R, INVARIANT_BULK, MAX_CLUSTER, 0, LINE_ALIGNMENT, 0};
    return {AUTO};
}

// Rows of other lengths than whole vectors: at most `vectors` in each of R tensors, the parts at both ends counted. AUTO if no tier holds them.
inline Plan invariant_plan_by_column(int64_t vectors, int R) {
    const int k = vectors * R <= 512 ? 2 / R : 8 / R;
    for (const int threads : {INVARIANT_COLUMNS, COLUMN_THREADS}) {
        const int64_t ctas = ceil_div<int64_t>(vectors, int64_t(k) * threads);
        if (ctas <= (device().clusters() ? MAX_CLUSTER : 1))
            return {BY_COLUMN, k, invariant_threads(vectors, int(k * ctas), threads), int(ctas), 0, VECTOR_BYTES, 0};
    }
    return {AUTO};
}

// The plan of a launch, or AUTO if its rows do not begin where they should.
template <typename Op> Plan invariant_plan(const Tensors<Op>& t, int64_t N) {
    constexpr int V = Op::V, R = Op::READS, SIZE = sizeof(typename Op::Element);
    const bool short_row = N <= 2048, lines = begins_at_lines(N * SIZE);
    const Plan by_element = {GENERIC, 1, short_row ? 128 : GENERIC_THREADS, short_row ? 1 : 0, 0, VECTOR_BYTES, 0};
    if (N > MAX_N) return by_element;
    if (N % V) {
        const bool in_tiles = N <= INVARIANT_STAGED && !Op::HAS_TARGET && SIZE == sizeof(typename Op::Out);
        const Plan found = in_tiles ? invariant_staged_plan(int(N), SIZE) : invariant_plan_by_column(ceil_div<int64_t>(N + V - 1, V), R);
        return found.tier == AUTO ? by_element : plan_fits(t, N, found) ? found : Plan{AUTO};
    }
    const Plan found = invariant_plan_of_vectors(N / V, R, lines, Op::HAS_TARGET);
    if (found.tier == AUTO) return by_element;
    const Layout l = layout_of(t, N);
    if (!l.congruent || !l.aligned || (lines && l.offset)) return {AUTO};
    return plan_fits(t, N, found) ? found : found.tier == CLUSTER_BULK ? by_element : Plan{AUTO};
}

}  // namespace softbench
