// From a launch plan to the launch of the kernel that carries it out: which kernels are compiled, and which plans they can carry out. Each variant
// of a kernel takes about a second to compile.
#pragma once

#include "invariant.cuh"
#include "launcher.cuh"
#include "planner.cuh"

#include <type_traits>

namespace softbench {

// Each select_* function calls `call` with the template arguments of the kernel that fits a plan. It returns false if there is no such kernel.

// The number of the list K that equals `value`.
template <int... K, typename F> bool select(int value, F call) {
    return ((value == K ? (call(std::integral_constant<int, K>()), true) : false) || ...);
}

// Calls with THREAD_VECTORS and T of `bulk`.
template <typename Op, bool OVER_GRID, typename F> bool select_bulk(const Plan& p, F call) {
    const int thread_vectors = p.vectors * Op::READS;
    auto is = [&](auto w, auto t) { return thread_vectors == w.value && p.threads == t.value && (call(w, t), true); };
    using std::integral_constant;
    if constexpr (OVER_GRID && Op::READS == 2) {
        if (is(integral_constant<int, 24>(), integral_constant<int, 128>())) return true;
    }
    if constexpr (OVER_GRID) {
        if (is(integral_constant<int, 8>(), integral_constant<int, 256>())) return true;
    }
    return is(integral_constant<int, 24>(), integral_constant<int, 256>());
}

// Calls with K and T of `cluster`.
template <typename Op, typename F> bool select_cluster(const Plan& p, F call) {
    const int thread_vectors = p.vectors * Op::READS;
    auto is = [&](auto w, auto max_threads) {
        return thread_vectors == w.value && p.threads <= max_threads.value && (call(std::integral_constant<int, w.value / Op::READS>(), max_threads), true);
    };
    using std::integral_constant;
    // With 256, ptxas takes so many registers for these operations that an SM holds a CTA less of these threads.
    constexpr int of_8_vectors = Op::READS == 1 && Op::E == 1 && Op::LOG ? 192 : Op::READS == 2 && Op::SCALED ? 224 : 256;
    return is(integral_constant<int, 2>(), integral_constant<int, 512>()) || is(integral_constant<int, 4>(), integral_constant<int, 512>()) ||
           is(integral_constant<int, 8>(), integral_constant<int, of_8_vectors>()) || is(integral_constant<int, 8>(), integral_constant<int, 512>()) ||
           is(integral_constant<int, 12>(), integral_constant<int, 256>());
}

// Calls with K and T of `block`.
template <typename Op, typename F> bool select_block(const Plan& p, F call) {
    using std::integral_constant;
    auto is = [&](auto k, auto max_threads) { return p.vectors == k.value && p.threads <= max_threads.value && (call(k, max_threads), true); };
    constexpr integral_constant<int, BLOCK_THREADS> any;
    if constexpr (Op::READS == 1) {
        if (is(integral_constant<int, 8>(), any)) return true;
    }
    // A target takes registers too, so fewer threads share those of an SM.
    return is(integral_constant<int, 4>(), integral_constant<int, Op::HAS_TARGET ? BLOCK_THREADS / 2 : BLOCK_THREADS>()) ||
           is(integral_constant<int, 2>(), any) || is(integral_constant<int, 1>(), any);
}

// Whether a kernel can carry out a plan on these tensors. The planner asks it, and so do launches of plans by hand.
template <typename Op> bool plan_fits(const Tensors<Op>& t, int64_t N, const Plan& p) {
    constexpr int R = Op::READS, V = Op::V;
    const Layout l = layout_of(t, N);
    if (p.tier == GENERIC) return true;
    if (!l.congruent || N > MAX_N || p.threads < 32 || p.threads % 32 || p.per_row < 1 || p.vectors < 1) return false;
    const bool power_of_two = (p.per_row & (p.per_row - 1)) == 0;
    if (p.base_alignment != 16 && p.base_alignment != LINE_ALIGNMENT && !(p.tier == SUB_WARP && !p.tier_option)) return false;
    const int64_t vectors = p.base_alignment == LINE_ALIGNMENT ? (l.offset + N) / V : ((l.aligned ? 0 : V - 1) + N) / V;
    const int64_t chunk = ceil_div<int64_t>(vectors, p.per_row);
    switch (p.tier) {
        case SUB_WARP: {
            if (p.per_row > WARP || !power_of_two || p.threads > SUB_WARP_THREADS || (Op::HAS_TARGET && !p.tier_option)) return false;
            if (p.tier_option)
                return p.base_alignment == VECTOR_BYTES && vectors <= p.per_row * p.vectors && p.per_row >= EDGE_THREADS &&
                       p.vectors <= (p.per_row == WARP ? UNALIGNED_MAX_VECTORS<Op> : 3);
            const int access_elements = p.base_alignment / 4 * Op::E;
            return (p.base_alignment == 4 || p.base_alignment == 8 || p.base_alignment == 16) && p.vectors <= 4 && p.vectors * p.base_alignment <= 48 &&
                   l.granularity % access_elements == 0 && N / access_elements <= p.per_row * p.vectors;
        }
        case STAGED: {
            constexpr int SIZE = sizeof(typename Op::Element);
            return !Op::HAS_TARGET && sizeof(typename Op::Out) == SIZE && l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0 && power_of_two && p.per_row <= WARP &&
                   p.threads <= STAGED_THREADS &&
                   (p.threads & (p.threads - 1)) == 0 && p.vectors == ceil_div<int64_t>(N, p.per_row) && p.vectors <= STAGED_MAX_ELEMENTS<R> &&
                   (p.per_row == 1 || p.vectors >= STAGED_MIN_ELEMENTS) && p.tier_option > 0 && p.tier_option % V == 0 &&
                   staged_bytes<Op>(p, N, row_stride_log2(t.M, int(N), p.per_row, SIZE, R)) <= device().shared_block - 2048;
        }
        case BLOCK: return select_block<Op>(p, [](auto, auto) {}) && vectors <= int64_t(p.threads) * p.vectors;
        case CLUSTER:
            return device().major >= 9 && p.per_row > 1 && p.per_row <= MAX_CLUSTER && (p.base_alignment == LINE_ALIGNMENT || l.aligned) &&
                   select_cluster<Op>(p, [](auto, auto) {}) && vectors <= int64_t(p.per_row) * p.threads * p.vectors;
        case BY_COLUMN:
            return p.base_alignment == VECTOR_BYTES && (p.vectors == 2 / R || p.vectors == 8 / R) && p.threads <= COLUMN_THREADS &&
                   (p.per_row == 1 || (device().clusters() && p.per_row <= MAX_CLUSTER)) && ceil_div<int64_t>(N + V - 1, V) <= int64_t(p.per_row) * p.threads * p.vectors;
        case CLUSTER_BULK:
        case SPLIT_BULK:
            return device().major >= 9 && p.base_alignment == LINE_ALIGNMENT && (p.tier == SPLIT_BULK || p.per_row <= MAX_CLUSTER) && p.tier_option == 0 &&
                   (p.tier == SPLIT_BULK ? select_bulk<Op, true>(p, [](auto, auto) {}) : select_bulk<Op, false>(p, [](auto, auto) {})) &&
                   R * (round_up<int64_t>(chunk, LINE_VECTORS) - p.vectors * p.threads) * VECTOR_BYTES <= device().shared_block - 2048;
        case SPLIT:
            if (p.vectors != 4 / R && p.vectors != SPLIT_VECTORS<Op> / R &&
                !(p.vectors == 2 / R && p.tier_option == 0 && round_up<int64_t>(chunk, LINE_VECTORS) <= p.vectors * p.threads))
                return false;
            return p.threads <= SPLIT_THREADS && (p.per_row == 1 || p.threads >= 2 * WARP) && p.tier_option >= 0 && p.base_alignment == LINE_ALIGNMENT &&
                   int64_t(p.tier_option) * R * p.threads * VECTOR_BYTES <= device().shared_block - 2048;
    }
    return false;
}

// Each tier's function returns false if no compiled kernel fits the plan.
template <typename Op, bool KEEP_IN_L2> struct Dispatch {
    static constexpr int R = Op::READS, SIZE = sizeof(typename Op::Element);
    static constexpr bool SAME_SIZE = SIZE == sizeof(typename Op::Out);

    const Tensors<Op>& t;
    const int64_t N;
    const Plan& p;
    Launcher& launcher;
    const bool leave_first;  // whether loads of tiers split and split_bulk have evict_first
    const int64_t M = t.M;
    const Layout l = layout_of(t, N);
    const int64_t vectors = (l.offset + N) / Op::V;  // of a row, counted from its 128-byte base
    const bool no_edges = !KEEP_IN_L2 && l.granularity == Op::V && l.aligned && (p.base_alignment != LINE_ALIGNMENT || l.offset == 0);

    bool operator()() {
        switch (p.tier) {
            case SUB_WARP: return p.tier_option ? unaligned_sub_warp() : aligned_sub_warp();
            case STAGED: return stage();
            case BLOCK: return one_block();
            case CLUSTER: return one_cluster();
            case SPLIT: return split_row();
            case CLUSTER_BULK: return cluster_bulk();
            case SPLIT_BULK: return split_bulk();
            case BY_COLUMN: return by_columns();
            case GENERIC: return any_rows();
        }
        return false;
    }

private:
    bool unaligned_sub_warp() {
        return select<1, 2, 3, 4, 5>(p.vectors, [&](auto k) {
            const int64_t grid = ceil_div(M << log2_ceil(p.per_row), int64_t(p.threads));
            if constexpr (k.value <= UNALIGNED_MAX_VECTORS<Op>) {
                if (p.per_row == WARP) return launcher.launch(sub_warp_unaligned<Op, k.value, WARP, KEEP_IN_L2>, grid, p.threads, 0, 1, t);
            }
            if constexpr (k.value < 4) launcher.launch(sub_warp_unaligned<Op, k.value, WARP / 2, KEEP_IN_L2>, grid, p.threads, 0, 1, t);
        });
    }

    bool aligned_sub_warp() {
        if constexpr (Op::HAS_TARGET) return false;
        else return select<1, 2, 3, 4>(p.vectors, [&](auto k) {
            const int64_t grid = ceil_div(M, int64_t(p.threads / p.per_row));
            select<4, 2, 1>(p.base_alignment / 4, [&](auto w) {
                auto known = [&](auto lanes) {
                    if (p.per_row == lanes.value)
                        launcher.launch(sub_warp_aligned<Op, k.value, w.value, lanes.value, KEEP_IN_L2>, grid, p.threads, 0, 1, t, 0);
                    return p.per_row == lanes.value;
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
                    launcher.launch(sub_warp_aligned<Op, k.value, w.value, 0, KEEP_IN_L2>, grid, p.threads, 0, 1, t, log2_ceil(p.per_row));
            });
        });
    }

    bool stage() {
        if constexpr (SAME_SIZE && !Op::HAS_TARGET)
            return select<1, 2, 4, 8, 16, 32>(p.per_row, [&](auto lanes) {
                const int stride_log2 = row_stride_log2(M, int(N), p.per_row, SIZE, R);
                const size_t shared = staged_bytes<Op>(p, N, stride_log2);
                const int64_t grid = ceil_div(M, int64_t(p.tier_option));
                launcher.launch(staged<Op, lanes.value, KEEP_IN_L2>, grid, p.threads, shared, 1, t, p.vectors, p.tier_option, stride_log2);
            });
        return false;
    }

    bool one_block() {
        return select_block<Op>(p, [&](auto k, auto max_threads) {
            if (p.threads > BLOCK_MAX_THREADS<Op, k.value, max_threads.value, KEEP_IN_L2>)
                return launcher.launch(block<Op, k.value, max_threads.value, false, false>, M, p.threads, 0, 1, t, p.base_alignment);
            const auto kernel =
                no_edges ? block<Op, k.value, max_threads.value, !KEEP_IN_L2, KEEP_IN_L2> : block<Op, k.value, max_threads.value, false, KEEP_IN_L2>;
            launcher.launch(kernel, M, p.threads, 0, 1, t, p.base_alignment);
        });
    }

    bool one_cluster() {
        return select_cluster<Op>(p, [&](auto k, auto max_threads) {
            const auto kernel =
                no_edges ? cluster<Op, k.value, max_threads.value, !KEEP_IN_L2, KEEP_IN_L2> : cluster<Op, k.value, max_threads.value, false, KEEP_IN_L2>;
            const Stagger stagger = launcher.stagger(kernel, p.threads, 0, true, M, p, R);
            launcher.launch(kernel, M * p.per_row, p.threads, 0, p.per_row, t, p.per_row, p.base_alignment, stagger);
        });
    }

    // The vectors of a row that a CTA has: whole cache lines.
    int chunk() const { return int(round_up<int64_t>(ceil_div<int64_t>(vectors, p.per_row), LINE_VECTORS)); }

    bool split_row() {
        if (p.per_row > 1 && !launcher.has_workspace(M * p.per_row)) return true;
        const size_t shared = size_t(p.tier_option) * R * p.threads * VECTOR_BYTES;
        auto with = [&](auto kernel) {
            const Stagger stagger = launcher.stagger(kernel, p.threads, shared, false, M, p, R);
            launcher.launch(kernel, M * p.per_row, p.threads, shared, 1, t, p.per_row, chunk(), p.tier_option, p.base_alignment, p.max_polls,
                            launcher.workspace, stagger, leave_first);
        };
        if (p.tier_option == 0 && chunk() <= p.vectors * p.threads)
            return select<2 / R, 4 / R, SPLIT_VECTORS<Op> / R>(
                p.vectors, [&](auto k) { with(no_edges ? split<Op, k.value, true, !KEEP_IN_L2, KEEP_IN_L2> : split<Op, k.value, true, false, KEEP_IN_L2>); });
        return select<4 / R, SPLIT_VECTORS<Op> / R>(p.vectors, [&](auto k) { with(split<Op, k.value, false, false, KEEP_IN_L2>); });
    }

    size_t bulk_shared() const { return size_t(std::max(0, chunk() - p.vectors * p.threads)) * R * VECTOR_BYTES; }

    bool cluster_bulk() {
        return select_bulk<Op, false>(p, [&](auto thread_vectors, auto threads) {
            const auto kernel = bulk<Op, thread_vectors.value, threads.value, false, KEEP_IN_L2>;
            const size_t shared = bulk_shared();
            const Stagger stagger = launcher.stagger(kernel, p.threads, shared, true, M, p, R);
            launcher.launch(kernel, M * p.per_row, p.threads, shared, p.per_row, t, p.per_row, chunk(), p.base_alignment, 0, nullptr, stagger, false);
        });
    }

    bool split_bulk() {
        if (!launcher.has_workspace(M * p.per_row)) return true;
        return select_bulk<Op, true>(p, [&](auto thread_vectors, auto threads) {
            const auto kernel = bulk<Op, thread_vectors.value, threads.value, true, KEEP_IN_L2>;
            const size_t shared = bulk_shared();
            const Stagger stagger = launcher.stagger(kernel, p.threads, shared, false, M, p, R);
            launcher.launch(kernel, M * p.per_row, p.threads, shared, 1, t, p.per_row, chunk(), p.base_alignment, p.max_polls, launcher.workspace, stagger, leave_first);
        });
    }

    bool by_columns() {
        return select<2 / R, 8 / R>(p.vectors, [&](auto k) {
            launcher.launch(by_column<Op, k.value, KEEP_IN_L2>, M * p.per_row, p.threads, 0, p.per_row, t, p.per_row);
        });
    }

    bool any_rows() {
        if (p.per_row == 1) launcher.launch(generic<Op, true>, ceil_div(M, int64_t(p.threads / WARP)), p.threads, 0, 1, t, N);
        else launcher.launch(generic<Op, false>, M, p.threads, 0, 1, t, N);
        return true;
    }
};

template <typename Op, bool KEEP_IN_L2> bool dispatch(const Tensors<Op>& t, int64_t N, const Plan& p, Launcher& launcher, bool leave_first) {
    return Dispatch<Op, KEEP_IN_L2>{t, N, p, launcher, leave_first}();
}

// Launches an operation on the rows of tensors; see softbench_forward.
template <typename Op> int64_t run(Tensors<Op> t, int64_t N, Plan* p, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    const Launching launching;
    t.N = int(std::min<int64_t>(N, MAX_N));
    const bool invariant = p && p->tier == INVARIANT;
    Plan chosen = invariant ? invariant_plan(t, N) : p && p->tier != AUTO ? *p : choose_plan(t, N);
    if (invariant && chosen.tier == AUTO) return cudaErrorMisalignedAddress;
    if (p && (invariant || p->tier == AUTO)) *p = chosen;
    else if (p && !plan_fits(t, N, chosen)) return cudaErrorInvalidValue;
    Launcher launcher = {stream, static_cast<Workspace*>(workspace), workspace_bytes, t.M * N * int64_t(sizeof(typename Op::Element))};
    const int64_t read_bytes = t.M * N * Op::READS * int64_t(sizeof(typename Op::Element));
    const Device& d = device();
    const bool hopper = d.major == 9 && d.clusters(), leave_first = hopper && leaves_first<Op>(chosen, t.M, read_bytes);
    const bool with_policy = leave_first || (hopper && read_bytes >= KEEP_IN_L2_BYTES);
    if (!(with_policy ? dispatch<Op, true>(t, N, chosen, launcher, leave_first) : dispatch<Op, false>(t, N, chosen, launcher, false)))
        return cudaErrorInvalidValue;
    if (launcher.missing_bytes) return -launcher.missing_bytes;
    cudaError_t pending = cudaGetLastError();
    return launcher.error != cudaSuccess ? launcher.error : pending;
}

}  // namespace softbench
