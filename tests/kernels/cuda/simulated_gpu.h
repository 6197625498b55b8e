// A GPU for kernels that a host compiler compiles: the threads of a CTA are fibers, and one CTA runs after the other. test_simulated_losses.py
// replaces the assembler of the kernels' sources and their launches; what it does not replace ends the program.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#undef __device__
#undef __host__
#undef __global__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __align__
#define __device__
#define __host__
#define __global__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n)
#define CUDART_VERSION 12000

namespace simulated {

struct Fiber {
    ucontext_t context;  // where it begins
    jmp_buf place;       // where it goes on: without a system call
    bool begun;
    std::vector<char> stack;
    unsigned thread;
    bool done;
};
struct Barrier {
    unsigned arrived = 0, generation = 0;
};
inline std::vector<Fiber> fibers;
inline Fiber* running;
inline ucontext_t start;
inline jmp_buf scheduler;
inline std::function<void()> body;
inline Barrier block_barrier, warp_barriers[32];
inline uint32_t lanes[32][32];

inline void yield() {
    if (!_setjmp(running->place)) _longjmp(scheduler, 1);
}
inline void resume(Fiber& fiber) {
    running = &fiber;
    if (_setjmp(scheduler)) return;
    if (std::exchange(fiber.begun, true)) _longjmp(fiber.place, 1);
    swapcontext(&start, &fiber.context);
}
inline unsigned alive(unsigned from, unsigned to) {
    unsigned count = 0;
    for (unsigned i = from; i < to && i < fibers.size(); ++i) count += !fibers[i].done;
    return count;
}
// Waits for all threads of [from, to) that have not ended.
inline void wait(Barrier& barrier, unsigned from, unsigned to) {
    const unsigned generation = barrier.generation;
    ++barrier.arrived;
    while (barrier.generation == generation) {
        if (barrier.arrived >= alive(from, to)) barrier.arrived = 0, ++barrier.generation;
        else yield();
    }
}
// Each lane gives a word and gets all words of its warp.
inline const uint32_t* exchange(uint32_t mine, unsigned mask) {
    const unsigned warp = running->thread / 32, first = warp * 32;
    if (mask != ~0u || alive(first, first + 32) != 32) std::printf("a warp exchanges without all of its lanes\n"), std::exit(1);
    static uint32_t copy[32][32];
    lanes[warp][running->thread % 32] = mine;
    wait(warp_barriers[warp], first, first + 32);
    std::memcpy(copy[warp], lanes[warp], sizeof(lanes[warp]));
    wait(warp_barriers[warp], first, first + 32);
    return copy[warp];
}

}  // namespace simulated

struct ThreadIndex {
    struct X {
        operator unsigned() const { return simulated::running->thread; }
    } x;
};
inline ThreadIndex threadIdx;
inline dim3 blockIdx, blockDim, gridDim;

namespace simulated {

inline void enter() {
    body();
    running->done = true;
    yield();
}
// The CTAs of a cluster run one after the other, with their ranks in reverse: only the first rank waits for the others. All have the same shared memory.
inline unsigned cluster = 1, received = 0, expected = 0;  // CTAs; bytes of messages
inline std::set<std::string> launched;  // a name for each instantiation of a kernel
template <typename F> void launch(dim3 grid, unsigned threads, size_t, cudaStream_t, F kernel) {
    launched.insert(typeid(F).name());
    body = kernel;
    gridDim = grid;
    blockDim = dim3(threads);
    fibers.resize(threads);
    for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                block_barrier = {};
                if (blockIdx.x % cluster == 0) received = expected = 0;
                for (Barrier& barrier : warp_barriers) barrier = {};
                for (unsigned i = 0; i < threads; ++i) {
                    Fiber& fiber = fibers[i];
                    fiber.stack.resize(1 << 16);
                    fiber.thread = i;
                    fiber.done = fiber.begun = false;
                    getcontext(&fiber.context);
                    fiber.context.uc_stack.ss_sp = fiber.stack.data();
                    fiber.context.uc_stack.ss_size = fiber.stack.size();
                    fiber.context.uc_link = nullptr;
                    makecontext(&fiber.context, enter, 0);
                }
                while (alive(0, threads))
                    for (Fiber& fiber : fibers)
                        if (!fiber.done) resume(fiber);
            }
}

inline uint32_t bits(float v) {
    uint32_t b;
    std::memcpy(&b, &v, 4);
    return b;
}
inline float number(uint32_t b) {
    float v;
    std::memcpy(&v, &b, 4);
    return v;
}
inline void store(void* target, std::initializer_list<uint32_t> words) {
    if (uintptr_t(target) % (words.size() * 4)) std::printf("an unaligned store\n"), std::exit(1);
    std::memcpy(target, words.begin(), words.size() * 4);
}
template <int W> void load_if(bool inside, uint32_t (&to)[W], const void* from) {
    if (inside && uintptr_t(from) % (W * 4)) std::printf("an unaligned load\n"), std::exit(1);
    if (inside) std::memcpy(to, from, W * 4);
}
inline float max_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b); }
inline float min_or_nan(float a, float b) { return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b); }
inline cudaError_t device(int* index) { return *index = 0, cudaSuccess; }
inline cudaError_t attribute(int* value, cudaDeviceAttr which, int) {
    *value = which == cudaDevAttrMultiProcessorCount ? 4 : which == cudaDevAttrComputeCapabilityMajor ? 9 : 232448;
    return cudaSuccess;
}
inline cudaError_t no_error() { return cudaSuccess; }

}  // namespace simulated

// Launches that have attributes.
template <typename... P, typename... A> cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... arguments) {
    simulated::cluster = config->numAttrs ? config->attrs[0].val.clusterDim.x : 1;
    simulated::launch(config->gridDim, config->blockDim.x, 0, nullptr, [=] { kernel(arguments...); });
    simulated::cluster = 1;
    if (simulated::received != simulated::expected) std::printf("a cluster's first CTA has not all messages\n"), std::exit(1);
    return cudaSuccess;
}
template <typename... P> cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, void (*)(P...)) { return cudaSuccess; }
template <typename... P> cudaError_t cudaFuncSetAttribute(void (*)(P...), cudaFuncAttribute, int) { return cudaSuccess; }
template <typename... P> cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, void (*)(P...), int, size_t) { return cudaSuccess; }
template <typename... P> cudaError_t cudaOccupancyMaxActiveClusters(int*, void (*)(P...), const cudaLaunchConfig_t*) { return cudaSuccess; }

#define cudaGetDevice simulated::device
#define cudaDeviceGetAttribute simulated::attribute
#define cudaGetLastError simulated::no_error

inline void __syncthreads() { simulated::wait(simulated::block_barrier, 0, unsigned(simulated::fibers.size())); }
inline int __reduce_max_sync(unsigned mask, int value) {
    const uint32_t* all = simulated::exchange(uint32_t(value), mask);
    int most = int(all[0]);
    for (int i = 1; i < 32; ++i) most = std::max(most, int(all[i]));
    return most;
}
inline float __shfl_xor_sync(unsigned mask, float value, int other) {
    return simulated::number(simulated::exchange(simulated::bits(value), mask)[(simulated::running->thread % 32) ^ unsigned(other)]);
}
inline uint32_t __shfl_xor_sync(unsigned mask, uint32_t value, int other) {
    return simulated::exchange(value, mask)[(simulated::running->thread % 32) ^ unsigned(other)];
}
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, unsigned bits) { return uint32_t((uint64_t(high) << 32 | low) >> (bits & 31)); }
inline float __shfl_down_sync(unsigned, float, int) { std::abort(); }
inline float __shfl_sync(unsigned, float, int) { std::abort(); }
inline uint32_t __shfl_sync(unsigned mask, uint32_t value, int from) { return simulated::exchange(value, mask)[from]; }
inline float __shfl_sync(unsigned mask, float value, int from, int width) {
    const unsigned lane = simulated::running->thread % 32;
    return simulated::number(simulated::exchange(simulated::bits(value), mask)[lane / unsigned(width) * unsigned(width) + unsigned(from)]);
}
inline void __syncwarp() {}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selectors) {
    const uint64_t both = uint64_t(b) << 32 | a;
    uint32_t found = 0;
    for (int i = 0; i < 4; ++i) found |= uint32_t(both >> (selectors >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    return found;
}
inline uintptr_t __cvta_generic_to_shared(const void* p) { return uintptr_t(p); }
inline long long clock64() { std::abort(); }
inline void atomicAdd(unsigned long long*, unsigned long long) { std::abort(); }
inline void __stcg(float4* p, float4 v) { *p = v; }
inline float4 __ldcg(const float4* p) { return *p; }
inline float __uint_as_float(uint32_t v) { return simulated::number(v); }
inline float __int_as_float(int v) { return simulated::number(uint32_t(v)); }
inline uint32_t __float_as_uint(float v) { return simulated::bits(v); }
inline int __float_as_int(float v) { return int(simulated::bits(v)); }
inline int min(int a, int b) { return std::min(a, b); }
inline int max(int a, int b) { return std::max(a, b); }

inline unsigned min(unsigned a, unsigned b) { return std::min(a, b); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(uint64_t(a) * b >> 32); }

// 16-bit floats
struct __half {
    uint16_t bits;
};
struct __half2 {
    __half x, y;
};
inline float __half2float(__half v) {
    const int exponent = v.bits >> 10 & 31, fraction = v.bits & 1023;
    const float size = exponent == 0 ? std::ldexp(float(fraction), -24) : exponent < 31 ? std::ldexp(float(1024 + fraction), exponent - 25) : fraction ? NAN : INFINITY;
    return v.bits >> 15 ? -size : size;
}
inline __half __float2half_rn(float v) {
    const uint16_t sign = uint16_t(std::signbit(v) << 15);
    const float size = std::fabs(v);
    if (!(size < 65520.0f)) return {uint16_t(std::isnan(v) ? 0x7fff : sign | 0x7c00)};
    if (size < 0x1p-14f) return {uint16_t(sign | int(std::nearbyint(std::ldexp(size, 24))))};
    const uint32_t b = simulated::bits(size);
    return {uint16_t(sign | (b + 0xfff + (b >> 13 & 1) - 0x38000000) >> 13)};
}
inline float __low2float(__half2 v) { return __half2float(v.x); }
inline float __high2float(__half2 v) { return __half2float(v.y); }
inline __half larger(__half a, __half b) { return __float2half_rn(std::fmax(__half2float(a), __half2float(b))); }
inline __half smaller(__half a, __half b) { return __float2half_rn(std::fmin(__half2float(a), __half2float(b))); }
inline __half2 __hmax2(__half2 a, __half2 b) { return {larger(a.x, b.x), larger(a.y, b.y)}; }
inline __half2 __hmin2(__half2 a, __half2 b) { return {smaller(a.x, b.x), smaller(a.y, b.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 v) { return simulated::number(uint32_t(v.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float v) {
    if (std::isnan(v)) return {0x7fff};
    const uint32_t b = simulated::bits(v);
    return {uint16_t((b + 0x7fff + ((b >> 16) & 1)) >> 16)};
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }
inline __nv_bfloat16 larger(__nv_bfloat16 a, __nv_bfloat16 b) { return __float2bfloat16_rn(std::fmax(__bfloat162float(a), __bfloat162float(b))); }
inline __nv_bfloat16 smaller(__nv_bfloat16 a, __nv_bfloat16 b) { return __float2bfloat16_rn(std::fmin(__bfloat162float(a), __bfloat162float(b))); }
inline __nv_bfloat162 __hmax2(__nv_bfloat162 a, __nv_bfloat162 b) { return {larger(a.x, b.x), larger(a.y, b.y)}; }
inline __nv_bfloat162 __hmin2(__nv_bfloat162 a, __nv_bfloat162 b) { return {smaller(a.x, b.x), smaller(a.y, b.y)}; }

// How many instantiations of kernels were launched since the last call.
extern "C" __attribute__((used)) inline int simulated_launched() { return int(std::exchange(simulated::launched, {}).size()); }
