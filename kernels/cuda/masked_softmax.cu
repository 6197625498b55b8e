// Masked softmax of attention scores and its gradient (scores.cuh). As softmax.cu, it is called through C.

#include "scores.cuh"

namespace softbench {

template <typename T> int64_t forward(const Scores& scores, const void* x, const void* mask, int mask_kind, const float* sink, void* y, float* share, int64_t mask_b,
                                      int64_t mask_h, int64_t mask_s, Plan* p, cudaStream_t stream) {
    const ForwardScores<T> given{scores, static_cast<const T*>(x), mask, sink, static_cast<T*>(y), share, mask_b, mask_h, mask_s};
    switch (mask_kind) {
        case NO_MASK: return run_scores<T, NO_MASK>(given, p, stream);
        case BIAS: return run_scores<T, BIAS>(given, p, stream);
        case BOOLEAN: return run_scores<T, BOOLEAN>(given, p, stream);
    }
    return cudaErrorInvalidValue;
}
template <typename T>
int64_t backward(const Scores& scores, const void* dy, const void* y, const float* share, void* dx, float* dsink, Plan* p, cudaStream_t stream) {
    return run_scores_gradient(BackwardScores<T>{scores, static_cast<const T*>(dy), static_cast<const T*>(y), share, static_cast<T*>(dx), dsink}, p, stream);
}

// As in softmax.cu: the parts that build.py compiles at the same time.
#ifdef SOFTBENCH_PART
#define SOFTBENCH_SCORES(T)                                                                                                                              \
    template int64_t forward<T>(const Scores&, const void*, const void*, int, const float*, void*, float*, int64_t, int64_t, int64_t, Plan*, cudaStream_t); \
    template int64_t backward<T>(const Scores&, const void*, const void*, const float*, void*, float*, Plan*, cudaStream_t)
#define SOFTBENCH_ELSEWHERE(T)                                                                                                                                  \
    extern template int64_t forward<T>(const Scores&, const void*, const void*, int, const float*, void*, float*, int64_t, int64_t, int64_t, Plan*, cudaStream_t); \
    extern template int64_t backward<T>(const Scores&, const void*, const void*, const float*, void*, float*, Plan*, cudaStream_t)
#if SOFTBENCH_PART == 0
SOFTBENCH_SCORES(float);
SOFTBENCH_ELSEWHERE(__half);
SOFTBENCH_ELSEWHERE(__nv_bfloat16);
#elif SOFTBENCH_PART == 1
SOFTBENCH_SCORES(__half);
#elif SOFTBENCH_PART == 2
SOFTBENCH_SCORES(__nv_bfloat16);
#endif
#endif

// What a call has of its scores. M is the number of rows, B * H * S. Returns false if they are too many or too long.
inline bool scores_of(Scores& all, int64_t B, int64_t H, int64_t S, int64_t first_sees, float scale, int64_t M, int64_t N) {
    if (B < 1 || H < 1 || S < 1 || M != B * H * S || M > INT32_MAX || N < 1 || N > INT32_MAX || first_sees < 1) return false;
    all = {Divisor(unsigned(B)), Divisor(unsigned(H)), Divisor(unsigned(S)), unsigned(M), int(N), unsigned(std::min(first_sees, N)), ORDER_QUERIES, 0, 0, false, scale};
    return true;
}

}  // namespace softbench

#if !defined(SOFTBENCH_PART) || SOFTBENCH_PART == 0

// All launch on `stream` of the current device and return as the functions of cross_entropy.cu; they need no workspace. All tensors but the mask are
// contiguous and begin at multiples of 16 bytes. The strides of the mask are in elements. Rows of more than 16384 columns are not supported.
// `mask_kind`: 0 no mask, 1 a bias of the dtype of x, 2 bytes. Query s sees its first `first_sees` + s columns. `sink` and the two tensors of the share
// may be null. dtype: 0 float32, 1 float16, 2 bfloat16.
extern "C" int64_t softbench_forward(const void* x, const void* mask, const float* sink, void* y, float* share, float scale, int mask_kind, int64_t mask_b,
                                     int64_t mask_h, int64_t mask_s, int64_t first_sees, int64_t B, int64_t H, int64_t S, int64_t M, int64_t N, int dtype, int,
                                     void*, int64_t, cudaStream_t stream, SoftbenchPlan* p) {
    softbench::Scores scores;
    if (!softbench::scores_of(scores, B, H, S, first_sees, scale, M, N)) return cudaErrorNotSupported;
    auto with = [&](auto call) { return call(scores, x, mask, mask_kind, sink, y, share, mask_b, mask_h, mask_s, p, stream); };
    SOFTBENCH_WITH_DTYPE(forward);
}

extern "C" int64_t softbench_backward(const void* dy, const void* y, const float* share, void* dx, float* dsink, float scale, int64_t first_sees, int64_t B,
                                      int64_t H, int64_t S, int64_t M, int64_t N, int dtype, int, void*, int64_t, cudaStream_t stream, SoftbenchPlan* p) {
    softbench::Scores scores;
    if (!softbench::scores_of(scores, B, H, S, first_sees, scale, M, N)) return cudaErrorNotSupported;
    auto with = [&](auto call) { return call(scores, dy, y, share, dx, dsink, p, stream); };
    SOFTBENCH_WITH_DTYPE(backward);
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }

#endif
