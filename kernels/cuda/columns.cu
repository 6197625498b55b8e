// Softmax, log_softmax and their gradients over a dimension that is not the last: columns.cuh has the kernel. It is called through C, as softmax.cu is.
// A library of its own, so that processes without such calls do not wait for its build. SOFTBENCH_PART is as in softmax.cu: each part has two dtypes.

#include "launcher.cuh"
#include "columns.cuh"

namespace softbench {

// Small CTAs: their exchange is short, and others of an SM load meanwhile. An exchange is of 64 columns, which are a line of a row in 16 bits.
constexpr int LEAST_THREADS = 64, MOST_THREADS = 256, MOST_COLUMNS = 64;

// How CTAs cut a tensor. Zeros: the rule.
struct ColumnPlan {
    int lanes, ctas, threads;
};

// The threads of a CTA whose K vectors each hold its part of R rows; more than COLUMN_THREADS where they cannot.
inline int column_threads(int64_t R, int lanes, int ctas, int K) {
    const int64_t step = ceil_div<int64_t>(ceil_div<int64_t>(R, ctas), K);
    return int(std::min<int64_t>(ceil_div<int64_t>(step * lanes, WARP) * WARP, 2 * COLUMN_THREADS));
}

// The widest segments of rows for which at most eight CTAs of MOST_THREADS hold the columns, or for a line MAX_CLUSTER; else larger CTAs.
inline ColumnPlan column_plan(int64_t R, int V, int K) {
    const int clusters = device().clusters() ? MAX_CLUSTER : 1;
    for (const int threads : {MOST_THREADS, COLUMN_THREADS})
        for (int lanes = std::max(MOST_COLUMNS / V, 2); lanes >= 2; lanes /= 2) {
            const int most = std::min(clusters, lanes > LINE_VECTORS ? 8 : MAX_CLUSTER);
            for (int ctas = 1; ctas <= most; ctas *= 2) {
                if (column_threads(R, lanes, ctas, K) > threads) continue;
                while (column_threads(R, lanes, ctas, K) < LEAST_THREADS) lanes *= 2;
                return {lanes, ctas, column_threads(R, lanes, ctas, K)};
            }
        }
    return {LINE_VECTORS, clusters, MOST_THREADS};  // read twice
}

template <typename In, typename Out, int READS, int V, int K, bool LOG, bool HELD, bool CLUSTER>
cudaError_t launch_columns(const Columns<In, Out, READS>& a, const ColumnPlan& plan, cudaStream_t stream) {
    Launcher launcher{stream, nullptr, 0, LARGE_BYTES};
    const auto kernel = columns<In, Out, READS, V, K, LOG, HELD, CLUSTER>;
    const size_t shared = column_partials(plan.threads, a.lanes, V, plan.ctas) * sizeof(Partial);
    launcher.launch(kernel, ceil_div<int64_t>(a.columns, a.lanes) * plan.ctas, plan.threads, shared, plan.ctas, a);
    return launcher.error;
}

template <typename In, typename Out, int READS, int V>
int columns_of(Columns<In, Out, READS> a, int64_t inner, int64_t outers, bool log, ColumnPlan plan, cudaStream_t stream) {
    constexpr int K = 8 / READS;
    a.inner = inner / V, a.columns = outers * a.inner;
    if (plan.lanes == 0) plan = column_plan(a.R, V, K);
    else plan.threads = column_threads(a.R, plan.lanes, plan.ctas, K);
    if (plan.threads > COLUMN_THREADS) return cudaErrorInvalidValue;
    a.lanes = plan.lanes, a.rows = int(ceil_div<int64_t>(a.R, plan.ctas));
    const auto with = [&](auto LOG, auto HELD) {
        if (plan.ctas > 1) return launch_columns<In, Out, READS, V, K, LOG, HELD, true>(a, plan, stream);
        return launch_columns<In, Out, READS, V, K, LOG, HELD, false>(a, plan, stream);
    };
    using std::false_type, std::true_type;
    const bool held = int64_t(K) * (plan.threads / plan.lanes) >= a.rows;
    if (held) return log ? with(true_type(), true_type()) : with(false_type(), true_type());
    return log ? with(true_type(), false_type()) : with(false_type(), false_type());
}

// The widest vectors of both tensors' elements for which all rows begin at a vector; else one element.
template <typename In, typename Out, int READS>
int run_columns(const void* const* in, void* out, const int64_t* strides, int64_t outers, int64_t R, int64_t inner, int log, float scale, ColumnPlan plan,
                cudaStream_t stream);

#define SOFTBENCH_RUN(In, Out, READS)                                                                                                                \
    template int run_columns<In, Out, READS>(const void* const*, void*, const int64_t*, int64_t, int64_t, int64_t, int, float, ColumnPlan, cudaStream_t)

template <typename In, typename Out, int READS>
int run_columns(const void* const* in, void* out, const int64_t* strides, int64_t outers, int64_t R, int64_t inner, int log, float scale, ColumnPlan plan,
                cudaStream_t stream) {
    constexpr int V = VECTOR_BYTES / sizeof(In);
    Columns<In, Out, READS> a;
    int64_t odd = inner | int64_t(reinterpret_cast<uintptr_t>(out) / sizeof(Out));
    for (int i = 0; i < READS; ++i) a.in[i] = static_cast<const In*>(in[i]), odd |= int64_t(reinterpret_cast<uintptr_t>(in[i]) / sizeof(In));
    a.out = static_cast<Out*>(out);
    for (int i = 0; i <= READS; ++i) {
        a.outer_stride[i] = strides[2 * i], a.row_stride[i] = strides[2 * i + 1];
        odd |= (outers > 1 ? strides[2 * i] : 0) | (R > 1 ? strides[2 * i + 1] : 0);
    }
    a.R = int(R), a.scale = scale;
    if (odd % V == 0 && outers * (inner / V) >> 31 == 0) return columns_of<In, Out, READS, V>(a, inner, outers, log, plan, stream);
    return columns_of<In, Out, READS, 1>(a, inner, outers, log, plan, stream);
}

using half = __half;
using brain = __nv_bfloat16;
#ifdef SOFTBENCH_PART
#define SOFTBENCH_HERE(...) SOFTBENCH_RUN(__VA_ARGS__)
#define SOFTBENCH_ELSEWHERE(...) extern SOFTBENCH_RUN(__VA_ARGS__)
#if SOFTBENCH_PART == 0
SOFTBENCH_HERE(float, float, 1);
SOFTBENCH_HERE(float, float, 2);
SOFTBENCH_ELSEWHERE(half, half, 1);
SOFTBENCH_ELSEWHERE(half, half, 2);
SOFTBENCH_ELSEWHERE(brain, brain, 1);
SOFTBENCH_ELSEWHERE(brain, brain, 2);
SOFTBENCH_ELSEWHERE(half, float, 1);
SOFTBENCH_ELSEWHERE(brain, float, 1);
SOFTBENCH_ELSEWHERE(float, half, 2);
SOFTBENCH_ELSEWHERE(float, brain, 2);
#elif SOFTBENCH_PART == 1
SOFTBENCH_HERE(half, half, 1);
SOFTBENCH_HERE(half, half, 2);
#elif SOFTBENCH_PART == 2
SOFTBENCH_HERE(brain, brain, 1);
SOFTBENCH_HERE(brain, brain, 2);
#elif SOFTBENCH_PART == 3
SOFTBENCH_HERE(half, float, 1);
SOFTBENCH_HERE(brain, float, 1);
#elif SOFTBENCH_PART == 4
SOFTBENCH_HERE(float, half, 2);
SOFTBENCH_HERE(float, brain, 2);
#endif
#endif

}  // namespace softbench

#if !defined(SOFTBENCH_PART) || SOFTBENCH_PART == 0

// x and y, or dy, y and dx: (outers, R, inner) tensors with strides of outers and rows in elements, and columns beside each other. `second` is null in
// a forward. dtypes and the result are as in softmax.cu. 1 <= R < 2^31. `lanes` and `ctas` are 0, or replace the rule of `column_plan`.
extern "C" int64_t softbench_columns(const void* first, const void* second, void* out, int64_t first_outer, int64_t first_row, int64_t second_outer,
                                     int64_t second_row, int64_t out_outer, int64_t out_row, int64_t outers, int64_t R, int64_t inner, int dtype,
                                     int out_dtype, int log, float scale, int lanes, int ctas, cudaStream_t stream) {
    using namespace softbench;
    const void* const in[] = {first, second};
    const bool forward = second == nullptr;
    const int64_t strides[] = {first_outer, first_row, forward ? out_outer : second_outer, forward ? out_row : second_row, out_outer, out_row};
    auto with = [&](auto call) { return call(in, out, strides, outers, R, inner, log, scale, ColumnPlan{lanes, ctas, 0}, stream); };
    switch (dtype * 3 + out_dtype) {
        case 0: return forward ? with(run_columns<float, float, 1>) : with(run_columns<float, float, 2>);
        case 1: return forward ? int(cudaErrorInvalidValue) : with(run_columns<float, half, 2>);
        case 2: return forward ? int(cudaErrorInvalidValue) : with(run_columns<float, brain, 2>);
        case 3: return forward ? with(run_columns<half, float, 1>) : int(cudaErrorInvalidValue);
        case 4: return forward ? with(run_columns<half, half, 1>) : with(run_columns<half, half, 2>);
        case 6: return forward ? with(run_columns<brain, float, 1>) : int(cudaErrorInvalidValue);
        case 8: return forward ? with(run_columns<brain, brain, 1>) : with(run_columns<brain, brain, 2>);
    }
    return cudaErrorInvalidValue;
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }

#endif
