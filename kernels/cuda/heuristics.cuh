// The heuristics: they choose a launch plan from the length of the rows, their number and their layout. They are arithmetic: they neither time nor
// compile anything. Numbers without a source were fitted to sweeps on an H200.
#pragma once

#include "bulk.cuh"
#include "cluster.cuh"
#include "generic.cuh"
#include "heuristics_short.cuh"
#include "split.cuh"

namespace softbench {

constexpr int CLUSTER_BULK_THREADS = 256;
constexpr int MAX_POLLS = 1 << 16;  // some tens of milliseconds
constexpr int MEDIUM_BYTES = 4096;
constexpr int SPLIT_CTA_VECTORS = 8208;         // of a CTA, two CTAs an SM: 128 KB, and what an unaligned row has before its first element
constexpr int THIRD_OF_SM_VECTORS = 5000;       // of a forward's CTA with 32 KB in registers. Three count as an SM's, although it may hold four.
constexpr int64_t TIMED_ROW = 270000;           // vectors of a forward's row: longer rows have other plans, since a fifth more CTAs were slower (16 x 4194304)
constexpr int64_t FEWEST_STAGGERED = 5;         // rows of one wave: fewer were not timed
constexpr int HALF_OF_SM_VECTORS = 10950;       // of a CTA, two CTAs an SM, with 96 KB in registers
constexpr int QUARTER_OF_SM_VECTORS = 5400;     // of a gradient's CTA of so many threads, four CTAs an SM, with 48 KB in registers
constexpr int QUARTER_OF_SM_THREADS = 128;
constexpr int CLUSTER_CTA_VECTORS = 5800;       // of a gradient's CTA in tier cluster_bulk, unless a rule has another number
constexpr int64_t STAGGER_BYTES = 8 << 20;      // of all tensors read
constexpr int64_t SHORT_BYTES_OF_FEW_WAVES = 3000000, SHORT_BYTES_OF_MANY_WAVES = 4000000;  // of a row in all tensors read
constexpr int MANY_ROWS = 16384;                // of several KB: dozens of times what the device holds
constexpr int MEASURED_SMS = 132;               // of the H200s and H100s that the limits of `leaves_first` were measured on
constexpr int FEW_ROWS = 128, FEW_BYTES = 16 << 10;

// In these functions, `vectors` are those of a row in one tensor, and `row_vectors` those in all tensors read. `total_vectors` are those of all
// rows in all tensors read. `thread_vectors` are those of all tensors that a thread has in registers. `ctas` share a row.

// Tier split. What does not fit in registers is in shared memory.
inline Plan split_plan(int64_t vectors, int R, int thread_vectors, int threads, int64_t ctas) {
    const Device& d = device();
    const int max_smem = (d.shared_sm * threads / (2 * SPLIT_THREADS) - 2048) / (threads * R * VECTOR_BYTES), K = thread_vectors / R;
    const int64_t chunk = ceil_div<int64_t>(vectors, ctas);
    const int smem = int(std::min<int64_t>(max_smem, std::max<int64_t>(0, ceil_div<int64_t>(chunk, threads) - K)));
    return {SPLIT, K, threads, int(ctas), smem, LINE_ALIGNMENT, ctas > 1 ? MAX_POLLS : 0};
}

inline Plan split_bulk_plan(int R, int thread_vectors, int threads, int64_t ctas) {
    return {SPLIT_BULK, thread_vectors / R, threads, int(ctas), 0, LINE_ALIGNMENT, MAX_POLLS};
}

// How often `ctas` CTAs for each of M rows fill a device that holds `per_sm` of them on an SM.
inline double waves(int64_t M, int64_t ctas, int per_sm) { return double(M) * double(ctas) / (per_sm * device().sms); }

// How often a gradient's rows fill the device, on the fewest CTAs of QUARTER_OF_SM_THREADS.
inline double gradient_waves(int64_t M, int64_t row_vectors) { return waves(M, ceil_div<int64_t>(row_vectors, QUARTER_OF_SM_VECTORS), 4); }

// Gradients of few waves: four small CTAs an SM. If the device holds all rows, they share all of it. Rows that nearly fill the device have a few CTAs
// more, so that the last rows start as the first end. Gradients of 1.5 to 2 waves have as many CTAs as two waves.
inline Plan few_waves_gradient_plan(int64_t M, int64_t row_vectors) {
    const double filled = gradient_waves(M, row_vectors);
    int64_t ctas = ceil_div<int64_t>(row_vectors, QUARTER_OF_SM_VECTORS);
    if (filled <= 1) ctas = 4 * device().sms / M;
    if (filled <= 1 && filled > 0.8 && M >= 9) ctas += ctas / 20 + 1;
    if (filled > 1.5 && filled < 2) ctas = 8 * device().sms / M;
    return split_bulk_plan(2, 24, QUARTER_OF_SM_THREADS, std::min<int64_t>(ctas, 2 * device().sms));
}

// Rows split over CTAs anywhere on the device, which exchange, so all CTAs of a row must run at the same time. Rows that wait at different times
// overlap. Fewer CTAs of a row exchange faster. With few waves, more and smaller CTAs leave less of the device idle at the end. Forwards have
// three CTAs an SM. Gradients of many waves have two, which hold more of a row in registers.
inline Plan split_any_plan(int64_t M, int64_t vectors, int R, bool is_16_bit) {
    const Device& d = device();
    const int64_t row_vectors = vectors * R;
    const bool timed = row_vectors <= TIMED_ROW;
    const int64_t ctas_at_3 = ceil_div<int64_t>(row_vectors, timed ? THIRD_OF_SM_VECTORS : row_vectors > 400000 ? 5300 : 4700);
    const int64_t ctas_at_2 = ceil_div<int64_t>(row_vectors, HALF_OF_SM_VECTORS);
    if (d.clusters() && R == 1 && (is_16_bit || timed || M * row_vectors <= 5000000) && ctas_at_3 <= 3 * d.sms) {
        const double filled = waves(M, ctas_at_3, 3);
        int64_t ctas = ctas_at_3;
        if (timed && filled <= 1) ctas = 3 * d.sms / M;
        if (timed && filled > 1 && filled < (is_16_bit ? 5 : 1.3)) ctas = ceil_div<int64_t>(6 * row_vectors, 5 * THIRD_OF_SM_VECTORS);
        return split_bulk_plan(R, 8, SPLIT_THREADS / 2, ctas);
    }
    if (d.clusters() && ctas_at_2 <= 2 * d.sms) {
        if (R == 2 && M >= FEWEST_STAGGERED && M <= FEW_ROWS && row_vectors <= 2 * d.sms * QUARTER_OF_SM_VECTORS && gradient_waves(M, row_vectors) < 4)
            return few_waves_gradient_plan(M, row_vectors);
        return split_bulk_plan(R, 24, SPLIT_THREADS / 2, R == 2 ? std::max(ctas_at_2, 2 * d.sms / M) : ctas_at_2);
    }
    return split_plan(vectors, R, 8, SPLIT_THREADS, std::min<int64_t>(2 * d.sms, ceil_div<int64_t>(row_vectors, SPLIT_CTA_VECTORS)));
}

// Tier cluster: the fewest CTAs of `threads` that hold a row in registers.
inline Plan cluster_plan(int64_t vectors, int R, int thread_vectors, int threads) {
    const int K = thread_vectors / R, ctas = int(std::max<int64_t>(2, ceil_div<int64_t>(vectors, int64_t(K) * threads)));
    return {CLUSTER, K, threads_for(vectors, K * ctas, threads), ctas, 0, LINE_ALIGNMENT, 0};
}

// Few rows on clusters; AUTO where a cluster does not hold a row or another plan is faster. K is the smallest with which all rows run at once.
// Threads are for 16 CTAs a row, or for fewer CTAs of 128 or 256 threads. Each limit is where one plan became better than the next, in sweeps
// over some hundred shapes. 16-bit forward rows compute the most and differ.
inline Plan few_rows_cluster_plan(int64_t M, int64_t vectors, int R, bool is_16_bit) {
    const int64_t row_vectors = vectors * R, total_vectors = M * row_vectors, sixteenth = ceil_div<int64_t>(row_vectors, MAX_CLUSTER);
    const bool compute_heavy = is_16_bit && R == 1;
    auto with_16_ctas = [&](int k, int min_threads, int max_threads) {
        return cluster_plan(vectors, R, k, std::max(min_threads, threads_for(sixteenth, k, max_threads)));
    };
    if (compute_heavy && row_vectors > 28000 && row_vectors <= 33000 && M <= 16) return {AUTO};  // few_rows_plan splits them over the device
    if (R == 1 && !is_16_bit && row_vectors > 4400 && row_vectors <= 8800 && total_vectors <= 10000) return cluster_plan(vectors, R, 2, 352);
    if (row_vectors <= 2200 && total_vectors <= 140000) return cluster_plan(vectors, R, 2, 128);
    if (row_vectors <= 4400 && total_vectors <= (compute_heavy ? 280000 : 70000)) return cluster_plan(vectors, R, 2, 256);
    if (compute_heavy && row_vectors <= 16384 && total_vectors <= 200000) return with_16_ctas(2, 256, 512);
    if (R == 1 ? (row_vectors <= 8800 && total_vectors <= 800000) || (row_vectors <= 16384 && total_vectors <= 400000) ||
                     (compute_heavy && row_vectors <= 25000 && total_vectors <= 220000) ||
                     (compute_heavy && row_vectors <= 32768 && M <= 2)
               : row_vectors <= 12288 && total_vectors <= 140000) {
        const int64_t ctas_of_128 = ceil_div<int64_t>(row_vectors, 4 * 128);
        return ctas_of_128 > MAX_CLUSTER || M * ctas_of_128 > 700 ? with_16_ctas(4, 256, 512) : cluster_plan(vectors, R, 4, 128);
    }
    if (row_vectors <= 32768) {
        if (compute_heavy && row_vectors > 20480 && row_vectors <= 28000 && total_vectors <= 1000000) return {AUTO};
        if (compute_heavy && row_vectors > 20480 && total_vectors > 2000000) return cluster_plan(vectors, R, 16, 128);
        if (R == 1 && !is_16_bit && row_vectors > 28000 && total_vectors > 3000000) return cluster_plan(vectors, R, 12, 192);
        return with_16_ctas(8, 128, 512);
    }
    if (row_vectors > MAX_CLUSTER * 8 * 512) return {AUTO};
    if (R == 2) return row_vectors > (is_16_bit ? 36864 : 40960) && row_vectors <= 49152 ? with_16_ctas(12, 192, 256) : with_16_ctas(8, 128, 512);
    if (!is_16_bit && total_vectors > 1750000 && total_vectors <= 5000000) return with_16_ctas(8, 128, 512);
    return {AUTO};
}

// Few long rows on clusters, where cells of an H200 were faster with them than with CTAs on any SMs; AUTO elsewhere. The limits lie between
// and beyond these cells.
inline Plan few_long_rows_plan(int64_t M, int64_t row_vectors, int R, bool is_16_bit) {
    const Plan bulk = {CLUSTER_BULK, 24 / R, CLUSTER_BULK_THREADS, MAX_CLUSTER, 0, LINE_ALIGNMENT, 0};
    auto of_ctas = [&](int64_t cta_vectors) {
        Plan found = bulk;
        found.per_row = int(std::min<int64_t>(MAX_CLUSTER, ceil_div<int64_t>(row_vectors, cta_vectors)));
        return found;
    };
    if (R == 2 && M >= 32 && row_vectors > MAX_CLUSTER * CLUSTER_CTA_VECTORS && row_vectors <= (M > 64 ? 115000 : 130000))
        return of_ctas(ceil_div<int64_t>(row_vectors, 12));  // a GPC of 18 SMs holds three such clusters
    if (R == 2 && M >= 22 && row_vectors > 65536 && row_vectors <= 115000) return of_ctas(CLUSTER_CTA_VECTORS);
    if (R == 2 && M >= 16 && M <= 64 && row_vectors > 115000 && row_vectors <= (M > 24 ? 130000 : 158000)) return M > 24 ? of_ctas(9650) : bulk;
    if (R == 1 && !is_16_bit && M >= 32 && M <= 48 && row_vectors > 68000 && row_vectors <= 73000) return bulk;
    if (R == 1 && is_16_bit && M >= 36 && row_vectors > 43000 && row_vectors <= 50000)
        return {CLUSTER_BULK, 24, CLUSTER_BULK_THREADS, 8, 0, LINE_ALIGNMENT, 0};
    return {AUTO};
}

// Few rows: a row should use the whole device at once, and take little time.
inline Plan few_rows_plan(int64_t M, int64_t vectors, int R, bool is_16_bit) {
    const Device& d = device();
    const int64_t row_vectors = vectors * R, total_vectors = M * row_vectors;
    if (d.clusters()) {
        if (const Plan found = few_rows_cluster_plan(M, vectors, R, is_16_bit); found.tier != AUTO) return found;
        if (const Plan found = few_long_rows_plan(M, row_vectors, R, is_16_bit); found.tier != AUTO) return found;
    }
    auto ctas_of = [&](int64_t cta_vectors) { return ceil_div<int64_t>(row_vectors, cta_vectors); };
    // One wave with the rows in registers: small CTAs, unless too many would have to exchange.
    if (R == 1 && is_16_bit && d.clusters()) {
        if (total_vectors <= 66000 && ctas_of(512) <= d.sms) return split_plan(vectors, R, 2, SPLIT_THREADS / 2, ctas_of(512));
        if (total_vectors <= 265000 && ctas_of(1024) <= d.sms) return split_plan(vectors, R, 2, SPLIT_THREADS, ctas_of(1024));
    }
    if (M * ctas_of(1024) <= 4 * d.sms && ctas_of(1024) <= d.sms) return split_plan(vectors, R, 4, SPLIT_THREADS / 2, ctas_of(1024));
    if (R == 1 && d.clusters() && M <= 2 && M * ctas_of(2048) <= 2 * d.sms) {
        const bool eight = ctas_of(2048) > d.sms || (M == 2 && !is_16_bit);
        return split_plan(vectors, R, eight ? 8 : 4, eight ? SPLIT_THREADS / 2 : SPLIT_THREADS, ctas_of(2048));
    }
    if (M * ctas_of(2048) <= 4 * d.sms && (M <= 2 || !d.clusters())) {
        const int T = (is_16_bit ? 1 : M) * ctas_of(2048) <= 2 * d.sms ? SPLIT_THREADS / 2 : SPLIT_THREADS;
        const int64_t ctas = ctas_of(8 * T);
        return d.clusters() ? split_bulk_plan(R, 8, T, ctas) : split_plan(vectors, R, 8, T, ctas);
    }
    if (!d.clusters() || M > 2 * d.sms) {
        // One wave, half in registers and half in shared memory.
        if (M * ctas_of(4096) <= 4 * d.sms && M * ctas_of(THIRD_OF_SM_VECTORS) > 3 * d.sms) return split_plan(vectors, R, 8, SPLIT_THREADS / 2, ctas_of(4096));
        return split_any_plan(M, vectors, R, is_16_bit);
    }
    // One wave of four CTAs an SM, with a chunk partly in registers and the rest in shared memory. float32 rows compute the least and use bulk
    // copies. Longer rows use all that an SM has. So do gradients and float32 rows whose starts are staggered.
    const bool staggered = total_vectors * VECTOR_BYTES >= (R == 1 ? ONE_WAVE_FORWARD_BYTES : ONE_WAVE_GRADIENT_BYTES);
    if (M >= FEWEST_STAGGERED && staggered && (R == 2 || (!is_16_bit && row_vectors <= TIMED_ROW))) return split_any_plan(M, vectors, R, is_16_bit);
    const int64_t ctas = std::min<int64_t>(4 * d.sms / M, 2 * d.sms), per_sm = total_vectors / d.sms;
    if (per_sm <= 13300 || (R == 2 && per_sm <= 16300))
        return R == 1 && !is_16_bit ? split_bulk_plan(R, 8, SPLIT_THREADS / 2, ctas) : split_plan(vectors, R, 4, SPLIT_THREADS / 2, ctas);
    if (per_sm <= (M == 1 ? 18300 : 18600) && R == 1)
        return is_16_bit ? split_bulk_plan(R, 8, SPLIT_THREADS / 2, ctas) : split_bulk_plan(R, 8, SPLIT_THREADS, 2 * d.sms / M);
    return split_any_plan(M, vectors, R, is_16_bit);
}

// Gradients of a few KB, whose rows have an SM each. Nothing else runs there while a thread computes, so a thread has few vectors.
inline Plan few_short_gradients_plan(int64_t vectors) {
    const int K = vectors <= SPLIT_THREADS ? 1 : 2;
    return {BLOCK, K, threads_for(vectors, K, BLOCK_THREADS), 1, 0, LINE_ALIGNMENT, 0};
}

// Many rows: as many bytes in flight on an SM as it has room for. On devices with clusters, rows beyond some 30 KB use a cluster: its CTAs wait at
// different times, and registers suffice. Vectors a thread and threads a CTA are those that were best on average over some hundred lengths. CTAs
// that fill most of an SM (six of 160 threads, five of 192) are faster than CTAs that fill it. 16-bit rows compute the most and need more rows at once.
inline Plan many_rows_plan(int64_t M, int64_t vectors, int R, bool whole_vectors, bool is_16_bit) {
    const Device& d = device();
    const int64_t row_vectors = vectors * R, total_vectors = M * row_vectors;
    if (R == 1) {
        const int K_16_bit = M >= MANY_ROWS && vectors > 320 && vectors <= 1024 ? 2 : vectors < 1024 ? 4 : 8;
        const int K_32_bit = vectors > 520 && vectors < 700 ? 4 : vectors > 1600 && vectors <= 2048 ? 16 : 8;
        const int K = is_16_bit ? K_16_bit : K_32_bit;
        const Plan block = {BLOCK, K, threads_for(vectors, K, BLOCK_THREADS), 1, 0, LINE_ALIGNMENT, 0};
        if (d.clusters()) {
            if (row_vectors <= (is_16_bit ? 2300 : 2048)) return block;
            if (is_16_bit) {
                if (row_vectors <= 5600) return cluster_plan(vectors, R, 8, 224);
                if (row_vectors <= 7200) return cluster_plan(vectors, R, 8, 192);
                if (row_vectors <= 9300) return cluster_plan(vectors, R, 8, total_vectors > 20000000 ? 160 : 128);
                if (row_vectors <= 13000) return cluster_plan(vectors, R, 12, 96);
                if (row_vectors <= 16384) return cluster_plan(vectors, R, 8, 256);
                if (row_vectors <= 21000) return cluster_plan(vectors, R, 12, 128);
                if (row_vectors <= 32768) return cluster_plan(vectors, R, 16, 128);
                if (row_vectors <= 57344 && total_vectors <= 12000000) return split_any_plan(M, vectors, R, is_16_bit);
                if (row_vectors <= 57344) return {CLUSTER_BULK, 24, CLUSTER_BULK_THREADS, 8, 0, LINE_ALIGNMENT, 0};
                if (row_vectors <= 65536) return cluster_plan(vectors, R, 8, 512);
            } else {
                if (row_vectors <= 9300) return cluster_plan(vectors, R, 8, 96);
                if (row_vectors <= 24576) return cluster_plan(vectors, R, 8, 192);
                if (row_vectors <= 36864) return cluster_plan(vectors, R, 12, 192);
                if (row_vectors <= 43008) return cluster_plan(vectors, R, 12, 224);
                if (row_vectors <= 60000) return {CLUSTER_BULK, 24, CLUSTER_BULK_THREADS, int(ceil_div<int64_t>(row_vectors, 5800)), 0, LINE_ALIGNMENT, 0};
            }
            if (!is_16_bit && row_vectors <= 70000) return split_bulk_plan(R, 8, SPLIT_THREADS, ceil_div<int64_t>(row_vectors, 8192 + 512));
        } else {
            // A CTA of more than 512 threads is alone on its SM, which pays only if it is nearly as large as possible.
            if (vectors <= 4096 || (whole_vectors && vectors >= 7300 && vectors <= 8192)) return block;
            if (vectors <= 8704) return split_plan(vectors, R, 8, SPLIT_THREADS, 1);
        }
    } else {
        const int K = vectors <= (is_16_bit ? 520 : 260) ? 4 : vectors <= 512 ? 8 : vectors <= 768 ? 6 : vectors <= 1024 ? 8 : vectors < 2048 ? 2 : 4;
        const Plan block = {BLOCK, K, threads_for(vectors, K, BLOCK_THREADS), 1, 0, LINE_ALIGNMENT, 0};
        if (d.clusters()) {
            if (row_vectors <= 1850) return block;
            if (row_vectors <= 3700) return cluster_plan(vectors, R, 8, 128);
            if (row_vectors <= 25100) return cluster_plan(vectors, R, 8, 224);
            if (row_vectors <= 34000) return cluster_plan(vectors, R, 8, 512);
            if (row_vectors <= 49152) return cluster_plan(vectors, R, 12, 256);
            if (row_vectors <= 65536)
                return {CLUSTER_BULK, 12, CLUSTER_BULK_THREADS, int(ceil_div<int64_t>(row_vectors, CLUSTER_CTA_VECTORS)), 0, LINE_ALIGNMENT, 0};
            if (row_vectors <= 140000) return split_bulk_plan(R, 24, SPLIT_THREADS / 2, ceil_div<int64_t>(row_vectors, 9300));
        } else if (vectors <= 2048 || (whole_vectors && vectors >= 3600 && vectors <= 4096)) return block;
    }
    return split_any_plan(M, vectors, R, is_16_bit);
}

// Cycles between the starts of rows that several CTAs share. `bytes`: of a row in all tensors. The distance is the time in which memory reads
// one row at its peak bandwidth. In tier split_bulk, long rows of more than one wave have a third more. Gradients of one wave with two CTAs an SM
// have a third of it. Launches of a few microseconds start all rows together.
inline int stagger_cycles(const Plan& p, int64_t M, int64_t bytes, int R) {
    const Device& d = device();
    const bool staggered_split = p.tier == SPLIT && p.per_row > 1 && d.clusters() && M >= FEWEST_STAGGERED;
    if (p.tier != CLUSTER && p.tier != CLUSTER_BULK && p.tier != SPLIT_BULK && !staggered_split) return 0;
    if (M == 1 || M * bytes < STAGGER_BYTES || d.memory_clock <= 0 || d.bus <= 0) return 0;
    const double cycles = double(bytes) * d.clock / (2.0 * d.memory_clock * d.bus / 8);
    double share = 1;
    if (p.tier == SPLIT_BULK) {
        const int per_sm = bulk_min_ctas(p.vectors * R, p.threads);
        const bool few_waves = R == 1 || gradient_waves(M, bytes / VECTOR_BYTES) < 2;
        const bool one_wave = waves(M, p.per_row, per_sm) <= 1;
        if (one_wave && R == 1 && M < FEWEST_STAGGERED) return 0;
        if (one_wave && R == 2 && per_sm == 2) share = 1. / 3;
        if (!one_wave && bytes > (few_waves ? SHORT_BYTES_OF_FEW_WAVES : SHORT_BYTES_OF_MANY_WAVES)) share = 4. / 3;
    }
    return int(std::min(share * cycles, 1e8));
}

// Whether the lines that a launch reads leave L2 first. They do in the split tiers, if the device holds nearly all rows at once. What earlier kernels
// wrote then stays in L2, which does not write it to memory meanwhile. Other sizes and loss operations were slower with it, or not measured.
// One row may be read twice, and two to four were not measured. Fewer SMs hold less.
template <typename Op> bool leaves_first(const Plan& p, int64_t M, int64_t read_bytes) {
    const bool split = (p.tier == SPLIT || p.tier == SPLIT_BULK) && p.per_row > 1;
    const int64_t least = Op::READS == 1 ? ONE_WAVE_FORWARD_BYTES : ONE_WAVE_GRADIENT_BYTES;
    const int64_t most = (Op::READS == 1 ? LEAVE_FIRST_FORWARD_BYTES : LEAVE_FIRST_GRADIENT_BYTES) / MEASURED_SMS * std::min(device().sms, MEASURED_SMS);
    return split && M >= FEWEST_STAGGERED && !Op::HAS_TARGET && read_bytes >= least && read_bytes < most;
}

// The plan of a launch.
template <typename Op> Plan choose_plan(const Tensors<Op>& t, int64_t N) {
    constexpr int V = Op::V, R = Op::READS;
    const Layout l = layout_of(t, N);
    const int64_t M = t.M, bytes = N * int64_t(sizeof(typename Op::Element));
    if (!l.congruent || N > MAX_N) return {GENERIC, 0, N <= 2048 ? 128 : GENERIC_THREADS, N <= 2048, 0, 16, 0};
    const bool whole_vectors = l.granularity == V;
    if (!Op::HAS_TARGET && bytes <= (whole_vectors ? SHORT_BYTES : R == 1 && Op::E == 2 ? SHORT_UNALIGNED_16_BIT_BYTES : SHORT_UNALIGNED_BYTES) / R)
        if (const Plan found = short_row_plan(t, int(N), l); found.tier != AUTO) return found;
    const int64_t vectors = (l.offset + N) / V;  // counted from the 128-byte base
    const bool widens = sizeof(typename Op::Out) > sizeof(typename Op::Element);
    if (bytes <= MEDIUM_BYTES) {
        const int64_t vectors_from_16 = (l.aligned ? N : N + V - 1) / V;
        const bool large = M * bytes >= LARGE_BYTES;
        if constexpr (WARP_MAX_VECTORS<Op> > 0) {
            if (whole_vectors && vectors_from_16 <= WARP_MAX_VECTORS<Op> * WARP)
                if (const Plan found = warp_row_plan<Op>(M, vectors_from_16, large); found.tier != AUTO) return found;
        }
        if (large && !widens) return medium_many_rows_plan(vectors_from_16, vectors, R, UNALIGNED_MAX_VECTORS<Op>);
        return medium_row_plan(vectors_from_16, vectors, R, Op::E == 2, UNALIGNED_MAX_VECTORS<Op>);
    }
    if (R == 2 && M <= device().sms && bytes < FEW_BYTES) return few_short_gradients_plan(vectors);
    Plan found = M <= FEW_ROWS && bytes >= FEW_BYTES ? few_rows_plan(M, vectors, R, Op::E == 2) : many_rows_plan(M, vectors, R, whole_vectors, Op::E == 2);
    if (Op::HAS_TARGET && found.tier == SPLIT && found.vectors > 4) found = split_plan(vectors, R, 4, found.threads, found.per_row);
    found.stagger_cycles = stagger_cycles(found, M, bytes * R, R);
    return found;
}

}  // namespace softbench
