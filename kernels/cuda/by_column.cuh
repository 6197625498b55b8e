// Tier by_column: rows that begin at any element, whose sums must not depend on where (invariant.cuh). Vector c of the columns has the columns from V c on,
// and its place among warps and lanes follows from c alone.
//
// A warp loads the vectors of 16-byte boundaries, as they are faster, and holds them for the results. Each vector of columns is two of these, shifted. The
// second one comes from the next lane. A CTA or a cluster has the row.
#pragma once

#include "cluster_exchange.cuh"
#include "row_access.cuh"

namespace softbench {

constexpr int COLUMN_THREADS = 512;  // the most of a CTA

// Where the vectors of a row are, in elements from a 16-byte boundary before it: those of [first, end) are whole.
struct RowEnds {
    int offset, row_end, first, end;

    template <typename Element> __device__ __forceinline__ RowEnds(const Element* row, int N)
        : offset(int(reinterpret_cast<uintptr_t>(row) % VECTOR_BYTES / sizeof(Element))), row_end(offset + N) {
        constexpr int V = VECTOR_BYTES / int(sizeof(Element));
        first = offset ? 1 : 0;
        end = row_end / V;
    }
    __device__ __forceinline__ bool whole(int i) const { return i >= first && i < end; }
    // The vector of which the row has the first elements only. With `offset`, it has the last elements only of vector 0.
    __device__ __forceinline__ int tail(int V) const { return row_end % V && (end || !offset) ? end : -1; }
};

template <typename Element> __device__ __forceinline__ uint32_t element_bits(const Element* from) {
    if constexpr (sizeof(Element) == 4) return *reinterpret_cast<const uint32_t*>(from);
    else return *reinterpret_cast<const uint16_t*>(from);
}
// Loads vector i, element by element; what the row has not is `padding`.
template <typename Element> __device__ __forceinline__ void load_part(uint32_t (&packed)[4], uint32_t padding, const Element* base, int i, const RowEnds& ends) {
    constexpr int E = Packed<Element>::ELEMENTS, V = 4 * E;
#pragma unroll
    for (int v = 0; v < V; v += E) {
        packed[v / E] = padding;
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const int index = i * V + v + e;
            if (index < ends.offset || index >= ends.row_end) continue;
            const uint32_t bits = element_bits(base + index);
            packed[v / E] = E == 1 ? bits : e == 0 ? (packed[v / E] & 0xffff0000u) | bits : (packed[v / E] & 0xffffu) | bits << 16;
        }
    }
}
// Loads K vectors of a lane from `start` on, WARP apart, and in lane 0 the one after them, which is the next one of lane 31's last.
template <bool KEEP_IN_L2, typename Element, int K>
__device__ __forceinline__ void load_window(uint32_t (&packed)[K + 1][4], uint32_t padding, const Element* base, int start, const RowEnds& ends, uint64_t policy) {
    constexpr int V = VECTOR_BYTES / int(sizeof(Element));
    const int count = threadIdx.x % WARP == 0 ? K + 1 : K, tail = ends.tail(V);
#pragma unroll
    for (int k = 0; k <= K; ++k) load16_if<KEEP_IN_L2>(k < count && ends.whole(start + k * WARP), packed[k], padding, base + int64_t(start + k * WARP) * V, policy);
    if (start == 0 && ends.offset) load_part(packed[0], padding, base, 0, ends);
    if (tail >= start && (tail - start) % WARP == 0 && tail - start < count * WARP) {
        uint32_t part[4];
        load_part(part, padding, base, tail, ends);
#pragma unroll
        for (int k = 0; k <= K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w)
                if (start + k * WARP == tail) packed[k][w] = part[w];
    }
}
// Vector start + k * WARP of the columns. All lanes of the warp must call it.
template <typename Element, int K> __device__ __forceinline__ void columns_of(uint32_t (&columns)[4], const uint32_t (&packed)[K + 1][4], int k, int offset) {
    constexpr int E = Packed<Element>::ELEMENTS;
    const int lane = threadIdx.x % WARP, words = offset / E;
    uint32_t all[8], half[6], part[5];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        all[w] = packed[k][w];
        all[4 + w] = __shfl_sync(~0u, lane == 0 ? packed[k + 1][w] : packed[k][w], (lane + 1) % WARP);
    }
#pragma unroll
    for (int w = 0; w < 6; ++w) half[w] = words & 2 ? all[w + 2] : all[w];
#pragma unroll
    for (int w = 0; w < 5; ++w) part[w] = words & 1 ? half[w + 1] : half[w];
#pragma unroll
    for (int w = 0; w < 4; ++w) columns[w] = E == 1 ? part[w] : __funnelshift_r(part[w], part[w + 1], offset % E * 16);
}

// K: the vectors that a thread holds of each tensor. `size`: the CTAs of a cluster that have a row, or 1.
template <typename Op, int K, bool KEEP_IN_L2>
__global__ void __launch_bounds__(COLUMN_THREADS, K * Op::READS < 8 ? 3 : ARCHITECTURE == 900 ? 2 : 1) by_column(Tensors<Op> tensors, int size) {
    using Element = typename Op::Element;
    constexpr int R = Op::READS, V = Op::V, E = Op::E, STEP = K < 2 ? 1 : 2;
    __shared__ Partial warp_partials[MAX_WARPS];
    int rank = 0, index = blockIdx.x;
#if SOFTBENCH_CLUSTERS
    __shared__ ClusterExchange exchange;
    if (size > 1) {
        rank = cluster_rank();
        index = cluster_index();
        exchange.begin(size);
    }
#endif
    const int lane = threadIdx.x % WARP, warp = rank * int(blockDim.x / WARP) + int(threadIdx.x) / WARP, start = warp * K * WARP + lane;
    const Row<Op, false, KEEP_IN_L2> row(tensors, index, VECTOR_BYTES);
    const RowEnds ends(row.source[0] + row.offset, row.N);
    uint32_t packed[R][K + 1][4];
#pragma unroll
    for (int r = 0; r < R; ++r) load_window<KEEP_IN_L2, Element, K>(packed[r], Op::padding(), row.source[r], start, ends, row.policy);
    Partial partial = Op::identity();
#pragma unroll
    for (int k = 0; k < K; k += STEP) {
        Operands<R> columns[STEP];
#pragma unroll
        for (int s = 0; s < STEP; ++s)
#pragma unroll
            for (int r = 0; r < R; ++r) columns_of<Element, K>(columns[s].packed[r], packed[r], k + s, ends.offset);
        row.op.accumulate(partial, columns);
    }
    partial = block_reduce<COLUMN_THREADS>(row.op, partial, warp_partials);
#if SOFTBENCH_CLUSTERS
    if (size > 1) partial = exchange.merge(row.op, partial, rank, size);
#endif
    const typename Op::Total total = row.op.finalize(partial);
    auto write_part = [&](int i, const Operands<R>& operands) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float value[R];
#pragma unroll
            for (int r = 0; r < R; ++r) value[r] = Packed<Element>::element(operands.packed[r][v / E], v % E);
            if (i * V + v >= ends.offset && i * V + v < ends.row_end) row.op.write_one(row.target + i * V + v, value, total);
        }
    };
    Operands<R> part;
    bool has_part = false;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int i = start + k * WARP;
        Operands<R> operands;
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int w = 0; w < 4; ++w) operands.packed[r][w] = packed[r][k][w];
        if (k == 0 && start == 0 && ends.offset) write_part(0, operands);
        if (i == ends.tail(V)) part = operands, has_part = true;
        if constexpr (STORES_IN_PAIRS<Op>) {
            if (warp_has_vector(i, ends.first, ends.end)) row.op.write(row.pair_target(i, ends.first, ends.end), operands, total);
        } else if (ends.whole(i)) row.write(i, operands, total);
    }
    if (has_part) write_part(ends.tail(V), part);
}

}  // namespace softbench
