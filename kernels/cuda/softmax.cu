// Softmax and its gradient over rows, CUDA C++. No torch headers: it builds in seconds and is called through C.
//
// Every tier reads a row once and writes it once, with one exchange of (max, sum) in between; they differ in where a row waits for its
// exchange. One choice for each, from what was measured on an H200 (bytes are of one row of one tensor read; backward has two of them):
//
//   lanes    (short.cuh)  <= 1 KB     a row on 1 to 32 lanes: many rows must be in flight to fill the memory's pipe
//   staged   (short.cuh)  <= 1 KB     the same, of rows that start anywhere: a block of rows is one aligned piece of memory
//   block    (block.cuh)  <= 128 KB   a CTA a row in registers; several CTAs an SM overlap each other's exchange
//   cluster  (block.cuh)  few rows    the same on a cluster a row: 16 SMs are faster than one
//   ring     (ring.cuh)   <= 1 MB     persistent clusters fed by the copy engine: rows that leave no room for a second CTA an SM
//   wide     (wide.cuh)   <= 3 MB     the same with 128 KB and more of a row an SM, in registers and shared memory
//   split    (split.cuh)  any         CTAs all over the card share a row, in registers and shared memory; or one CTA a row of 64 to 128 KB
//   plain    (plain.cuh)  any         operands whose alignments differ
//
// sm_80 has no clusters: split takes their place.
//
// Tried, predicted, measured. Fractions of the speed of a copy of the same bytes: do_bench medians of two short development sweeps on one
// H200, good to .01 or .02 for long rows, worse for the few microseconds of few rows. The rules below are not yet refitted to them.
// - ring (persistent clusters, rows drawn from a counter, the copy engine two or three rows ahead) was to hide the exchange best. It had
//   .85-.88 on 4096 aligned rows of 256 KB and more, .53-.87 on unaligned ones, where the same sweep gave split .93 and .89-.92: its SM has
//   one row in registers at a time, and nobody stores while it waits. No rule picks it now.
// - wide with 24 vectors a thread was to need fewer CTAs a row. As two CTAs or more a row it had .72-.84, where 8 vectors x 512 threads,
//   well filled, had .875-.94. As one CTA a row of 200 KB it is the best there is: .93, backward .965.
// - Clusters of any number of CTAs beat powers of two, as CTAs are then full: 3 CTAs .94, 4 CTAs .90 (float32, 512 KB a row). Beyond six a
//   cluster loses (12: .78-.87, split .83-.89): a row waits for its last CTA.
// - block with 8 vectors and more than 512 threads is alone on its SM: .97 with all 1024 threads, but 16-bit unaligned rows of 67 and
//   100 KB .77 and .88, where split, 4 vectors in registers and the rest in shared memory, has .90 and .935.
// - split with all of a row in registers: .78-.86, where half the row in shared memory had .93 (first sweep; .88-.925 in the second, whose
//   sums of streamed vectors are as accurate as the registers').
// - Prototypes before these kernels, on the same kind of card: cache hints (no_allocate, .cs) .91 where plain accesses have .97; a static
//   persistent loop over rows .92-.955, drawn rows .97-.98, one CTA a row .96-1.0.
// Few rows end at .59-.83: all load, then all exchange, then all store, and a copy has no such phases.

#include "block.cuh"
#include "plain.cuh"
#include "ring.cuh"
#include "short.cuh"
#include "split.cuh"
#include "wide.cuh"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>
#include <type_traits>

namespace softbench {

enum Tier { AUTO = -1, LANES, STAGED, BLOCK, CLUSTER, RING, SPLIT, PLAIN, WIDE };

}  // namespace softbench

// What a launch does; also what a test or a sweep may ask for. `group`: lanes of a row (lanes, staged), CTAs of a row (cluster, ring,
// split). `depth`: whether rows may be
// unaligned (lanes), rows of a CTA (staged), stages (ring), vectors a thread in shared memory (split). `patience`: polls before a CTA of
// split helps itself; negative: it always does.
extern "C" struct SoftbenchPlan {
    int tier, vectors, threads, group, depth, floor, patience;
};

namespace softbench {

using Plan = SoftbenchPlan;

constexpr int FLOOR_LONG = 128;
constexpr int PATIENCE = 1 << 16;  // some tens of milliseconds
constexpr int SHORT_BYTES = 1024;
constexpr int WIDE_VECTORS = 12288;  // of a CTA of `wide`, two to an SM: half in registers, half in shared memory
constexpr int64_t MAX_N = (int64_t(1) << 31) - 4096;  // indices within a row are 32-bit, beyond this `plain` takes over

struct Device {
    int sms, shared_block, shared_sm, major;
};

const Device& device() {
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
    });
    return known[current];
}

template <typename I> I ceil_div(I a, I b) { return (a + b - 1) / b; }
template <typename I> I round_up(I a, I b) { return ceil_div(a, b) * b; }
int log2_ceil(int64_t n) {
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

// The rules. Numbers are of an H200 unless a device's attribute stands there.
template <typename Op> Plan plan(const Tensors<Op>& t, int64_t N) {
    constexpr int V = Op::V, R = Op::READS, KMAX = 8 / R;
    constexpr bool SAME = sizeof(typename Op::Element) == sizeof(typename Op::Out);
    const Device& d = device();
    const Layout l = layout(t, N);
    const int64_t M = t.M, bytes = N * int64_t(sizeof(typename Op::Element));
    if (!l.congruent || N > MAX_N) return {PLAIN, 0, N <= 2048 ? 128 : PLAIN_THREADS, N <= 2048, 0, 16, 0};

    const bool whole = l.aligned && N % V == 0;
    if (bytes <= SHORT_BYTES / R) {
        const int vectors = int(l.aligned ? N / V : (N + V - 1) / V);
        int best_k = 0, best_lanes = 0;
        double best = 0;
        for (int k = 1; k <= 3; ++k) {
            int lanes = std::max(ceil_div(vectors, k), 1);
            if (!whole) lanes = std::max(1 << log2_ceil(lanes), 2 * TAIL_THREAD);
            if (lanes > WARP) continue;
            // Of the places that a warp's instruction has, how many do something; two vectors a lane keep more bytes in flight. A single
            // lane's vectors would be apart in memory.
            double worth = double(vectors) * (WARP / lanes) / (k * WARP) + (k == 2 && lanes >= 4 ? 0.05 : 0) - (k > 1 && lanes < 2 ? 0.3 : 0);
            if (worth > best) best = worth, best_k = k, best_lanes = lanes;
        }
        const bool piece = SAME && R == 1 && l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0;
        if (piece && !whole && vectors < (V == 4 ? 24 : 11)) {
            int log = std::min(log2_ceil(ceil_div(N, int64_t(8))), 5);
            int rows = int(std::min<int64_t>(64, std::max<int64_t>(V, M / (8 * d.sms) / V * V)));
            int threads = std::min(LANES_THREADS, std::max(64, round_up(rows << log, 32) / 8));
            return {STAGED, N > (8 << log) ? 16 : 8, round_up(threads, 64), 1 << log, rows, 16, 0};
        }
        if (best > 0 && (whole || vectors >= 8)) return {LANES, best_k, LANES_THREADS / 2, best_lanes, !whole, 16, 0};
        if (!whole) return {PLAIN, 0, 128, 1, 0, 16, 0};
    }

    const int64_t vectors = (l.lead + N) / V;  // places a row needs, counted from its 128-byte floor
    auto threads_for = [&](int64_t n, int k, int most) { return int(std::min<int64_t>(most, std::max<int64_t>(32, round_up<int64_t>(ceil_div<int64_t>(n, k), 32)))); };
    const bool few = M <= 128 && bytes >= (16 << 10);

    if (few && d.major >= 9 && bytes <= (1 << 20) / R && (bytes * R <= (640 << 10) || M * vectors <= 1 << 19)) {
        const int log = bytes * R >= 128 << 10 ? 4 : 3;
        const int64_t share = round_up<int64_t>(ceil_div<int64_t>(vectors, 1 << log), 8);
        const int K = share * R >= 1536 || (share * R >= 1024 && M > 32) ? KMAX : 2 / R;
        if (share <= K * (K * R == 8 ? 640 : BLOCK_THREADS)) return {CLUSTER, K, threads_for(share, K, BLOCK_THREADS), 1 << log, 0, FLOOR_LONG, 0};
    }
    const bool hybrid = vectors > 4096 / R && !whole;
    if (!few && !hybrid && vectors <= BLOCK_THREADS * KMAX) {
        // More vectors a thread as rows grow: fewer warps join, and longer runs of loads.
        int K = R == 1 ? (vectors <= 128 && whole ? 2 : vectors < 1024 ? 4 : 8) : (vectors <= 256 ? 1 : vectors < 2048 ? 2 : 4);
        return {BLOCK, K, threads_for(vectors, K, BLOCK_THREADS), 1, 0, FLOOR_LONG, 0};
    }
    const int per_kept = SPLIT_THREADS * R * VECTOR_BYTES;  // bytes of shared memory for one more vector a thread
    const int most_kept = (d.shared_sm / 2 - 2048) / per_kept;
    const int most = SPLIT_THREADS * (KMAX + most_kept);
    if (!few && vectors <= most && bytes <= (128 << 10) + 4096) {
        const int kept = int(std::max<int64_t>(0, ceil_div<int64_t>(vectors, SPLIT_THREADS) - KMAX));
        return {SPLIT, KMAX, SPLIT_THREADS, 1, kept, FLOOR_LONG, 0};
    }
    if (M > 128 && d.major >= 9 && vectors * R <= 16 * WIDE_VECTORS)
        return {WIDE, 24 / R, 256, 1 << log2_ceil(ceil_div<int64_t>(vectors * R, WIDE_VECTORS)), 0, FLOOR_LONG, 0};
    // As many CTAs a row as fill the card where rows are few; else 128 KB a CTA, two CTAs an SM. Never more than the card holds at once.
    int64_t G = std::max<int64_t>(ceil_div<int64_t>(vectors, 8192 / R), M < 2 * d.sms ? (M <= 4 ? d.sms - 4 : 2 * d.sms) / M : 1);
    G = std::min<int64_t>(std::min<int64_t>(G, 2 * d.sms), ceil_div<int64_t>(vectors, 64));
    G = std::max<int64_t>(G, 1);
    const int64_t share = ceil_div<int64_t>(vectors, G);
    const int K = share <= 2 * SPLIT_THREADS / R ? 2 / R : KMAX;
    const int threads = std::max(64, threads_for(share, K, SPLIT_THREADS));
    const int kept = int(std::min<int64_t>(most_kept, std::max<int64_t>(0, ceil_div<int64_t>(share, threads) - K)));
    return {SPLIT, K, threads, int(G), kept, FLOOR_LONG, PATIENCE};
}

// ---- launching ----------------------------------------------------------------------------------------------------------------------

// 0: launched (or a CUDA error waits in cudaGetLastError); negative: so many bytes of zeroed workspace are missing.
struct Launch {
    cudaStream_t stream;
    Workspace* workspace;
    int64_t workspace_bytes;
    int64_t missing = 0;
    cudaError_t error = cudaSuccess;

    bool has_workspace(int64_t slots) {
        int64_t bytes = int64_t(sizeof(Workspace)) + slots * int64_t(sizeof(uint4));
        if (workspace_bytes < bytes) missing = bytes;
        return missing == 0;
    }
    // Attributes are set once, to the most the device allows: a launch in between with less must not take them away from another.
    template <typename... P> bool prepare(void (*kernel)(P...), size_t shared, bool big_cluster) {
        if (shared <= (48 << 10) - 4096 && !big_cluster) return true;
        static std::mutex mutex;
        static std::map<std::pair<const void*, int>, bool> done;
        int current = 0;
        cudaGetDevice(&current);
        std::lock_guard<std::mutex> guard(mutex);
        bool& ready = done[{reinterpret_cast<const void*>(kernel), current}];
        if (ready) return true;
        cudaFuncAttributes attributes;
        error = cudaFuncGetAttributes(&attributes, kernel);
        if (error == cudaSuccess)
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device().shared_block - int(attributes.sharedSizeBytes));
        if (error == cudaSuccess && device().major >= 9) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        if (error == cudaSuccess) error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        ready = error == cudaSuccess;
        return ready;
    }
    template <typename... P, typename... A>
    void operator()(void (*kernel)(P...), int64_t grid, int threads, size_t shared, int cluster, A... arguments) {
        if (!prepare(kernel, shared, cluster > 8)) return;
        cudaLaunchAttribute attributes[2];
        cudaLaunchConfig_t config = configuration(grid, threads, shared, cluster, attributes);
        error = cudaLaunchKernelEx(&config, kernel, P(arguments)...);
    }
    // A cluster's CTAs go to as many SMs: two on one SM would wait for the same exchange, where CTAs of two clusters overlap theirs.
    cudaLaunchConfig_t configuration(int64_t grid, int threads, size_t shared, int cluster, cudaLaunchAttribute (&attributes)[2]) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(unsigned(grid));
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = shared;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = cluster > 1 ? 2 : 0;
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = cluster;
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
        attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
        return config;
    }
    // Clusters that the device holds at once.
    template <typename... P> int clusters(void (*kernel)(P...), int threads, size_t shared, int cluster) {
        static std::mutex mutex;
        static std::map<std::tuple<const void*, int, int, size_t, int>, int> known;
        if (!prepare(kernel, shared, cluster > 8)) return 0;
        int current = 0;
        cudaGetDevice(&current);
        std::lock_guard<std::mutex> guard(mutex);
        int& count = known[{reinterpret_cast<const void*>(kernel), current, threads, shared, cluster}];
        if (count == 0) {
            cudaLaunchAttribute attributes[2];
            cudaLaunchConfig_t config = configuration(cluster, threads, shared, cluster, attributes);
            error = cudaOccupancyMaxActiveClusters(&count, kernel, &config);
        }
        return count;
    }
};

// Calls f with the K of the list, largest first, that the plan asks for.
template <int... K, typename F> bool with_vectors(int vectors, F f) {
    return ((vectors == K ? (f(std::integral_constant<int, K>()), true) : false) || ...);
}

// Calls f with the words and threads of the plan's shape, if there is such a kernel.
template <typename Op, typename F> bool with_shape(const Plan& p, F f) {
    const int words = p.vectors * Op::READS;
    auto is = [&](auto w, auto t) { return words == w.value && p.threads == t.value && (f(w, t), true); };
    using std::integral_constant;
    return is(integral_constant<int, 8>(), integral_constant<int, 512>()) || is(integral_constant<int, 8>(), integral_constant<int, 1024>()) ||
           is(integral_constant<int, 8>(), integral_constant<int, 256>()) || is(integral_constant<int, 16>(), integral_constant<int, 256>()) || is(integral_constant<int, 24>(), integral_constant<int, 256>()) ||
           is(integral_constant<int, 24>(), integral_constant<int, 512>());
}

// Calls f with the K and the most threads of the clusters' kernel that holds a plan's.
template <typename Op, typename F> bool with_cluster(const Plan& p, F f) {
    const int words = p.vectors * Op::READS;
    auto is = [&](auto w, auto most) { return words == w.value && p.threads <= most.value && (f(std::integral_constant<int, w.value / Op::READS>(), most), true); };
    using std::integral_constant;
    return is(integral_constant<int, 2>(), integral_constant<int, 512>()) || is(integral_constant<int, 2>(), integral_constant<int, 1024>()) ||
           is(integral_constant<int, 4>(), integral_constant<int, 512>()) || is(integral_constant<int, 8>(), integral_constant<int, 256>()) ||
           is(integral_constant<int, 8>(), integral_constant<int, 640>());
}

template <typename Op> bool launch(const Tensors<Op>& t, int64_t N, const Plan& p, Launch& go) {
    constexpr int R = Op::READS;
    constexpr bool SAME = sizeof(typename Op::Element) == sizeof(typename Op::Out);
    const int64_t M = t.M, vectors = (layout(t, N).lead + N) / Op::V;
    const int log = log2_ceil(p.group);
    auto each = [&](auto f) {
        if constexpr (R == 1) return with_vectors<8, 4, 2, 1>(p.vectors, f);
        else return with_vectors<4, 2, 1>(p.vectors, f);
    };
    switch (p.tier) {
        case LANES:
            if (p.depth)
                return with_vectors<1, 2, 3>(p.vectors, [&](auto k) {
                    go(lanes_odd<Op, k.value>, ceil_div(M << log, int64_t(p.threads)), p.threads, 0, 1, t, log, p.floor);
                });
            return with_vectors<1, 2, 3, 4>(p.vectors, [&](auto k) {
                const int rows = WARP / p.group;
                const int64_t grid = ceil_div(M, int64_t(p.threads / WARP * rows));
                with_vectors<4, 2, 1>(p.floor / 4, [&](auto w) {
                    if constexpr (k.value * w.value <= 12) go(lanes_whole<Op, k.value, w.value>, grid, p.threads, 0, 1, t, p.group, rows, ceil_div(2048, p.group));
                });
            });
        case STAGED:
            if constexpr (SAME)
                return with_vectors<8, 16>(p.vectors, [&](auto k) {
                    go(staged<Op, k.value>, ceil_div(M, int64_t(p.depth)), p.threads, size_t(p.depth) * N * R * sizeof(typename Op::Element), 1, t, log, p.depth);
                });
            return false;
        case BLOCK: return each([&](auto k) { go(block<Op, k.value>, M, p.threads, 0, 1, t, p.floor); });
        case CLUSTER:
            return with_cluster<Op>(p, [&](auto k, auto most) { go(cluster<Op, k.value, most.value>, M * p.group, p.threads, size_t(p.depth) << 10, p.group, t, p.group, p.floor); });
        case RING:
            if constexpr (SAME)
                return with_vectors<4 / R, 8 / R>(p.vectors, [&](auto k) {
                    const int chunk = int(round_up<int64_t>(ceil_div<int64_t>(vectors, p.group), 8));
                    const size_t shared = size_t(p.depth) * R * chunk * VECTOR_BYTES;
                    if (!go.has_workspace(0)) return;
                    int64_t clusters = std::min<int64_t>(M, go.clusters(ring<Op, k.value>, p.threads, shared, p.group));
                    if (go.error != cudaSuccess) return;
                    if (clusters == 0) return void(go.error = cudaErrorInvalidConfiguration);
                    go(ring<Op, k.value>, clusters << log, p.threads, shared, p.group, t, log, chunk, p.depth, p.floor, go.workspace);
                });
            return false;
        case SPLIT:
            return with_vectors<2 / R, 4 / R, 8 / R>(p.vectors, [&](auto k) {
                const int chunk = int(round_up<int64_t>(ceil_div<int64_t>(vectors, p.group), 8));
                if (p.group > 1 && !go.has_workspace(M * p.group)) return;
                go(split<Op, k.value>, M * p.group, p.threads, size_t(p.depth) * R * p.threads * VECTOR_BYTES, 1, t, p.group, chunk, p.depth, p.floor,
                   p.patience, go.workspace);
            });
        case WIDE: {
            const int chunk = int(round_up<int64_t>(ceil_div<int64_t>(vectors, p.group), 8));
            const size_t shared = size_t(std::max(0, chunk - p.vectors * p.threads)) * R * VECTOR_BYTES + (size_t(p.depth) << 10);
            return with_shape<Op>(p, [&](auto words, auto threads) { go(wide<Op, words.value, threads.value>, M * p.group, p.threads, shared, p.group, t, p.group, chunk, p.floor); });
        }
        case PLAIN:
            if (p.group == 1) go(plain<Op, true>, ceil_div(M, int64_t(p.threads / WARP)), p.threads, 0, 1, t, N);
            else go(plain<Op, false>, M, p.threads, 0, 1, t, N);
            return true;
    }
    return false;
}

// A plan given by hand must hold a row; the rules' own always do.
template <typename Op> bool holds(const Tensors<Op>& t, int64_t N, const Plan& p) {
    constexpr int R = Op::READS, V = Op::V;
    const Layout l = layout(t, N);
    if (p.tier == PLAIN) return true;
    if (!l.congruent || N > MAX_N || p.threads < 32 || p.threads % 32 || p.group < 1 || p.vectors < 1) return false;
    const bool power = (p.group & (p.group - 1)) == 0;
    const int64_t vectors = p.floor == FLOOR_LONG ? (l.lead + N) / V : ((l.aligned ? 0 : V - 1) + N) / V;
    const int64_t share = ceil_div<int64_t>(vectors, p.group);
    const bool clusters = device().major >= 9 && power && p.group <= MAX_CLUSTER && p.floor == FLOOR_LONG;
    switch (p.tier) {
        case LANES: {
            if (p.group > WARP || p.threads > LANES_THREADS) return false;
            if (p.depth) return vectors <= p.group * p.vectors && power && p.group >= 2 * TAIL_THREAD;
            const int each = p.floor / 4 * Op::E;
            return (p.floor == 4 || p.floor == 8 || p.floor == 16) && p.vectors * p.floor <= 48 && l.grain % each == 0 && N / each <= p.group * p.vectors;
        }
        case STAGED:
            return l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0 && power && p.group <= WARP && p.threads <= LANES_THREADS &&
                   N <= p.group * p.vectors && p.depth > 0 && p.depth % V == 0 && p.depth * N * R * int64_t(sizeof(typename Op::Element)) <= device().shared_block - 2048;
        case BLOCK: return p.threads <= BLOCK_THREADS && vectors <= int64_t(p.threads) * p.vectors;
        case CLUSTER:
            return device().major >= 9 && p.group > 1 && p.group <= MAX_CLUSTER && p.floor == FLOOR_LONG && with_cluster<Op>(p, [](auto, auto) {}) &&
                   vectors <= int64_t(p.group) * p.threads * p.vectors;
        case RING:
            return clusters && p.group > 1 && p.threads <= RING_THREADS && (p.depth == 2 || p.depth == 3) && round_up<int64_t>(share, 8) <= int64_t(p.threads) * p.vectors &&
                   p.depth * R * round_up<int64_t>(share, 8) * VECTOR_BYTES <= device().shared_block - 2048;
        case WIDE:
            return device().major >= 9 && p.floor == FLOOR_LONG && p.group <= MAX_CLUSTER && with_shape<Op>(p, [](auto, auto) {}) &&
                   R * (round_up<int64_t>(share, 8) - p.vectors * p.threads) * VECTOR_BYTES <= device().shared_block - 2048;
        case SPLIT:
            return p.threads <= SPLIT_THREADS && (p.group == 1 || p.threads >= 2 * WARP) && p.depth >= 0 && p.floor == FLOOR_LONG &&
                   int64_t(p.depth) * R * p.threads * VECTOR_BYTES <= device().shared_block - 2048;
    }
    return false;
}

template <typename Op> int64_t run(Tensors<Op> t, int64_t N, Plan* p, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    t.N = int(std::min<int64_t>(N, MAX_N));
    Plan chosen = p && p->tier != AUTO ? *p : plan(t, N);
    if (p && p->tier == AUTO) *p = chosen;
    else if (p && !holds(t, N, chosen)) return cudaErrorInvalidValue;
    Launch go = {stream, static_cast<Workspace*>(workspace), workspace_bytes};
    if (!launch(t, N, chosen, go)) return cudaErrorInvalidValue;
    if (go.missing) return -go.missing;
    cudaError_t left = cudaGetLastError();
    return go.error != cudaSuccess ? go.error : left;
}

template <typename In, typename Out>
int64_t forward(const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, Plan* p, void* w, int64_t bytes, cudaStream_t stream) {
    return run(Tensors<Forward<In, Out>>{{static_cast<const In*>(x)}, static_cast<Out*>(y), {x_stride}, y_stride, M, 0}, N, p, w, bytes, stream);
}

template <typename T>
int64_t backward(const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M, int64_t N, Plan* p, void* w,
                 int64_t bytes, cudaStream_t stream) {
    return run(Tensors<Backward<T>>{{static_cast<const T*>(dy), static_cast<const T*>(y)}, static_cast<T*>(dx), {dy_stride, y_stride}, dx_stride, M, 0}, N,
               p, w, bytes, stream);
}

}  // namespace softbench

// Both launch on `stream` of the current device. They return 0; or a cudaError_t; or, negative, how many bytes of workspace are missing:
// nothing was launched then, and the call is to be made again with at least so many, zeroed once and not shared by two launches that may
// run at the same time. Strides are in elements; dtypes are 0 float32, 1 float16, 2 bfloat16, and y's is x's or float32; 1 <= M < 2^31,
// N >= 1. `p` may be null; a plan of tier -1 is filled in with the rules' choice, any other is obeyed or refused (cudaErrorInvalidValue).
extern "C" int64_t softbench_forward(const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, int dtype, int out_dtype,
                                     void* workspace, int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    using namespace softbench;
    switch (dtype * 3 + out_dtype) {
        case 0: return forward<float, float>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 3: return forward<__half, float>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 4: return forward<__half, __half>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 6: return forward<__nv_bfloat16, float>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 8: return forward<__nv_bfloat16, __nv_bfloat16>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" int64_t softbench_backward(const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M,
                                      int64_t N, int dtype, void* workspace, int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    using namespace softbench;
    switch (dtype) {
        case 0: return backward<float>(dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream);
        case 1: return backward<__half>(dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream);
        case 2: return backward<__nv_bfloat16>(dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }
