// Softmax and its gradient over rows, CUDA C++. No torch headers: it builds in seconds and is called through C.
//
// Every tier reads a row once and writes it once, with one exchange of (max, sum) in between; they differ in where a row waits for its
// exchange. One choice for each, from what was measured on an H200 (bytes are of one row of one tensor read; backward has two of them):
//
//   lanes    (short.cuh)  <= 2.5 KB   a row on 1 to 32 lanes: many rows must be in flight to fill the memory's pipe
//   staged   (short.cuh)  <= 1 KB     rows that start anywhere: a block of rows is one aligned piece of memory
//   warp     (warp.cuh)   <= 4 KB     a warp a row, or two: rows of whole vectors, whose number a lane is known when compiling
//   block    (block.cuh)  <= 36 KB    a CTA a row in registers; several CTAs an SM overlap each other's exchange
//   cluster  (block.cuh)  <= 768 KB   the same on a cluster a row: as many rows wait for their exchange, and each waits shorter
//   wide     (wide.cuh)   <= 1.8 MB   a cluster a row, more of it in registers, the rest in shared memory
//   spread   (wide.cuh)   any         the same chunks, but the row's CTAs are anywhere on the card and meet in global memory
//   split    (split.cuh)  the rest    less shared memory or other counts of CTAs: few rows, rows longer than the card holds
//   plain    (plain.cuh)  any         operands whose alignments differ
//
// sm_80 has neither clusters nor the copy engine: split takes the place of cluster, wide and spread. rules.cuh chooses.
//
// Tried, predicted, measured: fractions of the speed of a copy of the same bytes, medians of short development sweeps on one H200, good to
// .01 for long rows, worse for the few microseconds of few rows. What `softbench run` measures is in results/h200.
// - L1 is where loads land that are under way. With an SM's memory preferred as shared, as is usual for kernels of much shared memory, it
//   has 28 KB of it, and kernels that load to registers were slow by what had been launched before them: wide .83 and .94, backward clusters
//   .81 and .98, for one and the same launch. Asking for what the resident CTAs need (Launch::carveout): always the better of the two; 1024 rows of
//   1 MB .79 to .92. It was found by a process that had not yet run another kernel. CUDA promises it of launches, not of graph nodes.
// - A ring (persistent clusters, rows drawn from a counter, the copy engine two or three rows ahead, after prototypes that had .98) was to
//   hide the exchange best: .86-.87 in every shape, one or two CTAs an SM, two or three stages. Not the exchange (without it, and without
//   arithmetic: .80 in static order), nor the size of copies (4 KB: the same), nor the stores (by the copy engine: .84); with cp.async .73-.86. So
//   it is the order of its accesses, which nothing tried here mended; it is gone.
// - A cluster's CTAs spread over SMs, so that two on one SM do not wait for the same exchange: 8 rows .75 to .79; many rows no different.
// - One word made clusters slow, and with it most choices here: barrier.cluster.arrive is a release unless it says .relaxed, and a release
//   waits for all the card's memory (MEMBAR.ALL.GPU before the first load). Found by launching quack's kernel, .035 faster at 131072 bf16, from
//   its cubin beside ours: another grid and another kind of cp.async made no difference to it, and a copy of it in C++ was as fast only
//   while its arrive was relaxed. Predicted to close the .035; 131072 bf16 .957 to .998, 50257 .948 to .990, 65536 .983 to 1.00, 128256 .950 to
//   .994; float32 65536 .969 to 1.00, 131072 .966 to .99; 128 rows of 256 KB .86 to .94. cp.async in front of the registers then gives nothing
//   (.993 for .990), nor does a wait that is no acquire.
// - How a cluster's row is cut matters by .01 to .03: 96 to 224 threads of 8 vectors (64 registers) and as many CTAs as fill 85-95 % of an SM's
//   threads are better than all of them; 16-bit rows beyond 272 KB want 12 or 16 vectors a thread, as fewer CTAs wait for each other. A model (rows
//   that a GPC of 18 SMs can hold) chose no better than the table in rules.cuh: both .005 below the best of some 40 plans, on average.
// - Memory that copies go to begins at a line: at any 16 bytes it was .003 to .01 slower (spread, 1024 rows of 1 MB .946 to .954).
// - Three CTAs an SM with 76 KB each, anywhere on the card: predicted to lose to clusters, as global memory is the slower place to meet; won, as
//   any number of CTAs can share a row, all SMs take part (clusters of 16 leave 20 of 132 idle) and three wait at different times: 1024 rows of
//   4 MB .83 to .90, of 2 MB .91 to .94, 64 of 4 MB .82 to .87, 4096 of 1 MB .94 to .95. Four with 56 KB or two with 115 KB: .02 less. Backward of many rows
//   is faster on clusters (.98 and .97).
// - Few rows: all load, then all exchange, then all store, and a copy has no such phases: .61-.90. A slot polled per thread, CTAs enough that
//   each has 16 KB; more CTAs meet later, fewer load longer. Clocks in the kernel for one row of 4 MB on 128 CTAs (10.0 us by events, a copy 6.7): loads
//   2.0, a CTA's own part 0.9, its slot 0.7, the slowest's slot and the join 1.2, stores 0.4. Without any exchange 8.0; all warps polling all slots
//   11.3; one warp polling four slots a lane 10.2.
// - The launch's tag read by every warp is a thousand reads of one line: read by one thread a CTA, and joins no deeper than the CTA has warps:
//   8 rows of 2 MB .79 to .84, 4 rows .70 to .78.
// - Short rows of 8- and 4-byte pieces (bf16, N = 100) at .86, where Triton has .95 with the very same layout, eight lanes of four pieces: 368
//   instructions a thread here, 240 there, as the number of lanes was known only at run time (a branch for each shuffle). Before that was seen:
//   other layouts, Triton's of a stretch of memory an access among them (.02 to .18 worse), 32 registers in place of 39 and addresses computed
//   once (no change). Eight lanes known when compiling: N = 100 .86 to .93, 124 .87 to .96, 50 .78 to .91, 34 .70 to .88, backward 50 .93 to 1.02.
// - Unaligned 16-bit rows are bound by instructions, some 300 a thread of 16 elements. Exponentials kept, not computed twice: predicted .95 at
//   N = 197, .90 to .92. Four vectors a lane, so that rows of 1.5 to 2 KB have one warp, after Triton: N = 781 .92 to .98, of 65536 rows .86 to 1.00
//   (64 threads a CTA; 128: .98). Many aligned rows of that length have the same plan (65536 x 1000: two warps .89, this .975).
// - Rows of up to 2 KB in 16 bits on two warps in place of one: .93 to .97 at N = 1000, .96 to .99 at 1024. 16 vectors a thread (96 registers, as
//   Triton's best there): float32 of 32 KB .975 to .985, backward of 16 KB .98 to .99; 16-bit forward the same or worse.
// - Rows that begin at once wait for their exchanges at once: with two to thirty rows on the card, all load, then nothing moves, then all store, and
//   so wave after wave (16 rows of 16 MB .76). Predicted to be most of what they lack: rows that begin one after the other, as far apart as
//   the memory takes to read one. 16 rows of 4 MB in float32 .81 to .90, 32 .85 to .93, 16 of 16 MB .76 to .84, 128 of 1 MB in 16 bits .88 to .92; 4096
//   rows of 512 KB as before. The distance matters little from .7 to 1.3 of that time; twice as far loses all of it again. Turns by layers of
//   CTAs in place of rows: less. Where the card holds all rows at once, spread's lose .03 to .09 by it, clusters win .01.
// - With turns fewer CTAs a row are better where they are anywhere: two to an SM with 96 KB in registers (float32 and the backward; 128 backward rows of
//   8 MB .76 to .86), three as before in 16 bits. 8 to 32 rows that the card holds at once, of 16 bits: four CTAs an SM of 256 threads, a quarter and more
//   of their part in registers and the rest copied by each thread for itself: 24 rows of 1 MB .75 to .85, 32 of 800 KB .77 to .85.
// - The join of a warp, predicted to cost a row of 2 MB .2 us of its 10 by ten shuffles one after the other: the maximum by redux.sync in their integer
//   order, and exponentials of two vectors a thread kept: 1 row of 2 MB .67 to .72, 64 KB .82 to .86, 8 MB .74 to .78. Four vectors kept, too: no better.
// - Many rows of 1 to 4 KB: an SM holds 32 CTAs, so that one warp a CTA, best for 4096 rows, leaves it half empty. Predicted to want two and more;
//   measured for 65536 rows, three (why not two was not looked for), or rows on a warp, two to a CTA: 2000 bf16 .92 to .995, 1000 float32 .93 to 1.00, backward 1000 bf16 .88 to .996.
// - Short rows: all warps of an SM begin at once, so that what stands before the loads is paid by all. Lanes known when compiling (304 instructions a
//   thread of 16 elements to 192), maxima among packed words, stores by predicate and not by branch, a row's number in 32 bits; the first two alone
//   were predicted to give .01 at 4096 x 781 in bf16 and gave nothing (.958 to .957), all four .977, 600 columns .88 to .975 (on a warp, not two),
//   901 .976 to .995. A million rows: lanes of a power of two even where some have nothing, 80 columns .971 to 1.000, 192 .983 to .995; half a vector
//   a lane at a time, 64 columns .983 to 1.001; backward rows of 8 and 16 vectors with one a lane, float32 32 .924 to 1.000.
// - What stands before the first load of few and small rows: an alignment that is known when compiling (LINES) and a cluster's number from
//   %clusterid, not by a division: 67 instructions to 29 before the first load of `block`, 186 to 128 before the last of a cluster's eight. Predicted .01
//   to .03: 1 row of 64 KB .84 to .87, 4096 x 1536 .985 to 1.00. Where a launch reads 32 MB and more nothing, or less: backward of 131072 columns 1.00 to
//   .94, for no reason that was found. One vector a thread on clusters of 16 in place of two: no better.
// - `split` whose chunks are known to fit registers (WHOLE), with two vectors a thread and their exponentials kept: predicted to save a third of
//   a microsecond of 5 for 1 row of 1 MB: .69 to .74; 2 MB .74 to .78, 8 rows of 512 KB .77 to .81.
// - What is read stays in L2 before what is written (evict_last; policy_of): what is written then leaves L2 presumably in its order. forward.py of the
//   Triton kernels tells how it was found, and that it is none of do_bench's doing; here, in sweeps of one library at a time, 4096 x 4096 in bf16 1.01
//   to 1.03, 16384 .96 to 1.00, 131072 .975 to 1.015, float32 65536 .98 to 1.016, backward 4096 bf16 1.00 to 1.05, 65536 1.00 to 1.01, 1024 rows of 2 MB in
//   float32 .96 to .995, 262144 x 333 .97 to 1.00. Loads by a policy made anew for each (five instructions, whose registers wait for the load
//   before) lost 3 to 6 % with 12 and 16 vectors a thread; by a branch in place of a predicate up to 17 %. The hint that changes nothing (evict_normal) cost
//   small launches 2 %: they have plain loads. L1's hints (no_allocate, evict_last) and L2 prefetches of 128 and 256 bytes: less or the same.
// - quack led by 2 to 5 % where 8192 and 15000 rows have 260 to 768 floats. Predicted: a warp a row with 4, 6 or 8 vectors a lane (336 instructions a
//   thread in place of 480) gains .3 us of the 13 of 4096 x 1024. It gained nothing there, and the sweep that seemed to show gains and losses showed
//   something else: one launch and the next differ by .5 us, by turns, of an empty kernel, too, so that plans are compared at launches of both kinds.
//   What helped is that a lane has no vector too many, and few instructions (232 for five): 15000 x 640 23.1 to 22.2 us, 8192 x 512 13.6 to 12.7,
//   30000 x 384 26.7 to 25.5, bf16 15000 x 1280 24.2 to 22.2; 4096 x 1024 the same. cp.async into shared memory first, as quack has it: no better;
//   the copy engine: worse by .2. Then 8192 rows, of which an SM's registers hold 40 of 62: predicted to want all at once. Two rows a warp, in shared
//   memory: 8192 x 640 15.1 to 14.7, bf16 8192 x 1024 13.4 to 12.7; where the rows do not all fit even so, worse: 15000 x 640 22.2 to 22.7.
// - A rule fitted to noise: in one run (small.csv) 16384 x 1024 floats, 64 MB, read 60 to 200 us a call, and so rows of 64 MB and more got the older
//   plans back. Repeated: 36.0 us for 37.7 of the older plan and 35.8 of a copy; 189 cells from 64 to 512 MB: the warp's plan from .98 to 1.23 of the
//   older one (392 floats .88 of copy to 1.02, 1032 halves .83 to 1.02), .996 of it only for float32 rows of seven and eight vectors a lane. The same
//   holes where rows start anywhere: `lanes_odd` of four vectors of floats and five of halves, 385 floats .85 to 1.01, 1025 halves .82 to 1.02.
// - Random shapes, 16 to 380 MB of them against a copy, found what no grid had, by the first 44: gradients of short rows that start anywhere were
//   `plain` at .01 to .4 of it, `staged` rows of 16 bits at .1 to .7, gradients of 132 floats in CTAs of one warp at .67. After what follows: of
//   1631 with 2 to 2048 columns none below .925, of 438 longer ones ten below .9, nine of them gradients of 10 to 39 rows: not looked into.
// - `staged` took 38 instructions an element, and as many for a place that had none: shared memory's address was made anew for each (S2R, LEA), with
//   a predicate each. Predicted: with one address, and lanes known when compiling, 12, and so the memory's speed: 33 halves .41 to .93, 31 .72 to
//   .91, 3 .26 to 1.06, 57 (from `lanes_odd`) .54 to 1.01. What was left was banks: rows of 63 halves .73, of 9 .87, as a simulation of their
//   conflicts told; with a warp's rows apart (rows_apart) 1.02 and 1.02. Then instructions again, as nearly half of the places can be empty: ten
//   elements a lane at most in place of eight, 65 halves .87 to 1.03, 129 .82 to 1.02; one loop over a warp's rows in place of two, 44 .89 to 1.03.
// - Prototypes before these kernels, on the same kind of card: cache hints (no_allocate, .cs) .91 where plain accesses have .97; a static
//   persistent loop over rows .92-.955, drawn rows .97-.98, one CTA a row .96-1.0.

#include "rules.cuh"

#include <map>
#include <tuple>
#include <type_traits>

namespace softbench {

// ---- launching ----------------------------------------------------------------------------------------------------------------------

// 0: launched (or a CUDA error waits in cudaGetLastError); negative: so many bytes of zeroed workspace are missing.
struct Launch {
    cudaStream_t stream;
    Workspace* workspace;
    int64_t workspace_bytes;
    int64_t bytes;  // of a tensor
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
        ready = error == cudaSuccess;
        return ready;
    }
    // How much of an SM's memory is to be shared memory, in percent: what the CTAs that it can hold need, and no more. The rest is L1, where
    // loads land that are under way: with all of it shared, loads to registers are too few at a time. Left alone, the driver takes what it
    // finds, and a kernel's speed depends on what ran before it. Parting anew takes an SM a moment: not for a launch of some microseconds
    // that needs next to no shared memory.
    template <typename... P> int carveout(void (*kernel)(P...), int threads, size_t shared) {
        static std::mutex mutex;
        static std::map<std::tuple<const void*, int, int, size_t>, int> known;
        int current = 0;
        cudaGetDevice(&current);
        std::lock_guard<std::mutex> guard(mutex);
        auto [found, fresh] = known.try_emplace({reinterpret_cast<const void*>(kernel), current, threads, shared}, 0);
        if (fresh) {
            cudaFuncAttributes attributes = {};
            int ctas = 1;
            error = cudaFuncGetAttributes(&attributes, kernel);
            if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, shared);
            if (error != cudaSuccess) return void(known.erase(found)), cudaSharedmemCarveoutDefault;
            const int64_t need = int64_t(ctas) * (int64_t(shared) + int64_t(attributes.sharedSizeBytes) + 1024);
            found->second = int(std::min<int64_t>(100, ceil_div<int64_t>(100 * need, device().shared_sm)));
        }
        return found->second;
    }
    // The turns of a plan's rows: of as many as the card holds. Where that is all of them, clusters still win by turns, CTAs anywhere do not.
    // A hint, so that where the driver does not say how many there are, all begin at once.
    template <typename... P> Turns turns(void (*kernel)(P...), int threads, size_t shared, bool cluster, int64_t M, const Plan& p) {
        cluster = cluster && p.group > 1;
        if (p.turn <= 0 || !prepare(kernel, shared, cluster && p.group > 8)) return {0, 0};
        static std::mutex mutex;
        static std::map<std::tuple<const void*, int, int, size_t, int>, int> known;
        int current = 0;
        cudaGetDevice(&current);
        std::lock_guard<std::mutex> guard(mutex);
        auto [found, fresh] = known.try_emplace({reinterpret_cast<const void*>(kernel), current, threads, shared, cluster ? p.group : 0}, 0);
        if (fresh) {
            int count = 0;
            cudaError_t asked;
            if (cluster) {
                cudaLaunchAttribute attributes[3];
                cudaLaunchConfig_t config = configuration(int64_t(p.group) * device().sms, threads, shared, p.group, attributes);
                asked = cudaOccupancyMaxActiveClusters(&count, kernel, &config);
            } else {
                asked = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, threads, shared);
                count *= device().sms;
            }
            if (asked == cudaSuccess) found->second = count;
            else cudaGetLastError();
        }
        const int rows = cluster ? found->second : found->second / p.group;
        return !cluster && M <= rows ? Turns{0, 0} : Turns{rows, p.turn};
    }
    template <typename... P, typename... A>
    void operator()(void (*kernel)(P...), int64_t grid, int threads, size_t shared, int cluster, A... arguments) {
        if (!prepare(kernel, shared, cluster > 8)) return;
        cudaLaunchAttribute attributes[3];
        cudaLaunchConfig_t config = configuration(grid, threads, shared, cluster, attributes);
#if CUDART_VERSION >= 13000
        if (shared == 0 && bytes < LARGE_BYTES) return void(error = cudaLaunchKernelEx(&config, kernel, P(arguments)...));
        attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
        attributes[config.numAttrs++].val.sharedMemCarveout = carveout(kernel, threads, shared);
        if (error != cudaSuccess) return;
#endif
        error = cudaLaunchKernelEx(&config, kernel, P(arguments)...);
    }
    cudaLaunchConfig_t configuration(int64_t grid, int threads, size_t shared, int cluster, cudaLaunchAttribute (&attributes)[3]) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(unsigned(grid));
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = shared;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = cluster > 1;
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = cluster;
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        if (cluster > 1 && grid <= device().sms) {  // few rows: an SM a CTA
            config.numAttrs = 2;
            attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
            attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
        }
        return config;
    }
};

// Calls f with the K of the list, largest first, that the plan asks for.
template <int... K, typename F> bool with_vectors(int vectors, F f) {
    return ((vectors == K ? (f(std::integral_constant<int, K>()), true) : false) || ...);
}

// Calls f with the words and threads of the plan's shape, if there is such a kernel; each costs a second of compiling.
template <typename Op, bool SPREAD, typename F> bool with_shape(const Plan& p, F f) {
    const int words = p.vectors * Op::READS;
    auto is = [&](auto w, auto t) { return words == w.value && p.threads == t.value && (f(w, t), true); };
    using std::integral_constant;
    if constexpr (SPREAD)
        return is(integral_constant<int, 8>(), integral_constant<int, 256>()) || is(integral_constant<int, 8>(), integral_constant<int, 512>()) ||
               is(integral_constant<int, 24>(), integral_constant<int, 256>());
    else
        return is(integral_constant<int, 24>(), integral_constant<int, 256>());
}

// Calls f with the K and the most threads of the clusters' kernel that holds a plan's.
template <typename Op, typename F> bool with_cluster(const Plan& p, F f) {
    const int words = p.vectors * Op::READS;
    auto is = [&](auto w, auto most) { return words == w.value && p.threads <= most.value && (f(std::integral_constant<int, w.value / Op::READS>(), most), true); };
    using std::integral_constant;
    if constexpr (Op::READS == 1 && Op::E == 2) {
        if (is(integral_constant<int, 16>(), integral_constant<int, 128>())) return true;
    }
    return is(integral_constant<int, 2>(), integral_constant<int, 512>()) || is(integral_constant<int, 4>(), integral_constant<int, 512>()) ||
           is(integral_constant<int, 8>(), integral_constant<int, 256>()) || is(integral_constant<int, 8>(), integral_constant<int, 512>()) ||
           is(integral_constant<int, 12>(), integral_constant<int, 256>());
}

// Calls f with the K and the most threads of the blocks' kernel that holds a plan's.
template <typename Op, typename F> bool with_block(const Plan& p, F f) {
    using std::integral_constant;
    constexpr int R = Op::READS;
    auto is = [&](auto k, auto most) { return p.vectors == k.value && p.threads <= most.value && (f(k, most), true); };
    constexpr integral_constant<int, BLOCK_THREADS> any;
    constexpr integral_constant<int, BLOCK_THREADS / 8> few;
    if constexpr (R == 1) {
        if (is(integral_constant<int, 8>(), any)) return true;
    } else {
        if (is(integral_constant<int, 12 / R>(), few)) return true;
    }
    if constexpr (R == 2 || Op::E == 1) {
        if (is(integral_constant<int, 16 / R>(), few)) return true;
    }
    return is(integral_constant<int, 4>(), any) || is(integral_constant<int, 2>(), any) || is(integral_constant<int, 1>(), any);
}

// Calls f with the vectors a lane of the kernel for rows on a warp.
template <typename Op, typename F> bool with_warp(const Plan& p, F f) {
    if constexpr (ON_WARP<Op> == 8) {
        if (with_vectors<7, 8>(p.vectors, f)) return true;
    }
    if constexpr (ON_WARP<Op> > 0) return with_vectors<3, 4, 5, 6>(p.vectors, f);
    return false;
}

template <typename Op, bool STAY> bool launch(const Tensors<Op>& t, int64_t N, const Plan& p, Launch& go) {
    constexpr int R = Op::READS;
    constexpr bool SAME = sizeof(typename Op::Element) == sizeof(typename Op::Out);
    const Layout l = layout(t, N);
    const int64_t M = t.M, vectors = (l.lead + N) / Op::V;
    const bool lines = !STAY && l.grain == Op::V && l.aligned && (p.floor != FLOOR_LONG || l.lead == 0);
    const int log = log2_ceil(p.group);
    switch (p.tier) {
        case LANES:
            if (p.depth)
                return with_vectors<1, 2, 3, 4, 5>(p.vectors, [&](auto k) {
                    const int64_t grid = ceil_div(M << log, int64_t(p.threads));
                    if constexpr (k.value <= ODD_VECTORS<Op>) {
                        if (p.group == WARP) return go(lanes_odd<Op, k.value, WARP, STAY>, grid, p.threads, 0, 1, t);
                    }
                    if constexpr (k.value < 4) go(lanes_odd<Op, k.value, WARP / 2, STAY>, grid, p.threads, 0, 1, t);
                });
            return with_vectors<1, 2, 3, 4>(p.vectors, [&](auto k) {
                const int rows = WARP / p.group;
                const int64_t grid = ceil_div(M, int64_t(p.threads / WARP * rows));
                with_vectors<4, 2, 1>(p.floor / 4, [&](auto w) {
                    auto known = [&](auto lanes) {
                        if (p.group == lanes.value) go(lanes_whole<Op, k.value, w.value, lanes.value, STAY>, grid, p.threads, 0, 1, t, p.group, rows, 0);
                        return p.group == lanes.value;
                    };
                    using std::integral_constant;
                    if constexpr (k.value > 1 && w.value < 4) {
                        if (known(integral_constant<int, 8>())) return;
                    } else if constexpr (k.value == 1 && w.value == 4) {
                        if (known(integral_constant<int, 2>()) || known(integral_constant<int, 4>())) return;
                        if constexpr (R == 2) {
                            if (known(integral_constant<int, 8>()) || known(integral_constant<int, 16>())) return;
                        }
                    } else if constexpr (k.value == 2 && w.value == 4) {
                        if (known(integral_constant<int, 16>())) return;
                        if constexpr (R == 1) {
                            if (known(integral_constant<int, 4>()) || known(integral_constant<int, 8>()) || known(integral_constant<int, 32>())) return;
                        }
                    }
                    if constexpr (k.value * w.value <= 12)
                        go(lanes_whole<Op, k.value, w.value, 0, STAY>, grid, p.threads, 0, 1, t, p.group, rows, ceil_div(2048, p.group));
                });
            });
        case ONE_WARP: {
            const int rows = p.threads / WARP * p.depth, stride = int(round_up<int64_t>(N / Op::V, LINE_VECTORS));
            const int64_t grid = ceil_div(M, int64_t(rows));
            return with_warp<Op>(p, [&](auto k) {
                if constexpr (ON_WARP<Op> > 0) {
                    if (p.depth == 2) go(warp_rows<Op, k.value>, grid, p.threads, size_t(rows) * stride * VECTOR_BYTES, 1, t, stride);
                    else go(warp_row<Op, k.value, STAY>, grid, p.threads, 0, 1, t);
                }
            });
        }
        case STAGED:
            if constexpr (SAME)
                return with_vectors<1, 2, 4, 8, 16, 32>(p.group, [&](auto lanes) {
                    constexpr int SIZE = sizeof(typename Op::Element);
                    const int apart = rows_apart(M, int(N), p.group, SIZE, R);
                    const size_t shared = staged_bytes(p, N, SIZE, R, apart);
                    go(staged<Op, lanes.value, STAY>, ceil_div(M, int64_t(p.depth)), p.threads, shared, 1, t, p.vectors, p.depth, apart);
                });
            return false;
        case BLOCK:
            return with_block<Op>(p, [&](auto k, auto most) {
                go(lines ? block<Op, k.value, most.value, !STAY, STAY> : block<Op, k.value, most.value, false, STAY>, M, p.threads, 0, 1, t, p.floor);
            });
        case CLUSTER:
            return with_cluster<Op>(p, [&](auto k, auto most) {
                const auto kernel = lines ? cluster<Op, k.value, most.value, !STAY, STAY> : cluster<Op, k.value, most.value, false, STAY>;
                go(kernel, M * p.group, p.threads, 0, p.group, t, p.group, p.floor, go.turns(kernel, p.threads, 0, true, M, p));
            });
        case SPLIT: {
            const int chunk = int(round_up<int64_t>(ceil_div<int64_t>(vectors, p.group), LINE_VECTORS));
            if (p.group > 1 && !go.has_workspace(M * p.group)) return true;
            auto with = [&](auto kernel) {
                go(kernel, M * p.group, p.threads, size_t(p.depth) * R * p.threads * VECTOR_BYTES, 1, t, p.group, chunk, p.depth, p.floor, p.patience, go.workspace);
            };
            if (p.depth == 0 && chunk <= p.vectors * p.threads)
                return with_vectors<2 / R, 4 / R, 8 / R>(p.vectors, [&](auto k) { with(lines ? split<Op, k.value, true, !STAY, STAY> : split<Op, k.value, true, false, STAY>); });
            return with_vectors<4 / R, 8 / R>(p.vectors, [&](auto k) { with(split<Op, k.value, false, false, STAY>); });
        }
        case WIDE:
        case SPREAD: {
            const int chunk = int(round_up<int64_t>(ceil_div<int64_t>(vectors, p.group), LINE_VECTORS));
            const size_t shared = size_t(std::max(0, chunk - p.vectors * p.threads)) * R * VECTOR_BYTES;  // whole lines, as both are
            if (p.tier == SPREAD && !go.has_workspace(M * p.group)) return true;
            auto across = [&](auto words, auto threads) {
                const auto kernel = wide<Op, words.value, threads.value, true, STAY>;
                go(kernel, M * p.group, p.threads, shared, 1, t, p.group, chunk, p.floor, p.patience, go.workspace, go.turns(kernel, p.threads, shared, false, M, p));
            };
            auto cluster = [&](auto words, auto threads) {
                const auto kernel = wide<Op, words.value, threads.value, false, STAY>;
                go(kernel, M * p.group, p.threads, shared, p.group, t, p.group, chunk, p.floor, 0, nullptr, go.turns(kernel, p.threads, shared, true, M, p));
            };
            return p.tier == SPREAD ? with_shape<Op, true>(p, across) : with_shape<Op, false>(p, cluster);
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
    if (p.floor != 16 && p.floor != FLOOR_LONG && !(p.tier == LANES && !p.depth)) return false;
    const int64_t vectors = p.floor == FLOOR_LONG ? (l.lead + N) / V : ((l.aligned ? 0 : V - 1) + N) / V;
    const int64_t share = ceil_div<int64_t>(vectors, p.group);
    switch (p.tier) {
        case LANES: {
            if (p.group > WARP || p.threads > LANES_THREADS) return false;
            if (p.depth)
                return p.floor == VECTOR_BYTES && vectors <= p.group * p.vectors && p.vectors <= (p.group == WARP ? ODD_VECTORS<Op> : 3) && power && p.group >= 2 * TAIL_THREAD;
            const int each = p.floor / 4 * Op::E;
            return (p.floor == 4 || p.floor == 8 || p.floor == 16) && p.vectors <= 4 && p.vectors * p.floor <= 48 && l.grain % each == 0 && N / each <= p.group * p.vectors;
        }
        case STAGED: {
            constexpr int SIZE = sizeof(typename Op::Element);
            return l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0 && power && p.group <= WARP && p.threads <= STAGED_THREADS &&
                   (p.threads & (p.threads - 1)) == 0 && p.vectors == ceil_div<int64_t>(N, p.group) && p.vectors <= STAGED_EACH &&
                   (p.group == 1 || p.vectors > STAGED_EACH / 2) && p.depth > 0 && p.depth % V == 0 &&
                   staged_bytes(p, N, SIZE, R, rows_apart(t.M, int(N), p.group, SIZE, R)) <= device().shared_block - 2048;
        }
        case ONE_WARP:
            return with_warp<Op>(p, [](auto) {}) && l.grain == V && p.group == 1 && p.floor == VECTOR_BYTES && p.threads <= WARP_THREADS && vectors <= WARP * p.vectors &&
                   (p.depth == 1 || (p.depth == 2 && 2 * (p.threads / WARP) * round_up<int64_t>(vectors, LINE_VECTORS) * VECTOR_BYTES <= device().shared_block));
        case BLOCK: return with_block<Op>(p, [](auto, auto) {}) && vectors <= int64_t(p.threads) * p.vectors;
        case CLUSTER:
            return device().major >= 9 && p.group > 1 && p.group <= MAX_CLUSTER && p.floor == FLOOR_LONG && with_cluster<Op>(p, [](auto, auto) {}) &&
                   vectors <= int64_t(p.group) * p.threads * p.vectors;
        case WIDE:
        case SPREAD:
            return device().major >= 9 && p.floor == FLOOR_LONG && (p.tier == SPREAD || p.group <= MAX_CLUSTER) &&
                   (p.tier == SPREAD ? with_shape<Op, true>(p, [](auto, auto) {}) : with_shape<Op, false>(p, [](auto, auto) {})) &&
                   R * (round_up<int64_t>(share, LINE_VECTORS) - p.vectors * p.threads) * VECTOR_BYTES <= device().shared_block - 2048;
        case SPLIT:
            if (p.vectors != 4 / R && p.vectors != 8 / R && !(p.vectors == 2 / R && p.depth == 0 && round_up<int64_t>(share, LINE_VECTORS) <= p.vectors * p.threads)) return false;
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
    Launch go = {stream, static_cast<Workspace*>(workspace), workspace_bytes, t.M * N * int64_t(sizeof(typename Op::Element))};
    // Sixteen bits to float32 write twice what they read, and go without: it would be as many kernels again.
    constexpr bool SAME = sizeof(typename Op::Element) == sizeof(typename Op::Out);
    const bool stay = SAME && device().major == 9 && device().clusters() && t.M * N * Op::READS * int64_t(sizeof(typename Op::Element)) >= STAY_BYTES;
    if (!(stay ? launch<Op, SAME>(t, N, chosen, go) : launch<Op, false>(t, N, chosen, go))) return cudaErrorInvalidValue;
    if (go.missing) return -go.missing;
    cudaError_t left = cudaGetLastError();
    return go.error != cudaSuccess ? go.error : left;
}

// One compiler works on one core. build.py runs one for each part, an operation each, at the same time, and links what they make; without
// SOFTBENCH_PART this file is whole. Part 0 also has the functions that are called from outside.
#ifdef SOFTBENCH_PART
#define SOFTBENCH_RUN(...) template int64_t run(Tensors<__VA_ARGS__>, int64_t, Plan*, void*, int64_t, cudaStream_t)
#define SOFTBENCH_HERE(...) SOFTBENCH_RUN(__VA_ARGS__)
#define SOFTBENCH_ELSEWHERE(...) extern SOFTBENCH_RUN(__VA_ARGS__)
#if SOFTBENCH_PART == 0
SOFTBENCH_HERE(Forward<float, float>);
SOFTBENCH_ELSEWHERE(Forward<__half, __half>);
SOFTBENCH_ELSEWHERE(Forward<__half, float>);
SOFTBENCH_ELSEWHERE(Forward<__nv_bfloat16, __nv_bfloat16>);
SOFTBENCH_ELSEWHERE(Forward<__nv_bfloat16, float>);
SOFTBENCH_ELSEWHERE(Backward<float>);
SOFTBENCH_ELSEWHERE(Backward<__half>);
SOFTBENCH_ELSEWHERE(Backward<__nv_bfloat16>);
#elif SOFTBENCH_PART == 1
SOFTBENCH_HERE(Forward<__half, __half>);
#elif SOFTBENCH_PART == 2
SOFTBENCH_HERE(Forward<__half, float>);
#elif SOFTBENCH_PART == 3
SOFTBENCH_HERE(Forward<__nv_bfloat16, __nv_bfloat16>);
#elif SOFTBENCH_PART == 4
SOFTBENCH_HERE(Forward<__nv_bfloat16, float>);
#elif SOFTBENCH_PART == 5
SOFTBENCH_HERE(Backward<float>);
#elif SOFTBENCH_PART == 6
SOFTBENCH_HERE(Backward<__half>);
#elif SOFTBENCH_PART == 7
SOFTBENCH_HERE(Backward<__nv_bfloat16>);
#endif
#endif

}  // namespace softbench

#if !defined(SOFTBENCH_PART) || SOFTBENCH_PART == 0

namespace softbench {

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

#endif
