// Short rows: a logical warp of 1 to 32 neighbouring lanes has a row, reduces it by shuffles and computes its results in registers.
#pragma once

#include "row_access.cuh"

namespace softbench {

// The lanes that share a row, a power of two. LANES: their number if the compiler knows it; else 0.
template <int LANES> struct LogicalWarp {
    int lanes;

    template <typename F> __device__ __forceinline__ float reduce(float value, F combine) const {
#pragma unroll
        for (int other = (LANES ? LANES : WARP) / 2; other > 0; other /= 2)
            if (LANES || other < lanes) value = combine(value, __shfl_xor_sync(~0u, value, other));
        return value;
    }
    __device__ __forceinline__ float max(float maximum) const {
        if constexpr (LANES == WARP) return max_over_warp(maximum);
        return reduce(maximum, [](float a, float b) { return fmaxf(a, b); });
    }
    __device__ __forceinline__ float sum(float sum) const {
        return reduce(sum, [](float a, float b) { return a + b; });
    }
};

// The largest element among packed registers.
template <typename Element, int COUNT> __device__ __forceinline__ float packed_maximum(const uint32_t (&packed)[COUNT]) {
    using P = Packed<Element>;
    uint32_t running = packed[0];
#pragma unroll
    for (int c = 1; c < COUNT; ++c) running = P::elementwise_max(running, packed[c]);
    const float maximum = P::element(running, 0);
    return P::ELEMENTS == 2 ? fmaxf(maximum, P::element(running, P::ELEMENTS - 1)) : maximum;
}

// Replaces the values of a row by its results, in value[][0]. `maximum` is the largest value of the lane. These rows have few enough values to
// compute each exponential once, from the maximum of the row.
template <int COUNT, int LANES, typename Op>
__device__ __forceinline__ void compute_in_place(const Op& op, float (&value)[COUNT][Op::READS], float maximum, const LogicalWarp<LANES>& logical_warp) {
    float sum = 0.0f;
    if constexpr (Op::READS == 1 && Op::LOG) {  // the differences are NaN in a row that contains only -inf
        const float base = logical_warp.max(maximum);
#pragma unroll
        for (int c = 0; c < COUNT; ++c) {
            value[c][0] -= base;
            sum += exp2_fast(value[c][0] * LOG2_E);
        }
        const float log_sum = log_of_sum(logical_warp.sum(sum));
#pragma unroll
        for (int c = 0; c < COUNT; ++c) value[c][0] -= log_sum;
    } else if constexpr (Op::READS == 1) {
        const float base = finite_or_zero(logical_warp.max(maximum));
#pragma unroll
        for (int c = 0; c < COUNT; ++c) sum += value[c][0] = exp2_fast(op.exponent(value[c][0], base));
        const float scale = reciprocal(logical_warp.sum(sum));
#pragma unroll
        for (int c = 0; c < COUNT; ++c) value[c][0] *= scale;
    } else {
#pragma unroll
        for (int c = 0; c < COUNT; ++c) sum += Op::term(value[c][0], value[c][1]);
        const Partial total = op.finalize({0.0f, logical_warp.sum(sum)});
#pragma unroll
        for (int c = 0; c < COUNT; ++c) value[c][0] = op.result(value[c], total);
    }
}

// Loads W 32-bit registers from an address that is aligned to their 4, 8 or 16 bytes.
template <bool KEEP_IN_L2, int W> __device__ __forceinline__ void load_packed(uint32_t (&packed)[W], const void* from, uint64_t policy) {
    if constexpr (W == 4) {
        assign(packed, load16<KEEP_IN_L2>(from, policy));
    } else if constexpr (W == 2) {
        const uint2 v = load8<KEEP_IN_L2>(from, policy);
        packed[0] = v.x;
        packed[1] = v.y;
    } else {
        packed[0] = load4<KEEP_IN_L2>(from, policy);
    }
}
// Stores V results that take 2, 4, 8, 16 or 32 bytes.
template <typename Out, int V> __device__ __forceinline__ void store_results(Out* target, const float (&value)[V]) {
    if constexpr (V * sizeof(Out) >= VECTOR_BYTES) {
        store_vector<Out, V>(target, value);
    } else if constexpr (sizeof(Out) == 4) {
        if constexpr (V == 2) *reinterpret_cast<float2*>(target) = make_float2(value[0], value[1]);
        else *reinterpret_cast<float*>(target) = value[0];
    } else {
        if constexpr (V == 4) *reinterpret_cast<uint2*>(target) = make_uint2(pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]));
        else if constexpr (V == 2) *reinterpret_cast<uint32_t*>(target) = pack<Out>(value[0], value[1]);
        else *target = from_float<Out>(value[0]);
    }
}

}  // namespace softbench
