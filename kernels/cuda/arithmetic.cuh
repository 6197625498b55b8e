// The two operations, forward and backward, as the tiers see them: what a vector is, what is kept of a part of a row, how parts join,
// and how an element is finished. A tier is written once and instantiated for each operation and pair of types.
//
// Arithmetic is float32. 16-bit inputs stay packed in registers and their exponentials are computed twice, but for threads of few: once for
// the sum and once for the result. Two exponentials an element are half of what the unit can do at full memory speed; unpacked copies would
// halve the occupancy. `exp2((x - top) * log2 e)`, with the subtraction first: folded into one fma, top * log2 e overflows beyond 2.4e38.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace softbench {

constexpr int WARP = 32;
constexpr int VECTOR_BYTES = 16;
constexpr int LINE_BYTES = 128;
constexpr int LINE_VECTORS = LINE_BYTES / VECTOR_BYTES;
constexpr float MINUS_INFINITY = -__builtin_huge_valf();
constexpr float LOG2_E = 1.4426950408889634f;

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

// A 32-bit word of a 16-byte vector: one float or two 16-bit elements. `Top` is a running maximum that needs no unpacking.
template <typename T> struct Word;
template <> struct Word<float> {
    static constexpr int ELEMENTS = 1;
    static constexpr uint32_t MINUS_INFINITY_BITS = 0xff800000u;
    static __device__ __forceinline__ float element(uint32_t word, int) { return __uint_as_float(word); }
    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    }
};
template <> struct Word<__half> {
    static constexpr int ELEMENTS = 2;
    static constexpr uint32_t MINUS_INFINITY_BITS = 0xfc00fc00u;
    static __device__ __forceinline__ float element(uint32_t word, int i) {
        __half2 pair = reinterpret_cast<const __half2&>(word);
        return i == 0 ? __low2float(pair) : __high2float(pair);
    }
    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
        __half2 pair = __hmax2(reinterpret_cast<__half2&>(a), reinterpret_cast<__half2&>(b));
        return reinterpret_cast<uint32_t&>(pair);
    }
};
template <> struct Word<__nv_bfloat16> {
    static constexpr int ELEMENTS = 2;
    static constexpr uint32_t MINUS_INFINITY_BITS = 0xff80ff80u;
    static __device__ __forceinline__ float element(uint32_t word, int i) { return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000u); }
    static __device__ __forceinline__ uint32_t larger(uint32_t a, uint32_t b) {
        __nv_bfloat162 pair = __hmax2(reinterpret_cast<__nv_bfloat162&>(a), reinterpret_cast<__nv_bfloat162&>(b));
        return reinterpret_cast<uint32_t&>(pair);
    }
};

__device__ __forceinline__ float widen(float v) { return v; }
__device__ __forceinline__ float widen(__half v) { return __half2float(v); }
__device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ __forceinline__ T narrow(float v);
template <> __device__ __forceinline__ float narrow<float>(float v) { return v; }
template <> __device__ __forceinline__ __half narrow<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 narrow<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
}
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
}

// 16 bytes to aligned global memory. In C++ the front end took such a store apart into four.
__device__ __forceinline__ void write16(void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// V consecutive results: one such store, or two where 16-bit inputs give float32.
template <typename Out, int V> __device__ __forceinline__ void write(Out* target, const float (&value)[V]) {
    if constexpr (sizeof(Out) == 4) {
#pragma unroll
        for (int v = 0; v < V; v += 4)
            write16(target + v, __float_as_uint(value[v]), __float_as_uint(value[v + 1]), __float_as_uint(value[v + 2]), __float_as_uint(value[v + 3]));
    } else {
        static_assert(V == 8);
        write16(target, pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]), pack<Out>(value[4], value[5]), pack<Out>(value[6], value[7]));
    }
}

// The same where `there`: no branch around what is computed.
__device__ __forceinline__ void write16_where(bool there, void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(unsigned(there)), "l"(target), "r"(a), "r"(b),
                 "r"(c), "r"(d)
                 : "memory");
}
template <typename Out, int V> __device__ __forceinline__ void write_where(bool there, Out* target, const float (&value)[V]) {
    if constexpr (sizeof(Out) == 4) {
#pragma unroll
        for (int v = 0; v < V; v += 4)
            write16_where(there, target + v, __float_as_uint(value[v]), __float_as_uint(value[v + 1]), __float_as_uint(value[v + 2]), __float_as_uint(value[v + 3]));
    } else {
        static_assert(V == 8);
        write16_where(there, target, pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]), pack<Out>(value[4], value[5]), pack<Out>(value[6], value[7]));
    }
}

// What is kept of a part of a row. Forward: the maximum, and the sum of exp(x - maximum); a part that has seen only -inf is measured from
// 0, so that its sum stays 0 (or NaN, where it has seen one), and a row of nothing but -inf ends as 0 / 0 = NaN, as torch has it.
// Backward: `sum` is the dot product of dy and y; `top` is not used.
struct Part {
    float top, sum;
};

// One row's operands at one position: a 16-byte vector of each tensor read.
template <int READS> struct Item {
    uint32_t word[READS][4];
};

// Over aligned groups of `lanes` lanes, a power of two; every lane of the warp takes part.
__device__ __forceinline__ float largest_of_lanes(float top, int lanes) {
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2)
        if (other < lanes) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
    return top;
}
__device__ __forceinline__ float sum_of_lanes(float sum, int lanes) {
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2)
        if (other < lanes) sum += __shfl_xor_sync(~0u, sum, other);
    return sum;
}

// Over the whole warp, by the one instruction that does it, on integers in the floats' order: five shuffles wait for each other.
__device__ __forceinline__ float largest_of_warp(float top) {
    const int bits = __float_as_int(top), largest = __reduce_max_sync(~0u, bits ^ ((bits >> 31) & 0x7fffffff));
    return __int_as_float(largest ^ ((largest >> 31) & 0x7fffffff));
}

__device__ __forceinline__ float measured_from(float top) { return top == MINUS_INFINITY ? 0.0f : top; }

// An operation has
//   take      the part of what a thread holds in registers: K vectors and perhaps one odd element (blank if not)
//   absorb    adds vectors to a part, leaving them as they are
//   joined, join_lanes, join_alike    parts of a row to one part
//   finish    the row's part to what its elements need, {base, scale} or {-, dot}
//   give      the results of vectors that `take` has seen; `own` is the part that it returned
//   store     the results of other vectors
template <typename In, typename Output> struct Forward {
    using Element = In;
    using Out = Output;
    static constexpr int READS = 1;
    static constexpr int V = VECTOR_BYTES / sizeof(In);
    static constexpr int E = Word<In>::ELEMENTS;
    // Float32 vectors turn into exponentials where they stand, measured from the thread's own maximum: one factor a thread corrects that.
    static constexpr bool KEEPS_EXPONENTIALS = E == 1;

    static __device__ __forceinline__ Part empty() { return {MINUS_INFINITY, 0.0f}; }
    static __device__ __forceinline__ uint32_t blank() { return Word<In>::MINUS_INFINITY_BITS; }
    static __device__ __forceinline__ float distance(float x, float base) { return (x - base) * LOG2_E; }

    template <int K> static __device__ __forceinline__ float largest(const Item<1> (&item)[K], const uint32_t (&odd)[1]) {
        uint32_t running = E == 2 ? (odd[0] & 0xffffu) * 0x10001u : odd[0];
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) running = Word<In>::larger(running, item[k].word[0][w]);
        const float top = Word<In>::element(running, 0);
        return E == 2 ? fmaxf(top, Word<In>::element(running, E - 1)) : top;
    }
    template <int K> static __device__ __forceinline__ Part take(Item<1> (&item)[K], const uint32_t (&odd)[1]) {
        const float top = largest(item, odd), base = measured_from(top);
        float sum = exp2_fast(distance(Word<In>::element(odd[0], 0), base));
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    float exponential = exp2_fast(distance(Word<In>::element(item[k].word[0][w], e), base));
                    if constexpr (KEEPS_EXPONENTIALS) item[k].word[0][w] = __float_as_uint(exponential);
                    sum += exponential;
                }
        return {top, sum};
    }
    // The same, and 16-bit vectors' exponentials stay in `kept`: twice the registers, and half the exponentials of a thread that has few.
    template <int K> static __device__ __forceinline__ Part take(Item<1> (&item)[K], const uint32_t (&odd)[1], float (&kept)[K * V]) {
        const float top = largest(item, odd), base = measured_from(top);
        float sum[2] = {exp2_fast(distance(Word<In>::element(odd[0], 0), base)), 0.0f};
#pragma unroll
        for (int i = 0; i < K * V; ++i) {
            kept[i] = exp2_fast(distance(Word<In>::element(item[i / V].word[0][i % V / E], i % E), base));
            sum[i % 2] += kept[i];
        }
        return {top, sum[0] + sum[1]};
    }
    // What they become: `own` is the part that `take` returned. From own.top itself: a thread of nothing but -inf has exponentials 0 and the
    // factor 0, or NaN with its whole row.
    static __device__ __forceinline__ void give(Out* target, const float* kept, Part whole, Part own) {
        const float factor = exp2_fast(distance(own.top, whole.top)) * whole.sum;
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = kept[v] * factor;
        write<Out, V>(target, value);
    }
    // The part of an odd element, or of none.
    static __device__ __forceinline__ Part alone(const uint32_t (&odd)[1]) {
        const float x = Word<In>::element(odd[0], 0);
        return {x, exp2_fast(distance(x, measured_from(x)))};
    }
    // The new elements are summed by themselves: a sum of many is then as deep as its number of calls, not of elements. `zero` is where a
    // barrier's result may come in, so that nothing is computed before it.
    template <int K> static __device__ __forceinline__ void absorb(Part& part, const Item<1> (&item)[K], uint32_t zero = 0) {
        uint32_t running = blank() | zero;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) running = Word<In>::larger(running, item[k].word[0][w]);
        float top = fmaxf(part.top, Word<In>::element(running, 0));
        if constexpr (E == 2) top = fmaxf(top, Word<In>::element(running, 1));
        const float base = measured_from(top);
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < E; ++e) sum += exp2_fast(distance(Word<In>::element(item[k].word[0][w], e), base));
        part = {top, part.sum * exp2_fast(distance(part.top, base)) + sum};
    }
    static __device__ __forceinline__ void absorb(Part& part, const float (&x)[1]) {
        float top = fmaxf(part.top, x[0]), base = measured_from(top);
        part = {top, part.sum * exp2_fast(distance(part.top, base)) + exp2_fast(distance(x[0], base))};
    }
    static __device__ __forceinline__ Part joined(Part a, Part b) {
        float top = fmaxf(a.top, b.top), base = measured_from(top);
        return {top, a.sum * exp2_fast(distance(a.top, base)) + b.sum * exp2_fast(distance(b.top, base))};
    }
    // The join over aligned groups of `lanes` lanes, a power of two; every lane of the warp takes part and gets its group's.
    static __device__ __forceinline__ Part join_lanes(Part part, int lanes) {
        float top = largest_of_lanes(part.top, lanes);
        return {top, sum_of_lanes(part.sum * exp2_fast(distance(part.top, measured_from(top))), lanes)};
    }
    // The join of `lanes` parts, a power of two, of which each aligned group of so many lanes has them all.
    static __device__ __forceinline__ Part join_alike(Part part, int lanes) {
        float top = largest_of_warp(part.top);
        return {top, sum_of_lanes(part.sum * exp2_fast(distance(part.top, measured_from(top))), lanes)};
    }
    static __device__ __forceinline__ Part finish(Part part) { return {measured_from(part.top), reciprocal(part.sum)}; }
    static __device__ __forceinline__ float result(const float (&x)[1], Part whole) { return exp2_fast(distance(x[0], whole.top)) * whole.sum; }
    static __device__ __forceinline__ void store(Out* target, const Item<1>& item, Part whole) {
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float x[1] = {Word<In>::element(item.word[0][v / E], v % E)};
            value[v] = result(x, whole);
        }
        write<Out, V>(target, value);
    }
    static __device__ __forceinline__ void give(Out* target, const Item<1>& item, Part whole, Part own) {
        if constexpr (KEEPS_EXPONENTIALS) {
            float kept[V];
#pragma unroll
            for (int v = 0; v < V; ++v) kept[v] = __uint_as_float(item.word[0][v]);
            give(target, kept, whole, own);
        } else {
            store(target, item, whole);
        }
    }
};

template <typename T> struct Backward {
    using Element = T;
    using Out = T;
    static constexpr int READS = 2;  // dy, y
    static constexpr int V = VECTOR_BYTES / sizeof(T);
    static constexpr int E = Word<T>::ELEMENTS;
    static constexpr bool KEEPS_EXPONENTIALS = false;

    static __device__ __forceinline__ Part empty() { return {0.0f, 0.0f}; }
    static __device__ __forceinline__ uint32_t blank() { return 0; }

    template <int K> static __device__ __forceinline__ Part take(Item<2> (&item)[K], const uint32_t (&odd)[2]) {
        Part part = alone(odd);
        absorb(part, item);
        return part;
    }
    static __device__ __forceinline__ Part alone(const uint32_t (&odd)[2]) { return {0.0f, Word<T>::element(odd[0], 0) * Word<T>::element(odd[1], 0)}; }
    template <int K> static __device__ __forceinline__ void absorb(Part& part, const Item<2> (&item)[K], uint32_t zero = 0) {
        float sum = __uint_as_float(zero);
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
#pragma unroll
                for (int e = 0; e < E; ++e) sum += Word<T>::element(item[k].word[0][w], e) * Word<T>::element(item[k].word[1][w], e);
        part.sum += sum;
    }
    static __device__ __forceinline__ void absorb(Part& part, const float (&v)[2]) { part.sum += v[0] * v[1]; }
    static __device__ __forceinline__ Part joined(Part a, Part b) { return {0.0f, a.sum + b.sum}; }
    static __device__ __forceinline__ Part join_lanes(Part part, int lanes) { return {0.0f, sum_of_lanes(part.sum, lanes)}; }
    static __device__ __forceinline__ Part join_alike(Part part, int lanes) { return join_lanes(part, lanes); }
    static __device__ __forceinline__ Part finish(Part part) { return part; }
    static __device__ __forceinline__ float result(const float (&v)[2], Part whole) { return v[1] * (v[0] - whole.sum); }
    static __device__ __forceinline__ void store(Out* target, const Item<2>& item, Part whole) {
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float pair[2] = {Word<T>::element(item.word[0][v / E], v % E), Word<T>::element(item.word[1][v / E], v % E)};
            value[v] = result(pair, whole);
        }
        write<Out, V>(target, value);
    }
    static __device__ __forceinline__ void give(Out* target, const Item<2>& item, Part whole, Part) { store(target, item, whole); }
};

// Held over an exchange, the compiler would rather keep the unpacked float32 copies than the raw bits: twice the registers, or spills. An
// empty asm hides the connection from nvcc's front end but not from ptxas, which sees the same registers; a branch that could change them
// hides it from both. `never` is false at run time and unknown when compiling.
template <typename Op, int K> __device__ __forceinline__ void forget_unpacked(Item<Op::READS> (&item)[K], bool never) {
    if (Op::E > 1 && never) {
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int r = 0; r < Op::READS; ++r)
#pragma unroll
                for (int w = 0; w < 4; ++w) asm volatile("not.b32 %0, %0;" : "+r"(item[k].word[r][w]));
    }
}

}  // namespace softbench
