// The planner: which plan a launch has. A table says which family of plans is the fastest for a kind and length of rows and a size of launch
// (docs/kernels/plans.md). A family makes a plan for exactly these rows, or none. kernels/plans reads the table and hands it over.
#pragma once

#include "block.cuh"
#include "bulk.cuh"
#include "cluster.cuh"
#include "generic.cuh"
#include "split.cuh"
#include "staged.cuh"
#include "sub_warp.cuh"

#include <vector>

namespace softbench {

// Plans that differ only by the length and the number of rows. What the numbers mean depends on the tier.
//
// - sub_warp      Accesses a lane, threads, bytes of an access (0: vectors at any address).
// - staged        Elements a lane at most, bytes of a tile at most.
// - block         Vectors a thread, alignment of a row's base.
// - cluster       Vectors of all tensors a thread, most threads (up to 16: the CTAs of a row instead).
// - cluster_bulk  CTAs of a row, or fill.
// - split_bulk    Vectors of all tensors a thread, threads, fill, stagger in percent.
// - split         Vectors of all tensors a thread, threads, fill.
//
// fill: the vectors of a row in all tensors that a CTA has, or, if negative, the CTAs of all rows for an SM in percent.
struct Family {
    int tier, numbers[4];
};

// The family for rows of a kind of up to `bytes`, in launches that read up to `kib` KiB for each SM.
struct Cell {
    int kind, bytes, kib;
    Family family;
};

// The table's cells for a device, by kind, then bytes, then KiB. Hidden: each library has its own, since a linker makes visible ones one object of
// the process. Another library's would change during launches.
__attribute__((visibility("hidden"))) inline std::vector<Cell>& cells(int device) {
    static std::vector<Cell> of_devices[64];
    return of_devices[device & 63];
}

// What a pass over rows is for a table. WIDENED: a forward whose results have more bytes than its input.
enum Pass { FORWARD, GRADIENT, WIDENED };
template <typename Op> constexpr Pass PASS = Op::READS == 2 ? GRADIENT : sizeof(typename Op::Out) > sizeof(typename Op::Element) ? WIDENED : FORWARD;

// A table's rows are of one kind if they agree in pass, bytes of an element and alignment. `granularity`: as in Layout, in bytes.
// Longer rows are only told apart by whether they consist of whole vectors.
constexpr int MEDIUM_BYTES = 4096;
inline int kind_of(Pass pass, int size, int64_t bytes, int granularity) {
    return 100 * pass + 20 * size + (granularity == VECTOR_BYTES || bytes <= MEDIUM_BYTES ? granularity : size);
}

constexpr int MEASURED_SMS = 132;   // of the H200s and H100s that the limits of `leaves_first` were measured on
constexpr int CLUSTER_BULK_THREADS = 256;
constexpr int MAX_POLLS = 1 << 16;  // some tens of milliseconds
constexpr int FEWEST_STAGGERED = 5; // rows in tier split: fewer were not timed
constexpr int64_t STAGGER_BYTES = 8 << 20;  // of all tensors read: a launch of a few microseconds starts all rows together

// Cycles between the starts of rows that several CTAs share: the time in which memory reads one row of `bytes` in all tensors at its peak.
inline int stagger_cycles(int64_t M, int64_t bytes) {
    const Device& d = device();
    if (M == 1 || M * bytes < STAGGER_BYTES || d.memory_clock <= 0 || d.bus <= 0) return 0;
    return int(std::min(double(bytes) * d.clock / (2.0 * d.memory_clock * d.bus / 8), 1e8));
}

// The fewest threads of whole warps that hold `vectors` at k vectors a thread, at most `max_threads`.
inline int threads_for(int64_t vectors, int k, int max_threads) {
    return int(std::min<int64_t>(max_threads, std::max<int64_t>(WARP, round_up<int64_t>(ceil_div<int64_t>(vectors, k), WARP))));
}

// The CTAs of a row, as a family says. `vectors`: of a row in all tensors.
inline int64_t filled(int64_t M, int64_t vectors, int fill) {
    return fill > 0 ? ceil_div<int64_t>(vectors, fill) : int64_t(-fill) * device().sms / (100 * M);
}

// The vectors of each tensor that a thread of a CTA of tier split may have in shared memory. An SM holds two CTAs of SPLIT_THREADS.
inline int64_t split_room(int reads, int64_t threads) {
    return (device().shared_sm * threads / (2 * SPLIT_THREADS) - 2048) / (threads * reads * VECTOR_BYTES);
}

// The plan that a family makes; AUTO if it makes none. `plan_fits` tests the rest of it.
template <typename Op> Plan make_plan(const Tensors<Op>& t, int64_t N, const Layout& l, const Family& f) {
    constexpr int V = Op::V, R = Op::READS, SIZE = sizeof(typename Op::Element);
    constexpr Plan none = {AUTO, 0, 0, 0, 0, 0, 0, 0};
    const Device& d = device();
    const int64_t M = t.M, bytes = N * SIZE, vectors = (l.offset + N) / V, from_16 = l.aligned ? N / V : (N + V - 1) / V, all = vectors * R;
    const int a = f.numbers[0], T = f.numbers[1], c = f.numbers[2];
    // With fewer bytes of a row, most threads would have nothing to do.
    if (bytes < (f.tier == BLOCK ? WARP * VECTOR_BYTES : f.tier > BLOCK ? 2 * MEDIUM_BYTES / R : 0)) return none;
    switch (f.tier) {
        case SUB_WARP: {
            if (bytes > MEDIUM_BYTES) return none;
            if (c == 0) {
                const int lanes = std::max(EDGE_THREADS, 1 << log2_ceil(ceil_div<int64_t>(from_16, a)));
                return from_16 > int64_t(a - 1) * lanes || a == 1 ? Plan{SUB_WARP, a, T, lanes, 1, VECTOR_BYTES, 0, 0} : none;
            }
            if (bytes % c != 0) return none;
            return {SUB_WARP, a, T, 1 << log2_ceil(ceil_div<int64_t>(bytes / c, a)), 0, c, 0, 0};
        }
        case STAGED: {
            const int lanes = bytes > MEDIUM_BYTES ? 2 * WARP : 1 << log2_ceil(ceil_div<int64_t>(N, a));
            if (lanes > WARP) return none;
            // Whole sectors; each warp has rows at once, and their lanes lie in different banks. Each SM has 16 tiles, if there are so many.
            const int unit = std::max({SECTOR_BYTES / SIZE >> (N % 2 == 0), STAGED_THREADS / lanes, WARP / lanes << row_stride_log2(M, int(N), lanes, SIZE, R)});
            const int rows = int(std::min<int64_t>(T, std::max<int64_t>(1024, M * bytes / (16 * d.sms))) / bytes);
            return {STAGED, int(ceil_div<int64_t>(N, lanes)), STAGED_THREADS, lanes, std::max(unit, (rows + unit / 2) / unit * unit), VECTOR_BYTES, 0, 0};
        }
        case BLOCK: {
            const int64_t counted = T == VECTOR_BYTES ? from_16 : vectors;
            return counted <= int64_t(a) * BLOCK_THREADS ? Plan{BLOCK, a, threads_for(counted, a, BLOCK_THREADS), 1, 0, T, 0, 0} : none;
        }
        case CLUSTER: {
            const int K = a / R;
            if (K == 0 || !d.clusters()) return none;
            const int64_t ctas = T <= MAX_CLUSTER ? T : ceil_div<int64_t>(vectors, int64_t(K) * T);
            if (ctas < 2 || ctas > MAX_CLUSTER) return none;
            return {CLUSTER, K, threads_for(vectors, K * int(ctas), BLOCK_THREADS), int(ctas), 0, LINE_ALIGNMENT, 0, stagger_cycles(M, bytes * R)};
        }
        case CLUSTER_BULK:
            if (!d.clusters()) return none;
            return {CLUSTER_BULK, 24 / R, CLUSTER_BULK_THREADS, int(a <= MAX_CLUSTER ? a : filled(M, all, a)), 0, LINE_ALIGNMENT, 0, stagger_cycles(M, bytes * R)};
        case SPLIT_BULK: {
            const int64_t ctas = filled(M, all, c);
            // The CTAs of a row exchange, so all of them must run at the same time.
            if (!d.clusters() || ctas < 2 || ctas > bulk_min_ctas(a, T) * d.sms || ctas > 2 * d.sms) return none;
            const int64_t chunk = R * round_up<int64_t>(ceil_div<int64_t>(vectors, ctas), LINE_VECTORS), held = int64_t(a) * T;
            if (bulk_min_ctas(a, T) * (std::max<int64_t>(0, chunk - held) * VECTOR_BYTES + 2304) > d.shared_sm) return none;
            return {SPLIT_BULK, a / R, T, int(ctas), 0, LINE_ALIGNMENT, MAX_POLLS, int(int64_t(stagger_cycles(M, bytes * R)) * f.numbers[3] / 100)};
        }
        case SPLIT: {
            const int K = a / R;
            const int64_t ctas = std::max<int64_t>(1, filled(M, all, c)), chunk = round_up<int64_t>(ceil_div<int64_t>(vectors, ctas), LINE_VECTORS);
            const int64_t smem = std::max<int64_t>(0, ceil_div<int64_t>(chunk, T) - K);
            // Where clusters hold long rows, this tier is for few rows, which run at the same time or nearly so.
            const bool waits = d.clusters() && M * ctas * T > 1.3 * 2 * SPLIT_THREADS * d.sms;
            if (K == 0 || ctas > 2 * d.sms || smem > split_room(R, T) || waits) return none;
            return {SPLIT, K, T, int(ctas), int(smem), LINE_ALIGNMENT, ctas > 1 ? MAX_POLLS : 0,
                    M >= FEWEST_STAGGERED && d.clusters() && ctas > 1 ? stagger_cycles(M, bytes * R) : 0};
        }
    }
    return none;
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

template <typename Op> bool plan_fits(const Tensors<Op>& t, int64_t N, const Plan& p);

// The plan of rows for which no cell's family makes one, as of short rows with gaps between them. It takes all rows that share their alignment.
// Short ones are on half a warp or a warp. Others are read a second time where shared memory and registers do not hold them.
template <typename Op> Plan last_plan(const Tensors<Op>& t, int64_t N, const Layout& l) {
    constexpr int R = Op::READS, T = SPLIT_THREADS, K = SPLIT_VECTORS<Op> / R, CTA_VECTORS = 8208;
    for (int k = 1; k <= UNALIGNED_MAX_VECTORS<Op>; ++k)
        if (const Plan p = make_plan(t, N, l, {SUB_WARP, {k, SUB_WARP_THREADS / 2, 0}}); p.tier != AUTO && plan_fits(t, N, p)) return p;
    const int64_t vectors = (l.offset + N) / Op::V, ctas = std::min<int64_t>(2 * device().sms, std::max<int64_t>(1, ceil_div<int64_t>(vectors * R, CTA_VECTORS)));
    const int64_t smem = std::max<int64_t>(0, ceil_div<int64_t>(ceil_div<int64_t>(vectors, ctas), T) - K);
    return {SPLIT, K, T, int(ctas), int(std::min(smem, split_room(R, T))), LINE_ALIGNMENT, ctas > 1 ? MAX_POLLS : 0, 0};
}

// The plan of a launch: that of the cell of these rows, or of the nearest one whose family makes a plan. Cells of unaligned rows come after those of
// the rows' own kind, because their plans take any rows. Cells of forwards come last, for tables without widened results.
template <typename Op> Plan choose_plan(const Tensors<Op>& t, int64_t N) {
    constexpr int SIZE = sizeof(typename Op::Element);
    constexpr Pass LAST = PASS<Op> == WIDENED ? FORWARD : PASS<Op>;
    const Layout l = layout_of(t, N);
    if (!l.congruent || N > MAX_N) return {GENERIC, 0, N <= 2048 ? 128 : GENERIC_THREADS, N <= 2048, 0, 16, 0, 0};
    const int64_t bytes = N * SIZE, read = t.M * bytes * Op::READS;
    const int aligned = l.granularity * SIZE;
    const std::vector<Cell>& all = cells(current_device());
    const int64_t sms = device().sms;
    for (const int kind : {kind_of(PASS<Op>, SIZE, bytes, aligned), kind_of(PASS<Op>, SIZE, bytes, SIZE), kind_of(LAST, SIZE, bytes, aligned), kind_of(LAST, SIZE, bytes, SIZE)}) {
        const auto low = std::lower_bound(all.begin(), all.end(), kind, [](const Cell& c, int k) { return c.kind < k; });
        const auto high = std::upper_bound(low, all.end(), kind, [](int k, const Cell& c) { return k < c.kind; });
        auto up = std::find_if(low, high, [&](const Cell& c) { return bytes <= c.bytes && read <= (int64_t(c.kib) << 10) * sms; });
        for (auto down = up; up != high || down != low;) {
            if (up != high)
                if (const Plan p = make_plan(t, N, l, up++->family); p.tier != AUTO && plan_fits(t, N, p)) return p;
            if (down != low)
                if (const Plan p = make_plan(t, N, l, (--down)->family); p.tier != AUTO && plan_fits(t, N, p)) return p;
        }
    }
    return last_plan(t, N, l);
}

}  // namespace softbench
