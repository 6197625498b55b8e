// Whether every plan of the planner fits its rows. It calls `choose_plan` and `plan_fits` on the host, with devices that are only numbers, and a
// table whose cells are in the file that it is given. It also tests that the CTAs of a row which exchange in global memory can run at the same time.
// Otherwise each would wait in vain and then reduce the whole row. Prints how many plans it tested, and a line for each that does not fit.
#include <cuda_runtime.h>

namespace fake {
struct Numbers {
    int sms, shared_block, shared_sm, major;
};
constexpr Numbers DEVICES[] = {{132, 232448, 233472, 9},  {78, 232448, 233472, 9}, {16, 232448, 233472, 9}, {148, 232448, 233472, 10},
                               {108, 166912, 167936, 8},  {14, 166912, 167936, 8}, {24, 101376, 102400, 8}, {170, 101376, 102400, 12},
                               {58, 101376, 102400, 8},   {72, 101376, 102400, 8}, {142, 101376, 102400, 8}, {188, 101376, 102400, 12},
                               {82, 101376, 102400, 8},   {128, 101376, 102400, 8}};
int current = 0;
inline cudaError_t get(int* device) { return *device = current, cudaSuccess; }
inline cudaError_t attribute(int* value, cudaDeviceAttr which, int device) {
    const Numbers& d = DEVICES[device];
    *value = which == cudaDevAttrMultiProcessorCount ? d.sms : which == cudaDevAttrMaxSharedMemoryPerBlockOptin ? d.shared_block
           : which == cudaDevAttrMaxSharedMemoryPerMultiprocessor ? d.shared_sm : which == cudaDevAttrComputeCapabilityMajor ? d.major
           : which == cudaDevAttrClockRate ? 1980000 : which == cudaDevAttrMemoryClockRate ? 3201000 : 6144;
    return cudaSuccess;
}
}  // namespace fake

#define cudaGetDevice fake::get
#define cudaDeviceGetAttribute fake::attribute
#define SOFTBENCH_PART 99  // no kernel is compiled
#include "softmax.cu"

#include "loss_ops.cuh"
#include "row_gradient.cuh"
#include "statistics_launch.cuh"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <random>

using namespace softbench;

long tested = 0, bad = 0;

// Whether the CTAs of a row that exchange in global memory fit the device at the same time, by registers and shared memory.
template <typename Op> bool runs_at_once(const Tensors<Op>& t, int64_t N, const Plan& p) {
    if (p.per_row == 1 || (p.tier != SPLIT_BULK && p.tier != SPLIT)) return true;
    constexpr int R = Op::READS, RESERVED = 1024, REGISTERS = 65536;
    const int static_shared = p.tier == SPLIT ? 640 : 1152;  // bytes, beside the row
    const int64_t vectors = (layout_of(t, N).offset + N) / Op::V, chunk = round_up<int64_t>(ceil_div<int64_t>(vectors, p.per_row), LINE_VECTORS);
    const int64_t smem = p.tier == SPLIT ? int64_t(p.tier_option) * p.threads : std::max<int64_t>(0, chunk - p.vectors * p.threads);
    const int64_t by_shared = device().shared_sm / (smem * R * VECTOR_BYTES + static_shared + RESERVED);
    const int64_t by_registers = REGISTERS / (p.threads * (p.vectors * R == 24 ? 128 : 64));
    const int64_t by_threads = (device().shared_sm > 102400 ? 2048 : 1536) / p.threads;  // sm_86, sm_89 and sm_120 have 1536
    const int64_t by_ctas = device().shared_sm > 102400 ? 32 : device().major == 8 ? 16 : 24;  // of sm_86; sm_89 has 24
    return p.per_row <= std::min({by_shared, by_registers, by_threads, by_ctas}) * device().sms;
}

template <typename Op> void test(const char* name, int64_t M, int64_t N, int64_t offset, int64_t pad) {
    Tensors<Op> t;
    for (int r = 0; r < Op::READS; ++r) {
        t.source[r] = reinterpret_cast<const typename Op::Element*>(uintptr_t(0x100000 + offset * sizeof(typename Op::Element)));
        t.source_stride[r] = N + pad;
    }
    t.target = reinterpret_cast<typename Op::Out*>(uintptr_t(0x100000 + offset * sizeof(typename Op::Out)));
    t.target_stride = N + pad;
    t.M = M;
    t.N = int(std::min<int64_t>(N, MAX_N));
    const Plan p = choose_plan(t, N);
    const bool needs_clusters = p.tier == CLUSTER || p.tier == CLUSTER_BULK || p.tier == SPLIT_BULK;
    ++tested;
    if (p.tier == AUTO || !plan_fits(t, N, p) || p.threads > 1024 || p.stagger_cycles < 0 || (M == 1 && p.stagger_cycles) || !runs_at_once(t, N, p) ||
        (needs_clusters && !device().clusters()))
        if (++bad <= 20)
            std::printf("%s %lldx%lld + %lld, %lld apart, device %d: tier %d, %d vectors, %d threads, per_row %d, tier_option %d, base_alignment %d\n", name, (long long)M,
                        (long long)N, (long long)offset, (long long)pad, fake::current, p.tier, p.vectors, p.threads, p.per_row, p.tier_option, p.base_alignment);
}

template <typename Op> void sweep(const char* name, unsigned seed) {
    std::mt19937_64 random(seed);
    auto below = [&](int64_t n) { return int64_t(random() % uint64_t(n)); };
    for (fake::current = 0; fake::current < int(sizeof(fake::DEVICES) / sizeof(fake::DEVICES[0])); ++fake::current) {
        for (int64_t N = 1; N <= 4200; ++N)
            for (int64_t M : {1, 33, 4096, 8192, 262144}) test<Op>(name, M, N, 0, 0), test<Op>(name, M, N, below(8), below(8));
        for (int64_t M = 1; M <= 4; ++M)
            for (int64_t bytes = 1 << 18; bytes < 48000000; bytes += 17776) test<Op>(name, M, bytes / int64_t(sizeof(typename Op::Element)) / M, 0, 0);
        for (int i = 0; i < 40000; ++i) {
            int64_t N = int64_t(std::exp(below(1 << 20) * std::log(1e8) / (1 << 20)));
            if (below(2)) N = std::max<int64_t>(1, N / 64 * 64 + below(3) - 1);
            test<Op>(name, below(2) ? 1 + below(200) : 1 + below(1 << 20), N, below(2) * below(64), below(2) * below(64));
        }
    }
}

// Whether a launch takes the plans of kernels that only read rows: its limits on threads, vectors in flight, clusters, counters and slots.
void sweep_statistics(bool counts) {
    std::mt19937_64 random(11);
    auto log_uniform = [&](double most) { return int64_t(std::exp(double(random() % (1 << 20)) * std::log(most) / (1 << 20))); };
    for (fake::current = 0; fake::current < int(sizeof(fake::DEVICES) / sizeof(fake::DEVICES[0])); ++fake::current) {
        long deep = 0, clusters[2] = {};
        for (int i = 0; i < 20000; ++i) {
            const int64_t M = log_uniform(1e6), vectors = log_uniform(1e6) + LINE_VECTORS;
            const Plan p = statistics_plan(M, vectors, counts);
            bool fits = p.threads >= WARP && p.threads <= STATISTICS_THREADS && p.threads % WARP == 0 && p.per_row >= 1;
            fits &= p.vectors == 4 || (p.vectors == DEEP && p.tier == SPLIT && !counts);
            if (p.tier == SPLIT) fits &= p.per_row == 1 || (M <= COUNTED_ROWS && M * p.per_row <= COUNTED_SLOTS);
            else if (p.tier == CLUSTER) fits &= device().clusters() && (p.per_row == 8 || (p.per_row == MAX_CLUSTER && vectors <= p.per_row * p.threads * p.vectors));
            else fits &= p.tier == ONE_WARP;
            ++tested, deep += p.vectors == DEEP, clusters[p.per_row == 8] += p.tier == CLUSTER;
            if (!fits && ++bad <= 20)
                std::printf("statistics of %lldx%lld vectors, device %d: tier %d, %d vectors, %d threads, per_row %d\n", (long long)M, (long long)vectors, fake::current, p.tier,
                            p.vectors, p.threads, p.per_row);
        }
        for (const long count : clusters)
            if ((deep > 100) == counts || (count > 20) != device().clusters()) ++bad, std::printf("device %d: %ld deep plans, %ld clusters\n", fake::current, deep, count);
    }
}

// Whether the plans of gradients of losses cover their rows, and are of threads that the kernel takes.
void sweep_gradients() {
    for (int64_t vectors = 1; vectors < 600000; vectors += 1 + vectors / 500) {
        const Plan p = gradient_plan(vectors);
        const bool warp = p.tier == ONE_WARP;
        const int64_t room = int64_t(p.vectors) * (warp ? WARP : int64_t(p.threads) * p.per_row);
        ++tested;
        if (p.threads < WARP || p.threads > GRADIENT_THREADS || p.threads % WARP || room < vectors || (!warp && p.tier != SPLIT) ||
            (!warp && int64_t(p.vectors) * p.threads * (p.per_row - 1) >= vectors))
            ++bad, std::printf("gradient of %lld vectors: tier %d, %d threads, per_row %d\n", (long long)vectors, p.tier, p.threads, p.per_row);
    }
}

int main(int, char** arguments) {
    std::vector<int> numbers;
    std::ifstream file(arguments[1]);
    for (int number; file >> number;) numbers.push_back(number);
    for (int i = 0; i < 64; ++i) {
        const Cell* first = reinterpret_cast<const Cell*>(numbers.data());
        cells(i).assign(first, first + numbers.size() * sizeof(int) / sizeof(Cell));
    }
    sweep_gradients();
    sweep_statistics(false);
    sweep_statistics(true);
    sweep<Forward<float, float>>("forward float32", 1);
    sweep<Forward<__half, __half>>("forward float16", 2);
    sweep<Forward<__nv_bfloat16, float>>("forward bfloat16 to float32", 3);
    sweep<Backward<float>>("backward float32", 4);
    sweep<Backward<__nv_bfloat16>>("backward bfloat16", 5);
    sweep<Backward<float, __half>>("backward float32 to float16", 6);
    sweep<Forward<float, float, LOG_SOFTMAX>>("log_softmax forward float32", 7);
    sweep<Forward<__half, __half, SCALED_SOFTMAX>>("scaled softmax forward float16", 8);
    sweep<FusedCrossEntropy<float>>("cross entropy float32", 9);
    sweep<FusedCrossEntropy<__nv_bfloat16>>("cross entropy bfloat16", 10);
    std::printf("%ld plans, %ld bad\n", tested, bad);
    return bad != 0;
}
