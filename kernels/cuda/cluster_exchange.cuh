// How the CTAs of a cluster exchange their Partials through distributed shared memory (sm_90 and later), and how rows get different start times.
#pragma once

#include "async_copy.cuh"

namespace softbench {

constexpr int MAX_CLUSTER = 16;

// Rows that start at the same time also exchange at the same time, and the memory idles meanwhile. So the first rows, as many as the device
// holds at once, start `cycles` after each other. Later rows start as these end. rows = 0: no stagger.
struct Stagger {
    int rows, cycles;
};

__device__ __forceinline__ void staggered_start(Stagger stagger, int index) {
    if (index >= stagger.rows) return;
    const uint64_t begin = uint64_t(clock64()), wait = uint64_t(index) * uint64_t(stagger.cycles);
    while (uint64_t(clock64()) - begin < wait) {}
    asm volatile("" ::: "memory");  // the compiler must not move a load before the wait
}

#if SOFTBENCH_CLUSTERS

__device__ __forceinline__ int cluster_rank() {
    uint32_t r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return int(r);
}
__device__ __forceinline__ int cluster_index() {  // among the grid's clusters, without a division by their size
    uint32_t i;
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(i));
    return int(i);
}
__device__ __forceinline__ int cluster_size() {
    uint32_t n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return int(n);
}
// The arrival is relaxed. The default is a release: it waits for all memory of the device (MEMBAR.GPU) before the first load is issued. That
// costs 4 % of the bandwidth. The other CTAs must only see that the barrier is ready, and barrier_inits_visible ensures that.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ uint32_t remote_address(const void* shared, int rank) {
    uint32_t address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
    return address;
}

// A CTA's mailbox has a message from each CTA of the cluster, itself included. The barrier's phase ends when all messages have come.
struct alignas(8) Message {
    float maximum, sum;
};
// Sends to the CTA of rank `to`, by one lane a receiver. The bytes travel in registers, so the sender may exit.
__device__ __forceinline__ void send_partial(Message* mailbox, uint64_t* barrier, int to, Partial partial) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(remote_address(mailbox, to)),
                 "r"(__float_as_uint(partial.maximum)), "r"(__float_as_uint(partial.sum)), "r"(remote_address(barrier, to))
                 : "memory");
}

// What a CTA needs to merge the Partials of its cluster: a message from each CTA.
struct ClusterExchange {
    Message mailbox[MAX_CLUSTER];
    uint64_t barrier;

    // Announces that this CTA's barrier is ready. The wait for the other CTAs comes after the loads.
    __device__ __forceinline__ void begin(int size) {
        if (threadIdx.x == 0) {
            barrier_init(&barrier);
            barrier_inits_done();
            barrier_expect(&barrier, sizeof(Message) * size);
        }
        cluster_arrive();
    }
    // Each thread has the CTA's Partial, and gets the cluster's. All messages to this CTA have come then, so it may exit.
    template <typename Op> __device__ __forceinline__ Partial merge(const Op& op, Partial partial, int rank, int size) {
        cluster_wait();
        if (int(threadIdx.x) < size) send_partial(&mailbox[rank], &barrier, threadIdx.x, partial);
        barrier_wait(&barrier, 0);
        const int other = threadIdx.x % MAX_CLUSTER;
        partial = other < size ? Partial{mailbox[other].maximum, mailbox[other].sum} : Op::identity();
        return op.reduce_replicated(partial, MAX_CLUSTER);
    }
};

#endif

}  // namespace softbench
