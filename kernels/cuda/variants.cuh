// Which kernels are compiled, and which plans they can carry out. Each variant of a kernel takes about a second to compile.
#pragma once

#include "heuristics.cuh"

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
    if constexpr (OVER_GRID)
        return is(integral_constant<int, 8>(), integral_constant<int, 256>()) || is(integral_constant<int, 8>(), integral_constant<int, 512>()) ||
               is(integral_constant<int, 24>(), integral_constant<int, 256>());
    else
        return is(integral_constant<int, 24>(), integral_constant<int, 256>());
}

// Calls with K and T of `cluster`.
template <typename Op, typename F> bool select_cluster(const Plan& p, F call) {
    const int thread_vectors = p.vectors * Op::READS;
    auto is = [&](auto w, auto max_threads) {
        return thread_vectors == w.value && p.threads <= max_threads.value && (call(std::integral_constant<int, w.value / Op::READS>(), max_threads), true);
    };
    using std::integral_constant;
    if constexpr (Op::READS == 1 && Op::E == 2) {
        if (is(integral_constant<int, 16>(), integral_constant<int, 128>())) return true;
    }
    // With 256, ptxas takes so many registers for these operations that an SM holds a CTA less of the threads that many_rows_plan chooses.
    constexpr int of_8_vectors = Op::READS == 1 && Op::E == 1 && Op::LOG ? 192 : Op::READS == 2 && Op::SCALED ? 224 : 256;
    return is(integral_constant<int, 2>(), integral_constant<int, 512>()) || is(integral_constant<int, 4>(), integral_constant<int, 512>()) ||
           is(integral_constant<int, 8>(), integral_constant<int, of_8_vectors>()) || is(integral_constant<int, 8>(), integral_constant<int, 512>()) ||
           is(integral_constant<int, 12>(), integral_constant<int, 256>());
}

// Calls with K and T of `block`.
template <typename Op, typename F> bool select_block(const Plan& p, F call) {
    using std::integral_constant;
    constexpr int R = Op::READS;
    auto is = [&](auto k, auto max_threads) { return p.vectors == k.value && p.threads <= max_threads.value && (call(k, max_threads), true); };
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
    // A target takes registers too, so fewer threads share those of an SM.
    return is(integral_constant<int, 4>(), integral_constant<int, Op::HAS_TARGET ? BLOCK_THREADS / 2 : BLOCK_THREADS>()) || is(integral_constant<int, 2>(), any) || is(integral_constant<int, 1>(), any);
}

// Calls with K of `warp_row` and `warp_two_rows`.
template <typename Op, typename F> bool select_warp(const Plan& p, F call) {
    if constexpr (WARP_MAX_VECTORS<Op> == 8) {
        if (select<7, 8>(p.vectors, call)) return true;
    }
    if constexpr (WARP_MAX_VECTORS<Op> == 4) return select<3, 4>(p.vectors, call);
    if constexpr (WARP_MAX_VECTORS<Op> > 4) return select<3, 4, 5, 6>(p.vectors, call);
    return false;
}

// Whether a kernel can carry out a plan on these tensors. Plans of the heuristics always fit; plans by hand are checked.
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
            if (p.per_row > WARP || p.threads > SUB_WARP_THREADS || (Op::HAS_TARGET && !p.tier_option)) return false;
            if (p.tier_option)
                return p.base_alignment == VECTOR_BYTES && vectors <= p.per_row * p.vectors && power_of_two && p.per_row >= EDGE_THREADS &&
                       p.vectors <= (p.per_row == WARP ? UNALIGNED_MAX_VECTORS<Op> : 3);
            const int access_elements = p.base_alignment / 4 * Op::E;
            return (p.base_alignment == 4 || p.base_alignment == 8 || p.base_alignment == 16) && p.vectors <= 4 && p.vectors * p.base_alignment <= 48 &&
                   l.granularity % access_elements == 0 && N / access_elements <= p.per_row * p.vectors;
        }
        case STAGED: {
            constexpr int SIZE = sizeof(typename Op::Element);
            return !Op::HAS_TARGET && l.contiguous && reinterpret_cast<uintptr_t>(t.source[0]) % VECTOR_BYTES == 0 && power_of_two && p.per_row <= WARP &&
                   p.threads <= STAGED_THREADS &&
                   (p.threads & (p.threads - 1)) == 0 && p.vectors == ceil_div<int64_t>(N, p.per_row) && p.vectors <= STAGED_MAX_ELEMENTS<R> &&
                   (p.per_row == 1 || p.vectors >= STAGED_MIN_ELEMENTS) && p.tier_option > 0 && p.tier_option % V == 0 &&
                   staged_bytes<Op>(p, N, row_stride_log2(t.M, int(N), p.per_row, SIZE, R)) <= device().shared_block - 2048;
        }
        case ONE_WARP:
            return select_warp<Op>(p, [](auto) {}) && l.granularity == V && p.per_row == 1 && p.base_alignment == VECTOR_BYTES && p.threads <= WARP_THREADS &&
                   vectors <= WARP * p.vectors &&
                   (p.tier_option == 1 ||
                    (p.tier_option == 2 && !Op::HAS_TARGET && 2 * (p.threads / WARP) * round_up<int64_t>(vectors, LINE_VECTORS) * VECTOR_BYTES <= device().shared_block));
        case BLOCK: return select_block<Op>(p, [](auto, auto) {}) && vectors <= int64_t(p.threads) * p.vectors;
        case CLUSTER:
            return device().major >= 9 && p.per_row > 1 && p.per_row <= MAX_CLUSTER && p.base_alignment == LINE_ALIGNMENT &&
                   select_cluster<Op>(p, [](auto, auto) {}) && vectors <= int64_t(p.per_row) * p.threads * p.vectors;
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

}  // namespace softbench
