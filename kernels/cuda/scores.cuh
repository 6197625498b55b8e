// Softmax of attention scores (B, H, S, N) with scale, bias or mask, causal order and sink, and its gradient. A row has at most 16384 columns, and the
// threads that share it hold all of it in registers. So each element is read once and written once.
//
//   z = scale * x + bias where an element takes part, -inf elsewhere; s is the sink of the head
//   y = exp(z - maximum) / sum, share = exp(s - maximum) / sum         maximum and sum include s
//   dx = scale * y * (dy - dot), dsink = -share * dot                  dot = sum(dy * y)
//
// Short rows have 1 to 32 lanes of a warp, other rows have a CTA. K vectors of each thread are in flight together.
//
// - Causal: a vector whose first column the query does not see is not read. Its zeros are written while the loads are in flight. Rows are taken in
//   their order, one CTA after the other, so neighbours take about as long, and the hardware starts the next CTA when one ends.
// - A bias or mask has strides of 0 along the axes that share it. If much is read between two uses of a row of it, the rows that share it become
//   neighbours (ORDER_* below), so that it comes from L2 the second time.
// - Short 16-bit rows of whole vectors with a boolean mask and without a causal order have kernels of their own: row_scores_shared where all queries
//   share the mask, else row_scores_whole.
// - 16-bit rows stay packed in registers. Elements that do not take part become -inf there. With a mask, exponentials take their place, so each is
//   computed once. Without one, a thread computes them twice, and an SM has 48 warps in place of 32.
#pragma once

#include "launch_plan.cuh"

namespace softbench {

enum MaskKind { NO_MASK, BIAS, BOOLEAN };
enum Order { ORDER_QUERIES = 0, ORDER_HEADS = 1, ORDER_TEXTS = 2 };  // what is innermost; heads and texts: both, with heads first

constexpr int SCORES_THREADS = 512;        // the most of a CTA
constexpr int SHORT_ROWS_THREADS = 128;    // of a CTA with several rows
constexpr int64_t REUSED_BYTES = 16 << 20;  // what may be read and written between two uses of a row of a mask: a fraction of L2

// A size by which numbers below 2^31 are divided, without the 20 instructions and the latency of a division: the quotient is (n * multiplier / 2^32 + n)
// / 2^shift (Granlund and Montgomery, 1994).
struct Divisor {
    unsigned size, multiplier, shift;

    Divisor() = default;
    explicit Divisor(unsigned size) : size(size), shift(0) {
        while (uint64_t(1) << shift < size) ++shift;
        multiplier = unsigned(((uint64_t(1) << 32) * ((uint64_t(1) << shift) - size)) / size + 1);
    }
    // The remainder of n, which becomes the quotient.
    __device__ __forceinline__ unsigned split(unsigned& n) const {
        const unsigned quotient = (__umulhi(n, multiplier) + n) >> shift, rest = n - quotient * size;
        n = quotient;
        return rest;
    }
};

// What forward and backward know of their rows.
struct Scores {
    Divisor B, H, S;
    unsigned rows;
    int N;
    unsigned first_sees;  // columns that query 0 sees; each later query sees one more. N: all queries see all columns
    int order;            // of Order
    int lanes_log2;       // log2 of the lanes that share a short row
    int base_alignment;   // bytes
    bool keep_in_l2;
    float scale;
};

template <typename T> struct ForwardScores : Scores {
    const T* x;
    const void* mask;  // of T or of bytes
    const float* sink;  // of each head, or null
    T* y;
    float* share;  // of each row, or null
    int64_t mask_b, mask_h, mask_s;
};
template <typename T> struct BackwardScores : Scores {
    const T *dy, *y;
    const float* share;  // of each row, or null
    T* dx;
    float* dsink;
};

__device__ __forceinline__ uint64_t l2_policy_of(bool keep_in_l2) {
    if (keep_in_l2) return l2_policy<true>();
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// Loads words of a mask, if `inside`. The compiler leaves the loads where they are.
__device__ __forceinline__ void load_words_if(bool inside, uint32_t (&to)[1], const void* from) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p ld.global.u32 %0, [%2];\n}" : "+r"(to[0]) : "r"(unsigned(inside)), "l"(from));
}
__device__ __forceinline__ void load_words_if(bool inside, uint32_t (&to)[2], const void* from) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.v2.u32 {%0, %1}, [%3];\n}" : "+r"(to[0]), "+r"(to[1]) : "r"(unsigned(inside)), "l"(from));
}
__device__ __forceinline__ void load_words_if(bool inside, uint32_t (&to)[4], const void* from) { load16_if<false>(inside, to, 0, from, 0); }
// The bits of one element, of 1, 2 or 4 bytes.
template <int SIZE> __device__ __forceinline__ uint32_t load_bits(const void* from) {
    if constexpr (SIZE == 4) return *static_cast<const uint32_t*>(from);
    else if constexpr (SIZE == 2) return *static_cast<const uint16_t*>(from);
    else return *static_cast<const uint8_t*>(from);
}
// The same words element by element, from any address that is a multiple of SIZE bytes.
template <int SIZE, int W> __device__ __forceinline__ void load_elements(uint32_t (&to)[W], const void* from) {
    constexpr int EACH = 4 / SIZE;
#pragma unroll
    for (int i = 0; i < W * EACH; ++i) {
        const uint32_t bits = load_bits<SIZE>(static_cast<const char*>(from) + i * SIZE) << (i % EACH * SIZE * 8);
        to[i / EACH] = i % EACH ? to[i / EACH] | bits : bits;
    }
}
// Replaces the elements from `count` on by those of `other`, whose words are all the same.
template <typename T> __device__ __forceinline__ void cut(uint32_t (&words)[4], int count, uint32_t other) {
    constexpr int E = Packed<T>::ELEMENTS;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        if (w * E >= count) words[w] = other;
        else if (E == 2 && w * E + 1 == count) words[w] = (words[w] & 0xffffu) | (other & 0xffff0000u);
    }
}
// 16 ones for each of two bytes that is not 0: the lower two or the upper two.
__device__ __forceinline__ uint32_t halves_that_are_set(uint32_t bytes, bool upper) {
    const uint32_t high = ((bytes & 0x7f7f7f7fu) + 0x7f7f7f7fu) | bytes;  // the sign of each byte
    uint32_t halves;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(halves) : "r"(high), "r"(upper ? 0xbbaau : 0x9988u));  // repeats signs
    return halves;
}
// Puts -inf where the bytes are 0.
__device__ __forceinline__ void exclude(uint32_t (&words)[4], const uint32_t (&bytes)[1], float) {
#pragma unroll
    for (int w = 0; w < 4; ++w)
        if (!(bytes[0] >> (8 * w) & 0xffu)) words[w] = Packed<float>::MINUS_INFINITY_BITS;
}
template <typename T> __device__ __forceinline__ void exclude(uint32_t (&words)[4], const uint32_t (&bytes)[2], T) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        const uint32_t keep = halves_that_are_set(bytes[w / 2], w % 2);
        words[w] = (words[w] & keep) | (~keep & Packed<T>::MINUS_INFINITY_BITS);
    }
}

// The row of a thread. Elements and vectors are counted from a base that is aligned, at or before the row. A thread has the vectors `lane`,
// `lane` + `lanes`, and so on, and up to two elements of the row's edges, which are shorter than a vector. `lanes` is at least the number of vectors
// before the row's first whole one, and with edges also the number of elements of a vector.
// SHORT: lanes of a warp share the row, else a CTA. The base of a short row of whole vectors is its begin.
template <typename T, bool ALIGNED, bool SHORT> struct ScoreRow {
    static constexpr int V = VECTOR_BYTES / sizeof(T);
    unsigned b, h, query;
    int64_t row, begin;  // begin: elements from the first row to the base
    int offset;          // elements from the base to the row
    int lane, lanes;
    int seen;           // elements that the query sees, counted from the thread's first vector
    int unread, absent;  // vectors to the first that is not read, and to the first that is not whole, counted from the thread's first
    bool exists, has_first;  // the row, and the thread's first vector in it as a whole
    int edge[2];         // the elements before the whole vectors and behind them; -1: none

    __device__ __forceinline__ ScoreRow(const Scores& all, const T* data) {
        unsigned number = SHORT ? blockIdx.x * (blockDim.x >> all.lanes_log2) + (threadIdx.x >> all.lanes_log2) : blockIdx.x;
        lanes = SHORT ? 1 << all.lanes_log2 : int(blockDim.x);
        lane = SHORT ? int(threadIdx.x) & (lanes - 1) : int(threadIdx.x);
        exists = !SHORT || number < all.rows;
        if (!exists) number = all.rows - 1;
        row = number;
        if (all.order & ORDER_HEADS) h = all.H.split(number);
        if (all.order & ORDER_TEXTS) b = all.B.split(number);
        query = all.S.split(number);
        if (!(all.order & ORDER_HEADS)) h = all.H.split(number);
        if (!(all.order & ORDER_TEXTS)) b = number;
        if (all.order) row = (int64_t(b) * all.H.size + h) * all.S.size + query;
        begin = row * all.N;
        offset = 0;
        if constexpr (!ALIGNED || !SHORT) offset = (unsigned(reinterpret_cast<uintptr_t>(data + begin)) & unsigned(all.base_alignment - 1)) / unsigned(sizeof(T));
        begin -= offset;
        const int row_end = offset + (exists ? all.N : 0), seen_end = offset + (exists ? int(min(unsigned(all.N), query + all.first_sees)) : 0);
        const int first = unsigned(offset + V - 1) / V, end = max(first, int(unsigned(row_end) / V));  // of the whole vectors; equal: all of the row is edge
        seen = seen_end - lane * V;
        unread = min(end, int(unsigned(seen_end + V - 1) / V)) - lane;
        absent = end - lane;
        has_first = (ALIGNED && SHORT) || lane >= first;
        edge[0] = edge[1] = -1;
        if (!ALIGNED) {
            if (offset + lane < min(row_end, first * V)) edge[0] = offset + lane;
            if (end * V + lane < row_end) edge[1] = end * V + lane;
        }
    }
    __device__ __forceinline__ bool sees(int index) const { return index < seen + lane * V; }
    __device__ __forceinline__ bool reads(int k) const { return k * lanes < unread && (k > 0 || has_first); }
    __device__ __forceinline__ bool clears(int k) const { return k * lanes < absent && k * lanes >= unread && (k > 0 || has_first); }
    __device__ __forceinline__ int64_t vector(int k) const { return begin + int64_t(lane + k * lanes) * V; }
    __device__ __forceinline__ int seen_of(int k) const { return seen - k * lanes * V; }
    // Makes the compiler compute addresses anew behind an exchange, as `rematerialize` does for elements.
    __device__ __forceinline__ void forget_addresses(bool never) {
        if (never) {
            asm volatile("not.b32 %0, %0;" : "+r"(lanes));
            asm volatile("not.b64 %0, %0;" : "+l"(begin));
        }
    }
    // Writes zeros to the thread's whole vectors that were not read.
    template <int K> __device__ __forceinline__ void write_zeros(T* to) const {
#pragma unroll
        for (int k = 0; k < K; ++k)
            if (clears(k)) store16(to + vector(k), 0, 0, 0, 0);
    }
    // Writes the results of the thread's vector k, with zeros in place of those behind what the query sees.
    __device__ __forceinline__ void write(T* to, int k, const float (&value)[V]) const {
        uint32_t words[4];
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if constexpr (sizeof(T) == 4) words[w] = __float_as_uint(value[w]);
            else words[w] = pack<T>(value[2 * w], value[2 * w + 1]);
        }
        if (seen_of(k) < V) cut<T>(words, seen_of(k), 0);
        store16(to + vector(k), words[0], words[1], words[2], words[3]);
    }
};

// The least CTAs of SCORES_THREADS threads an SM for __launch_bounds__, as registers allow.
// `words`: of a thread's vectors. The rules choose no short rows with eight vectors a lane; at two CTAs an SM they would spill on sm_120.
constexpr int scores_min_ctas(MaskKind kind, int words, bool aligned, bool short_of_eight) {
    if (words <= 16 && aligned && kind == NO_MASK) return 3;
    return words <= 32 && (aligned || kind == NO_MASK) && !short_of_eight ? 2 : 1;
}

template <typename T, MaskKind KIND, int K, bool ALIGNED, bool SHORT>
__global__ void __launch_bounds__(SCORES_THREADS, scores_min_ctas(KIND, K * (KIND == BIAS ? 8 : 4), ALIGNED, SHORT && K == 8)) row_scores(ForwardScores<T> given) {
    constexpr int V = ScoreRow<T, ALIGNED, SHORT>::V, E = Packed<T>::ELEMENTS, MASK_SIZE = KIND == BOOLEAN ? 1 : sizeof(T), MASK_WORDS = V * MASK_SIZE / 4;
    constexpr uint32_t PADDING = Packed<T>::MINUS_INFINITY_BITS;
    constexpr bool STORED = KIND != NO_MASK && E == 2;  // a thread holds its exponentials over the exchange
    __shared__ Partial warp_partials[SHORT ? 1 : MAX_WARPS];
    ScoreRow<T, ALIGNED, SHORT> row(given, given.x);
    const uint64_t policy = l2_policy_of(given.keep_in_l2);

    Operands<1> x[K];
#pragma unroll
    for (int k = 0; k < K; ++k) load16_if<true>(row.reads(k), x[k].packed[0], PADDING, given.x + row.vector(k), policy);
    uint32_t masks[K][MASK_WORDS] = {};
    const char* mask = nullptr;  // of the row, at its base
    if constexpr (KIND != NO_MASK) {
        const int64_t place = row.b * given.mask_b + row.h * given.mask_h + row.query * given.mask_s - row.offset;
        mask = static_cast<const char*>(given.mask) + place * MASK_SIZE;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const char* const from = mask + int64_t(row.lane + k * row.lanes) * (V * MASK_SIZE);
            if constexpr (ALIGNED) load_words_if(row.reads(k), masks[k], from);
            else if (row.reads(k)) load_elements<MASK_SIZE>(masks[k], from);
        }
    }
    uint32_t edge[2] = {PADDING, PADDING}, edge_mask[2] = {0, 0};
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int index = row.edge[e];
            if (index < 0 || !row.sees(index)) continue;
            edge[e] = load_bits<sizeof(T)>(given.x + row.begin + index);
            if constexpr (KIND != NO_MASK) edge_mask[e] = load_bits<MASK_SIZE>(mask + index * MASK_SIZE);
        }
    }
    const bool causal = given.first_sees < unsigned(given.N);
    if (causal) row.template write_zeros<K>(given.y);

    // With a bias, z takes the registers of x and the bias. Otherwise the scale is a factor of exponents, and the sink is divided by it.
    // Vectors that are not read cost no more than a branch here: rows of 48 vectors on 16 lanes have none for k = 3.
    float wide[STORED || KIND == BIAS ? K * V : 1], of_edge[2], maximum = MINUS_INFINITY;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!row.reads(k)) continue;
        if constexpr (KIND == BOOLEAN) exclude(x[k].packed[0], masks[k], T());
        if (causal && row.seen_of(k) < V) {
            cut<T>(x[k].packed[0], row.seen_of(k), PADDING);
            if constexpr (KIND == BIAS) cut<T>(masks[k], row.seen_of(k), 0);  // else an infinite bias there makes NaN
        }
        if constexpr (KIND == BIAS)
#pragma unroll
            for (int v = 0; v < V; ++v) {
                const float z = fmaf(Packed<T>::element(x[k].packed[0][v / E], v % E), given.scale, Packed<T>::element(masks[k][v / E], v % E));
                wide[k * V + v] = z;
                maximum = fmaxf(maximum, z);
            }
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
        of_edge[e] = Packed<T>::element(KIND == BOOLEAN && !edge_mask[e] ? PADDING : edge[e], 0);
        if (KIND == BIAS) of_edge[e] = fmaf(of_edge[e], given.scale, Packed<T>::element(edge_mask[e], 0));
    }
    auto logit = [&](int k, int v) {
        if constexpr (KIND == BIAS) return wide[k * V + v];
        else return Packed<T>::element(x[k].packed[0][v / E], v % E);
    };

    const Forward<float, float, SCALED_SOFTMAX> op(Scales<true>{nullptr, KIND == BIAS ? 1.0f : given.scale}, 0);
    if constexpr (!ALIGNED) maximum = fmaxf(maximum, fmaxf(of_edge[0], of_edge[1]));
    if constexpr (KIND != BIAS) {
        uint32_t running = PADDING;
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
            for (int w = 0; w < 4; ++w) running = Packed<T>::elementwise_max(running, x[k].packed[0][w]);
#pragma unroll
        for (int e = 0; e < E; ++e) maximum = fmaxf(maximum, Packed<T>::element(running, e));
    }
    // Stored exponentials are relative to the maximum of the lanes' row, or of the thread, which later corrects them by one factor.
    if (STORED && SHORT) maximum = max_over_lanes(maximum, row.lanes);
    const float base = finite_or_zero(maximum);
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!row.reads(k)) continue;
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const float exponential = exp2_fast(op.exponent(logit(k, v), base));
            sum[v % 2] += exponential;
            if constexpr (STORED) wide[k * V + v] = exponential;
        }
    }
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) sum[e] += exp2_fast(op.exponent(of_edge[e], base));
    }
    Partial partial = {maximum, sum[0] + sum[1]};
    if constexpr (!SHORT) partial = block_reduce<SCORES_THREADS>(op, partial, warp_partials);
    else if constexpr (STORED) partial.sum = sum_over_lanes(partial.sum, row.lanes);
    else partial = op.reduce_lanes(partial, row.lanes);
    float sink = MINUS_INFINITY;
    if (given.sink) {
        sink = given.sink[row.h];
        if (KIND != BIAS) sink /= given.scale;
        partial = op.merge(partial, {sink, sink == MINUS_INFINITY ? 0.0f : 1.0f});
    }
    const Partial total = op.finalize(partial);
    if (given.share && row.lane == 0 && row.exists) given.share[row.row] = exp2_fast(op.exponent(sink, total.maximum)) * total.sum;

    if constexpr (!STORED && KIND != BIAS) rematerialize<Forward<T, T>>(x, given.N == 0);
    // With `maximum` itself and not its finite form, a row of -inf gets NaN, as in torch.
    const float factor = STORED ? exp2_fast(op.exponent(maximum, total.maximum)) * total.sum : total.sum;
    row.forget_addresses(given.N == 0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!row.reads(k)) continue;
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = (STORED ? wide[k * V + v] : exp2_fast(op.exponent(logit(k, v), total.maximum))) * factor;
        row.write(given.y, k, value);
    }
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float value = exp2_fast(op.exponent(of_edge[e], total.maximum)) * total.sum;
            if (row.edge[e] >= 0) given.y[row.begin + row.edge[e]] = from_float<T>(row.sees(row.edge[e]) ? value : 0.0f);
        }
    }
}

// Rows of 16 bits with a boolean mask of which each lane has four whole vectors: 128 columns are four lanes. All columns are seen, and rows are taken in
// their order. So nothing is computed before the loads but an address, and no vector is compared with the end of a row. The results are those of
// row_scores, to the bit.
template <typename T, int LANES, bool KEEP_IN_L2> __global__ void __launch_bounds__(SHORT_ROWS_THREADS, 10) row_scores_whole(ForwardScores<T> given) {
    constexpr int K = 4, V = VECTOR_BYTES / sizeof(T), E = Packed<T>::ELEMENTS, N = K * V * LANES, ROWS = WARP / LANES, MASK_WORDS = V / 4;
    const unsigned lane = threadIdx.x % LANES, own = (blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP) * ROWS + threadIdx.x % WARP / LANES;
    const unsigned row = min(own, given.rows - 1);  // a row that does not exist is not written
    const uint64_t policy = l2_policy<KEEP_IN_L2>();
    Operands<1> x[K];
#pragma unroll
    for (int k = 0; k < K; ++k)
        load16_if<KEEP_IN_L2>(true, x[k].packed[0], 0, reinterpret_cast<const uint4*>(given.x + int64_t(row) * N) + lane + k * LANES, policy);
    uint32_t masks[K][MASK_WORDS];
    unsigned text = row;
    const unsigned query = given.S.split(text), head = given.H.split(text);
    const char* from = static_cast<const char*>(given.mask) + (text * given.mask_b + head * given.mask_h + query * given.mask_s) + lane * V;
#pragma unroll
    for (int k = 0; k < K; ++k) load_words_if(true, masks[k], from + k * (LANES * V));

    const Forward<float, float, SCALED_SOFTMAX> op(Scales<true>{nullptr, given.scale}, 0);
    uint32_t running = Packed<T>::MINUS_INFINITY_BITS;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        exclude(x[k].packed[0], masks[k], T());
#pragma unroll
        for (int w = 0; w < 4; ++w) running = Packed<T>::elementwise_max(running, x[k].packed[0][w]);
    }
    const float maximum = max_over_lanes(fmaxf(Packed<T>::element(running, 0), Packed<T>::element(running, 1)), LANES), base = finite_or_zero(maximum);
    float wide[K * V], sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < K * V; ++i) {
        wide[i] = exp2_fast(op.exponent(Packed<T>::element(x[i / V].packed[0][i % V / E], i % E), base));
        sum[i % 2] += wide[i];
    }
    Partial partial = {maximum, sum_over_lanes(sum[0] + sum[1], LANES)};
    float sink = MINUS_INFINITY;
    if (given.sink) {
        sink = given.sink[head] / given.scale;
        partial = op.merge(partial, {sink, sink == MINUS_INFINITY ? 0.0f : 1.0f});
    }
    const Partial total = op.finalize(partial);
    if (own >= given.rows) return;
    if (given.share && lane == 0) given.share[row] = exp2_fast(op.exponent(sink, total.maximum)) * total.sum;
    // With `maximum` itself and not its finite form, a row of -inf gets NaN, as in torch.
    const float factor = exp2_fast(op.exponent(maximum, total.maximum)) * total.sum;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) value[v] = wide[k * V + v] * factor;
        store_vector<T, V>(given.y + int64_t(row) * N + lane * V + k * (LANES * V), value);
    }
}

// Adds up `COUNT` values of aligned groups of LANES lanes. A lane gets the sum of one of them: that of value lane / (LANES / COUNT).
template <int LANES, int COUNT> __device__ __forceinline__ float one_sum_of(float (&sum)[COUNT], unsigned lane) {
    int other = LANES / 2;
#pragma unroll
    for (int count = COUNT / 2; count > 0; count /= 2, other /= 2) {
        const bool upper = lane & other;
#pragma unroll
        for (int i = 0; i < count; ++i) {
            const float given = upper ? sum[i] : sum[count + i];
            sum[i] = (upper ? sum[count + i] : sum[i]) + __shfl_xor_sync(~0u, given, other);
        }
    }
#pragma unroll
    for (; other > 0; other /= 2) sum[0] += __shfl_xor_sync(~0u, sum[0], other);
    return sum[0];
}

// Rows of 16 bits of 16 or 32 whole vectors, with a boolean mask that all queries share, without a causal order and without a sink. A lane has one
// vector of each of GROUPS rows, so each access of a warp is 512 contiguous bytes. The lane's part of the mask is read and converted once. All rows of a
// CTA have the same head. The maxima of two rows are one register.
// Exponents are fma(x, factor, -shift), where shift is maximum * factor, rounded. The rounding is a factor of all exponentials of a row, and of their sum.
constexpr int SHARED_GROUPS = 4, SHARED_CTAS = ARCHITECTURE == 1030 ? 10 : 12;  // with 12, sm_103 would spill registers
constexpr float MOST_SHIFT = 1048576.0f;  // beyond it, the maximum is subtracted first
template <typename T, int LANES, bool KEEP_IN_L2> __global__ void __launch_bounds__(SHORT_ROWS_THREADS, SHARED_CTAS) row_scores_shared(ForwardScores<T> given) {
    constexpr int V = VECTOR_BYTES / sizeof(T), E = Packed<T>::ELEMENTS, GROUPS = SHARED_GROUPS;
    static_assert(E == 2);
    const unsigned head = blockIdx.y, cta = (blockIdx.z * gridDim.y + head) * gridDim.x + blockIdx.x;  // without a division
    const unsigned thread = threadIdx.x % WARP, lane = thread % LANES, warp = cta * (SHORT_ROWS_THREADS / WARP) + threadIdx.x / WARP;
    const uint64_t policy = l2_policy<KEEP_IN_L2>();
    Operands<1> x[GROUPS];
    const unsigned begin = warp * (GROUPS * WARP) + thread;  // in vectors
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) load16_if<KEEP_IN_L2>(true, x[g].packed[0], 0, reinterpret_cast<const uint4*>(given.x) + begin + g * WARP, policy);
    __syncwarp();  // else ptxas would put the load of the mask before these
    uint32_t mask[2], keep[4];
    load_words_if(true, mask, static_cast<const char*>(given.mask) + (blockIdx.z * given.mask_b + head * given.mask_h) + lane * V);
#pragma unroll
    for (int w = 0; w < 4; ++w) keep[w] = halves_that_are_set(mask[w / 2], w % 2);

    uint32_t top[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        uint32_t(&words)[4] = x[g].packed[0];
#pragma unroll
        for (int w = 0; w < 4; ++w) words[w] = (words[w] & keep[w]) | (~keep[w] & Packed<T>::MINUS_INFINITY_BITS);
        top[g] = Packed<T>::elementwise_max(Packed<T>::elementwise_max(words[0], words[1]), Packed<T>::elementwise_max(words[2], words[3]));
    }
    const Forward<float, float, SCALED_SOFTMAX> op(Scales<true>{nullptr, given.scale}, 0);
    float maximum[GROUPS], shift[GROUPS], largest = 0.0f;
#pragma unroll
    for (int g = 0; g < GROUPS; g += 2) {
        uint32_t both = Packed<T>::elementwise_max(__byte_perm(top[g], top[g + 1], 0x5410), __byte_perm(top[g], top[g + 1], 0x7632));
#pragma unroll
        for (int other = LANES / 2; other > 0; other /= 2) both = Packed<T>::elementwise_max(both, __shfl_xor_sync(~0u, both, other));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            maximum[g + i] = Packed<T>::element(both, i);
            shift[g + i] = maximum[g + i] * op.scale;
            largest = fmaxf(largest, fabsf(shift[g + i]));
        }
    }
    float wide[GROUPS][V], sum[GROUPS];
    if (largest <= MOST_SHIFT) {
#pragma unroll
        for (int i = 0; i < GROUPS * V; ++i)
            wide[i / V][i % V] = exp2_fast(fmaf(Packed<T>::element(x[i / V].packed[0][i % V / E], i % E), op.scale, -shift[i / V]));
    } else {
#pragma unroll
        for (int i = 0; i < GROUPS * V; ++i)
            wide[i / V][i % V] = exp2_fast(op.exponent(Packed<T>::element(x[i / V].packed[0][i % V / E], i % E), finite_or_zero(maximum[i / V])));
    }
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        sum[g] = wide[g][0];
#pragma unroll
        for (int v = 1; v < V; ++v) sum[g] += wide[g][v];
    }
    const float factor = reciprocal(one_sum_of<LANES>(sum, lane));  // of one of the lane's rows; a row of -inf gets NaN, as in torch
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
        const float of_row = __shfl_sync(~0u, factor, g * (LANES / GROUPS), LANES);
#pragma unroll
        for (int v = 0; v < V; ++v) wide[g][v] *= of_row;
        store_vector<T, V>(reinterpret_cast<T*>(reinterpret_cast<uint4*>(given.y) + begin + g * WARP), wide[g]);
    }
}

// Launches one of the two if it takes these rows.
template <typename T> bool launch_whole_scores(const ForwardScores<T>& given, const Plan& p, cudaStream_t stream) {
    const int lanes = p.per_row;
    const bool whole = given.N == 4 * (VECTOR_BYTES / int(sizeof(T))) * lanes && given.first_sees >= unsigned(given.N) && given.order == ORDER_QUERIES;
    if (!whole || (lanes != 4 && lanes != 8) || p.vectors != 4 || p.threads > SHORT_ROWS_THREADS) return false;
    const unsigned shared_rows = unsigned(SHORT_ROWS_THREADS / (4 * lanes) * SHARED_GROUPS);  // of a CTA
    const bool countable = given.H.size <= 65535 && given.B.size <= 65535 && given.rows <= (1u << 31) / unsigned(4 * lanes);  // by a grid, and vectors by 32 bits
    if (!given.sink && !given.share && given.mask_s == 0 && given.S.size % shared_rows == 0 && countable && p.threads == SHORT_ROWS_THREADS) {
        const dim3 grid(given.S.size / shared_rows, given.H.size, given.B.size);
        if (lanes == 4 && given.keep_in_l2) row_scores_shared<T, 16, true><<<grid, SHORT_ROWS_THREADS, 0, stream>>>(given);
        else if (lanes == 4) row_scores_shared<T, 16, false><<<grid, SHORT_ROWS_THREADS, 0, stream>>>(given);
        else if (given.keep_in_l2) row_scores_shared<T, 32, true><<<grid, SHORT_ROWS_THREADS, 0, stream>>>(given);
        else row_scores_shared<T, 32, false><<<grid, SHORT_ROWS_THREADS, 0, stream>>>(given);
        return true;
    }
    const unsigned per_cta = unsigned(p.threads / lanes), grid = (given.rows + per_cta - 1) / per_cta;
    if (lanes == 4 && given.keep_in_l2) row_scores_whole<T, 4, true><<<grid, p.threads, 0, stream>>>(given);
    else if (lanes == 4) row_scores_whole<T, 4, false><<<grid, p.threads, 0, stream>>>(given);
    else if (given.keep_in_l2) row_scores_whole<T, 8, true><<<grid, p.threads, 0, stream>>>(given);
    else row_scores_whole<T, 8, false><<<grid, p.threads, 0, stream>>>(given);
    return true;
}

template <typename T, int K, bool ALIGNED, bool SHORT>
__global__ void __launch_bounds__(SCORES_THREADS, scores_min_ctas(NO_MASK, K * 8, ALIGNED, SHORT && K == 8)) row_scores_gradient(BackwardScores<T> given) {
    constexpr int V = ScoreRow<T, ALIGNED, SHORT>::V, E = Packed<T>::ELEMENTS;
    __shared__ Partial warp_partials[SHORT ? 1 : MAX_WARPS];
    ScoreRow<T, ALIGNED, SHORT> row(given, given.y);
    const uint64_t policy = l2_policy_of(given.keep_in_l2);

    Operands<2> both[K];  // dy, y
#pragma unroll
    for (int k = 0; k < K; ++k) {
        load16_if<true>(row.reads(k), both[k].packed[0], 0, given.dy + row.vector(k), policy);
        load16_if<true>(row.reads(k), both[k].packed[1], 0, given.y + row.vector(k), policy);
    }
    const bool causal = given.first_sees < unsigned(given.N);
    if (causal) row.template write_zeros<K>(given.dx);
    uint32_t edge[2][2] = {};  // loaded last: sm_120 has too few registers for them during the stores of zeros
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int index = row.edge[e];
            if (index < 0 || !row.sees(index)) continue;
            edge[e][0] = load_bits<sizeof(T)>(given.dy + row.begin + index);
            edge[e][1] = load_bits<sizeof(T)>(given.y + row.begin + index);
        }
    }

    const Backward<float, float, SCALED_SOFTMAX> op(Scales<true>{nullptr, given.scale}, 0);
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!row.reads(k)) continue;
        if (causal && row.seen_of(k) < V) {
            cut<T>(both[k].packed[0], row.seen_of(k), 0);
            cut<T>(both[k].packed[1], row.seen_of(k), 0);
        }
#pragma unroll
        for (int v = 0; v < V; ++v)
            sum[v % 2] = fmaf(Packed<T>::element(both[k].packed[0][v / E], v % E), Packed<T>::element(both[k].packed[1][v / E], v % E), sum[v % 2]);
    }
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) sum[e] = fmaf(Packed<T>::element(edge[e][0], 0), Packed<T>::element(edge[e][1], 0), sum[e]);
    }
    Partial partial = {0.0f, sum[0] + sum[1]};
    if constexpr (SHORT) partial = op.reduce_lanes(partial, row.lanes);
    else partial = block_reduce<SCORES_THREADS>(op, partial, warp_partials);
    const Partial total = op.finalize(partial);
    if (given.share && row.lane == 0 && row.exists) given.dsink[row.row] = -given.share[row.row] * total.sum;

    rematerialize<Backward<T>>(both, given.N == 0);
    row.forget_addresses(given.N == 0);
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (!row.reads(k)) continue;
        float value[V];
#pragma unroll
        for (int v = 0; v < V; ++v) {
            const float pair[2] = {Packed<T>::element(both[k].packed[0][v / E], v % E), Packed<T>::element(both[k].packed[1][v / E], v % E)};
            value[v] = op.result(pair, total);
        }
        row.write(given.dx, k, value);
    }
    if constexpr (!ALIGNED) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float pair[2] = {Packed<T>::element(edge[e][0], 0), Packed<T>::element(edge[e][1], 0)};
            if (row.edge[e] >= 0) given.dx[row.begin + row.edge[e]] = from_float<T>(row.sees(row.edge[e]) ? op.result(pair, total) : 0.0f);
        }
    }
}

// Plans: SUB_WARP with the lanes of a row in `per_row`, or BLOCK. `tier_option`: 1 + the order of rows; 0: as `order_of_scores` says. AUTO: no thread
// count holds such rows.
inline Plan scores_plan(const Scores& all, int size, bool lines) {
    const int V = VECTOR_BYTES / size;
    const bool edges = all.N % V != 0;
    const int64_t vectors = edges ? (V - 1 + all.N) / V : all.N / V, in_lines = lines ? vectors : (LINE_BYTES / size - 1 + all.N) / V;
    if (vectors <= 4 * WARP) {
        const int lanes = std::max(edges ? V : 1, 1 << log2_ceil(ceil_div<int64_t>(vectors, 4)));
        return {SUB_WARP, 4, SHORT_ROWS_THREADS, lanes, 0, VECTOR_BYTES, 0, 0};
    }
    for (int K = 4; K <= (size == 4 ? 8 : 4); K *= 2)
        for (int alignment : {LINE_BYTES, VECTOR_BYTES}) {
            const int64_t threads = round_up<int64_t>(ceil_div<int64_t>(alignment == LINE_BYTES ? in_lines : vectors, K), WARP);
            if (threads <= SCORES_THREADS) return {BLOCK, K, int(threads), 0, 0, alignment, 0, 0};
        }
    return {AUTO};
}

// The plan of invariant.cuh, of rows of whole vectors in contiguous tensors. They count from 16 bytes, and no row takes the kernels of whole scores: these
// also depend on the number of queries and on the mask.
inline Plan invariant_scores_plan(const Scores& all, int size) {
    const int64_t vectors = all.N / (VECTOR_BYTES / size);
    if (vectors <= 2 * WARP) return {SUB_WARP, 4, SHORT_ROWS_THREADS, std::min(WARP, 2 << log2_ceil(ceil_div<int64_t>(vectors, 4))), 1 + ORDER_QUERIES, VECTOR_BYTES, 0, 0};
    for (int K = 4; K <= (size == 4 ? 8 : 4); K *= 2) {
        const int64_t threads = round_up<int64_t>(ceil_div<int64_t>(vectors, K), WARP);
        if (threads <= SCORES_THREADS) return {BLOCK, K, int(threads), 0, 1 + ORDER_QUERIES, VECTOR_BYTES, 0, 0};
    }
    return {AUTO};
}

// The rows that share a row of a mask are neighbours if more than REUSED_BYTES lie between them otherwise.
inline int order_of_scores(const Scores& all, int size, int64_t mask_b, int64_t mask_h, int64_t mask_s) {
    const bool heads = mask_h == 0 && all.H.size > 1, texts = mask_b == 0 && all.B.size > 1;
    const int64_t between = int64_t(heads ? 1 : all.H.size) * all.S.size * all.N * 2 * size;
    return mask_s != 0 && between > REUSED_BYTES ? (heads ? ORDER_HEADS : 0) + (texts ? ORDER_TEXTS : 0) : ORDER_QUERIES;
}

// Takes a plan or makes one, and fills in what follows from it. Returns 0 or a cudaError_t. `data`: the first row of a tensor. `bytes`: read at most.
// `order`: that of the rule.
inline int64_t plan_scores(Scores& all, int size, const void* data, int64_t bytes, int order, Plan* p, Plan& chosen) {
    const int V = VECTOR_BYTES / size;
    const bool lines = reinterpret_cast<uintptr_t>(data) % LINE_BYTES == 0 && int64_t(all.N) * size % LINE_BYTES == 0;  // each row begins a line
    const bool invariant = p && p->tier == INVARIANT;
    if (invariant && all.N % V) return cudaErrorMisalignedAddress;
    chosen = invariant ? invariant_scores_plan(all, size) : p && p->tier != AUTO ? *p : scores_plan(all, size, lines);
    if (chosen.tier == AUTO) return cudaErrorNotSupported;
    if (chosen.tier_option == 0) chosen.tier_option = 1 + order;
    if (p) *p = chosen;
    const bool short_rows = chosen.tier == SUB_WARP, line = chosen.base_alignment == LINE_BYTES;
    const int lanes = short_rows ? chosen.per_row : chosen.threads;
    if (chosen.tier_option < 1 || chosen.tier_option > 1 + (ORDER_HEADS | ORDER_TEXTS)) return cudaErrorInvalidValue;
    if ((!short_rows && chosen.tier != BLOCK) || (!line && chosen.base_alignment != VECTOR_BYTES)) return cudaErrorInvalidValue;
    if (chosen.vectors != 4 && (chosen.vectors != 8 || size != 4)) return cudaErrorInvalidValue;
    if (chosen.threads < WARP || chosen.threads > SCORES_THREADS || chosen.threads % WARP) return cudaErrorInvalidValue;
    if (short_rows && (line || lanes < 1 || lanes > WARP || (lanes & (lanes - 1)))) return cudaErrorInvalidValue;
    const int64_t most_offset = line ? (lines ? 0 : LINE_BYTES / size - 1) : all.N % V ? V - 1 : 0;
    if (int64_t(chosen.vectors) * lanes < (most_offset + all.N) / V || (all.N % V && lanes < V)) return cudaErrorInvalidValue;
    all.lanes_log2 = short_rows ? log2_ceil(lanes) : 0;
    all.base_alignment = chosen.base_alignment;
    all.order = chosen.tier_option - 1;
    all.keep_in_l2 = device().major == 9 && device().clusters() && bytes >= KEEP_IN_L2_BYTES;
    return cudaSuccess;
}
inline bool at_vectors(const void* data, int size = 1) { return reinterpret_cast<uintptr_t>(data) % (VECTOR_BYTES / size) == 0; }
inline unsigned scores_grid(const Scores& all, const Plan& p) {
    const unsigned per_cta = p.tier == SUB_WARP ? unsigned(p.threads / p.per_row) : 1;
    return (all.rows + per_cta - 1) / per_cta;
}

template <typename T, MaskKind KIND, bool ALIGNED, bool SHORT> int64_t launch_scores(const ForwardScores<T>& given, const Plan& p, cudaStream_t stream) {
    if constexpr (KIND == BOOLEAN && ALIGNED && SHORT && sizeof(T) == 2) {
        if (launch_whole_scores<T>(given, p, stream)) return cudaGetLastError();
    }
    const unsigned grid = scores_grid(given, p);
    if (p.vectors == 4) row_scores<T, KIND, 4, ALIGNED, SHORT><<<grid, p.threads, 0, stream>>>(given);
    else if constexpr (sizeof(T) == 4) row_scores<T, KIND, 8, ALIGNED, SHORT><<<grid, p.threads, 0, stream>>>(given);
    return cudaGetLastError();
}
template <typename T, MaskKind KIND> int64_t run_scores(ForwardScores<T> given, Plan* p, cudaStream_t stream) {
    constexpr int V = VECTOR_BYTES / sizeof(T), SIZE = KIND == BOOLEAN ? 1 : sizeof(T);
    if (!at_vectors(given.x) || !at_vectors(given.y)) return cudaErrorMisalignedAddress;
    const int order = KIND == NO_MASK ? ORDER_QUERIES : order_of_scores(given, sizeof(T), given.mask_b, given.mask_h, given.mask_s);
    Plan chosen;
    if (const int64_t code = plan_scores(given, sizeof(T), given.x, int64_t(given.rows) * given.N * sizeof(T), order, p, chosen)) return code;
    bool aligned = given.N % V == 0;
    if (KIND != NO_MASK) aligned &= at_vectors(given.mask, sizeof(T) / SIZE) && (given.mask_b | given.mask_h | given.mask_s) % V == 0;
    const bool lanes = chosen.tier == SUB_WARP;
    if (aligned) return lanes ? launch_scores<T, KIND, true, true>(given, chosen, stream) : launch_scores<T, KIND, true, false>(given, chosen, stream);
    return lanes ? launch_scores<T, KIND, false, true>(given, chosen, stream) : launch_scores<T, KIND, false, false>(given, chosen, stream);
}

template <typename T, bool ALIGNED, bool SHORT> int64_t launch_scores_gradient(const BackwardScores<T>& given, const Plan& p, cudaStream_t stream) {
    const unsigned grid = scores_grid(given, p);
    if (p.vectors == 4) row_scores_gradient<T, 4, ALIGNED, SHORT><<<grid, p.threads, 0, stream>>>(given);
    else if constexpr (sizeof(T) == 4) row_scores_gradient<T, 8, ALIGNED, SHORT><<<grid, p.threads, 0, stream>>>(given);
    return cudaGetLastError();
}
template <typename T> int64_t run_scores_gradient(BackwardScores<T> given, Plan* p, cudaStream_t stream) {
    if (!at_vectors(given.dy) || !at_vectors(given.y) || !at_vectors(given.dx)) return cudaErrorMisalignedAddress;
    Plan chosen;
    if (const int64_t code = plan_scores(given, sizeof(T), given.y, 2 * int64_t(given.rows) * given.N * sizeof(T), ORDER_QUERIES, p, chosen)) return code;
    const bool aligned = given.N % (VECTOR_BYTES / sizeof(T)) == 0;
    const bool lanes = chosen.tier == SUB_WARP;
    if (aligned) return lanes ? launch_scores_gradient<T, true, true>(given, chosen, stream) : launch_scores_gradient<T, true, false>(given, chosen, stream);
    return lanes ? launch_scores_gradient<T, false, true>(given, chosen, stream) : launch_scores_gradient<T, false, false>(given, chosen, stream);
}

}  // namespace softbench
