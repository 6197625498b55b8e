// Softmax and its gradient over rows, in CUDA C++. It uses no torch headers, so it compiles in seconds, and it is called through C.
//
// Each tier is a kernel that reads a row once and writes it once, with one exchange of {maximum, sum} between. The tiers differ in where a row waits
// for its exchange, and heuristics.cuh chooses the tier. The sizes are of one row of one tensor, fitted on an H200; the gradient reads two tensors.
//
//   sub_warp      <= 2.5 KB  sub_warp.cuh  1 to 32 lanes have a row; many rows are in flight.
//   staged        <= 1 KB    staged.cuh    Rows begin anywhere; a tile of rows is computed in shared memory.
//   warp          <= 4 KB    warp.cuh      A warp has one row or two, of whole vectors.
//   block         <= 36 KB   block.cuh     A CTA has a row in registers; CTAs on an SM overlap their exchanges.
//   cluster       <= 768 KB  cluster.cuh   A cluster of CTAs has a row in registers.
//   cluster_bulk  <= 1.8 MB  bulk.cuh      A cluster has a row in registers and shared memory.
//   split_bulk    any        bulk.cuh      The same, but the CTAs of a row run anywhere and exchange in global memory.
//   split         the rest   split.cuh     CTAs anywhere, with other counts of CTAs and less shared memory.
//   generic       any        generic.cuh   The tensors differ in alignment.
//
// sm_80 has neither clusters nor bulk copies: split replaces cluster, cluster_bulk and split_bulk there.
// softmax_ops.cuh has the arithmetic, row_access.cuh the loads of a row, heuristics.cuh the launch plans, and dispatch.cuh the launches.
// docs/kernels/notes-cuda.md has the experiments behind the choices.

#include "dispatch.cuh"

namespace softbench {

// Launches an operation on the rows of tensors; see softbench_forward.
template <typename Op> int64_t run(Tensors<Op> t, int64_t N, Plan* p, void* workspace, int64_t workspace_bytes, cudaStream_t stream) {
    t.N = int(std::min<int64_t>(N, MAX_N));
    Plan chosen = p && p->tier != AUTO ? *p : choose_plan(t, N);
    if (p && p->tier == AUTO) *p = chosen;
    else if (p && !plan_fits(t, N, chosen)) return cudaErrorInvalidValue;
    Launcher launcher = {stream, static_cast<Workspace*>(workspace), workspace_bytes, t.M * N * int64_t(sizeof(typename Op::Element))};
    // 16-bit inputs with float32 results write twice what they read. They do without, as it would double their kernels.
    constexpr bool SAME_SIZE = sizeof(typename Op::Element) == sizeof(typename Op::Out);
    const int64_t read_bytes = t.M * N * Op::READS * int64_t(sizeof(typename Op::Element));
    const bool keep_in_l2 = SAME_SIZE && device().major == 9 && device().clusters() && read_bytes >= KEEP_IN_L2_BYTES;
    if (!(keep_in_l2 ? dispatch<Op, SAME_SIZE>(t, N, chosen, launcher) : dispatch<Op, false>(t, N, chosen, launcher))) return cudaErrorInvalidValue;
    if (launcher.missing_bytes) return -launcher.missing_bytes;
    cudaError_t pending = cudaGetLastError();
    return launcher.error != cudaSuccess ? launcher.error : pending;
}

// A compiler uses one core. So build.py runs a compiler for each part, which is one operation and its dtypes, and links the results. Without
// SOFTBENCH_PART, this file has all parts. Part 0 also has the functions with C linkage.
#ifdef SOFTBENCH_PART
#define SOFTBENCH_RUN(...) template int64_t run(Tensors<__VA_ARGS__>, int64_t, Plan*, void*, int64_t, cudaStream_t)
#define SOFTBENCH_HERE(...) SOFTBENCH_RUN(__VA_ARGS__)
#define SOFTBENCH_ELSEWHERE(...) extern SOFTBENCH_RUN(__VA_ARGS__)
#if SOFTBENCH_PART == 0
SOFTBENCH_HERE(Forward<float, float>);
SOFTBENCH_ELSEWHERE(Forward<__half, __half>);
SOFTBENCH_ELSEWHERE(Forward<__half, float>);
SOFTBENCH_ELSEWHERE(Forward<__nv_bfloat16, __nv_bfloat16>);
SOFTBENCH_ELSEWHERE(Forward<__nv_bfloat16, float>);
SOFTBENCH_ELSEWHERE(Backward<float>);
SOFTBENCH_ELSEWHERE(Backward<__half>);
SOFTBENCH_ELSEWHERE(Backward<__nv_bfloat16>);
#elif SOFTBENCH_PART == 1
SOFTBENCH_HERE(Forward<__half, __half>);
#elif SOFTBENCH_PART == 2
SOFTBENCH_HERE(Forward<__half, float>);
#elif SOFTBENCH_PART == 3
SOFTBENCH_HERE(Forward<__nv_bfloat16, __nv_bfloat16>);
#elif SOFTBENCH_PART == 4
SOFTBENCH_HERE(Forward<__nv_bfloat16, float>);
#elif SOFTBENCH_PART == 5
SOFTBENCH_HERE(Backward<float>);
#elif SOFTBENCH_PART == 6
SOFTBENCH_HERE(Backward<__half>);
#elif SOFTBENCH_PART == 7
SOFTBENCH_HERE(Backward<__nv_bfloat16>);
#endif
#endif

}  // namespace softbench

#if !defined(SOFTBENCH_PART) || SOFTBENCH_PART == 0

namespace softbench {

template <typename In, typename Out>
int64_t forward(const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, Plan* p, void* w, int64_t bytes, cudaStream_t stream) {
    return run(Tensors<Forward<In, Out>>{{static_cast<const In*>(x)}, static_cast<Out*>(y), {x_stride}, y_stride, M, 0}, N, p, w, bytes, stream);
}

template <typename T>
int64_t backward(const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M, int64_t N, Plan* p, void* w,
                 int64_t bytes, cudaStream_t stream) {
    return run(Tensors<Backward<T>>{{static_cast<const T*>(dy), static_cast<const T*>(y)}, static_cast<T*>(dx), {dy_stride, y_stride}, dx_stride, M, 0}, N,
               p, w, bytes, stream);
}

}  // namespace softbench

// Both functions launch on `stream` of the current device. They return 0, a cudaError_t, or a negative number. That is the number of bytes of workspace
// that are missing, and nothing was launched. The caller then calls again with at least that many bytes, set to zero once. Two launches that may run
// at the same time must not share a workspace.
// Strides are in elements. dtypes: 0 float32, 1 float16, 2 bfloat16; y has the dtype of x or float32. 1 <= M < 2^31, and N >= 1.
// `p` may be null. A plan of tier -1 is filled in by the heuristics; any other is carried out, or refused with cudaErrorInvalidValue.
extern "C" int64_t softbench_forward(const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, int dtype, int out_dtype,
                                     void* workspace, int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    using namespace softbench;
    switch (dtype * 3 + out_dtype) {
        case 0: return forward<float, float>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 3: return forward<__half, float>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 4: return forward<__half, __half>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 6: return forward<__nv_bfloat16, float>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
        case 8: return forward<__nv_bfloat16, __nv_bfloat16>(x, y, x_stride, y_stride, M, N, p, workspace, workspace_bytes, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" int64_t softbench_backward(const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M,
                                      int64_t N, int dtype, void* workspace, int64_t workspace_bytes, cudaStream_t stream, SoftbenchPlan* p) {
    using namespace softbench;
    switch (dtype) {
        case 0: return backward<float>(dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream);
        case 1: return backward<__half>(dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream);
        case 2: return backward<__nv_bfloat16>(dy, y, dx, dy_stride, y_stride, dx_stride, M, N, p, workspace, workspace_bytes, stream);
    }
    return cudaErrorInvalidValue;
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }

#endif
