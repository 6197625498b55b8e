// Cross entropy of rows of logits, its gradient, and both in one pass. As softmax.cu, it is called through C.
//
//   forward   row_statistics.cuh   reads x once and writes two numbers of each row
//   backward  row_gradient.cuh     computes dx from x and these numbers of each row
//   fused     loss_ops.cuh         reads x once and writes dx once, by the tiers of softmax.cu, with a loss in addition. Smoothing, a softcap and a scale take
//                                  the kernels of forward and backward one after the other.
//   reduce    loss_reduction.cuh   adds the losses of the rows

#include "dispatch.cuh"
#include "loss_reduction.cuh"
#include "row_gradient.cuh"
#include "statistics_launch.cuh"

namespace softbench {

template <typename T> using Fused = FusedCrossEntropy<T>;

// The plan of rows that are written in place. A tier whose CTAs wait for each other in global memory may have to read a row again, so a cluster takes
// its place. AUTO: no cluster has the room.
template <typename T> Plan in_place_plan(const Tensors<Fused<T>>& t, int64_t N) {
    const Plan found = choose_plan(t, N);
    if (found.tier != SPLIT_BULK && (found.tier != SPLIT || found.per_row == 1)) return found;
    Plan p = {AUTO};
    if (device().clusters()) {
        p = make_plan(t, N, layout_of(t, N), {CLUSTER, {8, 256}});
        if (p.tier == AUTO) p = make_plan(t, N, layout_of(t, N), {CLUSTER_BULK, {MAX_CLUSTER}});
        if (!plan_fits(t, N, p)) p = {AUTO};
    }
    return p;
}

template <typename T>
int64_t fused(const LossRows& given, const void* x, void* dx, int64_t x_stride, int64_t dx_stride, int64_t M, int64_t N, Plan* p, void* workspace, int64_t bytes,
              cudaStream_t stream) {
    const Tensors<Fused<T>> t{given, {static_cast<const T*>(x)}, static_cast<T*>(dx), {x_stride}, dx_stride, M, int(std::min(N, MAX_N))};
    if (N > MAX_N || N * int64_t(sizeof(T)) > int64_t(1) << 32) return cudaErrorNotSupported;
    if (x != dx || (p && p->tier > AUTO)) return run(t, N, p, workspace, bytes, stream);
    if (p && p->tier == INVARIANT) return cudaErrorNotSupported;
    Plan found = in_place_plan(t, N);
    if (found.tier == AUTO) return cudaErrorNotSupported;
    if (p) *p = found;
    return run(t, N, &found, workspace, bytes, stream);
}

template <typename T, Logits LOGITS>
int64_t forward_of(const CrossEntropyRows& given, const void* x, int64_t stride, int64_t M, int64_t N, Plan* p, void* workspace, int64_t bytes, cudaStream_t stream) {
    return run_statistics(StatisticsRows<CrossEntropy<T, LOGITS>>{given, static_cast<const T*>(x), stride, M, int(N), 0, 0, nullptr, nullptr}, p, workspace, bytes, stream);
}
template <typename T>
int64_t forward(const CrossEntropyRows& given, const void* x, int64_t stride, int64_t M, int64_t N, Plan* p, void* workspace, int64_t bytes, cudaStream_t stream) {
    const auto call = !given.softcap.is_plain() ? forward_of<T, SOFTCAPPED> : given.smoothing != 0.0f ? forward_of<T, SMOOTHED> : forward_of<T, PLAIN>;
    return call(given, x, stride, M, N, p, workspace, bytes, stream);
}
template <typename T, bool CAPPED>
int64_t backward_of(const CrossEntropyGradients& given, const void* x, void* dx, int64_t x_stride, int64_t dx_stride, int64_t M, int64_t N, Plan* p,
                    cudaStream_t stream) {
    return run_gradient(GradientRows<CrossEntropyGradient<T, CAPPED>>{given, static_cast<const T*>(x), static_cast<T*>(dx), x_stride, dx_stride, M, int(N)}, p, stream);
}
template <typename T>
int64_t backward(const CrossEntropyGradients& given, const void* x, void* dx, int64_t x_stride, int64_t dx_stride, int64_t M, int64_t N, Plan* p,
                 cudaStream_t stream) {
    return (!given.softcap.is_plain() ? backward_of<T, true> : backward_of<T, false>)(given, x, dx, x_stride, dx_stride, M, N, p, stream);
}

// As in softmax.cu: the parts that build.py compiles at the same time. The first three also take most of the time.
#ifdef SOFTBENCH_PART
#define SOFTBENCH_FUSED(T) \
    template int64_t fused<T>(const LossRows&, const void*, void*, int64_t, int64_t, int64_t, int64_t, Plan*, void*, int64_t, cudaStream_t)
#define SOFTBENCH_FORWARD(T) \
    template int64_t forward<T>(const CrossEntropyRows&, const void*, int64_t, int64_t, int64_t, Plan*, void*, int64_t, cudaStream_t)
#define SOFTBENCH_BACKWARD(T) \
    template int64_t backward<T>(const CrossEntropyGradients&, const void*, void*, int64_t, int64_t, int64_t, int64_t, Plan*, cudaStream_t)
#if SOFTBENCH_PART == 0
SOFTBENCH_FUSED(float);
extern SOFTBENCH_FUSED(__half);
extern SOFTBENCH_FUSED(__nv_bfloat16);
extern SOFTBENCH_FORWARD(float);
extern SOFTBENCH_FORWARD(__half);
extern SOFTBENCH_FORWARD(__nv_bfloat16);
extern SOFTBENCH_BACKWARD(float);
extern SOFTBENCH_BACKWARD(__half);
extern SOFTBENCH_BACKWARD(__nv_bfloat16);
#elif SOFTBENCH_PART == 1
SOFTBENCH_FUSED(__half);
#elif SOFTBENCH_PART == 2
SOFTBENCH_FUSED(__nv_bfloat16);
#elif SOFTBENCH_PART == 3
SOFTBENCH_FORWARD(float);
SOFTBENCH_FORWARD(__half);
SOFTBENCH_FORWARD(__nv_bfloat16);
#elif SOFTBENCH_PART == 4
SOFTBENCH_BACKWARD(float);
SOFTBENCH_BACKWARD(__half);
SOFTBENCH_BACKWARD(__nv_bfloat16);
#endif
#endif

}  // namespace softbench

#if !defined(SOFTBENCH_PART) || SOFTBENCH_PART == 0

// All launch on `stream` of the current device and return as softbench_forward of softmax.cu: 0, a cudaError_t, or the missing bytes of workspace. The
// workspace of softbench_fused is that of softmax. softbench_forward needs one of its own. softbench_backward ignores it.
// `target` is int64. `lse`, `statistics`, `dloss` and `counted` may be null where loss_ops.cuh says so. `cap` 0: no softcap. `scale` is positive.
// `classes`: N, or all classes of a vocabulary of which x has a part. dtype: 0 float32, 1 float16, 2 bfloat16.
// softbench_fused returns cudaErrorNotSupported where only the two other functions can do the work.

extern "C" int64_t softbench_forward(const void* x, const int64_t* target, float* loss, float* lse, void* statistics, int64_t ignore_index, float smoothing,
                                     float z_loss, float cap, float scale, int64_t x_stride, int64_t M, int64_t N, int dtype, int, void* workspace,
                                     int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    const softbench::CrossEntropyRows given{target, loss, lse, static_cast<float2*>(statistics), ignore_index, smoothing, z_loss, softbench::softcap_of(cap, scale)};
    if (N > softbench::MAX_N) return cudaErrorNotSupported;
    auto with = [&](auto call) { return call(given, x, x_stride, M, N, p, workspace, workspace_bytes, stream); };
    SOFTBENCH_WITH_DTYPE(forward);
}

extern "C" int64_t softbench_backward(const void* x, const int64_t* target, const float* lse, const float* statistics, const float* dloss,
                                      const float* counted, void* dx, int64_t ignore_index, float smoothing, float z_loss, float cap, float scale, int64_t x_stride,
                                      int64_t dx_stride, int64_t dloss_stride, int64_t classes, int64_t M, int64_t N, int dtype, int, void*, int64_t, cudaStream_t stream,
                                      SoftbenchPlan* p) {
    const softbench::CrossEntropyGradients given{
        target, lse, statistics, dloss, ignore_index, smoothing, smoothing / float(classes), z_loss, softbench::softcap_of(cap, scale), scale, dloss_stride, counted};
    if (N > softbench::MAX_N) return cudaErrorNotSupported;
    auto with = [&](auto call) { return call(given, x, dx, x_stride, dx_stride, M, N, p, stream); };
    SOFTBENCH_WITH_DTYPE(backward);
}

extern "C" int64_t softbench_fused(const void* x, const int64_t* target, float* loss, float* lse, void* dx, int64_t ignore_index, float z_loss, int64_t x_stride,
                                   int64_t dx_stride, int64_t M, int64_t N, int dtype, int, void* workspace, int64_t workspace_bytes, cudaStream_t stream,
                                   SoftbenchPlan* p) {
    if (ignore_index != int(ignore_index)) return cudaErrorNotSupported;
    const softbench::LossRows given{target, loss, lse, int(ignore_index), z_loss};
    auto with = [&](auto call) { return call(given, x, dx, x_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream); };
    SOFTBENCH_WITH_DTYPE(fused);
}

// Writes the sum of `loss` over M rows, or with `mean` the sum over the number of rows that are not ignored, and that number.
extern "C" int64_t softbench_reduce(const float* loss, const int64_t* target, float* result, float* counted, int64_t ignore_index, int mean, int64_t M,
                                    cudaStream_t stream) {
    return softbench::reduce_losses(loss, target, result, counted, ignore_index, mean != 0, M, stream);
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }

// Hands over the table of plans for a device, before its first launch: `count` cells by kind, bytes and KiB.
extern "C" void softbench_plans(int device, const softbench::Cell* cells, int64_t count) { softbench::cells(device).assign(cells, cells + count); }

#endif
