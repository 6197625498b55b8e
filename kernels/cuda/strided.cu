#include "launcher.cuh"
#include "strided.cuh"

namespace softbench {

template <typename In, typename Out, int READS, int V, int K, bool LOG, bool HELD>
cudaError_t launch_columns(const Columns<In, Out, READS>& a, int threads, int ctas, cudaStream_t stream) {
    Launcher launcher{stream, nullptr, 0, LARGE_BYTES};
    const int64_t tiles = ceil_div<int64_t>(a.columns, a.lanes);
    const size_t shared = (threads / std::max(a.lanes, WARP) + (ctas > 1 ? ctas : 0)) * a.lanes * V * sizeof(Partial);
    if (ctas > 1) launcher.launch(strided<In, Out, READS, V, K, LOG, HELD, true>, tiles * ctas, threads, shared, ctas, a);
    else launcher.launch(strided<In, Out, READS, V, K, LOG, HELD, false>, tiles, threads, shared, 1, a);
    return launcher.error;
}

}  // namespace softbench

#define SOFTBENCH_COLUMNS(K)                                                                                      \
    if (log && held) return int(launch_columns<In, Out, READS, V, K, true, true>(a, threads, ctas, stream));      \
    if (log) return int(launch_columns<In, Out, READS, V, K, true, false>(a, threads, ctas, stream));             \
    if (held) return int(launch_columns<In, Out, READS, V, K, false, true>(a, threads, ctas, stream));            \
    return int(launch_columns<In, Out, READS, V, K, false, false>(a, threads, ctas, stream))

template <typename In, typename Out, int READS>
static int columns_of(const void* const* in, void* out, const int64_t* strides, int64_t outers, int64_t R, int64_t inner, int log, float scale, int lanes,
                      int threads, int ctas, int vectors, cudaStream_t stream) {
    using namespace softbench;
    constexpr int V = 16 / sizeof(In);
    Columns<In, Out, READS> a;
    for (int i = 0; i < READS; ++i) a.in[i] = static_cast<const In*>(in[i]);
    a.out = static_cast<Out*>(out);
    for (int i = 0; i <= READS; ++i) a.outer_stride[i] = strides[2 * i], a.row_stride[i] = strides[2 * i + 1];
    a.inner = inner / V, a.columns = outers * a.inner, a.R = int(R), a.lanes = lanes, a.rows = int(ceil_div<int64_t>(R, ctas));
    a.scale = scale;
    const bool held = int64_t(vectors) * (threads / lanes) >= a.rows;
    if (vectors == 4 / READS) { SOFTBENCH_COLUMNS(4 / READS); }
    if (vectors == 8 / READS) { SOFTBENCH_COLUMNS(8 / READS); }
    return cudaErrorInvalidValue;
}

extern "C" int softbench_strided(const void* first, const void* second, void* out, int64_t a0, int64_t a1, int64_t b0, int64_t b1, int64_t c0, int64_t c1,
                                 int64_t outers, int64_t R, int64_t inner, int dtype, int log, float scale, int lanes, int threads, int ctas, int vectors,
                                 cudaStream_t stream) {
    const void* in[] = {first, second};
    const int64_t strides[] = {a0, a1, second ? b0 : c0, second ? b1 : c1, c0, c1};
#define SOFTBENCH_GIVEN in, out, strides, outers, R, inner, log, scale, lanes, threads, ctas, vectors, stream
    if (dtype == 0) return second ? columns_of<float, float, 2>(SOFTBENCH_GIVEN) : columns_of<float, float, 1>(SOFTBENCH_GIVEN);
    return second ? columns_of<__nv_bfloat16, __nv_bfloat16, 2>(SOFTBENCH_GIVEN) : columns_of<__nv_bfloat16, __nv_bfloat16, 1>(SOFTBENCH_GIVEN);
}
