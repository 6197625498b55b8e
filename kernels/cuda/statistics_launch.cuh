// Which kernel reads the rows of a loss, and its launch.
#pragma once

#include "launcher.cuh"
#include "row_statistics.cuh"

namespace softbench {

// Plans: ONE_WARP, SPLIT with the CTAs of a row in `per_row`, or CLUSTER with those of a cluster. `vectors` is U.
constexpr int64_t STATISTICS_CHUNK = 8192;  // vectors of a CTA, at most: 128 KB
constexpr int LAST_PARTS = 4;               // CTAs of the last rows that take the place of one
constexpr int64_t LAST_SHARE = 2;           // the last rows have this part of the CTAs that fit the device at once

// CTAs of the last rows that take the place of one.
inline int64_t last_parts(const Plan& p) { return p.tier_option ? p.last_parts : 1; }
// Rows with a counter and slots: those of several CTAs.
inline int64_t counted_rows(const Plan& p, int64_t M) { return p.per_row > 1 ? M : p.tier_option; }
// Whether M rows can have a plan of tier SPLIT.
inline bool split_fits(const Plan& p, int64_t M) {
    const int64_t parts = last_parts(p), counted = counted_rows(p, M);
    return p.tier_option >= 0 && p.tier_option <= M && parts >= 1 && !(parts & (parts - 1)) && counted <= COUNTED_ROWS && counted * p.per_row * parts <= COUNTED_SLOTS;
}

// Makes the CTAs of the last rows shorter, if the launch has more CTAs than fit the device at once.
inline Plan with_last_rows(Plan p, int64_t M, int64_t vectors, bool counts) {
    const int64_t ctas = p.per_row, turns = ceil_div<int64_t>(ceil_div(vectors, ctas), p.vectors * p.threads);
    const int64_t resident = device().sms * statistics_min_ctas(p.vectors, counts, false) * (STATISTICS_THREADS / p.threads);
    if (M * ctas <= resident || turns < 2) return p;
    Plan shorter = p;
    shorter.tier_option = int(std::min(M / 2, resident / LAST_SHARE / ctas));
    for (shorter.last_parts = LAST_PARTS; shorter.last_parts > turns;) shorter.last_parts /= 2;
    return split_fits(shorter, M) ? shorter : p;
}

// The limits are from tools/cuda_plans.py; notes-cuda.md has its tables.
inline Plan statistics_plan(int64_t M, int64_t vectors, bool counts) {
    const int64_t sms = device().sms;
    const bool one_wave = M <= 40 * sms;  // of warps that have a row each
    if (vectors <= 64 || (vectors <= 256 && M >= 16 * sms) || (vectors <= 512 && M >= 16 * sms && one_wave) || (vectors <= 1024 && M >= 128 * sms))
        return {ONE_WARP, 4, STATISTICS_WARPS * WARP, 1, 0, VECTOR_BYTES, 0, 0};
    if (device().clusters() && M > sms / 4 && M < sms && vectors > STATISTICS_CHUNK) return {CLUSTER, 4, 6 * WARP, 8, 0, LINE_ALIGNMENT, 0, 0};
    const int64_t in_flight = 4 * STATISTICS_THREADS;
    int64_t ctas = ceil_div(vectors, STATISTICS_CHUNK);
    if (M < sms) ctas = std::max(ctas, std::min(ceil_div<int64_t>(3 * sms, M), ceil_div(vectors, in_flight)));
    if (M * ctas < sms) ctas = std::max(ctas, std::min(ceil_div<int64_t>(2 * sms, M), ceil_div<int64_t>(vectors, STATISTICS_THREADS)));
    ctas = M > COUNTED_ROWS ? 1 : std::max<int64_t>(1, std::min(ctas, COUNTED_SLOTS / M));
    const int64_t each = ceil_div(vectors, ctas), quarter = ceil_div<int64_t>(each, 4), all = M * ctas;
    const bool small = all > 2 * sms && all <= 10 * sms;  // one wave, so long rows have CTAs of 128 threads
    const int most = small ? STATISTICS_THREADS / 2 : STATISTICS_THREADS;
    const int threads = each > in_flight || all <= 2 * sms ? most : int(std::max<int64_t>(2 * WARP, round_up<int64_t>(quarter, WARP)));
    return with_last_rows({SPLIT, 4, threads, int(ctas), 0, LINE_ALIGNMENT, 0, 0, 0}, M, vectors, counts);
}

constexpr int64_t COUNTER_BYTES = COUNTED_ROWS * int64_t(sizeof(unsigned));

// Launches the kernel of a plan; see `run`. The workspace has the counters first.
template <typename Op> int64_t run_statistics(StatisticsRows<Op> rows, Plan* p, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    const int64_t vectors = ceil_div<int64_t>(rows.N, Op::V) + LINE_VECTORS;  // at most, counted from the base
    Plan chosen = p && p->tier != AUTO ? *p : statistics_plan(rows.M, vectors, Op::COUNTS);
    if (p && p->tier == AUTO) *p = chosen;
    if (chosen.threads < WARP || chosen.threads > STATISTICS_THREADS || chosen.threads % WARP || chosen.per_row < 1) return cudaErrorInvalidValue;
    if (chosen.vectors != 4 && !(chosen.vectors == 8 && chosen.tier == SPLIT && !Op::COUNTS)) return cudaErrorInvalidValue;
    if (chosen.tier == ONE_WARP) {
        row_statistics<Op, 4, ONE_WARP_EACH><<<unsigned(ceil_div<int64_t>(rows.M, chosen.threads / WARP)), chosen.threads, 0, stream>>>(rows);
        return cudaGetLastError();
    }
    const int64_t ctas = chosen.per_row;
    auto chunk_of = [&](int64_t sharing) { return int(round_up<int64_t>(ceil_div(vectors, sharing), LINE_VECTORS)); };
    rows.chunk = chunk_of(ctas);
    if (chosen.tier == CLUSTER) {
        if (!device().clusters() || ctas > MAX_CLUSTER) return cudaErrorInvalidValue;
        Launcher launcher{stream, nullptr, 0, 0};
        launcher.launch(row_statistics<Op, 4, ONE_CLUSTER>, rows.M * ctas, chosen.threads, 0, int(ctas), rows);
        return launcher.error;
    }
    if (chosen.tier != SPLIT || !split_fits(chosen, rows.M)) return cudaErrorInvalidValue;
    const int64_t parts = last_parts(chosen), most_ctas = ctas * parts, counted = counted_rows(chosen, rows.M);
    rows.first_last = rows.M - chosen.tier_option;
    rows.first_counted = rows.M - counted;
    rows.last_log = log2_ceil(parts);
    rows.last_chunk = chunk_of(most_ctas);
    rows.slots_per_row = int(most_ctas);
    if (counted) {
        const int64_t bytes = COUNTER_BYTES + counted * most_ctas * int64_t(sizeof(Sums));
        if (workspace_bytes < bytes) return -bytes;
        rows.counters = static_cast<unsigned*>(workspace);
        rows.slots = reinterpret_cast<Sums*>(static_cast<char*>(workspace) + COUNTER_BYTES);
    }
    const dim3 grid = grid_of_rows(int(ctas), rows.first_last + chosen.tier_option * parts);
    if constexpr (!Op::COUNTS) {
        if (chosen.vectors == 8) return row_statistics<Op, 8, SEVERAL_CTAS><<<grid, chosen.threads, 0, stream>>>(rows), cudaGetLastError();
    }
    row_statistics<Op, 4, SEVERAL_CTAS><<<grid, chosen.threads, 0, stream>>>(rows);
    return cudaGetLastError();
}

}  // namespace softbench
