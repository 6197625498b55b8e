// Which tier a launch takes and with what numbers: arithmetic on the rows' length, their number and where they lie, fitted to sweeps on an
// H200 (softmax.cu has what they taught). Nothing is timed or compiled to find it.
#pragma once

#include "block.cuh"
#include "plain.cuh"
#include "short.cuh"
#include "split.cuh"
#include "warp.cuh"
#include "wide.cuh"

#include <algorithm>
#include <mutex>

namespace softbench {

enum Tier { AUTO = -1, LANES, STAGED, BLOCK, CLUSTER, SPLIT, PLAIN, WIDE, SPREAD, ONE_WARP };

}  // namespace softbench

// What a launch does; also what a test or a sweep may ask for. `vectors` of a tensor a thread has in registers (staged: elements). `group`:
// lanes of a row (lanes, staged), CTAs of a row (cluster, wide, split). `depth`: whether rows may be unaligned (lanes), rows of a CTA
// (staged), vectors a thread in shared memory (split), rows of a warp (warp). `floor`: the boundary in bytes that a row's vectors are
// counted from; of aligned rows on lanes, the size of a piece. `patience`: polls before a CTA of split helps itself; negative: it always
// does. `turn`: cycles from the start of a row to that of the next, among those that the card holds at first (cluster, wide, spread); 0:
// all at once.
extern "C" struct SoftbenchPlan {
    int tier, vectors, threads, group, depth, floor, patience, turn;
};

namespace softbench {

using Plan = SoftbenchPlan;

constexpr int FLOOR_LONG = LINE_BYTES;
constexpr int WIDE_THREADS = 256;
constexpr int PATIENCE = 1 << 16;  // some tens of milliseconds
constexpr int SHORT_BYTES = 1024;
constexpr int SHORT_ODD_BYTES = 1520, SHORT_ODD_HALF_BYTES = 2032;  // three vectors a lane; four
constexpr int SMALL_BYTES = 4096;
constexpr int STAGED_BYTES = 8192;  // of a piece
constexpr int CTA_WORDS = 8208;  // vectors of a CTA, two to an SM: 128 KB and the places before an unaligned row
constexpr int THIRD_WORDS = 4700;  // ... three to an SM, 32 KB of them in registers: what is left of the SM's memory is L1
constexpr int HALF_WORDS = 10950;  // ... two to an SM, 96 KB of them in registers
constexpr int64_t LARGE_BYTES = 64 << 20;  // of a tensor: some ten microseconds
constexpr int64_t TURNS_BYTES = 8 << 20;  // of all that is read
constexpr int64_t STAY_BYTES = 32 << 20;  // of all that is read: half of an H200's L2
constexpr int MANY_ROWS = 16384;  // of several KB: dozens of times what the card holds
constexpr int FEW_ROWS = 128, FEW_BYTES = 16 << 10;
constexpr int64_t MAX_N = (int64_t(1) << 31) - 4096;  // indices within a row are 32-bit, beyond this `plain` takes over

struct Device {
    int sms, shared_block, shared_sm, major;
    int clock, memory_clock, bus;  // kHz, kHz, bits
    // Hopper's and later data center cards: clusters of 16, and 200 KB and more of shared memory a CTA. Others go as sm_80 does.
    bool clusters() const { return major >= 9 && shared_block >= 200 << 10; }
};

inline const Device& device() {
    static Device known[64];
    static std::once_flag once[64];
    int current = 0;
    cudaGetDevice(&current);
    current &= 63;
    std::call_once(once[current], [&] {
        Device& d = known[current];
        cudaDeviceGetAttribute(&d.sms, cudaDevAttrMultiProcessorCount, current);
        cudaDeviceGetAttribute(&d.shared_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
        cudaDeviceGetAttribute(&d.shared_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, current);
        cudaDeviceGetAttribute(&d.major, cudaDevAttrComputeCapabilityMajor, current);
        cudaDeviceGetAttribute(&d.clock, cudaDevAttrClockRate, current);
        cudaDeviceGetAttribute(&d.memory_clock, cudaDevAttrMemoryClockRate, current);
        cudaDeviceGetAttribute(&d.bus, cudaDevAttrGlobalMemoryBusWidth, current);
    });
    return known[current];
}

template <typename I> I ceil_div(I a, I b) { return (a + b - 1) / b; }
template <typename I> I round_up(I a, I b) { return ceil_div(a, b) * b; }
inline int log2_ceil(int64_t n) {
    int log = 0;
    while ((int64_t(1) << log) < n) ++log;
    return log;
}

// How the tensors of a launch lie.
struct Layout {
    bool congruent;   // each row begins at the same distance from a 16-byte boundary in every tensor
    bool aligned;     // ... which is 0
    bool contiguous;  // row after row without a gap
    int grain;        // elements, up to a vector of them: every row starts at a multiple of that many and is a multiple long
    int lead;         // most elements between a 128-byte boundary and a row's start, in the first tensor
};

template <typename Op> Layout layout(const Tensors<Op>& t, int64_t N) {
    constexpr int V = Op::V;
    Layout l = {true, true, true, V, 0};
    while (N % l.grain) l.grain /= 2;
    auto look = [&](const void* base, int64_t stride, size_t size) {
        int64_t phase = int64_t(reinterpret_cast<uintptr_t>(base) / size % V), step = t.M > 1 ? (stride % V + V) % V : 0;
        int64_t phase0 = int64_t(reinterpret_cast<uintptr_t>(t.source[0]) / sizeof(typename Op::Element) % V);
        int64_t step0 = t.M > 1 ? (t.source_stride[0] % V + V) % V : 0;
        l.congruent &= phase == phase0 && step == step0;
        l.aligned &= phase == 0 && step == 0;
        l.contiguous &= t.M == 1 || stride == N;
        while (phase % l.grain || step % l.grain) l.grain /= 2;
    };
    for (int r = 0; r < Op::READS; ++r) look(t.source[r], t.source_stride[r], sizeof(typename Op::Element));
    look(t.target, t.target_stride, sizeof(typename Op::Out));
    constexpr int line = FLOOR_LONG / sizeof(typename Op::Element);
    int64_t phase = int64_t(reinterpret_cast<uintptr_t>(t.source[0]) / sizeof(typename Op::Element) % line);
    int64_t step = t.M > 1 ? t.source_stride[0] % line : 0, grain = line;
    while (grain > 1 && (step % grain != 0)) grain /= 2;  // a row's start is phase + a multiple of this power of two
    l.lead = int(line - grain + phase % grain);
    return l;
}

// How far apart (2 to which power) the rows of a piece lie that a warp works on at one time, so that their lanes, which read a word each or two half
// of one, find banks of their own: so many times a row's length are multiples of its lanes then, all different. Rows of 63 halves on 8 lanes
// were at .73 of copy next to each other. Less far where the piece would become too large.
inline int rows_apart(int64_t M, int N, int lanes, int size, int R) {
    int log = lanes == WARP ? 0 : log2_ceil(4 / size * lanes);
    for (int n = N; n % 2 == 0 && log > 0; n /= 2) --log;
    const int64_t most = std::min<int64_t>(2 * STAGED_BYTES, M * N * size * R / (8 * device().sms));
    while (log > 0 && int64_t(WARP / lanes << log) * N * size * R > most) --log;
    return log;
}

// A row on as few lanes as can have it; a piece as large as leaves every SM some.
inline Plan staged_plan(int64_t M, int N, int R, int size) {
    const int lanes = 1 << log2_ceil(ceil_div(N, STAGED_EACH)), groups = STAGED_THREADS / lanes;
    const int64_t most = R == 1 ? STAGED_BYTES : 3 * STAGED_BYTES / 4, bytes = std::min(most, std::max<int64_t>(1024, M * N * size / (16 * device().sms)));
    const int unit = std::max({VECTOR_BYTES / size, groups, WARP / lanes << rows_apart(M, N, lanes, size, R)});
    const int rows = std::min(int(bytes / (N * size)), 16 * groups);
    return {STAGED, ceil_div(N, lanes), STAGED_THREADS, lanes, std::max(unit, (rows + unit / 2) / unit * unit), VECTOR_BYTES, 0};
}

// Shared memory of a piece: its rows, and behind the last tensor's what lanes read that have none.
inline int64_t staged_bytes(const Plan& p, int64_t N, int size, int R, int apart) {
    return (int64_t(R - 1) * p.depth + round_up(p.depth, staged_span(p.group, apart, p.threads / WARP))) * N * size;
}

// Whether rows that lie back to back do better as pieces than by lanes, of `bytes` a tensor: sweeps over some 140 lengths, at 4, 20 and
// 128 MB. Small tensors want the one trip to memory that lanes make; float32 gains .05 to .1 at 20 MB even of rows that are whole vectors, at
// 128 MB nothing beyond 160 columns, where .01 to .03 is lost of those that are not.
inline bool staging_wins(int N, int grain, int R, int E, int64_t bytes) {
    const bool whole = grain == (E == 1 ? 4 : 8), few = bytes < 8 << 20, large = bytes >= LARGE_BYTES;
    if (whole && (R == 2 || E == 2 || few || (N & (N - 1)) == 0)) return false;  // rows of a power of two all lie on the same banks
    if (few) return N <= (grain == 1 ? 60 : bytes < 2 << 20 ? 0 : 35);
    if (R == 2) return N <= (E == 1 ? 60 : 92) && !(E == 2 && (N == 62 || (N > 60 && grain == 4)));
    if (E == 1) return N <= (large ? 160 : 256);
    return N <= (bytes < 32 << 20 ? 128 : 160) && N != 62 && !(N > 60 && grain == 4);
}

template <typename Op> Plan short_plan(const Tensors<Op>& t, int N, const Layout& l) {
    constexpr int V = Op::V, R = Op::READS, E = Op::E, SIZE = sizeof(typename Op::Element);
    constexpr bool SAME = SIZE == sizeof(typename Op::Out);
    const bool whole = l.grain == V;
    const int vectors = std::max(1, l.aligned ? N / V : (N + V - 1) / V);
    const bool piece = SAME && l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0;
    if (piece && staging_wins(N, l.grain, R, E, t.M * N * SIZE)) return staged_plan(t.M, N, R, SIZE);
    // Rows of pieces of 8 or 4 bytes, while few lanes hold one: longer ones do better by vectors with odd ends.
    if (const int pieces = N / l.grain; !whole && (l.grain > 1 || E == 1) && pieces <= 36 && (R == 1 || vectors < 12)) {
        const int k = pieces <= 3 ? pieces : pieces == 5 ? 3 : pieces <= 8 ? 2 : pieces <= 12 ? 3 : pieces > 16 ? 4 : E == 2 ? 2 : 3, lanes = ceil_div(pieces, k);
        return {LANES, k, LANES_THREADS / 2, lanes > 3 && lanes <= 8 ? 1 << log2_ceil(lanes) : lanes, 0, l.grain / E * 4, 0};
    }
    // Few vectors a lane, and lanes of a power of two, known when compiling, even where some of them have nothing to do.
    if (whole) {
        const bool halves = R == 1 && vectors == 8;  // half a vector at a time: what a warp reads at once lies together
        const int k = halves || vectors > (R == 1 ? 4 : 16) ? 2 : 1;
        return {LANES, k, LANES_THREADS / 2, halves ? 8 : 1 << log2_ceil(ceil_div(vectors, k)), 0, halves ? VECTOR_BYTES / 2 : VECTOR_BYTES, 0};
    }
    int best_k = 0, best_lanes = 0;
    double best = 0;
    for (int k = 1; k <= (R == 1 && E == 2 ? 4 : 3); ++k) {
        const int lanes = std::max(1 << log2_ceil(ceil_div(vectors, k)), 2 * TAIL_THREAD);
        if (lanes > WARP) continue;
        // Of the places that a warp's instruction has, how many do something; two vectors a lane keep more bytes in flight.
        const double worth = double(vectors) * (WARP / lanes) / (k * WARP) + (k == 2 ? 0.05 : 0);
        if (worth > best) best = worth, best_k = k, best_lanes = lanes;
    }
    return {LANES, best_k, best_k < 4 ? LANES_THREADS / 2 : LANES_THREADS / 4, best_lanes, 1, 16, 0};
}

inline int threads_for(int64_t vectors, int k, int most) {
    return int(std::min<int64_t>(most, std::max<int64_t>(WARP, round_up<int64_t>(ceil_div<int64_t>(vectors, k), WARP))));
}

// G CTAs a row all over the card. `words`: vectors of all tensors a thread has in registers. The rest of a CTA's chunk is in shared memory.
inline Plan split_plan(int64_t vectors, int R, int words, int threads, int64_t G) {
    const Device& d = device();
    const int most_kept = (d.shared_sm * threads / (2 * SPLIT_THREADS) - 2048) / (threads * R * VECTOR_BYTES), K = words / R;
    const int64_t share = ceil_div<int64_t>(vectors, G);
    const int kept = int(std::min<int64_t>(most_kept, std::max<int64_t>(0, ceil_div<int64_t>(share, threads) - K)));
    return {SPLIT, K, threads, int(G), kept, FLOOR_LONG, G > 1 ? PATIENCE : 0};
}

inline Plan spread_plan(int R, int words, int threads, int64_t G) { return {SPREAD, words / R, threads, int(G), 0, FLOOR_LONG, PATIENCE}; }

// Rows of CTAs all over the card, more of them than it holds, so that they wait for their rows at different times. Fewer CTAs of a row meet
// faster: two to an SM, with more of the row in registers. Few or shorter rows want three, and those of 16 bits, which compute the most.
inline Plan across_plan(int64_t M, int64_t vectors, int R, bool half) {
    const Device& d = device();
    const int64_t words = vectors * R;
    // As many as run at once, or they could not meet.
    const int64_t third = ceil_div<int64_t>(words, words > 400000 ? 5300 : THIRD_WORDS), half_of = ceil_div<int64_t>(words, HALF_WORDS);
    const bool thirds = R == 1 && (half || words <= 57344 || M * words <= 5000000);
    if (d.clusters() && thirds && third <= 3 * d.sms) return spread_plan(R, 8, SPLIT_THREADS / 2, third);
    if (d.clusters() && half_of <= 2 * d.sms) return spread_plan(R, 24, SPLIT_THREADS / 2, half_of);
    return split_plan(vectors, R, 8, SPLIT_THREADS, std::min<int64_t>(2 * d.sms, ceil_div<int64_t>(words, CTA_WORDS)));
}

// A cluster a row, in registers: the fewest CTAs of `threads` with `words` vectors a thread.
inline Plan cluster_plan(int64_t vectors, int R, int words, int threads) {
    const int K = words / R, C = int(std::max<int64_t>(2, ceil_div<int64_t>(vectors, int64_t(K) * threads)));
    return {CLUSTER, K, threads_for(vectors, K * C, threads), C, 0, FLOOR_LONG, 0};
}

// A cluster a row, where one holds it and nothing else is faster; else AUTO. K of the fewest vectors with which all rows run at once, and
// threads for 16 CTAs, or fewer CTAs that have 128 or 256. `words`, `all`: vectors of all tensors, of a row and of the launch. Its limits are
// where one plan became better than the next in sweeps over some hundred shapes; 16-bit rows compute the most and differ.
inline Plan few_cluster_plan(int64_t M, int64_t vectors, int R, bool half) {
    const int64_t words = vectors * R, all = M * words, sixteenth = ceil_div<int64_t>(words, MAX_CLUSTER);
    const bool computes = half && R == 1;
    auto of_16 = [&](int k, int least, int most) { return cluster_plan(vectors, R, k, std::max(least, threads_for(sixteenth, k, most))); };
    if (computes && words > 28000 && words <= 33000 && M <= 16) return {AUTO};  // CTAs that are anywhere: `few_plan`
    if (R == 1 && !half && words > 4400 && words <= 8800 && all <= 10000) return cluster_plan(vectors, R, 2, 352);
    if (words <= 2200 && all <= 140000) return cluster_plan(vectors, R, 2, 128);
    if (words <= 4400 && all <= (computes ? 280000 : 70000)) return cluster_plan(vectors, R, 2, 256);
    if (computes && words <= 16384 && all <= 200000) return of_16(2, 256, 512);
    if (R == 1 ? (words <= 8800 && all <= 800000) || (words <= 16384 && all <= 400000) || (computes && words <= 25000 && all <= 220000) ||
                     (computes && words <= 32768 && M <= 2)
               : words <= 12288 && all <= 140000) {
        const int64_t of_128 = ceil_div<int64_t>(words, 4 * 128);  // CTAs
        return of_128 > MAX_CLUSTER || M * of_128 > 700 ? of_16(4, 256, 512) : cluster_plan(vectors, R, 4, 128);
    }
    if (words <= 32768) {
        if (computes && words > 20480 && words <= 28000 && all <= 1000000) return {AUTO};
        if (computes && words > 20480 && all > 2000000) return cluster_plan(vectors, R, 16, 128);
        if (R == 1 && !half && words > 28000 && all > 3000000) return cluster_plan(vectors, R, 12, 192);
        return of_16(8, 128, 512);
    }
    if (words > MAX_CLUSTER * 8 * 512) return {AUTO};
    if (R == 2) return words > 40960 && words <= 49152 ? of_16(12, 192, 256) : of_16(8, 128, 512);
    if (half ? words > 57344 && all > 1750000 : all > 1750000 && all <= 5000000) return of_16(8, 128, 512);
    return {AUTO};
}

// Few rows: what they need is the whole card, at once, and to be short.
inline Plan few_plan(int64_t M, int64_t vectors, int R, bool half) {
    const Device& d = device();
    const int64_t words = vectors * R, all = M * words;
    if (d.clusters())
        if (const Plan found = few_cluster_plan(M, vectors, R, half); found.tier != AUTO) return found;
    auto ctas = [&](int64_t each) { return ceil_div<int64_t>(words, each); };
    // One wave, with the rows in registers: short CTAs while not too many have to meet.
    if (R == 1 && half && d.clusters()) {
        if (all <= 66000 && ctas(512) <= d.sms) return split_plan(vectors, R, 2, SPLIT_THREADS / 2, ctas(512));
        if (all <= 265000 && ctas(1024) <= d.sms) return split_plan(vectors, R, 2, SPLIT_THREADS, ctas(1024));
    }
    if (M * ctas(1024) <= 4 * d.sms && ctas(1024) <= d.sms) return split_plan(vectors, R, 4, SPLIT_THREADS / 2, ctas(1024));
    if (R == 1 && d.clusters() && M <= 2 && M * ctas(2048) <= 2 * d.sms) {
        const bool eight = ctas(2048) > d.sms || (M == 2 && !half);
        return split_plan(vectors, R, eight ? 8 : 4, eight ? SPLIT_THREADS / 2 : SPLIT_THREADS, ctas(2048));
    }
    if (M * ctas(2048) <= 4 * d.sms && (M <= 2 || !d.clusters())) {
        const int T = (half ? 1 : M) * ctas(2048) <= 2 * d.sms ? SPLIT_THREADS / 2 : SPLIT_THREADS;
        const int64_t G = ctas(8 * T);
        return d.clusters() ? spread_plan(R, 8, T, G) : split_plan(vectors, R, 8, T, G);
    }
    if (!d.clusters() || M > 2 * d.sms) {
        // One wave, half in registers, half in shared memory.
        if (M * ctas(4096) <= 4 * d.sms && M * ctas(THIRD_WORDS) > 3 * d.sms) return split_plan(vectors, R, 8, SPLIT_THREADS / 2, ctas(4096));
        return across_plan(M, vectors, R, half);
    }
    // One wave of four CTAs an SM, some of each chunk in registers, the rest in shared memory: float32 rows, which compute the least, as the copy
    // engine's pieces. Beyond that, all that an SM has.
    const int64_t G = std::min<int64_t>(4 * d.sms / M, 2 * d.sms), each = all / d.sms;
    if (each <= 13300 || (R == 2 && each <= 16300)) return R == 1 && !half ? spread_plan(R, 8, SPLIT_THREADS / 2, G) : split_plan(vectors, R, 4, SPLIT_THREADS / 2, G);
    if (each <= (M == 1 ? 18300 : 18600) && R == 1) return half ? spread_plan(R, 8, SPLIT_THREADS / 2, G) : spread_plan(R, 8, SPLIT_THREADS, 2 * d.sms / M);
    if (each <= 18400 && R == 2) return split_plan(vectors, R, 8, SPLIT_THREADS / 2, G);
    return across_plan(M, vectors, R, half);
}

// Rows of a few KB: few warps, as they join faster; a single one needs no barrier. Rows of up to `on_warp` vectors a lane, gradients of up to two,
// are a warp's, as short ones are: CTAs of one warp, of which an SM holds 32, were at .65 of copy where a gradient's row is 33 vectors. Vectors are
// counted from a 16-byte floor where a line's would take another warp: `vectors` from either.
inline Plan small_plan(int64_t vectors, int64_t vectors_of_lines, int R, bool half, int on_warp) {
    if (vectors <= (R == 1 ? on_warp : 2) * WARP)
        return {LANES, int(ceil_div<int64_t>(vectors, WARP)), LANES_THREADS / 4, WARP, 1, 16, 0};
    const int K = R == 2 ? (half && vectors <= 128 ? 2 : 4) : !half ? 8 : vectors <= 6 * WARP ? 2 : 4;
    const int threads = threads_for(vectors, K, BLOCK_THREADS);
    return {BLOCK, K, threads, 1, 0, vectors_of_lines <= int64_t(K) * threads ? FLOOR_LONG : 16, 0};
}

// Rows of 1 to 4 KB that begin and end at vectors, on a warp; AUTO where other plans do better. Where an SM's registers hold too few of them for all
// rows at once, and shared memory has room for all, a warp has two. Up to 32 rows an SM, 16-bit rows of up to four vectors a lane were faster by
// .03 as `lanes_odd` (why was not found), the longest float32 rows by .01 as CTAs of two warps; those by .004 as CTAs of four where they are LARGE.
template <typename Op> Plan warp_plan(int64_t M, int64_t vectors, bool large) {
    const Device& d = device();
    const int K = std::max(3, int(ceil_div<int64_t>(vectors, WARP))), most = warp_ctas<Op>(K), rows = WARP_THREADS / WARP;
    if (large && K >= 7) return {AUTO, 0, 0, 0, 0, 0, 0};
    if (M <= 32 * d.sms) {
        if (Op::E == 2 && K <= 4) return {AUTO, 0, 0, 0, 0, 0, 0};
        if (K >= 7) return {BLOCK, 4, 2 * WARP, 1, 0, VECTOR_BYTES, 0};
    }
    const int64_t by_shared = d.shared_sm / (2 * rows * round_up<int64_t>(vectors, LINE_VECTORS) * VECTOR_BYTES + 1024);
    if (M > most * rows * d.sms && M <= std::min<int64_t>(most, by_shared) * 2 * rows * d.sms) return {ONE_WARP, K, WARP_THREADS, 1, 2, VECTOR_BYTES, 0};
    return {ONE_WARP, K, WARP_THREADS / 2, 1, 1, VECTOR_BYTES, 0};
}

// So many of them that SMs take new ones all the time: an SM holds 32 CTAs, so that those of one warp leave it half empty, and those of two were
// .05 to .1 slower than of three. A warp a row, two of them in a CTA, while a lane has at most `on_warp` vectors; then three warps and more.
inline Plan small_many_plan(int64_t vectors, int64_t vectors_of_lines, int R, int on_warp) {
    if (vectors <= on_warp * WARP) return {LANES, std::max(2, int(ceil_div<int64_t>(vectors, WARP))), LANES_THREADS / 4, WARP, 1, 16, 0};
    const int K = R == 2 && vectors > 6 * WARP ? 4 : 2, threads = std::max(3 * WARP, threads_for(vectors, K, BLOCK_THREADS));
    return {BLOCK, K, threads, 1, 0, vectors_of_lines <= int64_t(K) * threads ? FLOOR_LONG : 16, 0};
}

// Many rows: as many bytes under way on an SM as it has room for. Where there are clusters, rows beyond some 30 KB are a cluster's: their CTAs
// wait for each other at different times, and registers are enough. How many vectors a thread and threads a CTA, by a row's vectors of all
// tensors: what was best on average over some hundred lengths. Just as many CTAs as fill most of an SM (six of 160 threads, five of 192)
// are better than all it can hold, and 16-bit rows, which compute the most, want more rows at once.
inline Plan many_plan(int64_t M, int64_t vectors, int R, bool whole, bool half) {
    const Device& d = device();
    const int64_t words = vectors * R, all = M * words;
    if (R == 1) {
        const int K = half ? (M >= MANY_ROWS && vectors > 320 && vectors <= 1024 ? 2 : vectors < 1024 ? 4 : 8) : vectors > 520 && vectors < 700 ? 4 : vectors > 1600 && vectors <= 2048 ? 16 : 8;
        const Plan block = {BLOCK, K, threads_for(vectors, K, BLOCK_THREADS), 1, 0, FLOOR_LONG, 0};
        if (d.clusters()) {
            if (words <= (half ? 2300 : 2048)) return block;
            if (half) {
                if (words <= 5600) return cluster_plan(vectors, R, 8, 224);
                if (words <= 7200) return cluster_plan(vectors, R, 8, 192);
                if (words <= 9300) return cluster_plan(vectors, R, 8, all > 20000000 ? 160 : 128);
                if (words <= 13000) return cluster_plan(vectors, R, 12, 96);
                if (words <= 16384) return cluster_plan(vectors, R, 8, 256);
                if (words <= 21000) return cluster_plan(vectors, R, 12, 128);
                if (words <= 32768) return cluster_plan(vectors, R, 16, 128);
                if (words <= 57344) return all <= 12000000 ? across_plan(M, vectors, R, half) : Plan{WIDE, 24, WIDE_THREADS, 8, 0, FLOOR_LONG, 0};
                if (words <= 65536) return cluster_plan(vectors, R, 8, 512);
            } else {
                if (words <= 9300) return cluster_plan(vectors, R, 8, 96);
                if (words <= 24576) return cluster_plan(vectors, R, 8, 192);
                if (words <= 36864) return cluster_plan(vectors, R, 12, 192);
                if (words <= 43008) return cluster_plan(vectors, R, 12, 224);
                if (words <= 60000) return {WIDE, 24, WIDE_THREADS, int(ceil_div<int64_t>(words, 5800)), 0, FLOOR_LONG, 0};
            }
            if (words <= 70000) return spread_plan(R, 8, SPLIT_THREADS, ceil_div<int64_t>(words, 8192 + 512));
        } else {
            // Beyond 512 threads a CTA is alone on its SM: only when it is nearly as large as can be.
            if (vectors <= 4096 || (whole && vectors >= 7300 && vectors <= 8192)) return block;
            if (vectors <= 8704) return split_plan(vectors, R, 8, SPLIT_THREADS, 1);
        }
    } else {
        const int K = vectors <= (half ? 520 : 260) ? 4 : vectors <= 512 ? 8 : vectors <= 768 ? 6 : vectors <= 1024 ? 8 : vectors < 2048 ? 2 : 4;
        const Plan block = {BLOCK, K, threads_for(vectors, K, BLOCK_THREADS), 1, 0, FLOOR_LONG, 0};
        if (d.clusters()) {
            if (words <= 1850) return block;
            if (words <= 3700) return cluster_plan(vectors, R, 8, 128);
            if (words <= 25100) return cluster_plan(vectors, R, 8, 224);
            if (words <= 34000) return cluster_plan(vectors, R, 8, 512);
            if (words <= 49152) return cluster_plan(vectors, R, 12, 256);
            const int C = int(std::min<int64_t>(MAX_CLUSTER, ceil_div<int64_t>(words, 5800)));
            if (words <= 115000) return {WIDE, 12, WIDE_THREADS, C, 0, FLOOR_LONG, 0};
            if (words <= 140000) return spread_plan(R, 24, SPLIT_THREADS / 2, ceil_div<int64_t>(words, 9300));
        } else if (vectors <= 2048 || (whole && vectors >= 3600 && vectors <= 4096)) return block;
    }
    return across_plan(M, vectors, R, half);
}

// Cycles between the starts of rows of several CTAs, from how long the memory takes for one (`bytes`, of all tensors read) at its peak: so long
// for clusters, a third longer where the CTAs are anywhere. What is over in a few microseconds all begins at once.
inline int turn(const Plan& p, int64_t M, int64_t bytes) {
    const Device& d = device();
    if ((p.tier != CLUSTER && p.tier != WIDE && p.tier != SPREAD) || M == 1 || M * bytes < TURNS_BYTES || d.memory_clock <= 0 || d.bus <= 0) return 0;
    const double cycles = double(bytes) * d.clock / (2.0 * d.memory_clock * d.bus / 8);
    return int(std::min(p.tier == SPREAD ? 4 * cycles / 3 : cycles, 1e8));
}

// The rules: which tier and how, from the rows' length, number and place. Numbers are of an H200 unless a device's attribute stands there.
template <typename Op> Plan plan(const Tensors<Op>& t, int64_t N) {
    constexpr int V = Op::V, R = Op::READS;
    const Layout l = layout(t, N);
    const int64_t M = t.M, bytes = N * int64_t(sizeof(typename Op::Element));
    if (!l.congruent || N > MAX_N) return {PLAIN, 0, N <= 2048 ? 128 : PLAIN_THREADS, N <= 2048, 0, 16, 0};
    const bool whole = l.grain == V;
    if (bytes <= (whole ? SHORT_BYTES : R == 1 && Op::E == 2 ? SHORT_ODD_HALF_BYTES : SHORT_ODD_BYTES) / R)
        if (const Plan found = short_plan(t, int(N), l); found.tier != AUTO) return found;
    const int64_t vectors = (l.lead + N) / V;  // places a row needs, counted from its 128-byte floor
    const bool widens = sizeof(typename Op::Out) > sizeof(typename Op::Element);
    if (bytes <= SMALL_BYTES) {
        const int64_t least = (l.aligned ? N : N + V - 1) / V;
        const bool large = M * bytes >= LARGE_BYTES;
        if constexpr (ON_WARP<Op> > 0) {
            if (whole && least <= ON_WARP<Op> * WARP)
                if (const Plan found = warp_plan<Op>(M, least, large); found.tier != AUTO) return found;
        }
        return large && !widens ? small_many_plan(least, vectors, R, ODD_VECTORS<Op>) : small_plan(least, vectors, R, Op::E == 2, ODD_VECTORS<Op>);
    }
    Plan found = M <= FEW_ROWS && bytes >= FEW_BYTES ? few_plan(M, vectors, R, Op::E == 2) : many_plan(M, vectors, R, whole, Op::E == 2);
    found.turn = turn(found, M, bytes * R);
    return found;
}

}  // namespace softbench
