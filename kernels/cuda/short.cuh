// Short rows: many to a CTA.
//
// - lanes: a row on 1 to 32 neighbouring lanes, any number, K vectors a lane, straight from and to global memory. Nothing but shuffles between them.
// - staged: rows that lie back to back in memory but start at odd addresses, or fill their lanes badly. A block of them is one contiguous
//   aligned piece: it comes into shared memory by whole vectors, is worked on there element by element, and leaves by whole vectors. Nothing
//   of a row's length or place is left then but how its lanes share out the banks.
#pragma once

#include "memory.cuh"

namespace softbench {

constexpr int LANES_THREADS = 256;

// Neighbouring lanes that share a row; any number up to 32. Groups of a power of two are reduced by a butterfly, others by a tree whose
// result the first lane gives out. LANES: their number where it is known when compiling, a power of two, else 0.
template <int LANES> struct Group {
    int lanes, lane, first;  // of the group; this lane within it; the group's first lane within the warp
    bool power;

    template <typename F> __device__ __forceinline__ float over(float value, F combine) const {
        if constexpr (LANES > 0) {
#pragma unroll
            for (int other = LANES / 2; other > 0; other /= 2) value = combine(value, __shfl_xor_sync(~0u, value, other));
            return value;
        }
        if (power) {
#pragma unroll
            for (int other = WARP / 2; other > 0; other /= 2)
                if (other < lanes) value = combine(value, __shfl_xor_sync(~0u, value, other));
            return value;
        }
#pragma unroll
        for (int other = WARP / 2; other > 0; other /= 2)
            if (other < lanes) {
                const float theirs = __shfl_down_sync(~0u, value, other);
                if (lane + other < lanes) value = combine(value, theirs);
            }
        return __shfl_sync(~0u, value, first);
    }
    __device__ __forceinline__ float largest(float top) const {
        if constexpr (LANES == WARP) return largest_of_warp(top);
        return over(top, [](float a, float b) { return fmaxf(a, b); });
    }
    __device__ __forceinline__ float total(float sum) const {
        return over(sum, [](float a, float b) { return a + b; });
    }
};

// The largest element of words, found among packed ones.
template <typename Element, int COUNT> __device__ __forceinline__ float largest_of(const uint32_t (&word)[COUNT]) {
    using W = Word<Element>;
    uint32_t running = word[0];
#pragma unroll
    for (int c = 1; c < COUNT; ++c) running = W::larger(running, word[c]);
    const float top = W::element(running, 0);
    return W::ELEMENTS == 2 ? fmaxf(top, W::element(running, W::ELEMENTS - 1)) : top;
}

// Values of a row, spread over a group of lanes, to results in value[][0]. `top`: the largest of a lane's. Unpacked values are few enough here
// to compute each exponential once, from the row's own maximum.
template <typename Op, int COUNT, int LANES>
__device__ __forceinline__ void settle(float (&value)[COUNT][Op::READS], float top, const Group<LANES>& group) {
    float sum = 0.0f;
    if constexpr (Op::READS == 1) {
        const float base = measured_from(group.largest(top));
#pragma unroll
        for (int c = 0; c < COUNT; ++c) sum += value[c][0] = exp2_fast(Op::distance(value[c][0], base));
        const float scale = reciprocal(group.total(sum));
#pragma unroll
        for (int c = 0; c < COUNT; ++c) value[c][0] *= scale;
    } else {
#pragma unroll
        for (int c = 0; c < COUNT; ++c) sum += value[c][0] * value[c][1];
        const float dot = group.total(sum);
#pragma unroll
        for (int c = 0; c < COUNT; ++c) value[c][0] = value[c][1] * (value[c][0] - dot);
    }
}

// W words, 4, 8 or 16 bytes, to where they are aligned.
template <bool STAY, int W> __device__ __forceinline__ void read_words(uint32_t (&word)[W], const void* from, uint64_t policy) {
    if constexpr (W == 4) {
        put(word, load16<STAY>(from, policy));
    } else if constexpr (W == 2) {
        const uint2 v = load8<STAY>(from, policy);
        word[0] = v.x;
        word[1] = v.y;
    } else {
        word[0] = load4<STAY>(from, policy);
    }
}
template <typename Out, int V> __device__ __forceinline__ void write_few(Out* target, const float (&value)[V]) {
    if constexpr (V * sizeof(Out) >= VECTOR_BYTES) {
        write<Out, V>(target, value);
    } else if constexpr (sizeof(Out) == 4) {
        if constexpr (V == 2) *reinterpret_cast<float2*>(target) = make_float2(value[0], value[1]);
        else *reinterpret_cast<float*>(target) = value[0];
    } else {
        if constexpr (V == 4) *reinterpret_cast<uint2*>(target) = make_uint2(pack<Out>(value[0], value[1]), pack<Out>(value[2], value[3]));
        else *reinterpret_cast<uint32_t*>(target) = pack<Out>(value[0], value[1]);
    }
}

// CTAs an SM of `lanes_whole`: all that fit, as long as registers do, since a lane has only a few bytes under way.
constexpr int whole_ctas(int K, int elements, int READS, bool widens) {
    if (widens && elements == 16) return 6;
    return (elements <= 8 && K < 4) || (elements >= 8 && elements <= 16 && READS == 1) ? 8 : elements <= 16 ? 5 : 3;
}

// Rows that start at a boundary of W words and are so many or a multiple of it long. LANES: as of a Group; what is computed with it when
// compiling is a third of the instructions of a short row.
template <typename Op, int K, int W, int LANES, bool STAY>
__global__ void __launch_bounds__(LANES_THREADS, whole_ctas(K, K * W * Op::E * Op::READS, Op::READS, sizeof(typename Op::Out) > sizeof(typename Op::Element)))
    lanes_whole(Tensors<Op> tensors, int any_lanes, int any_rows, int inverse) {  // of a warp; ceil(2048 / lanes)
    constexpr int R = Op::READS, E = Op::E, V = W * E;
    const int lanes = LANES ? LANES : any_lanes, rows = LANES ? WARP / LANES : any_rows;
    const int place = threadIdx.x % WARP, number = LANES ? place / LANES : (place * inverse) >> 11, lane = place - number * lanes;
    const Group<LANES> group = {lanes, lane, number * lanes, rows * lanes == WARP};
    const unsigned index = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * rows + number;  // below 2^31 and a CTA's rows
    const bool mine = number < rows && index < tensors.M;
    const int last = mine ? tensors.N / V - lane : 0;  // spare lanes go along, for the shuffles
    const uint64_t policy = policy_of<STAY>();
    uint32_t word[K][R][W];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const typename Op::Element* from = tensors.source[r] + int64_t(index) * tensors.source_stride[r] + lane * V;
#pragma unroll
        for (int k = 0; k < K; ++k) {
#pragma unroll
            for (int w = 0; w < W; ++w) word[k][r][w] = Op::blank();
            if (k * lanes < last) read_words<STAY, W>(word[k][r], from + k * lanes * V, policy);
        }
    }
    float value[K * V][R], top = 0.0f;
#pragma unroll
    for (int c = 0; c < K * V; ++c)
#pragma unroll
        for (int r = 0; r < R; ++r) value[c][r] = Word<typename Op::Element>::element(word[c / V][r][c % V / E], c % E);
    if constexpr (R == 1) top = largest_of<typename Op::Element>(reinterpret_cast<const uint32_t(&)[K * W]>(word));
    settle<Op>(value, top, group);
    typename Op::Out* to = tensors.target + int64_t(index) * tensors.target_stride + lane * V;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float result[V];
#pragma unroll
        for (int v = 0; v < V; ++v) result[v] = value[k * V + v][0];
        if (k * lanes < last) write_few<typename Op::Out, V>(to + k * lanes * V, result);
    }
}

// Most vectors a lane of `lanes_odd` on a whole warp; on half of one it is three.
template <typename Op> constexpr int ODD_VECTORS = Op::READS == 2 ? 3 : Op::E == 1 || sizeof(typename Op::Element) != sizeof(typename Op::Out) ? 4 : 5;

// CTAs an SM of `lanes_odd`.
constexpr int odd_ctas(int K, int READS, int E) { return READS * K >= 4 ? 4 : READS * K >= 3 ? 5 : READS == 1 && E == 2 && K == 2 ? 6 : 8; }

// Rows that start and end anywhere, on 16 or 32 lanes. All warps of an SM begin at once, so that each instruction before the loads is paid by
// all: they come first, the odd elements after them.
template <typename Op, int K, int LANES, bool STAY>
__global__ void __launch_bounds__(LANES_THREADS, odd_ctas(K, Op::READS, Op::E)) lanes_odd(Tensors<Op> tensors) {
    const int lane = threadIdx.x % LANES;
    const unsigned index = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;  // below 2^31 and a CTA's rows
    const bool mine = index < tensors.M;  // the last CTA's spare lanes go along with the last row, for the shuffles, and write nothing
    const Row<Op, false, STAY> row(tensors, mine ? index : tensors.M - 1, VECTOR_BYTES);
    Item<Op::READS> item[K];
    bool inside[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
        const int i = k * LANES + lane;
        inside[k] = i >= row.first && i < row.last;
        read(item[k], row, i, inside[k]);
    }
    const int at = row.odd(lane);
    uint32_t odd[Op::READS];
    row.read_odd(at, odd);
    if constexpr (Op::READS == 1 && Op::E == 2) {  // a second exponential an element would be a fifth of all instructions
        constexpr int V = Op::V, E = Op::E;
        float value[K * V + 1][1];
        value[K * V][0] = Word<typename Op::Element>::element(odd[0], 0);
#pragma unroll
        for (int c = 0; c < K * V; ++c) value[c][0] = Word<typename Op::Element>::element(item[c / V].word[0][c % V / E], c % E);
        settle<Op>(value, Op::largest(item, odd), Group<LANES>{LANES, lane, 0, true});
        if (!mine) return;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            float result[V];
#pragma unroll
            for (int v = 0; v < V; ++v) result[v] = value[k * V + v][0];
            write_where<typename Op::Out, V>(inside[k], row.target + (k * LANES + lane) * V, result);
        }
        if (at >= 0) row.target[at] = narrow<typename Op::Out>(value[K * V][0]);
        return;
    }
    const Part own = Op::take(item, odd);
    const Part whole = Op::finish(LANES == WARP ? Op::join_alike(own, LANES) : Op::join_lanes(own, LANES));
    if (!mine) return;
    forget_unpacked<Op>(item, tensors.N == 0);
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (inside[k]) row.give(k * LANES + lane, item[k], whole, own);
    row.write_odd(at, odd, whole);
}

constexpr int STAGED_THREADS = 128, STAGED_EACH = 10;

// An element of a piece by its address in shared memory: an address once and constants, where the compiler would make a pointer's address anew
// for each.
template <typename Element> __device__ __forceinline__ float load_shared(uint32_t from) {
    if constexpr (sizeof(Element) == 4) {
        float v;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
        return v;
    } else {
        uint16_t v;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(from) : "memory");
        return Word<Element>::element(v, 0);
    }
}
template <typename Element> __device__ __forceinline__ void store_shared(uint32_t to, float value) {
    if constexpr (sizeof(Element) == 4) asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value) : "memory");
    else asm volatile("st.shared.u16 [%0], %1;" ::"r"(to), "h"(uint16_t(pack<Element>(value, value))) : "memory");
}

// Rows of a piece that so many warps work on before they leap; shared memory has room for a multiple of them.
__host__ __device__ inline int staged_span(int lanes, int apart, int warps) { return WARP / lanes * ((1 << apart) > warps ? 1 << apart : warps); }

// The `here` rows of a piece, each on LANES lanes of K elements, the last of which some lanes lack. A warp's rows at one time are 2^`apart` rows from
// each other, which is how they lie on banks of their own (rows_apart). So the warps share out the rows between, in `per` turns, and then go on
// `span` rows later.
template <typename Op, int K, int LANES> __device__ __forceinline__ void settle_piece(uint32_t piece, int here, int rows, int N, int apart) {
    using Element = typename Op::Element;
    constexpr int R = Op::READS, SIZE = sizeof(Element), GROUPS = WARP / LANES;
    const int lane = threadIdx.x % LANES, group = threadIdx.x % WARP / LANES, warp = threadIdx.x / WARP, warps = blockDim.x / WARP;
    const bool full = LANES == 1 || (K - 1) * LANES + lane < N;
    const uint32_t tail = full ? (K - 1) * LANES * SIZE : 0, plane = rows * N * SIZE;
    const uint32_t last = piece + ((here - 1) * N + lane) * SIZE;
    const int per = max(1, (1 << apart) / warps), span = staged_span(LANES, apart, warps);  // powers of two, as warps are
    const uint32_t step = warps * N * SIZE, leap = span * N * SIZE - (per - 1) * step;
    const int turns = ((here + span - 1) >> (31 - __clz(span))) * per;  // the same for all lanes, for the shuffles
    uint32_t own = piece + (((((warp >> apart) * GROUPS + group) << apart) + (warp & ((1 << apart) - 1))) * N + lane) * SIZE;
    for (int turn = 1; turn <= turns; ++turn) {
        const bool mine = own <= last;  // spare lanes go along, with what lies behind the rows
        const uint32_t at = own;
        own += turn & (per - 1) ? step : leap;
        float value[K][R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
#pragma unroll
            for (int k = 0; k < K - 1; ++k) value[k][r] = load_shared<Element>(at + r * plane + k * LANES * SIZE);
            const float x = load_shared<Element>(at + r * plane + tail);
            value[K - 1][r] = full ? x : R == 1 ? MINUS_INFINITY : 0.0f;
        }
        float top = value[0][0];
        if constexpr (R == 1)
#pragma unroll
            for (int k = 1; k < K; ++k) top = fmaxf(top, value[k][0]);
        settle<Op>(value, top, Group<LANES>{LANES, lane, 0, true});
        if (!mine) continue;
#pragma unroll
        for (int k = 0; k < K - 1; ++k) store_shared<Element>(at + k * LANES * SIZE, value[k][0]);
        if (full) store_shared<Element>(at + tail, value[K - 1][0]);
    }
}

// Rows are contiguous and the tensors' starts aligned; `rows` of them (a multiple of V) make a CTA's piece. `each`: elements a lane, 6 to
// STAGED_EACH, or fewer of a row that one lane has.
template <typename Op, int LANES, bool STAY>
__global__ void __launch_bounds__(STAGED_THREADS, Op::READS == 1 ? 16 : 10) staged(Tensors<Op> tensors, int each, int rows, int apart) {
    using Element = typename Op::Element;
    static_assert(sizeof(Element) == sizeof(typename Op::Out), "results replace their operands");
    constexpr int R = Op::READS, V = Op::V;
    extern __shared__ __align__(LINE_BYTES) unsigned char dynamic[];
    const int64_t start = int64_t(blockIdx.x) * rows, rest = tensors.M - start;
    const int here = rest < rows ? int(rest) : rows, N = tensors.N, elements = here * N, vectors = elements / V;
    const uint64_t policy = policy_of<STAY>();
    Element* buffer[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        buffer[r] = reinterpret_cast<Element*>(dynamic) + r * rows * N;
        const Element* piece = tensors.source[r] + start * N;
        for (int i = threadIdx.x; i < vectors; i += blockDim.x) copy_async<STAY>(buffer[r] + i * V, piece + i * V, policy);
        for (int e = vectors * V + threadIdx.x; e < elements; e += blockDim.x) buffer[r][e] = piece[e];
    }
    copy_async_wait();
    __syncthreads();
    const uint32_t at = shared_address(dynamic);
    if constexpr (LANES == 1) {
        if (each == 1) settle_piece<Op, 1, LANES>(at, here, rows, N, apart);
        else if (each == 2) settle_piece<Op, 2, LANES>(at, here, rows, N, apart);
        else if (each == 3) settle_piece<Op, 3, LANES>(at, here, rows, N, apart);
        else if (each == 4) settle_piece<Op, 4, LANES>(at, here, rows, N, apart);
        else if (each == 5) settle_piece<Op, 5, LANES>(at, here, rows, N, apart);
    }
    if (each == 6) settle_piece<Op, 6, LANES>(at, here, rows, N, apart);
    else if (each == 7) settle_piece<Op, 7, LANES>(at, here, rows, N, apart);
    else if (each == 8) settle_piece<Op, 8, LANES>(at, here, rows, N, apart);
    else if (each == 9) settle_piece<Op, 9, LANES>(at, here, rows, N, apart);
    else if (each == STAGED_EACH) settle_piece<Op, STAGED_EACH, LANES>(at, here, rows, N, apart);
    __syncthreads();
    Element* piece = tensors.target + start * N;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) reinterpret_cast<uint4*>(piece)[i] = reinterpret_cast<uint4*>(buffer[0])[i];
    for (int e = vectors * V + threadIdx.x; e < elements; e += blockDim.x) piece[e] = buffer[0][e];
}

}  // namespace softbench
