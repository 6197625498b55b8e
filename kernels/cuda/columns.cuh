// Softmax, log_softmax and their gradients over a dimension that is not the last, without copies. Tensors are (outer, R, inner): R is reduced, and
// the outer * inner columns are counted through, in vectors of V columns.
//
// A CTA has `lanes` vectors of columns: neighbouring threads have neighbouring vectors, and threads / lanes threads share a column. The CTAs of a
// cluster share its R elements. If the K vectors of all these threads hold a column, it is read once; otherwise twice. One exchange of
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
    int64_t columns, inner;
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

template <typename In, typename Out, int READS, int V, int K, bool LOG> struct ColumnThread {
    using Vector = ColumnVector<In, V>;
    static constexpr bool FORWARD = READS == 1;
    const In* in[READS];
    Out* out;
    int first, last, step;  // rows; a column that does not exist has none
    Vector held[READS][K];

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
    __device__ __forceinline__ Vector maxima() const {
        Vector most = held[0][0];
#pragma unroll
        for (int k = 1; k < K; ++k)
#pragma unroll
            for (int w = 0; w < Vector::WORDS; ++w) most.word[w] = Packed<In>::elementwise_max(most.word[w], held[0][k].word[w]);
        return most;
    }
    // Adds the K vectors to the partials.
    __device__ __forceinline__ void accumulate(ColumnPartials<V>& partials, float factor) {
        if constexpr (FORWARD) {
            const Vector most = maxima();
            forget();
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const float before = partials.maximum[v], maximum = fmaxf(before, most[v]), base = finite_or_zero(maximum);
                float sum = partials.sum[v] * exp2_fast((before - base) * factor);
#pragma unroll
                for (int k = 0; k < K; ++k) sum += exp2_fast((held[0][k][v] - base) * factor);
                partials.maximum[v] = maximum;
                partials.sum[v] = sum;
            }
        } else {
#pragma unroll
            for (int v = 0; v < V; ++v)
#pragma unroll
                for (int k = 0; k < K; ++k) partials.sum[v] += LOG ? held[0][k][v] : held[0][k][v] * held[READS - 1][k][v];
        }
        forget();
    }
    // An element's result. Forward: totals are {maximum, 1 / sum or log(sum)}.
    __device__ __forceinline__ float result(int k, int v, const ColumnPartials<V>& totals, float scale, float factor) const {
        const float first = held[0][k][v], second = held[READS - 1][k][v];
        if constexpr (!FORWARD) return scale * (LOG ? first - exp2_fast(second * LOG2_E) * totals.sum[v] : second * (first - totals.sum[v]));
        else if constexpr (LOG) return (first - totals.maximum[v]) * scale - totals.sum[v];
        else return exp2_fast((first - totals.maximum[v]) * factor) * totals.sum[v];
    }
    // Stores `value(k, v)` of the K vectors.
    template <typename Value> __device__ __forceinline__ void write(int from, int64_t row_stride, Value value) const {
        Out* at = out + from * row_stride;
#pragma unroll
        for (int k = 0; k < K; ++k, at += step * row_stride) {
            float results[V];
#pragma unroll
            for (int v = 0; v < V; ++v) results[v] = value(k, v);
            if (from + k * step < last) {
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

// The most threads of a CTA, of which an SM has two: a thread has 64 registers, or 80 for forwards of 8 columns.
template <int READS, int V> constexpr int COLUMN_THREADS = READS == 1 && V == 8 ? 384 : 512;

// HELD: the threads hold their columns, which are read once. CLUSTER: CTAs share columns.
template <typename In, typename Out, int READS, int V, int K, bool LOG, bool HELD, bool CLUSTER>
__global__ void __launch_bounds__(COLUMN_THREADS<READS, V>, 2) columns(const Columns<In, Out, READS> a) {
    extern __shared__ Partial shared_partials[];
    __shared__ uint64_t received;
    constexpr bool FORWARD = READS == 1;
    const int thread = threadIdx.x, lanes = a.lanes, lane = thread & (lanes - 1), width = lanes * V;
    const int groups = lanes >= WARP ? blockDim.x / lanes : blockDim.x / WARP, group = lanes >= WARP ? thread / lanes : thread / WARP;
    Partial* const mailbox = shared_partials + groups * width;
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
    const int64_t vector = tile * lanes + lane;
    ColumnThread<In, Out, READS, V, K, LOG> me;
    const int64_t outer = vector / a.inner, column = (vector - outer * a.inner) * V;
#pragma unroll
    for (int i = 0; i < READS; ++i) me.in[i] = a.in[i] + outer * a.outer_stride[i] + column;
    me.out = a.out + outer * a.outer_stride[READS] + column;
    me.step = blockDim.x / lanes;
    me.first = rank * a.rows + thread / lanes;
    me.last = vector < a.columns ? min(a.R, (rank + 1) * a.rows) : 0;
    const float factor = fminf(a.scale * LOG2_E, LARGEST_FLOAT);

    ColumnPartials<V> partials;
#pragma unroll
    for (int v = 0; v < V; ++v) partials.maximum[v] = FORWARD ? MINUS_INFINITY : 0.0f, partials.sum[v] = 0.0f;
    me.load(me.first, a.row_stride);
    me.accumulate(partials, factor);
    if constexpr (!HELD)
        for (int from = me.first + K * me.step; from < me.last; from += K * me.step) {
            me.load(from, a.row_stride);
            me.accumulate(partials, factor);
        }
    if (lanes < WARP) {
#pragma unroll
        for (int v = 0; v < V; ++v) {
            float maximum = partials.maximum[v];
            if constexpr (FORWARD) {
                for (int other = WARP / 2; other >= lanes; other /= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, other));
                partials.sum[v] *= exp2_fast((partials.maximum[v] - finite_or_zero(maximum)) * factor);
                partials.maximum[v] = maximum;
            }
            for (int other = WARP / 2; other >= lanes; other /= 2) partials.sum[v] += __shfl_xor_sync(~0u, partials.sum[v], other);
        }
    }
    if (lanes >= WARP || thread % WARP < lanes)
#pragma unroll
        for (int v = 0; v < V; ++v) shared_partials[group * width + v * lanes + lane] = {partials.maximum[v], partials.sum[v]};
    __syncthreads();
#if SOFTBENCH_CLUSTERS
    if constexpr (CLUSTER) cluster_wait();
#endif
    for (int at = thread; at < width; at += blockDim.x) {
        Partial mine = shared_partials[at];
        for (int g = 1; g < groups; ++g) mine = merged_columns(mine, shared_partials[g * width + at], factor, FORWARD);
#if SOFTBENCH_CLUSTERS
        if constexpr (CLUSTER) {
            for (int to = 0; to < ctas; ++to) send_partial(reinterpret_cast<Message*>(mailbox + rank * width + at), &received, to, mine);
            continue;
        }
#endif
        shared_partials[at] = mine;
    }
#if SOFTBENCH_CLUSTERS
    if constexpr (CLUSTER) {
        barrier_wait(&received, 0);
        for (int at = thread; at < width; at += blockDim.x) {
            Partial mine = mailbox[at];
            for (int other = 1; other < ctas; ++other) mine = merged_columns(mine, mailbox[other * width + at], factor, FORWARD);
            shared_partials[at] = mine;
        }
    }
#endif
    __syncthreads();
    ColumnPartials<V> totals;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const Partial total = shared_partials[v * lanes + lane];
        totals.maximum[v] = total.maximum;
        totals.sum[v] = !FORWARD ? total.sum : LOG ? log_of_sum(total.sum) : reciprocal(total.sum);
    }
    for (int from = me.first; HELD ? from == me.first : from < me.last; from += K * me.step) {
        if constexpr (!HELD) me.load(from, a.row_stride);
        me.write(from, a.row_stride[READS], [&](int k, int v) { return me.result(k, v, totals, a.scale, factor); });
    }
}

}  // namespace softbench
