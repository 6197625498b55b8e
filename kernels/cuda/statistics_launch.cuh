// Which kernel reads the rows of a loss, and its launch.
#pragma once

#include "launcher.cuh"
#include "row_statistics.cuh"

namespace softbench {

// Plans: ONE_WARP, SPLIT with the CTAs of a row in `per_row`, or CLUSTER and BY_COLUMN with those of a cluster. `vectors` is U.
constexpr int64_t STATISTICS_CHUNK = 16384;  // vectors of a CTA, at most: 256 KB
constexpr int64_t CLUSTER_ROW = 8192;        // vectors from which a cluster has a row, if rows are fewer than SMs and more than a quarter of them
constexpr int64_t FEW_ROW = 4096;            // vectors from which a cluster has a row, if there is at most one for two SMs

// The limits were fitted to timings on an H200.
inline Plan statistics_plan(int64_t M, int64_t vectors, bool counts) {
    const int64_t sms = device().sms;
    const bool one_wave = M <= 40 * sms;  // of warps that have a row each
    if (vectors <= 64 || (vectors <= 256 && M >= 16 * sms) || (vectors <= 512 && M >= 16 * sms && one_wave) || (vectors <= 1024 && M >= 128 * sms))
        return {ONE_WARP, 4, STATISTICS_WARPS * WARP, 1, 0, VECTOR_BYTES, 0, 0};
    if (device().clusters() && M <= sms / 2 && vectors > FEW_ROW && vectors <= 4 * STATISTICS_THREADS * MAX_CLUSTER) {
        const int ctas = M <= sms / 8 ? MAX_CLUSTER : MAX_CLUSTER / 2, most = M <= sms / 4 ? STATISTICS_THREADS : 6 * WARP;
        const int64_t of_one_turn = round_up<int64_t>(ceil_div<int64_t>(vectors, 4 * ctas), WARP);
        return {CLUSTER, 4, of_one_turn <= STATISTICS_THREADS ? int(of_one_turn) : most, ctas, 0, LINE_ALIGNMENT, 0, 0};
    }
    if (device().clusters() && M > sms / 4 && M < sms && vectors > CLUSTER_ROW) return {CLUSTER, 4, 6 * WARP, 8, 0, LINE_ALIGNMENT, 0, 0};
    const int64_t in_flight = 4 * STATISTICS_THREADS;
    int64_t ctas = ceil_div(vectors, STATISTICS_CHUNK);
    if (M < sms) ctas = std::max(ctas, std::min(ceil_div<int64_t>(3 * sms, M), ceil_div(vectors, in_flight)));
    if (M * ctas < sms) ctas = std::max(ctas, std::min(ceil_div<int64_t>(2 * sms, M), ceil_div<int64_t>(vectors, STATISTICS_THREADS)));
    ctas = M > COUNTED_ROWS ? 1 : std::max<int64_t>(1, std::min(ctas, COUNTED_SLOTS / M));
    const int64_t each = ceil_div(vectors, ctas), quarter = ceil_div<int64_t>(each, 4), all = M * ctas;
    const bool small = all > 2 * sms && all <= 10 * sms;  // one wave, so long rows have CTAs of 128 threads
    const int most = small ? STATISTICS_THREADS / 2 : STATISTICS_THREADS;
    const int threads = each > in_flight || all <= 2 * sms ? most : int(std::max<int64_t>(2 * WARP, round_up<int64_t>(quarter, WARP)));
    // A CTA reads in turns. In a last turn that is nearly empty, few bytes are in flight: DEEP vectors a thread must not add such a turn to those of four,
    // though one of at most a vector a thread is loaded early.
    const bool full = each > 4 * in_flight || round_up(each, 2 * in_flight) == round_up(each, in_flight);
    const bool deep = !counts && all > 10 * sms && each > in_flight && full;
    return {SPLIT, deep ? DEEP : 4, threads, int(ctas), 0, LINE_ALIGNMENT, 0, 0};
}

// The plan of invariant.cuh: that of a row's length, whose elements are added in the order of their columns.
inline Plan invariant_statistics_plan(int64_t N, int V) {
    const int64_t vectors = N / V;
    const Tier tier = N % V ? BY_COLUMN : SPLIT;
    if (tier == SPLIT && vectors <= 8 * WARP) return {ONE_WARP, 4, STATISTICS_WARPS * WARP, 1, 0, VECTOR_BYTES, 0, 0};
    const int base = tier == BY_COLUMN || vectors % LINE_VECTORS ? VECTOR_BYTES : LINE_ALIGNMENT;
    if (device().clusters() && vectors > FEW_ROW) return {tier == SPLIT ? CLUSTER : tier, 4, 6 * WARP, 8, 0, base, 0, 0};
    const int threads = int(std::min<int64_t>(STATISTICS_THREADS, round_up<int64_t>(ceil_div<int64_t>(std::max<int64_t>(vectors, 1), 4), WARP)));
    return {tier, 4, threads, 1, 0, base, 0, 0};
}

constexpr int64_t COUNTER_BYTES = COUNTED_ROWS * int64_t(sizeof(unsigned));

// Launches the kernel of a plan; see `run`. The workspace has the counters first.
template <typename Op> int64_t run_statistics(StatisticsRows<Op> rows, Plan* p, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    const int64_t vectors = ceil_div<int64_t>(rows.N, Op::V) + LINE_VECTORS;  // at most, counted from the base
    const bool invariant = p && p->tier == INVARIANT;
    Plan chosen = invariant ? invariant_statistics_plan(rows.N, Op::V) : p && p->tier != AUTO ? *p : statistics_plan(rows.M, vectors, Op::COUNTS);
    if (invariant) {
        const int64_t unit = chosen.tier == BY_COLUMN ? 1 : chosen.base_alignment;
        if (reinterpret_cast<uintptr_t>(rows.x) % unit || (rows.M > 1 && rows.stride * int64_t(sizeof(typename Op::Element)) % unit)) return cudaErrorMisalignedAddress;
        rows.base_alignment = chosen.base_alignment;
    }
    if (p && (invariant || p->tier == AUTO)) *p = chosen;
    if (chosen.threads < WARP || chosen.threads > STATISTICS_THREADS || chosen.threads % WARP || chosen.per_row < 1) return cudaErrorInvalidValue;
    if (chosen.vectors != 4 && !(chosen.vectors == DEEP && chosen.tier == SPLIT && !Op::COUNTS)) return cudaErrorInvalidValue;
    if (chosen.tier == ONE_WARP) {
        row_statistics<Op, 4, ONE_WARP_EACH><<<unsigned(ceil_div<int64_t>(rows.M, chosen.threads / WARP)), chosen.threads, 0, stream>>>(rows);
        return cudaGetLastError();
    }
    const int64_t ctas = chosen.per_row;
    rows.chunk = int(round_up<int64_t>(ceil_div(vectors, ctas), LINE_VECTORS));
    const int turn = chosen.vectors * chosen.threads;
    rows.in_turns = int(std::min<int64_t>(rows.chunk, ceil_div<int64_t>(rows.N, Op::V))) / turn * turn;
    if (chosen.tier == CLUSTER || chosen.tier == BY_COLUMN) {
        if ((ctas > 1 && !device().clusters()) || ctas > MAX_CLUSTER) return cudaErrorInvalidValue;
        Launcher launcher{stream, nullptr, 0, 0};
        const auto kernel = chosen.tier == CLUSTER ? row_statistics<Op, 4, ONE_CLUSTER>
                            : ctas > 1 ? row_statistics_by_column<Op, ONE_CLUSTER> : row_statistics_by_column<Op, SEVERAL_CTAS>;
        launcher.launch(kernel, rows.M * ctas, chosen.threads, 0, int(ctas), rows);
        return launcher.error;
    }
    if (chosen.tier != SPLIT || (ctas > 1 && (rows.M > COUNTED_ROWS || rows.M * ctas > COUNTED_SLOTS))) return cudaErrorInvalidValue;
    if (ctas > 1) {
        const int64_t bytes = COUNTER_BYTES + rows.M * ctas * int64_t(sizeof(Sums));
        if (workspace_bytes < bytes) return -bytes;
        rows.counters = static_cast<unsigned*>(workspace);
        rows.slots = reinterpret_cast<Sums*>(static_cast<char*>(workspace) + COUNTER_BYTES);
    }
    const dim3 grid = grid_of_rows(int(ctas), rows.M);
    if constexpr (!Op::COUNTS) {
        if (chosen.vectors == DEEP) return row_statistics<Op, DEEP, SEVERAL_CTAS><<<grid, chosen.threads, 0, stream>>>(rows), cudaGetLastError();
    }
    row_statistics<Op, 4, SEVERAL_CTAS><<<grid, chosen.threads, 0, stream>>>(rows);
    return cudaGetLastError();
}

}  // namespace softbench
