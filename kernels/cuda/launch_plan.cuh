// What describes a launch: its plan, and what the plan depends on, which are the device and the layout of the tensors in memory.
#pragma once

#include "softmax_ops.cuh"
#include "row_access.cuh"

#include <algorithm>
#include <mutex>

namespace softbench {

// softmax.cu describes the tiers, and launch.py has their names in this order. AUTO: no plan yet.
enum Tier { AUTO = -1, SUB_WARP, STAGED, BLOCK, CLUSTER, SPLIT, GENERIC, CLUSTER_BULK, SPLIT_BULK, ONE_WARP, BY_COLUMN };
constexpr int INVARIANT = -2;  // in place of a tier: a plan of invariant.cuh is asked for

}  // namespace softbench

// How a launch is done. The planner fills it in, or a test or a sweep does.
extern "C" struct SoftbenchPlan {
    int tier;            // a Tier
    int vectors;         // of each tensor, that a thread has in registers (staged: elements a lane; sub_warp, aligned: accesses a lane)
    int threads;         // of a CTA
    int per_row;         // what shares a row: lanes (sub_warp, staged), CTAs (cluster, by_column, split and the bulk tiers), 1 for a warp and 0 for a CTA (generic)
    int tier_option;     // sub_warp: 1 if rows may be unaligned; staged: rows of a CTA; split: vectors a thread in shared memory
    int base_alignment;  // bytes: rows count their vectors from a base so aligned, 16 or 128 (sub_warp, aligned: the bytes of an access)
    int max_polls;       // split, split_bulk: polls until a CTA reduces the whole row itself; negative: it always does
    int stagger_cycles;  // cycles between the starts of the first rows, unless `Launcher::stagger` lets them start together; 0: all start together
};

// Calls `with` with the instantiation of a function template for `dtype`: 0 float32, 1 float16, 2 bfloat16.
#define SOFTBENCH_WITH_DTYPE(function)                       \
    switch (dtype) {                                         \
        case 0: return with(softbench::function<float>);     \
        case 1: return with(softbench::function<__half>);    \
        case 2: return with(softbench::function<__nv_bfloat16>); \
    }                                                        \
    return cudaErrorInvalidValue

namespace softbench {

using Plan = SoftbenchPlan;

constexpr int LINE_ALIGNMENT = LINE_BYTES;
constexpr int64_t KEEP_IN_L2_BYTES = 32 << 20;  // of all tensors read: half of an H200's L2
// Of all tensors read: launches without clusters that the device holds at once are staggered from here on, forwards and gradients.
constexpr int64_t ONE_WAVE_FORWARD_BYTES = 16 << 20, ONE_WAVE_GRADIENT_BYTES = 30 << 20;
// Of all tensors read, on MEASURED_SMS: the upper limits of `leaves_first`, by measurement. Its lower limits are those of one wave.
constexpr int64_t LEAVE_FIRST_FORWARD_BYTES = 48 << 20, LEAVE_FIRST_GRADIENT_BYTES = 60 << 20;
constexpr int64_t LARGE_BYTES = 64 << 20;  // of a tensor: a launch of tens of microseconds
constexpr int64_t MAX_N = (int64_t(1) << 31) - 4096;  // indices within a row have 32 bits; tier generic takes longer rows

struct Device {
    int sms, shared_block, shared_sm, major;  // shared memory in bytes, the most of a CTA and of an SM; `major` of the compute capability
    int clock, memory_clock, bus;             // kHz, kHz, bits
    // Hopper and later data-center GPUs have clusters of 16 CTAs and at least 200 KB of shared memory a CTA. Others use the plans of sm_80.
    bool clusters() const { return major >= 9 && shared_block >= 200 << 10; }
};

// The current device. Within a `Launching` the thread has asked the driver, once.
inline thread_local int asked = -1;
inline int current_device() {
    int current = asked;
    return current >= 0 || cudaGetDevice(&current) == cudaSuccess ? current : 0;
}
struct Launching {
    Launching() { asked = current_device(); }
    ~Launching() { asked = -1; }
};

inline const Device& device() {
    static Device known[64];
    static std::once_flag once[64];
    const int current = current_device() & 63;
    std::call_once(once[current], [&] {
        Device& d = known[current];
        cudaDeviceGetAttribute(&d.sms, cudaDevAttrMultiProcessorCount, current);
        cudaDeviceGetAttribute(&d.shared_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, current);
        cudaDeviceGetAttribute(&d.shared_sm, cudaDevAttrMaxSharedMemoryPerMultiprocessor, current);
        cudaDeviceGetAttribute(&d.major, cudaDevAttrComputeCapabilityMajor, current);
        cudaDeviceGetAttribute(&d.clock, cudaDevAttrClockRate, current);
        cudaDeviceGetAttribute(&d.memory_clock, cudaDevAttrMemoryClockRate, current);
        cudaDeviceGetAttribute(&d.bus, cudaDevAttrGlobalMemoryBusWidth, current);
    });
    return known[current];
}

template <typename I> I ceil_div(I a, I b) { return (a + b - 1) / b; }
template <typename I> I round_up(I a, I b) { return ceil_div(a, b) * b; }
inline int log2_ceil(int64_t n) {
    int log = 0;
    while ((int64_t(1) << log) < n) ++log;
    return log;
}

// How the rows of all tensors lie in memory.
struct Layout {
    bool congruent;   // each row has the same offset from a 16-byte boundary in all tensors
    bool aligned;     // that offset is 0
    bool contiguous;  // rows follow each other without gaps
    int granularity;  // elements, at most a vector of them: each row's start and length are multiples of it
    int offset;       // the most elements from a 128-byte boundary to a row of the first tensor
};

template <typename Op> Layout layout_of(const Tensors<Op>& t, int64_t N) {
    constexpr int V = Op::V;
    Layout l = {true, true, true, V, 0};
    while (N % l.granularity) l.granularity /= 2;
    auto add_tensor = [&](const void* base, int64_t stride, size_t size) {
        int64_t phase = int64_t(reinterpret_cast<uintptr_t>(base) / size % V), step = t.M > 1 ? (stride % V + V) % V : 0;
        int64_t phase0 = int64_t(reinterpret_cast<uintptr_t>(t.source[0]) / sizeof(typename Op::Element) % V);
        int64_t step0 = t.M > 1 ? (t.source_stride[0] % V + V) % V : 0;
        l.congruent &= phase == phase0 && step == step0;
        l.aligned &= phase == 0 && step == 0;
        l.contiguous &= t.M == 1 || stride == N;
        while (phase % l.granularity || step % l.granularity) l.granularity /= 2;
    };
    for (int r = 0; r < Op::READS; ++r) add_tensor(t.source[r], t.source_stride[r], sizeof(typename Op::Element));
    add_tensor(t.target, t.target_stride, sizeof(typename Op::Out));
    constexpr int line = LINE_ALIGNMENT / sizeof(typename Op::Element);
    int64_t phase = int64_t(reinterpret_cast<uintptr_t>(t.source[0]) / sizeof(typename Op::Element) % line);
    int64_t step = t.M > 1 ? t.source_stride[0] % line : 0, granularity = line;
    while (granularity > 1 && (step % granularity != 0)) granularity /= 2;  // each row starts at phase plus a multiple of this power of two
    l.offset = int(line - granularity + phase % granularity);
    return l;
}

}  // namespace softbench
