// Every plan that the rules of kernels/cuda choose holds its rows: asked of `plan` and `holds` themselves, on the host, of devices that
// are only numbers. Prints how many plans were asked for and, a line each, those that do not hold.
#include <cuda_runtime.h>

namespace fake {
struct Numbers {
    int sms, shared_block, shared_sm, major;
};
constexpr Numbers DEVICES[] = {{132, 232448, 233472, 9}, {78, 232448, 233472, 9}, {148, 232448, 233472, 10}, {108, 166912, 167936, 8}, {170, 101376, 102400, 12}};
int current = 0;
inline cudaError_t get(int* device) { return *device = current, cudaSuccess; }
inline cudaError_t attribute(int* value, cudaDeviceAttr which, int device) {
    const Numbers& d = DEVICES[device];
    *value = which == cudaDevAttrMultiProcessorCount ? d.sms : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? d.shared_block
           : which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? d.shared_sm : d.major;
    return cudaSuccess;
}
}  // namespace fake

#define cudaGetDevice fake::get
#define cudaDeviceGetAttribute fake::attribute
#define SOFTBENCH_PART 99  // no kernel is compiled
#include "softmax.cu"

#include <cmath>
#include <cstdio>
#include <random>

using namespace softbench;

long asked = 0, bad = 0;

template <typename Op> void ask(const char* name, int64_t M, int64_t N, int64_t offset, int64_t pad) {
    Tensors<Op> t;
    for (int r = 0; r < Op::READS; ++r) {
        t.source[r] = reinterpret_cast<const typename Op::Element*>(uintptr_t(0x100000 + offset * sizeof(typename Op::Element)));
        t.source_stride[r] = N + pad;
    }
    t.target = reinterpret_cast<typename Op::Out*>(uintptr_t(0x100000 + offset * sizeof(typename Op::Out)));
    t.target_stride = N + pad;
    t.M = M;
    t.N = int(std::min<int64_t>(N, MAX_N));
    const Plan p = plan(t, N);
    const bool clustered = p.tier == CLUSTER || p.tier == WIDE || p.tier == SPREAD;
    ++asked;
    if (p.tier == AUTO || !holds(t, N, p) || p.threads > 1024 || (clustered && !device().clusters()))
        if (++bad <= 20)
            std::printf("%s %lldx%lld + %lld, %lld apart, device %d: tier %d, %d vectors, %d threads, group %d, depth %d, floor %d\n", name, (long long)M,
                        (long long)N, (long long)offset, (long long)pad, fake::current, p.tier, p.vectors, p.threads, p.group, p.depth, p.floor);
}

template <typename Op> void sweep(const char* name, unsigned seed) {
    std::mt19937_64 random(seed);
    auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
    for (fake::current = 0; fake::current < int(sizeof(fake::DEVICES) / sizeof(fake::DEVICES[0])); ++fake::current) {
        for (int64_t N = 1; N <= 4200; ++N)
            for (int64_t M : {1, 33, 4096, 262144}) ask<Op>(name, M, N, 0, 0), ask<Op>(name, M, N, below(8), below(8));
        for (int i = 0; i < 40000; ++i) {
            int64_t N = int64_t(std::exp(below(1 << 20) * std::log(1e8) / (1 << 20)));
            if (below(2)) N = std::max<int64_t>(1, N / 64 * 64 + below(3) - 1);
            ask<Op>(name, below(2) ? 1 + below(200) : 1 + below(1 << 20), N, below(2) * below(64), below(2) * below(64));
        }
    }
}

int main() {
    sweep<Forward<float, float>>("forward float32", 1);
    sweep<Forward<__half, __half>>("forward float16", 2);
    sweep<Forward<__nv_bfloat16, float>>("forward bfloat16 to float32", 3);
    sweep<Backward<float>>("backward float32", 4);
    sweep<Backward<__nv_bfloat16>>("backward bfloat16", 5);
    std::printf("%ld plans, %ld bad\n", asked, bad);
    return bad != 0;
}
