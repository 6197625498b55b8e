// Tier staged: rows of at most 1 KB that follow each other in memory without gaps, but begin anywhere or fill their lanes badly.
//
// A CTA has a tile of rows, which is contiguous and aligned. The tile comes into shared memory by whole vectors, is computed there element by
// element, and leaves by whole vectors. So the length of a row matters only for how its lanes share the banks of shared memory.
#pragma once

#include "async_copy.cuh"
#include "launch_plan.cuh"
#include "logical_warp.cuh"

namespace softbench {

constexpr int STAGED_THREADS = 128;
// Elements of a row that a lane has: the fewest, unless one lane has the row, the usual most, and the most that the kernel takes. In scaled
// gradients with 12, ptxas spills.
constexpr int STAGED_MIN_ELEMENTS = 6, STAGED_ELEMENTS = 10;
template <int READS> constexpr int STAGED_MAX_ELEMENTS = READS == 1 ? 12 : STAGED_ELEMENTS;

constexpr int STAGED_BYTES = 8192;  // of a tile

// The log2 of the distance between the rows of a tile that a warp works on at the same time. A lane reads one 32-bit register or half of one from
// shared memory. At this distance, the rows' starts differ by multiples of the lanes of a row, so that no two lanes share a bank. Next to each
// other, rows of 63 16-bit elements on 8 lanes had .73 of the speed of a copy. The distance is shorter where the tile would become too large.
inline int row_stride_log2(int64_t M, int N, int lanes, int size, int R) {
    int log = lanes == WARP ? 0 : log2_ceil(4 / size * lanes);
    for (int n = N; n % 2 == 0 && log > 0; n /= 2) --log;
    const int64_t max_bytes = std::min<int64_t>(2 * STAGED_BYTES, M * N * size * R / (8 * device().sms));
    while (log > 0 && int64_t(WARP / lanes << log) * N * size * R > max_bytes) --log;
    return log;
}

// These access an element by its shared-memory address. With a pointer, the compiler computes each address anew.
template <typename Element> __device__ __forceinline__ float load_shared(uint32_t from) {
    if constexpr (sizeof(Element) == 4) {
        float v;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
        return v;
    } else {
        uint16_t v;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
        return Packed<Element>::element(v, 0);
    }
}
template <typename Element> __device__ __forceinline__ void store_shared(uint32_t to, float value) {
    if constexpr (sizeof(Element) == 4) asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    else asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(uint16_t(pack<Element>(value, value))) : "memory");
}

// The rows of a tile that the warps of a CTA work on before they jump. Shared memory has room for a multiple of them.
__host__ __device__ inline int staged_span(int lanes, int stride_log2, int warps) {
    return WARP / lanes * ((1 << stride_log2) > warps ? 1 << stride_log2 : warps);
}

// The shared memory of a tile in bytes: its rows, and behind those of the last tensor what inactive lanes read. Then the scales of the rows, which
// begin at any multiple of 4 bytes.
template <typename Op> int64_t staged_bytes(const Plan& p, int64_t N, int stride_log2) {
    const int64_t rows = int64_t(Op::READS - 1) * p.tier_option + round_up(p.tier_option, staged_span(p.per_row, stride_log2, p.threads / WARP));
    return rows * N * int64_t(sizeof(typename Op::Element)) + (Op::SCALED ? p.tier_option * int64_t(sizeof(float)) : 0);
}

// Computes the `tile_rows` rows of a tile that has room for `rows`. A row has LANES lanes of K elements; some lanes lack the last element. A
// warp works on rows that are 2^stride_log2 rows apart, so that they lie in different banks (see row_stride_log2). In `steps_per_span` steps,
// the warps share the rows between these. Then they jump to the next span.
// `scales`: those of the tile's rows.
template <typename Op, int K, int LANES>
__device__ __forceinline__ void compute_tile(uint32_t tile, int tile_rows, int rows, int N, int stride_log2, const Scales<Op::SCALED>& scales) {
    using Element = typename Op::Element;
    constexpr int R = Op::READS, SIZE = sizeof(Element), GROUPS = WARP / LANES;
    const int lane = threadIdx.x % LANES, group = threadIdx.x % WARP / LANES, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const bool full = LANES == 1 || (K - 1) * LANES + lane < N;
    const uint32_t last_element = full ? (K - 1) * LANES * SIZE : 0, tensor_bytes = rows * N * SIZE;
    const uint32_t last_row = tile + ((tile_rows - 1) * N + lane) * SIZE;
    const int steps_per_span = max(1, (1 << stride_log2) / warps), span = staged_span(LANES, stride_log2, warps);  // powers of two, as warps are
    const uint32_t step = warps * N * SIZE, jump = span * N * SIZE - (steps_per_span - 1) * step;
    const int steps = ((tile_rows + span - 1) >> (31 - __clz(span))) * steps_per_span;  // the same for all lanes, for the shuffles
    int row = (((warp >> stride_log2) * GROUPS + group) << stride_log2) + (warp & ((1 << stride_log2) - 1));
    uint32_t next = tile + (row * N + lane) * SIZE;
    for (int i = 1; i <= steps; ++i) {
        const bool active = next <= last_row;  // inactive lanes compute what lies behind the rows
        const uint32_t address = next;
        next += i & (steps_per_span - 1) ? step : jump;
        const Op op(scales, min(row, tile_rows - 1));
        if constexpr (Op::SCALED) row += i & (steps_per_span - 1) ? warps : span - (steps_per_span - 1) * warps;
        float value[K][R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int k = 0; k < K - 1; ++k) value[k][r] = load_shared<Element>(address + r * tensor_bytes + k * LANES * SIZE);
            const float x = load_shared<Element>(address + r * tensor_bytes + last_element);
            value[K - 1][r] = full ? x : R == 1 ? MINUS_INFINITY : 0.0f;
        }
        float maximum = value[0][0];
        if constexpr (R == 1)
#pragma unroll
            for (int k = 1; k < K; ++k) maximum = fmaxf(maximum, value[k][0]);
        compute_in_place(op, value, maximum, LogicalWarp<LANES>{LANES});
        if (!active) continue;
#pragma unroll
        for (int k = 0; k < K - 1; ++k) store_shared<Element>(address + k * LANES * SIZE, value[k][0]);
        if (full) store_shared<Element>(address + last_element, value[K - 1][0]);
    }
}

// The tensors begin at aligned addresses. `rows`, a multiple of V: the rows of a CTA's tile. `elements_per_lane`: STAGED_MIN_ELEMENTS to
// STAGED_MAX_ELEMENTS, or any number up to that if LANES is 1.
template <typename Op, int LANES, bool KEEP_IN_L2>
__global__ void __launch_bounds__(STAGED_THREADS, Op::READS == 1 ? 16 : Op::LOG || (Op::SCALED && !AFTER_HOPPER) ? 12 : 10) staged(Tensors<Op> tensors, int elements_per_lane, int rows, int stride_log2) {
    using Element = typename Op::Element;
    static_assert(sizeof(Element) == sizeof(typename Op::Out), "results replace their operands");
    constexpr int R = Op::READS, V = Op::V;
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    const int64_t start = int64_t(blockIdx.x) * rows, rest = tensors.M - start;
    const int tile_rows = rest < rows ? int(rest) : rows, N = tensors.N, elements = tile_rows * N, vectors = elements / V;
    const uint64_t policy = l2_policy<KEEP_IN_L2>();
    Element* buffer[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        buffer[r] = reinterpret_cast<Element*>(dynamic) + r * rows * N;
        const Element* tile = tensors.source[r] + start * N;
        for (int i = threadIdx.x; i < vectors; i += blockDim.x) copy_async<KEEP_IN_L2>(buffer[r] + i * V, tile + i * V, policy);
        for (int e = vectors * V + threadIdx.x; e < elements; e += blockDim.x) buffer[r][e] = tile[e];
    }
    Scales<Op::SCALED> scales = tensors;
    if constexpr (Op::SCALED)
        if (scales.scales) {  // behind the rows
            const int span = staged_span(LANES, stride_log2, blockDim.x / WARP);
            float* tile_scales = reinterpret_cast<float*>(dynamic + ((R - 1) * rows + (rows + span - 1) / span * span) * N * int(sizeof(Element)));
            for (int i = threadIdx.x; i < tile_rows; i += blockDim.x) tile_scales[i] = scales.scales[start + i];
            scales.scales = tile_scales;
        }
    copy_async_wait();
    __syncthreads();
    const uint32_t address = shared_address(dynamic);
    if constexpr (LANES == 1) {
        if (elements_per_lane == 1) compute_tile<Op, 1, LANES>(address, tile_rows, rows, N, stride_log2, scales);
        else if (elements_per_lane == 2) compute_tile<Op, 2, LANES>(address, tile_rows, rows, N, stride_log2, scales);
        else if (elements_per_lane == 3) compute_tile<Op, 3, LANES>(address, tile_rows, rows, N, stride_log2, scales);
        else if (elements_per_lane == 4) compute_tile<Op, 4, LANES>(address, tile_rows, rows, N, stride_log2, scales);
        else if (elements_per_lane == 5) compute_tile<Op, 5, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    }
    if (elements_per_lane == 6) compute_tile<Op, 6, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    else if (elements_per_lane == 7) compute_tile<Op, 7, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    else if (elements_per_lane == 8) compute_tile<Op, 8, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    else if (elements_per_lane == 9) compute_tile<Op, 9, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    else if (elements_per_lane == 10) compute_tile<Op, 10, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    if constexpr (STAGED_MAX_ELEMENTS<R> == 12) {
        if (elements_per_lane == 11) compute_tile<Op, 11, LANES>(address, tile_rows, rows, N, stride_log2, scales);
        else if (elements_per_lane == 12) compute_tile<Op, 12, LANES>(address, tile_rows, rows, N, stride_log2, scales);
    }
    __syncthreads();
    Element* tile = tensors.target + start * N;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) reinterpret_cast<uint4*>(tile)[i] = reinterpret_cast<uint4*>(buffer[0])[i];
    for (int e = vectors * V + threadIdx.x; e < elements; e += blockDim.x) tile[e] = buffer[0][e];
}

}  // namespace softbench
