// Copies from global to shared memory that bypass the registers. cp.async is issued by each thread. Bulk copies use the copy engine (sm_90 and
// later).
#pragma once

#include "row_access.cuh"

namespace softbench {

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// Copies take a policy on sm_90 only. For sm_100, ptxas of CUDA 12.8 to 13.3 gives such a copy a policy register that it never sets.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
constexpr bool COPIES_TAKE_POLICY = true;
#else
constexpr bool COPIES_TAKE_POLICY = false;
#endif
// Copies 16 bytes. Only the thread that copies can read them after copy_async_wait; others need a barrier.
template <bool KEEP_IN_L2> __device__ __forceinline__ void copy_async(void* shared, const void* global, uint64_t policy) {
    if constexpr (KEEP_IN_L2 && COPIES_TAKE_POLICY)
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "l"(policy) : "memory");
    else asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_async_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define SOFTBENCH_CLUSTERS 1

// An mbarrier in shared memory whose phase ends when one arrival and the expected bytes have come.
__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
// Makes initialized barriers visible to the other CTAs of the cluster; no instruction.
__device__ __forceinline__ void barrier_inits_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// The same, also to the copy engine. It waits for the memory operations before it.
__device__ __forceinline__ void barrier_inits_done() {
    barrier_inits_visible();
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// The only arrival of a phase. It also sets how many bytes the phase waits for.
__device__ __forceinline__ void barrier_expect(uint64_t* barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(barrier)), "r"(parity)
            : "memory");
}
// A bulk copy by one thread to this CTA's shared memory. Both addresses are 16-byte aligned; `bytes` is a positive multiple of 16.
template <bool KEEP_IN_L2> __device__ __forceinline__ void copy_bulk(void* shared, const void* global, uint32_t bytes, uint64_t* barrier, uint64_t policy) {
    if constexpr (KEEP_IN_L2)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
                     : "memory");
    else
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(shared)),
                     "l"(global), "r"(bytes), "r"(shared_address(barrier))
                     : "memory");
}

#endif

}  // namespace softbench
