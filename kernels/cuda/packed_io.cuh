// Elements in registers and in vectors of 16 bytes: how they are packed, converted and stored.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace softbench {

constexpr int WARP = 32;
constexpr int VECTOR_BYTES = 16;
constexpr int SECTOR_BYTES = 32;  // that memory reads or writes at once
constexpr int LINE_BYTES = 128;
constexpr int LINE_VECTORS = LINE_BYTES / VECTOR_BYTES;
constexpr float MINUS_INFINITY = -__builtin_huge_valf();

// A 32-bit register of a 16-byte vector: one float or two 16-bit elements. `elementwise_max` and `elementwise_min` compare 16-bit elements without
// unpacking them, and take the number of a number and a NaN.
template <typename T> struct Packed;
template <> struct Packed<float> {
    static constexpr int ELEMENTS = 1;
    static constexpr uint32_t MINUS_INFINITY_BITS = 0xff800000u;
    static __device__ __forceinline__ float element(uint32_t packed, int) { return __uint_as_float(packed); }
    static __device__ __forceinline__ uint32_t elementwise_max(uint32_t a, uint32_t b) {
        return __float_as_uint(fmaxf(__uint_as_float(a), __uint_as_float(b)));
    }
    static __device__ __forceinline__ uint32_t elementwise_min(uint32_t a, uint32_t b) {
        return __float_as_uint(fminf(__uint_as_float(a), __uint_as_float(b)));
    }
};
template <typename Pair> struct PackedPair {
    static constexpr int ELEMENTS = 2;
    static __device__ __forceinline__ uint32_t elementwise_max(uint32_t a, uint32_t b) {
        Pair pair = __hmax2(reinterpret_cast<Pair&>(a), reinterpret_cast<Pair&>(b));
        return reinterpret_cast<uint32_t&>(pair);
    }
    static __device__ __forceinline__ uint32_t elementwise_min(uint32_t a, uint32_t b) {
        Pair pair = __hmin2(reinterpret_cast<Pair&>(a), reinterpret_cast<Pair&>(b));
        return reinterpret_cast<uint32_t&>(pair);
    }
};
template <> struct Packed<__half> : PackedPair<__half2> {
    static constexpr uint32_t MINUS_INFINITY_BITS = 0xfc00fc00u;
    static __device__ __forceinline__ float element(uint32_t packed, int i) {
        __half2 pair = reinterpret_cast<const __half2&>(packed);
        return i == 0 ? __low2float(pair) : __high2float(pair);
    }
};
template <> struct Packed<__nv_bfloat16> : PackedPair<__nv_bfloat162> {
    static constexpr uint32_t MINUS_INFINITY_BITS = 0xff80ff80u;
    static __device__ __forceinline__ float element(uint32_t packed, int i) { return __uint_as_float(i == 0 ? packed << 16 : packed & 0xffff0000u); }
};

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high);
template <> __device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
}
template <> __device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<uint32_t&>(pair);
}

// Stores 16 bytes to aligned global memory. The front end of nvcc splits the C++ form of this store into four stores.
__device__ __forceinline__ void store16(void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(target), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void store8(void* target, uint32_t a, uint32_t b) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(target), "r"(a), "r"(b) : "memory");
}
// Stores V consecutive results: in one 16-byte store, in two where 16-bit inputs give float32 results, or in 8 bytes in the opposite case.
template <typename Out, int V> __device__ __forceinline__ void store_vector(Out* target, const float (&value)[V]) {
    if constexpr (sizeof(Out) == 4) {
#pragma unroll
        for (int v = 0; v < V; v += 4)
            store16(target + v, __float_as_uint(value[v]), __float_as_uint(value[v + 1]), __float_as_uint(value[v + 2]), __float_as_uint(value[v + 3]));
    } else if constexpr (V == 4) {
        store8(target, pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]));
    } else {
        static_assert(V == 8);
        store16(target, pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]), pack<Out>(value[4], value[5]), pack<Out>(value[6], value[7]));
    }
}

// The same stores under a predicate: there is no branch around what is computed.
__device__ __forceinline__ void store16_if(bool condition, void* target, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}" ::"r"(unsigned(condition)), "l"(target), "r"(a),
                 "r"(b), "r"(c), "r"(d)
                 : "memory");
}
template <typename Out, int V> __device__ __forceinline__ void store_vector_if(bool condition, Out* target, const float (&value)[V]) {
    if constexpr (sizeof(Out) == 4) {
#pragma unroll
        for (int v = 0; v < V; v += 4)
            store16_if(condition, target + v, __float_as_uint(value[v]), __float_as_uint(value[v + 1]), __float_as_uint(value[v + 2]),
                       __float_as_uint(value[v + 3]));
    } else {
        static_assert(V == 8);
        store16_if(condition, target, pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]), pack<Out>(value[4], value[5]),
                   pack<Out>(value[6], value[7]));
    }
}

// The target of a vector of 16-bit inputs whose results are float32, and whether the row has this vector and that of the other lane of a pair.
// Lanes 2i and 2i + 1 are a pair and hold neighbouring vectors, of 32 bytes of results each.
struct PairTarget {
    float* target;
    bool inside, other_inside;
};
// Whether a warp has a vector of [from, to): the lanes have consecutive vectors, and this lane has vector i. All lanes get the same answer. A branch
// on it keeps ptxas from computing the results of several vectors at once, for which it would spill registers.
__device__ __forceinline__ bool warp_has_vector(int i, int from, int to) {
    const int first = i - int(threadIdx.x % WARP);
    return first < to && first + WARP > from;
}
// Stores the vectors of a pair of lanes: first both lanes store the even lane's vector, then the odd lane's. If each lane stored its own, each store
// would write half of every 32-byte sector. All lanes of the warp must call it.
template <typename Out, int V> __device__ __forceinline__ void store_vector(PairTarget pair, const float (&value)[V]) {
    static_assert(sizeof(Out) == 4 && V == 8);
    const bool odd = threadIdx.x % 2;
    uint32_t even_part[4], odd_part[4];
#pragma unroll
    for (int v = 0; v < 4; ++v) {
        const uint32_t low = __float_as_uint(value[v]), high = __float_as_uint(value[4 + v]), other = __shfl_xor_sync(~0u, odd ? low : high, 1);
        even_part[v] = odd ? other : low;
        odd_part[v] = odd ? high : other;
    }
    float* const target = pair.target - (odd ? 4 : 0);
    store16_if(odd ? pair.other_inside : pair.inside, target, even_part[0], even_part[1], even_part[2], even_part[3]);
    store16_if(odd ? pair.inside : pair.other_inside, target + 8, odd_part[0], odd_part[1], odd_part[2], odd_part[3]);
}

}  // namespace softbench
