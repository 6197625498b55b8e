// The plans of rows of at most 4 KB. See heuristics.cuh.
#pragma once

#include "block.cuh"
#include "launch_plan.cuh"
#include "staged.cuh"
#include "sub_warp.cuh"
#include "warp.cuh"

namespace softbench {

constexpr int SHORT_BYTES = 1024;                       // of rows of whole vectors
constexpr int SHORT_UNALIGNED_BYTES = 1520;             // of other rows: three vectors a lane
constexpr int SHORT_UNALIGNED_16_BIT_BYTES = 2032;      // of other 16-bit rows: four vectors a lane
constexpr int STAGED_BYTES = 8192;                      // of a tile

// The smallest multiple of 32 threads that holds `vectors` at k vectors a thread, at most `max_threads`.
inline int threads_for(int64_t vectors, int k, int max_threads) {
    return int(std::min<int64_t>(max_threads, std::max<int64_t>(WARP, round_up<int64_t>(ceil_div<int64_t>(vectors, k), WARP))));
}

// The log2 of the distance between the rows of a tile that a warp works on at the same time. A lane reads one 32-bit register or half of one from
// shared memory. At this distance, the rows' starts differ by multiples of the lanes of a row, so that no two lanes share a bank. Next to each
// other, rows of 63 16-bit elements on 8 lanes had .73 of the speed of a copy. The distance is shorter where the tile would become too large.
inline int row_stride_log2(int64_t M, int N, int lanes, int size, int R) {
    int log = lanes == WARP ? 0 : log2_ceil(4 / size * lanes);
    for (int n = N; n % 2 == 0 && log > 0; n /= 2) --log;
    const int64_t max_bytes = std::min<int64_t>(2 * STAGED_BYTES, M * N * size * R / (8 * device().sms));
    while (log > 0 && int64_t(WARP / lanes << log) * N * size * R > max_bytes) --log;
    return log;
}

// Whether two rows of 16-bit elements on `lanes` lanes each lie in different banks, at the distance of `row_stride_log2`.
inline bool rows_are_in_other_banks(int64_t M, int N, int lanes, int R) {
    constexpr int SIZE = 2, BANK_BYTES = 4, BANKS = 32;
    const int row_banks = lanes * SIZE / BANK_BYTES, distance = (N * SIZE << row_stride_log2(M, N, lanes, SIZE, R)) / BANK_BYTES % BANKS;
    return distance >= row_banks && distance <= BANKS - row_banks;
}

// Tier staged: a row has as few lanes as can hold it, and a tile is as large as leaves work for each SM.
inline Plan staged_plan(int64_t M, int N, int R, int size) {
    // More than ten elements were slower on one lane or two, and for float32. Tensors of less than 4 MB were not measured with more.
    const bool more = R == 1 && size == 2 && N > 24 && M * N * size >= 4 << 20;
    const int lanes = 1 << log2_ceil(ceil_div(N, more ? STAGED_MAX_ELEMENTS<1> : STAGED_ELEMENTS)), logical_warps = STAGED_THREADS / lanes;
    const int64_t max_bytes = R == 1 ? STAGED_BYTES : 3 * STAGED_BYTES / 4;
    const int64_t bytes = std::min(max_bytes, std::max<int64_t>(1024, M * N * size / (16 * device().sms)));
    const int whole_sectors = SECTOR_BYTES / size >> (N % 2 == 0);
    const int unit = std::max({whole_sectors, logical_warps, WARP / lanes << row_stride_log2(M, N, lanes, size, R)});
    const int rows = std::min(int(bytes / (N * size)), 16 * logical_warps);
    return {STAGED, ceil_div(N, lanes), STAGED_THREADS, lanes, std::max(unit, (rows + unit / 2) / unit * unit), VECTOR_BYTES, 0};
}

// The shared memory of a tile in bytes: its rows, and behind those of the last tensor what inactive lanes read. Then the scales of the rows, which
// begin at any multiple of 4 bytes.
template <typename Op> int64_t staged_bytes(const Plan& p, int64_t N, int stride_log2) {
    const int64_t rows = int64_t(Op::READS - 1) * p.tier_option + round_up(p.tier_option, staged_span(p.per_row, stride_log2, p.threads / WARP));
    return rows * N * int64_t(sizeof(typename Op::Element)) + (Op::SCALED ? p.tier_option * int64_t(sizeof(float)) : 0);
}

// Whether contiguous rows are faster in tier staged than in sub_warp. Fitted to sweeps over 140 lengths, of tensors of 4, 20 and 128 MB. Those of
// 16-bit rows are fitted to 257 cells. Small tensors prefer sub_warp, which makes only one trip
// to memory. At 20 MB, float32 gains .05 to .1 even for rows of whole vectors. At 128 MB, it gains nothing beyond 160 columns, and rows of other
// lengths lose .01 to .03 there. Of 16-bit rows with an odd number of vectors, every second one begins in the middle of a sector. Of those with an
// even number, 48, 96 and 240 columns gained nothing. Of their gradients, only those of 72 columns gained more than .02 with a million rows. Longer
// gradients are on 16 lanes. Some of their lengths have no distance between the two rows of a warp that keeps them in different banks.
inline bool staging_wins(int64_t M, int N, int granularity, int R, int E) {
    const int64_t bytes = M * N * 4 / E;
    const bool whole_vectors = granularity == (E == 1 ? 4 : 8), small = bytes < 8 << 20, large = bytes >= LARGE_BYTES;
    if (whole_vectors && E == 2) return !small && N % 16 == 8 && (R == 1 ? N >= 24 && N <= 192 : N == 72);
    if (whole_vectors && (R == 2 || small || (N & (N - 1)) == 0)) return false;  // all rows of a power of two lie in the same banks
    if (small) return N <= (granularity == 1 ? 60 : bytes < 2 << 20 ? 0 : 35);
    if (R == 2) return N <= (E == 1 ? 60 : 96) || (E == 2 && large && N <= 140 && rows_are_in_other_banks(M, N, 16, R));
    if (E == 1) return N <= (large ? 160 : 256);
    return N <= (bytes < 32 << 20 ? 176 : 192);
}

// Rows of at most SHORT_BYTES, or SHORT_UNALIGNED_BYTES.
template <typename Op> Plan short_row_plan(const Tensors<Op>& t, int N, const Layout& l) {
    constexpr int V = Op::V, R = Op::READS, E = Op::E, SIZE = sizeof(typename Op::Element);
    constexpr bool SAME = SIZE == sizeof(typename Op::Out);
    const bool whole_vectors = l.granularity == V;
    const int vectors = std::max(1, l.aligned ? N / V : (N + V - 1) / V);
    const bool can_stage = SAME && l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0;
    if (can_stage && staging_wins(t.M, N, l.granularity, R, E)) return staged_plan(t.M, N, R, SIZE);
    // Accesses of 8 or 4 bytes, while few lanes hold a row. Longer rows are faster by vectors and edges.
    if (const int accesses = N / l.granularity; !whole_vectors && (l.granularity > 1 || E == 1) && accesses <= 36 && (R == 1 || vectors < 12)) {
        const int k = accesses <= 3 ? accesses : accesses == 5 ? 3 : accesses <= 8 ? 2 : accesses <= 12 ? 3 : accesses > 16 ? 4 : E == 2 ? 2 : 3;
        const int lanes = ceil_div(accesses, k);
        return {SUB_WARP, k, SUB_WARP_THREADS / 2, lanes > 3 && lanes <= 8 ? 1 << log2_ceil(lanes) : lanes, 0, l.granularity / E * 4, 0};
    }
    // Few vectors a lane, on a power of two of lanes, which the compiler knows. Some lanes may have nothing to do.
    if (whole_vectors) {
        const bool halves = R == 1 && vectors == 8;  // half a vector an access, so that a warp's accesses are contiguous
        const int k = halves || vectors > (R == 1 ? 4 : 16) ? 2 : 1;
        return {SUB_WARP, k, SUB_WARP_THREADS / 2, halves ? 8 : 1 << log2_ceil(ceil_div(vectors, k)), 0, halves ? VECTOR_BYTES / 2 : VECTOR_BYTES, 0};
    }
    int best_k = 0, best_lanes = 0;
    double best_score = 0;
    for (int k = 1; k <= (R == 1 && E == 2 ? 4 : 3); ++k) {
        const int lanes = std::max(1 << log2_ceil(ceil_div(vectors, k)), EDGE_THREADS);
        if (lanes > WARP) continue;
        // The share of lanes and vectors that do work. Two vectors a lane get a bonus, as they have more bytes in flight.
        const double score = double(vectors) * (WARP / lanes) / (k * WARP) + (k == 2 ? 0.05 : 0);
        if (score > best_score) best_score = score, best_k = k, best_lanes = lanes;
    }
    return {SUB_WARP, best_k, best_k < 4 ? SUB_WARP_THREADS / 2 : SUB_WARP_THREADS / 4, best_lanes, 1, 16, 0};
}

// Rows of a few KB. They use few warps, because fewer warps merge faster; a single warp needs no barrier. Rows of up to `max_lane_vectors` vectors a
// lane (gradients: two) are on a warp of tier sub_warp. As CTAs of one warp, of which an SM holds 32, gradients of 33 vectors had .65 of the speed
// of a copy. `vectors` counts from a 16-byte base, `line_vectors` from a 128-byte base; the latter is used unless it takes another warp.
inline Plan medium_row_plan(int64_t vectors, int64_t line_vectors, int R, bool is_16_bit, int max_lane_vectors) {
    if (vectors <= (R == 1 ? max_lane_vectors : 2) * WARP)
        return {SUB_WARP, std::max(1, int(ceil_div<int64_t>(vectors, WARP))), SUB_WARP_THREADS / 4, WARP, 1, 16, 0};
    const int K = R == 2 ? (is_16_bit && vectors <= 128 ? 2 : 4) : !is_16_bit ? 8 : vectors <= 6 * WARP ? 2 : 4;
    const int threads = threads_for(vectors, K, BLOCK_THREADS);
    return {BLOCK, K, threads, 1, 0, line_vectors <= int64_t(K) * threads ? LINE_ALIGNMENT : 16, 0};
}

// Rows of 1 to 4 KB of whole vectors, on a warp; AUTO where another plan is faster. If an SM's registers cannot hold all rows at once but its
// shared memory can, a warp has two rows. Up to 32 rows an SM, other plans were faster. For 16-bit rows of up to four vectors a lane,
// sub_warp_unaligned was .03 faster; why is unknown. For the longest float32 rows, CTAs of two warps were .01 faster. If those rows are large,
// CTAs of four warps win by .004. With a target, rows of more than two vectors a lane are here: other tiers compute their exponentials twice.
template <typename Op> Plan warp_row_plan(int64_t M, int64_t vectors, bool large) {
    const Device& d = device();
    const int K = std::max(3, int(ceil_div<int64_t>(vectors, WARP)));
    const Plan one_row = {ONE_WARP, K, WARP_THREADS / 2, 1, 1, VECTOR_BYTES, 0};
    if (Op::HAS_TARGET) return vectors > 2 * WARP ? one_row : Plan{AUTO, 0, 0, 0, 0, 0, 0};
    const int max_ctas = warp_min_ctas<Op>(K), cta_rows = WARP_THREADS / WARP;
    if (large && K >= 7) return {AUTO, 0, 0, 0, 0, 0, 0};
    if (M <= 32 * d.sms) {
        if (Op::E == 2 && K <= 4) return {AUTO, 0, 0, 0, 0, 0, 0};
        if (K >= 7) return {BLOCK, 4, 2 * WARP, 1, 0, VECTOR_BYTES, 0};
    }
    const int64_t ctas_by_shared = d.shared_sm / (2 * cta_rows * round_up<int64_t>(vectors, LINE_VECTORS) * VECTOR_BYTES + 1024);
    if (M > max_ctas * cta_rows * d.sms && M <= std::min<int64_t>(max_ctas, ctas_by_shared) * 2 * cta_rows * d.sms)
        return {ONE_WARP, K, WARP_THREADS, 1, 2, VECTOR_BYTES, 0};
    return one_row;
}

// Rows of a few KB that are so many that SMs take new ones all the time. An SM holds 32 CTAs, so CTAs of one warp leave it half empty. CTAs of
// two warps were .05 to .1 slower than CTAs of three. Rows of up to `max_lane_vectors` vectors a lane have a warp, two of them in a CTA. Longer
// rows have three warps or more.
inline Plan medium_many_rows_plan(int64_t vectors, int64_t line_vectors, int R, int max_lane_vectors) {
    if (vectors <= max_lane_vectors * WARP) return {SUB_WARP, std::max(2, int(ceil_div<int64_t>(vectors, WARP))), SUB_WARP_THREADS / 4, WARP, 1, 16, 0};
    const int K = R == 2 && vectors > 6 * WARP ? 4 : 2, threads = std::max(3 * WARP, threads_for(vectors, K, BLOCK_THREADS));
    return {BLOCK, K, threads, 1, 0, line_vectors <= int64_t(K) * threads ? LINE_ALIGNMENT : 16, 0};
}

}  // namespace softbench
