// Whether the plans of invariant.cuh follow from N and the dtypes alone, fit their rows, and leave out tiers that may add a row again. It runs on the host,
// with devices that are only numbers. Prints how many lengths it tested, and a line for each of the first that are bad.
#include <cuda_runtime.h>

namespace fake {
struct Numbers {
    int sms, shared_block, shared_sm, major;
};
constexpr Numbers DEVICES[] = {{132, 232448, 233472, 9}, {148, 232448, 233472, 10}, {108, 166912, 167936, 8}, {24, 101376, 102400, 8}};
int current = 0;
inline cudaError_t get(int* device) { return *device = current, cudaSuccess; }
inline cudaError_t attribute(int* value, cudaDeviceAttr which, int device) {
    const Numbers& d = DEVICES[device];
    *value = which == cudaDevAttrMultiProcessorCount ? d.sms : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? d.shared_block
           : which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? d.shared_sm : which == cudaDevAttrComputeCapabilityMajor ? d.major : 1;
    return cudaSuccess;
}
}  // namespace fake

#define cudaGetDevice fake::get
#define cudaDeviceGetAttribute fake::attribute
#define SOFTBENCH_PART 99  // no kernel is compiled
#include "softmax.cu"

#include "loss_ops.cuh"
#include "statistics_launch.cuh"

#include <cstdio>
#include <cstring>

using namespace softbench;

long tested = 0, bad = 0;

template <typename Op> Plan plan_of(int64_t M, int64_t N, int64_t row) {
    constexpr int64_t SIZE = sizeof(typename Op::Element), OUT = sizeof(typename Op::Out);
    const int64_t unit = N * SIZE % 128 == 0 ? 128 : N * SIZE % 16 == 0 ? 16 : N * SIZE;  // where a row begins
    Tensors<Op> t;
    for (int r = 0; r < Op::READS; ++r) t.source[r] = reinterpret_cast<const typename Op::Element*>(uintptr_t(0x100000 + row * (unit % 16 ? 0 : unit))), t.source_stride[r] = N;
    t.target = reinterpret_cast<typename Op::Out*>(uintptr_t(0x100000 + row * (unit % 16 ? 0 : unit) / SIZE * OUT));
    t.target_stride = N, t.M = M, t.N = int(N);
    const Plan p = invariant_plan(t, N);
    const bool alone = p.tier == SUB_WARP || p.tier == STAGED || p.tier == BLOCK || p.tier == CLUSTER || p.tier == CLUSTER_BULK || p.tier == BY_COLUMN || p.tier == GENERIC;
    const bool clusters = p.tier == CLUSTER || p.tier == CLUSTER_BULK || (p.tier == BY_COLUMN && p.per_row > 1);
    if (!alone || !plan_fits(t, N, p) || p.threads > 1024 || (clusters && !device().clusters()))
        if (++bad <= 20) std::printf("%lldx%lld, device %d: tier %d, %d vectors, %d threads, per_row %d\n", (long long)M, (long long)N, fake::current, p.tier, p.vectors, p.threads, p.per_row);
    return p;
}

template <typename Op> void sweep(const char* name) {
    for (fake::current = 0; fake::current < int(sizeof(fake::DEVICES) / sizeof(fake::DEVICES[0])); ++fake::current)
        for (int64_t N = 1; N <= 2000000; N += N < 5000 ? 1 : N / 700 * (N % 3 ? 1 : 4)) {
            ++tested;
            const Plan first = plan_of<Op>(1, N, 0);
            for (const int64_t M : {2, 7, 64, 4096, 1000000})
                for (const int64_t row : {0, 1, 3}) {
                    const Plan p = plan_of<Op>(M, N, row);
                    if (std::memcmp(&p, &first, sizeof p) && ++bad <= 20) std::printf("%s: %lldx%lld has another plan than one row, device %d\n", name, (long long)M, (long long)N, fake::current);
                }
        }
}

void sweep_others() {
    for (fake::current = 0; fake::current < int(sizeof(fake::DEVICES) / sizeof(fake::DEVICES[0])); ++fake::current)
        for (int64_t N = 1; N < 600000; N += 1 + N / 999)
            for (const int V : {4, 8}) {
                ++tested;
                const Plan p = invariant_statistics_plan(N, V);
                const bool fits = p.threads >= WARP && p.threads <= STATISTICS_THREADS && p.threads % WARP == 0 && ((p.tier != CLUSTER && p.per_row == 1) || device().clusters());
                if (!fits || (p.tier == BY_COLUMN) != (N % V != 0) || (p.tier == SPLIT && p.per_row > 1)) ++bad, std::printf("statistics of %lld: tier %d\n", (long long)N, p.tier);
            }
}

int main() {
    sweep<Forward<float, float>>("forward float32");
    sweep<Forward<__nv_bfloat16, __nv_bfloat16>>("forward bfloat16");
    sweep<Forward<__half, float>>("forward float16 to float32");
    sweep<Backward<float>>("backward float32");
    sweep<Backward<__nv_bfloat16>>("backward bfloat16");
    sweep<Backward<float, __half>>("backward float32 to float16");
    sweep<FusedCrossEntropy<float>>("cross entropy float32");
    sweep<FusedCrossEntropy<__nv_bfloat16>>("cross entropy bfloat16");
    sweep_others();
    std::printf("%ld lengths, %ld bad\n", tested, bad);
    return bad != 0;
}
