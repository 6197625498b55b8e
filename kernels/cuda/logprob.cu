// The log-probability of a target and the entropy of rows of logits (row_statistics.cuh), and their gradient (row_gradient.cuh). As softmax.cu, it is
// called through C.

#include "row_gradient.cuh"
#include "statistics_launch.cuh"

namespace softbench {

template <typename T>
int64_t forward(const LogprobRows& given, const void* x, int64_t stride, int64_t M, int64_t N, Plan* p, void* workspace, int64_t bytes, cudaStream_t stream) {
    return run_statistics(StatisticsRows<Logprob<T>>{given, static_cast<const T*>(x), stride, M, int(N), 0, 0, nullptr, nullptr}, p, workspace, bytes, stream);
}
template <typename T>
int64_t backward(const LogprobGradients& given, const void* x, void* dx, int64_t x_stride, int64_t dx_stride, int64_t M, int64_t N, Plan* p, cudaStream_t stream) {
    return run_gradient(GradientRows<LogprobGradient<T>>{given, static_cast<const T*>(x), static_cast<T*>(dx), x_stride, dx_stride, M, int(N)}, p, stream);
}

}  // namespace softbench

// As the functions of cross_entropy.cu. `lse` or `statistics` may be null, and so may gradients that are 0.
extern "C" int64_t softbench_forward(const void* x, const int64_t* target, float* logprob, float* entropy, float* lse, void* statistics, int64_t ignore_index, float scale,
                                     int64_t x_stride, int64_t M, int64_t N, int dtype, int, void* workspace, int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    if (N > softbench::MAX_N) return cudaErrorNotSupported;
    const softbench::LogprobRows given{target, logprob, entropy, lse, static_cast<float2*>(statistics), ignore_index, scale};
    auto with = [&](auto call) { return call(given, x, x_stride, M, N, p, workspace, workspace_bytes, stream); };
    SOFTBENCH_WITH_DTYPE(forward);
}

extern "C" int64_t softbench_backward(const void* x, const int64_t* target, const float* lse, const float* statistics, const float* entropy, const float* dlogprob,
                                      const float* dentropy, void* dx, int64_t ignore_index, float scale, int64_t x_stride, int64_t dx_stride, int64_t dlogprob_stride,
                                      int64_t dentropy_stride, int64_t M, int64_t N, int dtype, int, void*, int64_t, cudaStream_t stream, SoftbenchPlan* p) {
    if (N > softbench::MAX_N) return cudaErrorNotSupported;
    const softbench::LogprobGradients given{target, lse, statistics, entropy, dlogprob, dentropy, ignore_index, scale, dlogprob_stride, dentropy_stride};
    auto with = [&](auto call) { return call(given, x, dx, x_stride, dx_stride, M, N, p, stream); };
    SOFTBENCH_WITH_DTYPE(backward);
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }
