// The operations, Forward and Backward of three functions: how a thread's part of a row is reduced, how partial results merge, and how results are
// written. Each tier's kernel is one template over the operation, its function and its dtypes.
//
//   softmax          y = exp(x - maximum) / sum                 dx = y * (dy - sum(dy * y))
//   scaled softmax   the softmax of scale * x, for scale > 0    dx = scale * y * (dy - sum(dy * y))
//   log_softmax      y = (x - maximum) - log(sum)               dx = dy - exp(y) * sum(dy)
//
// Arithmetic is float32. 16-bit inputs stay packed in registers, because unpacked copies would halve the occupancy. Most threads therefore
// compute each exponential twice: once for the sum and once for the result. At full memory speed, that takes half of the exponential unit's
// rate. Threads that hold few vectors cache their exponentials (CACHES_EXPONENTIALS). The results of log_softmax need no exponential.
//
// Exponentials are exp2((x - maximum) * log2 e), with the subtraction first. As a single fma, maximum * log2 e overflows beyond 2.4e38. The scale is
// part of the factor log2 e, so it costs no instruction.
//
// Template parameters and constants that all kernels share:
//   Op: the operation. Op::Element and Op::Out are the dtypes of its inputs and its output. An object of it has what differs between rows.
//   R = Op::READS: how many tensors the operation reads.
//   V = Op::V: the elements of a 16-byte vector. E = Op::E: the elements of a 32-bit register, 1 or 2.
//   K: the vectors of each tensor that a thread holds in registers. T: the threads of a CTA.
#pragma once

#include "packed_io.cuh"

namespace softbench {

constexpr float LOG2_E = 1.4426950408889634f;
constexpr float LN_2 = 0.6931471805599453f;
constexpr float LARGEST_FLOAT = 3.402823466e38f;

enum Function { SOFTMAX, LOG_SOFTMAX, SCALED_SOFTMAX, CROSS_ENTROPY };  // build.py has the names of the first three in this order

// The scales of the rows: `scales` has one for each row, or is null; then `scale` is that of all rows. Other functions than scaled softmax have none.
template <bool SCALED> struct Scales {};
template <> struct Scales<true> {
    const float* scales;
    float scale;
};
// The scale of one row, in an operation. The row exists.
template <bool SCALED> struct RowScale {
    __device__ __forceinline__ RowScale(const Scales<false>&, int64_t) {}
};
template <> struct RowScale<true> {
    float scale;
    __device__ __forceinline__ RowScale(const Scales<true>& all, int64_t row) : scale(all.scales ? all.scales[row] : all.scale) {}
};

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float min_or_nan(float a, float b) {  // fminf takes the number of a number and a NaN
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

// The logarithm of a sum that is at least 1, or NaN. With sum = m * 2^e and m in [0.75, 1.5), the error is 2^-24 of the result, and ln 2 * 2^-22 by the
// approximation at m. At the sum itself, the approximation may be off by 2^-22 of the result. logf takes twice the instructions.
__device__ __forceinline__ float log_of_sum(float sum) {
    const int exponent = (__float_as_int(sum) - 0x3f400000) & int(0xff800000);  // e in the place of a float's exponent
    float log2_m;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2_m) : "f"(sum * __int_as_float(0x3f800000 - exponent)));
    return fmaf(float(exponent >> 23), LN_2, log2_m * LN_2);
}

// The result of reducing a part of a row.
// Forward: the maximum, and the sum of exp(x - maximum). A part that contains only -inf uses 0 in place of its maximum, and its sum stays 0.
// A NaN in such a part stays in the sum. A row that contains only -inf ends as 0 / 0 = NaN, as in torch.
// Backward: `sum` is the dot product of dy and y, or for log_softmax the sum of dy. `maximum` is unused.
struct Partial {
    float maximum, sum;
};

// A 16-byte vector of each tensor read, all from the same position of one row.
template <int READS> struct Operands {
    uint32_t packed[READS][4];
};

// These two reduce over aligned groups of `lanes` lanes, a power of two. All lanes of the warp must call them.
__device__ __forceinline__ float max_over_lanes(float maximum, int lanes) {
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2)
        if (other < lanes) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, other));
    return maximum;
}
__device__ __forceinline__ float sum_over_lanes(float sum, int lanes) {
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2)
        if (other < lanes) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
}

// Reduces over the whole warp by one instruction, on integers in the order of the floats. Five shuffles would each wait for the one before.
__device__ __forceinline__ float max_over_warp(float maximum) {
    const int bits = __float_as_int(maximum), largest = __reduce_max_sync(~0u, bits ^ ((bits >> 31) & 0x7fffffff));
    return __int_as_float(largest ^ ((largest >> 31) & 0x7fffffff));
}

__device__ __forceinline__ float finite_or_zero(float maximum) { return maximum == MINUS_INFINITY ? 0.0f : maximum; }

// An operation provides these functions.
//   padding: the bits of an absent element. identity: the Partial of an empty part.
//   init_partial: reduces the K vectors in a thread's registers, and its edge element or padding.
//   accumulate: adds vectors to a Partial and leaves the vectors unchanged. edge_partial: reduces one edge element.
//   merge, reduce_lanes, reduce_replicated: combine Partials of one row.
//   finalize: turns a row's Partial into what its elements need. Kernels call it `total`. Forward: {maximum, 1 / sum} or {maximum, log(sum)};
//     backward: {the scale, if there is one, sum}. Its type is Op::Total.
//   result: one result from the operands of one element.
//   write: stores the results of a vector. With `thread_partial`, the vector is one that init_partial has reduced to that Partial.
//   write_one: stores one result.
// Op::Inputs is what each row has beside its elements. HAS_TARGET: a row also has a target and a loss (loss_ops.cuh). Tier
// `staged` and two rows a warp do not take such operations. `sub_warp` takes them as unaligned rows.
template <typename In, typename Output, Function FUNCTION = SOFTMAX> struct Forward : RowScale<FUNCTION == SCALED_SOFTMAX> {
    using Element = In;
    using Out = Output;
    static constexpr bool LOG = FUNCTION == LOG_SOFTMAX, SCALED = FUNCTION == SCALED_SOFTMAX, HAS_TARGET = FUNCTION == CROSS_ENTROPY;
    using Inputs = Scales<SCALED>;
    using Total = Partial;
    static constexpr int READS = 1;
    static constexpr int V = VECTOR_BYTES / sizeof(In);
    static constexpr int E = Packed<In>::ELEMENTS;
    // True: init_partial replaces float32 elements by exponentials from the thread's own maximum. One factor a thread corrects for that later.
    static constexpr bool EXPONENTIALS_IN_PLACE = E == 1 && !LOG && !HAS_TARGET;

    // The factor of the exponents replaces the scale. It is finite, since 0 * infinity is NaN, or the NaN of the scale.
    __device__ __forceinline__ Forward(const Scales<SCALED>& scales, int64_t row) : RowScale<SCALED>(scales, row) {
        if constexpr (SCALED) this->scale = min_or_nan(this->scale * LOG2_E, LARGEST_FLOAT);
    }
    static __device__ __forceinline__ Partial identity() { return {MINUS_INFINITY, 0.0f}; }
    static __device__ __forceinline__ uint32_t padding() { return Packed<In>::MINUS_INFINITY_BITS; }
    __device__ __forceinline__ float exponent(float x, float base) const {
        if constexpr (SCALED) return (x - base) * this->scale;
        else return (x - base) * LOG2_E;
    }

    template <int K> static __device__ __forceinline__ float thread_maximum(const Operands<1> (&operands)[K], const uint32_t (&edge)[1]) {
        uint32_t running = E == 2 ? (edge[0] & 0xffffu) * 0x10001u : edge[0];
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) running = Packed<In>::elementwise_max(running, operands[k].packed[0][w]);
        const float maximum = Packed<In>::element(running, 0);
        return E == 2 ? fmaxf(maximum, Packed<In>::element(running, E - 1)) : maximum;
    }
    template <int K> __device__ __forceinline__ Partial init_partial(Operands<1> (&operands)[K], const uint32_t (&edge)[1]) const {
        const float maximum = thread_maximum(operands, edge), base = finite_or_zero(maximum);
        float sum = exp2_fast(exponent(Packed<In>::element(edge[0], 0), base));
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    float exponential = exp2_fast(exponent(Packed<In>::element(operands[k].packed[0][w], e), base));
                    if constexpr (EXPONENTIALS_IN_PLACE) operands[k].packed[0][w] = __float_as_uint(exponential);
                    sum += exponential;
                }
        return {maximum, sum};
    }
    // The same, and stores the exponentials of 16-bit vectors in `exponentials`. That takes twice the registers and saves half the exponentials.
    template <int K>
    __device__ __forceinline__ Partial init_partial(Operands<1> (&operands)[K], const uint32_t (&edge)[1], float (&exponentials)[K * V]) const {
        const float maximum = thread_maximum(operands, edge), base = finite_or_zero(maximum);
        float sum[2] = {exp2_fast(exponent(Packed<In>::element(edge[0], 0), base)), 0.0f};
#pragma unroll
        for (int i = 0; i < K * V; ++i) {
            exponentials[i] = exp2_fast(exponent(Packed<In>::element(operands[i / V].packed[0][i % V / E], i % E), base));
            sum[i % 2] += exponentials[i];
        }
        return {maximum, sum[0] + sum[1]};
    }
    // Writes from stored exponentials. The factor uses thread_partial.maximum itself and not its finite form. For a thread that has only -inf,
    // the exponentials and the factor are then 0. They are NaN if the whole row is -inf.
    template <typename Target> __device__ __forceinline__ void write(Target target, const float* exponentials, Partial total, Partial thread_partial) const {
        const float factor = exp2_fast(exponent(thread_partial.maximum, total.maximum)) * total.sum;
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = exponentials[v] * factor;
        store_vector<Out, V>(target, value);
    }
    __device__ __forceinline__ Partial edge_partial(const uint32_t (&edge)[1]) const {
        const float x = Packed<In>::element(edge[0], 0);
        return {x, exp2_fast(exponent(x, finite_or_zero(x)))};
    }
    // New elements get their own sum first. So rounding errors grow with the number of calls and not of elements. `zero` is 0; a barrier can
    // provide it, and then nothing here is computed before that barrier.
    template <int K> __device__ __forceinline__ void accumulate(Partial& partial, const Operands<1> (&operands)[K], uint32_t zero = 0) const {
        uint32_t running = padding() | zero;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) running = Packed<In>::elementwise_max(running, operands[k].packed[0][w]);
        float maximum = fmaxf(partial.maximum, Packed<In>::element(running, 0));
        if constexpr (E == 2) maximum = fmaxf(maximum, Packed<In>::element(running, 1));
        const float base = finite_or_zero(maximum);
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < E; ++e) sum += exp2_fast(exponent(Packed<In>::element(operands[k].packed[0][w], e), base));
        partial = {maximum, partial.sum * exp2_fast(exponent(partial.maximum, base)) + sum};
    }
    __device__ __forceinline__ void accumulate(Partial& partial, const float (&x)[1]) const {
        float maximum = fmaxf(partial.maximum, x[0]), base = finite_or_zero(maximum);
        partial = {maximum, partial.sum * exp2_fast(exponent(partial.maximum, base)) + exp2_fast(exponent(x[0], base))};
    }
    __device__ __forceinline__ Partial merge(Partial a, Partial b) const {
        float maximum = fmaxf(a.maximum, b.maximum), base = finite_or_zero(maximum);
        return {maximum, a.sum * exp2_fast(exponent(a.maximum, base)) + b.sum * exp2_fast(exponent(b.maximum, base))};
    }
    // Merges over aligned groups of `lanes` lanes, a power of two. All lanes of the warp must call it, and each gets its group's result.
    __device__ __forceinline__ Partial reduce_lanes(Partial partial, int lanes) const {
        float maximum = max_over_lanes(partial.maximum, lanes);
        return {maximum, sum_over_lanes(partial.sum * exp2_fast(exponent(partial.maximum, finite_or_zero(maximum))), lanes)};
    }
    // Merges `lanes` Partials, a power of two, where each aligned group of `lanes` lanes has the same Partials.
    __device__ __forceinline__ Partial reduce_replicated(Partial partial, int lanes) const {
        float maximum = max_over_warp(partial.maximum);
        return {maximum, sum_over_lanes(partial.sum * exp2_fast(exponent(partial.maximum, finite_or_zero(maximum))), lanes)};
    }
    // For log_softmax, the maximum of a row that contains only -inf stays -inf. Its results are then -inf - -inf = NaN, as in torch.
    __device__ __forceinline__ Partial finalize(Partial partial) const {
        if constexpr (LOG) return {partial.maximum, log_of_sum(partial.sum)};
        else return {finite_or_zero(partial.maximum), reciprocal(partial.sum)};
    }
    __device__ __forceinline__ float result(const float (&x)[1], Partial total) const {
        if constexpr (LOG) return (x[0] - total.maximum) - total.sum;
        else return exp2_fast(exponent(x[0], total.maximum)) * total.sum;
    }
    __device__ __forceinline__ void write_one(Out* target, const float (&x)[1], Partial total) const { *target = from_float<Out>(result(x, total)); }
    template <typename Target> __device__ __forceinline__ void write(Target target, const Operands<1>& operands, Partial total) const {
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float x[1] = {Packed<In>::element(operands.packed[0][v / E], v % E)};
            value[v] = result(x, total);
        }
        store_vector<Out, V>(target, value);
    }
    template <typename Target> __device__ __forceinline__ void write(Target target, const Operands<1>& operands, Partial total, Partial thread_partial) const {
        if constexpr (EXPONENTIALS_IN_PLACE) {
            float exponentials[V];
#pragma unroll
            for (int v = 0; v < V; ++v) exponentials[v] = __uint_as_float(operands.packed[0][v]);
            write(target, exponentials, total, thread_partial);
        } else {
            write(target, operands, total);
        }
    }
};

template <typename T, typename Output = T, Function FUNCTION = SOFTMAX> struct Backward : RowScale<FUNCTION == SCALED_SOFTMAX> {
    using Element = T;
    using Out = Output;
    static constexpr bool LOG = FUNCTION == LOG_SOFTMAX, SCALED = FUNCTION == SCALED_SOFTMAX, HAS_TARGET = false;
    using Inputs = Scales<SCALED>;
    using Total = Partial;
    static constexpr int READS = 2;  // dy, y
    static constexpr int V = VECTOR_BYTES / sizeof(T);
    static constexpr int E = Packed<T>::ELEMENTS;
    static constexpr bool EXPONENTIALS_IN_PLACE = false;

    using RowScale<SCALED>::RowScale;
    static __device__ __forceinline__ Partial identity() { return {0.0f, 0.0f}; }
    static __device__ __forceinline__ uint32_t padding() { return 0; }
    static __device__ __forceinline__ float term(float dy, float y) { return LOG ? dy : dy * y; }

    template <int K> __device__ __forceinline__ Partial init_partial(Operands<2> (&operands)[K], const uint32_t (&edge)[2]) const {
        Partial partial = edge_partial(edge);
        accumulate(partial, operands);
        return partial;
    }
    __device__ __forceinline__ Partial edge_partial(const uint32_t (&edge)[2]) const {
        return {0.0f, term(Packed<T>::element(edge[0], 0), Packed<T>::element(edge[1], 0))};
    }
    template <int K> __device__ __forceinline__ void accumulate(Partial& partial, const Operands<2> (&operands)[K], uint32_t zero = 0) const {
        float sum = __uint_as_float(zero);
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < E; ++e) sum += term(Packed<T>::element(operands[k].packed[0][w], e), Packed<T>::element(operands[k].packed[1][w], e));
        partial.sum += sum;
    }
    __device__ __forceinline__ void accumulate(Partial& partial, const float (&v)[2]) const { partial.sum += term(v[0], v[1]); }
    __device__ __forceinline__ Partial merge(Partial a, Partial b) const { return {0.0f, a.sum + b.sum}; }
    __device__ __forceinline__ Partial reduce_lanes(Partial partial, int lanes) const { return {0.0f, sum_over_lanes(partial.sum, lanes)}; }
    __device__ __forceinline__ Partial reduce_replicated(Partial partial, int lanes) const { return reduce_lanes(partial, lanes); }
    __device__ __forceinline__ Partial finalize(Partial partial) const {
        if constexpr (SCALED) partial.maximum = this->scale;
        return partial;
    }
    __device__ __forceinline__ float result(const float (&v)[2], Partial total) const {
        if constexpr (LOG) return v[0] - exp2_fast(v[1] * LOG2_E) * total.sum;
        else if constexpr (SCALED) return total.maximum * (v[1] * (v[0] - total.sum));
        else return v[1] * (v[0] - total.sum);
    }
    __device__ __forceinline__ void write_one(Out* target, const float (&v)[2], Partial total) const { *target = from_float<Out>(result(v, total)); }
    __device__ __forceinline__ void write(Out* target, const Operands<2>& operands, Partial total) const {
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float pair[2] = {Packed<T>::element(operands.packed[0][v / E], v % E), Packed<T>::element(operands.packed[1][v / E], v % E)};
            value[v] = result(pair, total);
        }
        store_vector<Out, V>(target, value);
    }
    __device__ __forceinline__ void write(Out* target, const Operands<2>& operands, Partial total, Partial) const { write(target, operands, total); }
};

// Whether pairs of lanes exchange float32 results before they store them; see PairTarget.
template <typename Op> constexpr bool STORES_IN_PAIRS = Op::READS == 1 && sizeof(typename Op::Out) > sizeof(typename Op::Element);

// Whether a thread holds the exponentials of its 16-bit vectors in registers during the exchange. That is for few rows, with at most two vectors a
// thread.
template <typename Op, int K> constexpr bool CACHES_EXPONENTIALS = Op::READS == 1 && !Op::LOG && !Op::HAS_TARGET && Op::E == 2 && K <= 2;

// Makes the compiler reload float32 values from the packed registers after an exchange. Otherwise it preserves the unpacked copies across the
// exchange, which costs twice the registers or spills. An empty asm statement hides the link from the front end of nvcc but not from ptxas.
// A branch that could change the registers hides it from both. `never` is false at run time, and the compiler does not know that.
template <typename Op, int K> __device__ __forceinline__ void rematerialize(Operands<Op::READS> (&operands)[K], bool never) {
    if (Op::E > 1 && never) {
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int r = 0; r < Op::READS; ++r)
#pragma unroll
                for (int w = 0; w < 4; ++w) asm volatile("not.b32 %0, %0;" : "+r"(operands[k].packed[r][w]));
    }
}

constexpr int MAX_WARPS = 32;

// Merges the Partials of a CTA of at most MAX_THREADS threads; each thread gets the result. It takes one barrier, and `warp_partials` must not
// be written again before another one.
template <int MAX_THREADS = MAX_WARPS * WARP, typename Op>
__device__ __forceinline__ Partial block_reduce(const Op& op, Partial partial, Partial* warp_partials) {
    constexpr int WARPS = MAX_THREADS <= 8 * WARP ? 8 : MAX_THREADS <= 16 * WARP ? 16 : 32;  // each step of the merge waits for a shuffle
    constexpr bool REPLICATED = MAX_THREADS <= 16 * WARP;  // CTAs of 1024 threads have 32 registers a thread, and would spill two of them
    partial = REPLICATED ? op.reduce_replicated(partial, WARP) : op.reduce_lanes(partial, WARP);
    const int warps = blockDim.x / WARP, warp = threadIdx.x % WARPS;
    if (warps == 1) return partial;
    if (threadIdx.x % WARP == 0) warp_partials[threadIdx.x / WARP] = partial;
    __syncthreads();
    partial = warp < warps ? warp_partials[warp] : Op::identity();
    return REPLICATED ? op.reduce_replicated(partial, WARPS) : op.reduce_lanes(partial, WARPS);
}

}  // namespace softbench
