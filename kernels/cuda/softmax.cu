// Softmax, scaled softmax and log_softmax over rows, and their gradients, in CUDA C++. It uses no torch headers, so it compiles in seconds, and it is
// called through C. SOFTBENCH_FUNCTION is the number of the function (softmax_ops.cuh); build.py makes a library for each function that is called.
//
// Each tier is a kernel that reads a row once and writes it once, with one exchange of {maximum, sum} between. The tiers differ in where a row waits
// for its exchange, and planner.cuh chooses the tier. The sizes are of one row of one tensor, fitted on an H200; the gradient reads two tensors.
//
//   sub_warp      <= 2.5 KB  sub_warp.cuh  1 to 32 lanes have a row; many rows are in flight.
//   staged        <= 1 KB    staged.cuh    Rows begin anywhere; a tile of rows is computed in shared memory.
//   block         <= 36 KB   block.cuh     A CTA has a row in registers; CTAs on an SM overlap their exchanges.
//   cluster       <= 768 KB  cluster.cuh   A cluster of CTAs has a row in registers.
//   cluster_bulk  <= 1.8 MB  bulk.cuh      A cluster has a row in registers and shared memory.
//   split_bulk    any        bulk.cuh      The same, but the CTAs of a row run anywhere and exchange in global memory.
//   split         the rest   split.cuh     CTAs anywhere, with other counts of CTAs and less shared memory.
//   by_column     <= 512 KB  by_column.cuh Rows of invariant.cuh that begin anywhere: a CTA or a cluster shifts vectors to whole columns.
//   generic       any        generic.cuh   The tensors differ in alignment.
//
// sm_80 has neither clusters nor bulk copies: split replaces cluster, cluster_bulk and split_bulk there.
// softmax_ops.cuh has the arithmetic, row_access.cuh the loads of a row, planner.cuh the launch plans, and dispatch.cuh the launches.
// docs/kernels/cuda.md has the reasons for the choices, and what was tried and does not work.

#include "dispatch.cuh"

#ifndef SOFTBENCH_FUNCTION
#define SOFTBENCH_FUNCTION 0
#endif

namespace softbench {

constexpr Function FUNCTION = Function(SOFTBENCH_FUNCTION);
template <typename In, typename Out> using ForwardOp = Forward<In, Out, FUNCTION>;
template <typename In, typename Out> using BackwardOp = Backward<In, Out, FUNCTION>;
using RowScales = Scales<FUNCTION == SCALED_SOFTMAX>;

// A compiler uses one core. So build.py runs a compiler for each part, which is one operation and its dtypes, and links the results. Without
// SOFTBENCH_PART, this file has all parts. Part 0 also has the functions with C linkage.
#ifdef SOFTBENCH_PART
#define SOFTBENCH_RUN(...) template int64_t run(Tensors<__VA_ARGS__>, int64_t, Plan*, void*, int64_t, cudaStream_t)
#define SOFTBENCH_HERE(...) SOFTBENCH_RUN(__VA_ARGS__)
#define SOFTBENCH_ELSEWHERE(...) extern SOFTBENCH_RUN(__VA_ARGS__)
#if SOFTBENCH_PART == 0
SOFTBENCH_HERE(ForwardOp<float, float>);
SOFTBENCH_ELSEWHERE(ForwardOp<__half, __half>);
SOFTBENCH_ELSEWHERE(ForwardOp<__half, float>);
SOFTBENCH_ELSEWHERE(ForwardOp<__nv_bfloat16, __nv_bfloat16>);
SOFTBENCH_ELSEWHERE(ForwardOp<__nv_bfloat16, float>);
SOFTBENCH_ELSEWHERE(BackwardOp<float, float>);
SOFTBENCH_ELSEWHERE(BackwardOp<__half, __half>);
SOFTBENCH_ELSEWHERE(BackwardOp<__nv_bfloat16, __nv_bfloat16>);
SOFTBENCH_ELSEWHERE(BackwardOp<float, __half>);
SOFTBENCH_ELSEWHERE(BackwardOp<float, __nv_bfloat16>);
#elif SOFTBENCH_PART == 1
SOFTBENCH_HERE(ForwardOp<__half, __half>);
#elif SOFTBENCH_PART == 2
SOFTBENCH_HERE(ForwardOp<__half, float>);
#elif SOFTBENCH_PART == 3
SOFTBENCH_HERE(ForwardOp<__nv_bfloat16, __nv_bfloat16>);
#elif SOFTBENCH_PART == 4
SOFTBENCH_HERE(ForwardOp<__nv_bfloat16, float>);
#elif SOFTBENCH_PART == 5
SOFTBENCH_HERE(BackwardOp<float, float>);
#elif SOFTBENCH_PART == 6
SOFTBENCH_HERE(BackwardOp<__half, __half>);
#elif SOFTBENCH_PART == 7
SOFTBENCH_HERE(BackwardOp<__nv_bfloat16, __nv_bfloat16>);
#elif SOFTBENCH_PART == 8
SOFTBENCH_HERE(BackwardOp<float, __half>);
#elif SOFTBENCH_PART == 9
SOFTBENCH_HERE(BackwardOp<float, __nv_bfloat16>);
#endif
#endif

}  // namespace softbench

#if !defined(SOFTBENCH_PART) || SOFTBENCH_PART == 0

namespace softbench {

template <typename In, typename Out>
int64_t forward(const RowScales& scales, const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, Plan* p, void* w, int64_t bytes,
                cudaStream_t stream) {
    const Tensors<ForwardOp<In, Out>> t{scales, {static_cast<const In*>(x)}, static_cast<Out*>(y), {x_stride}, y_stride, M, 0};
    return run(t, N, p, w, bytes, stream);
}

template <typename In, typename Out>
int64_t backward(const RowScales& scales, const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M, int64_t N,
                 Plan* p, void* w, int64_t bytes, cudaStream_t stream) {
    const Tensors<BackwardOp<In, Out>> t{
        scales, {static_cast<const In*>(dy), static_cast<const In*>(y)}, static_cast<Out*>(dx), {dy_stride, y_stride}, dx_stride, M, 0};
    return run(t, N, p, w, bytes, stream);
}

}  // namespace softbench

// Both functions launch on `stream` of the current device. They return 0, a cudaError_t, or a negative number. That is the number of bytes of workspace
// that are missing, and nothing was launched. The caller then calls again with at least that many bytes, set to zero once. Two launches that may run
// at the same time must not share a workspace.
// Strides are in elements. dtypes: 0 float32, 1 float16, 2 bfloat16. `dtype` is of what is read, `out_dtype` of what is written. They are the same,
// or y is float32 where x has 16 bits, or dx has 16 bits where dy and y are float32. 1 <= M < 2^31, and N >= 1.
// `p` may be null. A plan of tier -1 is filled in by the planner; any other is carried out, or refused with cudaErrorInvalidValue.
// For scaled softmax, the first arguments are the scales: a pointer to those of the rows, or null and the scale of all rows.
#if SOFTBENCH_FUNCTION == 2
#define SOFTBENCH_SCALES const float *scales, float scale,
#define SOFTBENCH_SCALES_GIVEN {scales, scale}
#else
#define SOFTBENCH_SCALES
#define SOFTBENCH_SCALES_GIVEN {}
#endif
extern "C" int64_t softbench_forward(SOFTBENCH_SCALES const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, int dtype,
                                     int out_dtype, void* workspace, int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    using namespace softbench;
    const RowScales given SOFTBENCH_SCALES_GIVEN;
    auto with = [&](auto call) { return call(given, x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream); };
    switch (dtype * 3 + out_dtype) {
        case 0: return with(forward<float, float>);
        case 3: return with(forward<__half, float>);
        case 4: return with(forward<__half, __half>);
        case 6: return with(forward<__nv_bfloat16, float>);
        case 8: return with(forward<__nv_bfloat16, __nv_bfloat16>);
    }
    return cudaErrorInvalidValue;
}

extern "C" int64_t softbench_backward(SOFTBENCH_SCALES const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride,
                                      int64_t M, int64_t N, int dtype, int out_dtype, void* workspace, int64_t workspace_bytes, cudaStream_t stream,
                                      SoftbenchPlan* p) {
    using namespace softbench;
    const RowScales given SOFTBENCH_SCALES_GIVEN;
    auto with = [&](auto call) { return call(given, dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream); };
    switch (dtype * 3 + out_dtype) {
        case 0: return with(backward<float, float>);
        case 1: return with(backward<float, __half>);
        case 2: return with(backward<float, __nv_bfloat16>);
        case 4: return with(backward<__half, __half>);
        case 8: return with(backward<__nv_bfloat16, __nv_bfloat16>);
    }
    return cudaErrorInvalidValue;
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }

// The plan that a family makes for M rows of N elements back to back, for `softbench tune`. Returns whether it makes one. dtype: 0 or 1, of 4 or 2 bytes.
template <typename Op> bool candidate(int64_t M, int64_t N, const softbench::Family& family, SoftbenchPlan& p) {
    using namespace softbench;
    Tensors<Op> t{};
    t.M = M, t.N = int(N), t.target_stride = N;
    for (auto& stride : t.source_stride) stride = N;
    p = make_plan(t, N, layout_of(t, N), family);
    return p.tier != AUTO && plan_fits(t, N, p);
}
extern "C" int softbench_candidate(int pass, int dtype, int64_t M, int64_t N, const softbench::Family* family, SoftbenchPlan* p) {
    using namespace softbench;
    if (pass == WIDENED) return candidate<ForwardOp<__half, float>>(M, N, *family, *p);
    if (pass == GRADIENT) return dtype == 0 ? candidate<BackwardOp<float, float>>(M, N, *family, *p) : candidate<BackwardOp<__half, __half>>(M, N, *family, *p);
    return dtype == 0 ? candidate<ForwardOp<float, float>>(M, N, *family, *p) : candidate<ForwardOp<__half, __half>>(M, N, *family, *p);
}

// Hands over the table of plans for a device, before its first launch: `count` cells by kind, bytes and KiB.
extern "C" void softbench_plans(int device, const softbench::Cell* cells, int64_t count) { softbench::cells(device).assign(cells, cells + count); }

#endif
