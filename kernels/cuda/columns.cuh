// Softmax, log_softmax and their gradients over a dimension that is not the last, without copies. Tensors are (outer, R, inner): R is reduced, and
// the outer * inner columns are counted through, in vectors of V columns.
//
// A CTA has `lanes` vectors of columns, its tile: neighbouring threads have neighbouring vectors, and threads / lanes threads share a column. The
// CTAs of a cluster share its R elements. If the K vectors of all these threads hold a column, it is read once; otherwise twice. One exchange of
// {maximum, sum} follows the loads: over the lanes of a warp, over the warps in shared memory, over the cluster in distributed shared memory.
#pragma once

#include "cluster_exchange.cuh"
#include "softmax_ops.cuh"

namespace softbench {

// What is read (READS tensors) and written. Strides are in elements; `inner` and `columns` count vectors.
template <typename In, typename Out, int READS> struct Columns {
    const In* in[READS];
    Out* out;
    int64_t outer_stride[READS + 1], row_stride[READS + 1];  // the last ones are of the result
    int64_t columns, inner;  // below 2^31 where V is above 1
    int R, lanes, rows;  // rows: of each CTA of a cluster
    float scale;         // x is multiplied by it
};

template <typename In, int V> struct ColumnVector {
    static constexpr int WORDS = V * sizeof(In) < 4 ? 1 : V * sizeof(In) / 4;
    uint32_t word[WORDS];
    __device__ __forceinline__ void load(const In* from) {
        if constexpr (V * sizeof(In) == 16) {
            const uint4 four = *reinterpret_cast<const uint4*>(from);
            word[0] = four.x, word[1] = four.y, word[2] = four.z, word[3] = four.w;
        } else if constexpr (sizeof(In) == 4) word[0] = __float_as_uint(*from);
        else word[0] = *reinterpret_cast<const uint16_t*>(from);
    }
    __device__ __forceinline__ void fill(uint32_t bits) {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) word[w] = bits;
    }
    __device__ __forceinline__ float operator[](int v) const {
        constexpr int E = Packed<In>::ELEMENTS;
        return Packed<In>::element(word[v / E], v % E);
    }
    // The compiler must unpack the words again: it would keep float32 copies of all elements in registers.
    __device__ __forceinline__ void forget() {
#pragma unroll
        for (int w = 0; w < WORDS; ++w) asm volatile("" : "+r"(word[w]));
    }
};

// A thread's part of the reduction of V columns. For gradients `maximum` is unused.
template <int V> struct ColumnPartials {
    float maximum[V], sum[V];
};

// HELD: see `columns`.
template <typename In, typename Out, int READS, int V, int K, bool LOG, bool HELD> struct ColumnThread {
    using Vector = ColumnVector<In, V>;
    static constexpr bool FORWARD = READS == 1;
    static constexpr int E = Packed<In>::ELEMENTS;
    static constexpr bool IN_PLACE = V > 1 && sizeof(In) == sizeof(Out);  // results take the registers of what was read
    static constexpr bool KEEPS = FORWARD && !LOG && HELD && E == 1;      // exponentials in place of x, so that each is computed once
    const In* in[READS];
    Out* out;
    int first, last, step;  // rows; a column that does not exist has none
    Vector held[READS][K];

    // The columns of vector `lane` of a tile.
    __device__ __forceinline__ void begin(const Columns<In, Out, READS>& a, int64_t tile, int lane, int rank) {
        const int64_t vector = tile * a.lanes + lane;
        int64_t outer, column;
        if constexpr (V > 1) outer = unsigned(vector) / unsigned(a.inner), column = int64_t(unsigned(vector) % unsigned(a.inner)) * V;
        else outer = vector / a.inner, column = vector - outer * a.inner;
#pragma unroll
        for (int i = 0; i < READS; ++i) in[i] = a.in[i] + outer * a.outer_stride[i] + column;
        out = a.out + outer * a.outer_stride[READS] + column;
        last = vector < a.columns ? min(a.R, (rank + 1) * a.rows) : 0;
    }
    __device__ __forceinline__ void load(int from, const int64_t (&row_stride)[READS + 1]) {
#pragma unroll
        for (int i = 0; i < READS; ++i) {
            const In* at = in[i] + from * row_stride[i];
#pragma unroll
            for (int k = 0; k < K; ++k, at += step * row_stride[i]) {
                if (from + k * step < last) held[i][k].load(at);
                else held[i][k].fill(FORWARD ? Packed<In>::MINUS_INFINITY_BITS : 0);
            }
        }
    }
    __device__ __forceinline__ void forget() {
        if constexpr (sizeof(In) == 2) {
#pragma unroll
            for (int k = 0; k < K; ++k)
#pragma unroll
                for (int i = 0; i < READS; ++i) held[i][k].forget();
        }
    }
    // The maxima of the K vectors, over the lanes of a warp that share columns.
    __device__ __forceinline__ Vector maxima(int lanes) const {
        Vector most = held[0][0];
#pragma unroll
        for (int w = 0; w < Vector::WORDS; ++w) {
#pragma unroll
            for (int k = 1; k < K; ++k) most.word[w] = Packed<In>::elementwise_max(most.word[w], held[0][k].word[w]);
        }
#pragma unroll
        for (int other = WARP / 2; other > 0; other /= 2) {
            if (other < lanes) break;
#pragma unroll
            for (int w = 0; w < Vector::WORDS; ++w)
                most.word[w] = Packed<In>::elementwise_max(most.word[w], __shfl_xor_sync(~0u, most.word[w], other));
        }
        return most;
    }
    // Adds the K vectors to the partials.
    __device__ __forceinline__ void accumulate(ColumnPartials<V>& partials, float factor, int lanes) {
        if constexpr (FORWARD) {
            const Vector most = maxima(lanes);
            forget();
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const float before = partials.maximum[v], maximum = fmaxf(before, most[v]), base = finite_or_zero(maximum);
                float sum = partials.sum[v] * exp2_fast((before - base) * factor);
#pragma unroll
                for (int k = 0; k < K; ++k) {
                    const float exponential = exp2_fast((held[0][k][v] - base) * factor);
                    if constexpr (KEEPS) held[0][k].word[v] = __float_as_uint(exponential);
                    sum += exponential;
                }
                partials.maximum[v] = maximum;
                partials.sum[v] = sum;
            }
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v)
#pragma unroll
                for (int k = 0; k < K; ++k) partials.sum[v] += LOG ? held[0][k][v] : held[0][k][v] * held[READS - 1][k][v];
        }
        if constexpr (!KEEPS) forget();
    }
    // An element's result. Forward: total is {maximum, 1 / sum or log(sum)}, or has the factor of kept exponentials as its sum.
    __device__ __forceinline__ float result(int k, int v, Partial total, float scale, float factor) const {
        if constexpr (KEEPS) return held[0][k][v] * total.sum;
        const float first = held[0][k][v], second = held[READS - 1][k][v];
        if constexpr (!FORWARD) return scale * (LOG ? first - exp2_fast(second * LOG2_E) * total.sum : second * (first - total.sum));
        else if constexpr (LOG) return (first - total.maximum) * scale - total.sum;
        else return exp2_fast((first - total.maximum) * factor) * total.sum;
    }
    // Stores the results of the K vectors. `totals` are in shared memory: those of few columns at a time are in registers.
    __device__ __forceinline__ void write(int from, int64_t row_stride, const Partial* totals, const ColumnPartials<V>& mine, float scale, float factor) {
        const auto total = [&](int v) {
            Partial found = totals[v];
            if constexpr (KEEPS) found.sum *= exp2_fast((mine.maximum[v] - found.maximum) * factor);  // NaN if all elements are -inf
            return found;
        };
        Out* at = out + from * row_stride;
        if constexpr (IN_PLACE) {
#pragma unroll
            for (int w = 0; w < Vector::WORDS; ++w) {
                const Partial low = total(E * w), high = total(E * w + E - 1);
#pragma unroll
                for (int k = 0; k < K; ++k) {
                    const float result_low = result(k, E * w, low, scale, factor);
                    if constexpr (E == 1) held[0][k].word[w] = __float_as_uint(result_low);
                    else held[0][k].word[w] = pack<Out>(result_low, result(k, E * w + 1, high, scale, factor));
                }
            }
        }
#pragma unroll
        for (int k = 0; k < K; ++k, at += step * row_stride) {
            if (from + k * step >= last) continue;
            if constexpr (IN_PLACE) {
                const auto& word = held[0][k].word;
                store16(at, word[0], word[1], word[2], word[3]);
            } else {
                float results[V];
#pragma unroll
                for (int v = 0; v < V; ++v) results[v] = result(k, v, total(v), scale, factor);
                if constexpr (V == 1) *at = from_float<Out>(results[0]);
                else store_vector<Out, V>(at, results);
            }
        }
    }
};

__device__ __forceinline__ Partial merged_columns(Partial a, Partial b, float factor, bool forward) {
    if (!forward) return {0.0f, a.sum + b.sum};
    const float maximum = fmaxf(a.maximum, b.maximum), base = finite_or_zero(maximum);
    return {maximum, a.sum * exp2_fast((a.maximum - base) * factor) + b.sum * exp2_fast((b.maximum - base) * factor)};
}
// Merges `count` Partials that lie `step` apart, by `lanes` neighbouring lanes, of which this one is `lane`. All lanes of a warp must call it.
__device__ __forceinline__ Partial merged_by_lanes(const Partial* all, int count, int step, int lanes, int lane, float factor, bool forward) {
    Partial mine = {forward ? MINUS_INFINITY : 0.0f, 0.0f};
    if (lane < count) mine = all[lane * step];
    for (int other = lane + lanes; other < count; other += lanes) mine = merged_columns(mine, all[other * step], factor, forward);
    if (forward) {
        const float before = mine.maximum;
        for (int other = lanes / 2; other > 0; other /= 2) mine.maximum = fmaxf(mine.maximum, __shfl_xor_sync(~0u, mine.maximum, other));
        mine.sum *= exp2_fast((before - finite_or_zero(mine.maximum)) * factor);
    }
    for (int other = lanes / 2; other > 0; other /= 2) mine.sum += __shfl_xor_sync(~0u, mine.sum, other);
    return mine;
}

// Shared memory of a CTA, in Partials: those of its warps or groups of threads, the messages of its cluster, and the totals.
__device__ __host__ __forceinline__ int column_groups(int threads, int lanes) { return threads / (lanes > WARP ? lanes : WARP); }
__device__ __host__ __forceinline__ int column_partials(int threads, int lanes, int V, int ctas) {
    return lanes * V * ((column_groups(threads, lanes) | 1) + (ctas > 1 ? ctas : 0) + 1);
}

constexpr int COLUMN_THREADS = 512;  // the most of a CTA, of which an SM has two: a thread has 64 registers

// HELD: the threads hold their columns, which are read once. CLUSTER: CTAs share columns.
template <typename In, typename Out, int READS, int V, int K, bool LOG, bool HELD, bool CLUSTER>
__global__ void __launch_bounds__(COLUMN_THREADS, 2) columns(const Columns<In, Out, READS> a) {
    extern __shared__ Partial shared_partials[];
    __shared__ uint64_t received;
    constexpr bool FORWARD = READS == 1;
    const int thread = threadIdx.x, lanes = a.lanes, lane = thread & (lanes - 1), width = lanes * V;
    // The Partials of a column lie beside each other, an odd number from column to column, so that those of a row's columns are in different banks.
    const int groups = column_groups(blockDim.x, lanes), group = thread / (lanes >= WARP ? lanes : WARP), padded = groups | 1;
    Partial* const mailbox = shared_partials + padded * width;
    int rank = 0, ctas = 1;
    int64_t tile = blockIdx.x;
#if SOFTBENCH_CLUSTERS
    if constexpr (CLUSTER) {
        rank = cluster_rank(), ctas = cluster_size(), tile = cluster_index();
        if (thread == 0) {
            barrier_init(&received);
            barrier_inits_visible();
            barrier_expect(&received, ctas * width * sizeof(Partial));
        }
        cluster_arrive();
    }
#endif
    Partial* const totals = mailbox + (CLUSTER ? ctas * width : 0);
    // So many lanes merge the Partials of a column, a power of two.
    int mergers = WARP;
    while (mergers > 1 && mergers * width > int(blockDim.x)) mergers /= 2;
    const float factor = fminf(a.scale * LOG2_E, LARGEST_FLOAT);

    ColumnThread<In, Out, READS, V, K, LOG, HELD> me;
    me.step = blockDim.x / lanes;
    me.first = rank * a.rows + thread / lanes;
    me.begin(a, tile, lane, rank);
    ColumnPartials<V> partials;
#pragma unroll
    for (int v = 0; v < V; ++v) partials.maximum[v] = FORWARD ? MINUS_INFINITY : 0.0f, partials.sum[v] = 0.0f;
    me.load(me.first, a.row_stride);
    me.accumulate(partials, factor, lanes);
    if constexpr (!HELD) {  // without these braces, nvcc 13.0 drops the loop after `#pragma unroll`
        for (int done = K * me.step; done < a.rows; done += K * me.step) {  // all threads: they exchange maxima
            me.load(me.first + done, a.row_stride);
            me.accumulate(partials, factor, lanes);
        }
    }
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2) {
        if (other < lanes) break;
#pragma unroll
        for (int v = 0; v < V; ++v) partials.sum[v] += __shfl_xor_sync(~0u, partials.sum[v], other);
    }
    if (lanes >= WARP || thread % WARP < lanes)
#pragma unroll
        for (int v = 0; v < V; ++v) shared_partials[(lane * V + v) * padded + group] = {partials.maximum[v], partials.sum[v]};
    __syncthreads();
#if SOFTBENCH_CLUSTERS
    if constexpr (CLUSTER) cluster_wait();
#endif
    for (int from = 0; from < width; from += blockDim.x / mergers) {
        const int at = from + thread / mergers, merger = thread & (mergers - 1);
        const Partial mine = merged_by_lanes(shared_partials + (at < width ? at : 0) * padded, groups, 1, mergers, merger, factor, FORWARD);
        if (at >= width) continue;
#if SOFTBENCH_CLUSTERS
        if constexpr (CLUSTER) {
            for (int to = merger; to < ctas; to += mergers)
                send_partial(reinterpret_cast<Message*>(mailbox + rank * width + at), &received, to, mine);
            continue;
        }
#endif
        if (merger == 0) totals[at] = {mine.maximum, !FORWARD ? mine.sum : LOG ? log_of_sum(mine.sum) : reciprocal(mine.sum)};
    }
#if SOFTBENCH_CLUSTERS
    if constexpr (CLUSTER) {
        barrier_wait(&received, 0);
        for (int from = 0; from < width; from += blockDim.x / mergers) {
            const int at = from + thread / mergers, merger = thread & (mergers - 1);
            const Partial mine = merged_by_lanes(mailbox + (at < width ? at : 0), ctas, width, mergers, merger, factor, FORWARD);
            if (at < width && merger == 0)
                totals[at] = {mine.maximum, !FORWARD ? mine.sum : LOG ? log_of_sum(mine.sum) : reciprocal(mine.sum)};
        }
    }
#endif
    __syncthreads();
    for (int from = me.first; HELD ? from == me.first : from < me.last; from += K * me.step) {
        if constexpr (!HELD) me.load(from, a.row_stride);
        me.write(from, a.row_stride[READS], totals + lane * V, partials, a.scale, factor);
    }
}

}  // namespace softbench
