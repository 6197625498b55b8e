// Kernels that compute the gradient of a loss from logits and a few numbers of each row. No element depends on another, so a CTA has a part of a
// row, or a warp has a short row; there is no exchange. Each thread loads its vectors, then computes and stores them. dx may be x itself.
#pragma once

#include "row_statistics.cuh"

namespace softbench {

constexpr int GRADIENT_THREADS = 256;  // the most of a CTA
constexpr int GRADIENT_VECTORS = 4;    // of a thread

template <typename Op> struct GradientRows : Op::Given {
    const typename Op::Element* x;
    typename Op::Element* dx;
    int64_t x_stride, dx_stride, M;
    int N;
};

// Computes a vector that the row has. `column`: that of its first element. `from`: where it was loaded.
template <typename Op>
__device__ __forceinline__ void gradient_of_vector(const Op& op, const uint32_t (&packed)[4], const typename Op::Element* from, typename Op::Element* to, int column) {
    constexpr int V = Op::V, E = Op::E;
    using Element = typename Op::Element;
    if (op.ignored) return store16(to, 0, 0, 0, 0);
    float value[V];
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = op.result(Packed<Element>::element(packed[v / E], v % E));
    const unsigned place = unsigned(op.target - column);
    if (place < V) {  // reads the element again: with an index, registers would become local memory
        const float result = op.at_target(to_float(from[place]));
#pragma unroll
        for (int v = 0; v < V; ++v)
            if (place == v) value[v] = result;
    }
    store_vector<Element, V>(to, value);
}
template <typename Op>
__device__ __forceinline__ void gradient_of_element(const Op& op, const typename Op::Element* from, typename Op::Element* to, int column) {
    const float x = to_float(from[column]);
    to[column] = from_float<typename Op::Element>(op.ignored ? 0.0f : column == op.target ? op.at_target(x) : op.result(x));
}

// CONGRUENT: all rows of x and dx have the same offset from a 16-byte boundary. Otherwise elements are computed one by one.
template <typename Op, bool WARP_PER_ROW, bool CONGRUENT, bool KEEP_IN_L2>
__global__ void __launch_bounds__(GRADIENT_THREADS, WARP_PER_ROW ? 4 : 5) row_gradient(GradientRows<Op> rows) {
    constexpr int U = GRADIENT_VECTORS, V = Op::V, BASE_ALIGNMENT = WARP_PER_ROW ? VECTOR_BYTES : LINE_BYTES;
    using Element = typename Op::Element;
    const int lanes = WARP_PER_ROW ? WARP : blockDim.x, lane = WARP_PER_ROW ? threadIdx.x % WARP : threadIdx.x;
    const int64_t row = WARP_PER_ROW ? int64_t(blockIdx.x) * (blockDim.x / WARP) + threadIdx.x / WARP : grid_row();
    if (row >= rows.M) return;
    const int cta = WARP_PER_ROW ? 0 : blockIdx.x, ctas = WARP_PER_ROW ? 1 : gridDim.x;
    const Element* const x = rows.x + row * rows.x_stride;
    Element* const dx = rows.dx + row * rows.dx_stride;
    const typename Op::Loaded loaded(rows, row);
    if constexpr (!CONGRUENT) {
        const Op op(rows, loaded, rows.N);
        for (int64_t i = int64_t(cta) * lanes + lane; i < rows.N; i += int64_t(ctas) * lanes) gradient_of_element(op, x, dx, int(i));
        return;
    }
    const uint64_t policy = l2_policy<KEEP_IN_L2>();
    const int offset = int(reinterpret_cast<uintptr_t>(x) & (BASE_ALIGNMENT - 1)) / int(sizeof(Element)), row_end = offset + rows.N;
    const int first = (offset + V - 1) / V, end = max(first, row_end / V);  // of the whole vectors, counted from the base
    const int begin = cta * U * lanes + lane;
    const Element* const from = x - offset + int64_t(begin) * V;
    uint32_t packed[U][4];
    bool inside[U];
#pragma unroll
    for (int u = 0; u < U; ++u) {
        inside[u] = begin + u * lanes < end && (u > 0 || begin >= first);  // `first` is at most LINE_VECTORS
        load16_if<KEEP_IN_L2>(inside[u], packed[u], 0, from + u * lanes * V, policy);
    }
    const Op op(rows, loaded, rows.N);
    Element* const to = dx - offset + int64_t(begin) * V;
#pragma unroll
    for (int u = 0; u < U; ++u)
        if (inside[u]) gradient_of_vector(op, packed[u], from + u * lanes * V, to + u * lanes * V, (begin + u * lanes) * V - offset);
    if (cta == 0 && lane < EDGE_THREADS) {
        const int index = lane < FIRST_TAIL_THREAD ? offset + lane : end * V + lane - FIRST_TAIL_THREAD;
        if (index < row_end && (lane >= FIRST_TAIL_THREAD || index < first * V)) gradient_of_element(op, x, dx, index - offset);
    }
}

// Plans: ONE_WARP, or SPLIT with the CTAs of a row in `per_row`.
inline Plan gradient_plan(int64_t vectors) {
    constexpr int U = GRADIENT_VECTORS;
    if (vectors <= 128) return {ONE_WARP, U, 4 * WARP, 1, 0, VECTOR_BYTES, 0, 0};
    const int64_t ctas = ceil_div<int64_t>(vectors, U * GRADIENT_THREADS);
    const int threads = int(round_up<int64_t>(ceil_div<int64_t>(ceil_div(vectors, ctas), U), WARP));
    return {SPLIT, U, threads, int(ctas), 0, LINE_ALIGNMENT, 0, 0};
}

template <typename Op, bool KEEP_IN_L2> int64_t launch_gradient(const GradientRows<Op>& rows, const Plan& p, bool congruent, cudaStream_t stream) {
    const dim3 grid = p.tier == ONE_WARP ? dim3(unsigned(ceil_div<int64_t>(rows.M, p.threads / WARP))) : grid_of_rows(p.per_row, rows.M);
    if (!congruent) {
        if (p.tier == ONE_WARP) row_gradient<Op, true, false, false><<<grid, p.threads, 0, stream>>>(rows);
        else row_gradient<Op, false, false, false><<<grid, p.threads, 0, stream>>>(rows);
    } else if (p.tier == ONE_WARP) row_gradient<Op, true, true, KEEP_IN_L2><<<grid, p.threads, 0, stream>>>(rows);
    else row_gradient<Op, false, true, KEEP_IN_L2><<<grid, p.threads, 0, stream>>>(rows);
    return cudaGetLastError();
}

// Launches the kernel of a plan; see `run`.
template <typename Op> int64_t run_gradient(const GradientRows<Op>& rows, Plan* p, cudaStream_t stream) {
    constexpr int V = Op::V, SIZE = sizeof(typename Op::Element);
    auto phase = [](const void* pointer) { return int64_t(reinterpret_cast<uintptr_t>(pointer) / SIZE % V); };
    const bool congruent = phase(rows.x) == phase(rows.dx) && (rows.M == 1 || (rows.x_stride - rows.dx_stride) % V == 0);
    const int line = LINE_BYTES / SIZE;
    const int64_t first = int64_t(reinterpret_cast<uintptr_t>(rows.x) / SIZE % line);
    const int64_t most_offset = rows.M == 1 || rows.x_stride % line == 0 ? first : line - 1;  // elements from a 128-byte boundary to a row
    const int64_t vectors = (most_offset + rows.N) / V;
    Plan chosen = p && p->tier > AUTO ? *p : gradient_plan(vectors);  // nothing is added, so each plan is invariant
    if (p && p->tier <= AUTO) *p = chosen;
    if (chosen.threads < WARP || chosen.threads > GRADIENT_THREADS || chosen.threads % WARP || chosen.per_row < 1) return cudaErrorInvalidValue;
    const int64_t room = int64_t(chosen.vectors) * (chosen.tier == ONE_WARP ? WARP : int64_t(chosen.threads) * chosen.per_row);
    if (congruent && room < vectors) return cudaErrorInvalidValue;
    if (chosen.vectors != GRADIENT_VECTORS || (chosen.tier != ONE_WARP && chosen.tier != SPLIT)) return cudaErrorInvalidValue;
    const bool keep_in_l2 = device().major == 9 && device().clusters() && rows.M * rows.N * SIZE >= KEEP_IN_L2_BYTES;
    return keep_in_l2 ? launch_gradient<Op, true>(rows, chosen, congruent, stream) : launch_gradient<Op, false>(rows, chosen, congruent, stream);
}

}  // namespace softbench
