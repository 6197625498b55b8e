// Losses of rows of logits x and a target t, and their gradients.
//
//   cross entropy   loss = (1 - e) (lse - z_t) + e (lse - mean(z)) + z_loss lse^2       e is the label smoothing
//                   dx = g ((1 + 2 z_loss lse) p - (1 - e) [i = t] - e / N) slope       g is the gradient of the loss
//   logprob         logprob = x_t - lse, entropy = -sum(p log p)
//                   dx = a ([i = t] - p) - b p (log p + entropy)                        a and b are the gradients of both
//
// z = scale * x, or cap * tanh(scale * x / cap) with a softcap; lse = log(sum(exp(z))); p = exp(z - lse); slope = scale (1 - (z / cap)^2), or scale.
//
// lse - z_t is (maximum - z_t) + log(sum): an lse is rounded at the size of the maximum. Sums of z and of p log p are taken relative to the maximum
// so far, so that no term has another sign than the others. A new maximum rescales them.
#pragma once

#include "softmax_ops.cuh"

namespace softbench {

// The largest distance below a maximum. There an exponential is 0, and its product with the distance also is; 0 * infinity would be NaN.
constexpr float FAR_BELOW = -1000.0f;
constexpr int64_t ELSEWHERE = -(int64_t(1) << 62);  // a target in another part of the vocabulary
constexpr float NOT_A_NUMBER = __builtin_nanf("");

__device__ __forceinline__ float max_or_nan(float a, float b) {  // fmaxf takes the number of a number and a NaN
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}
// log(sum) of a row whose largest term is 1; -inf for a row that contains only -inf.
__device__ __forceinline__ float log_of_row_sum(float sum) { return sum == 0.0f ? MINUS_INFINITY : log_of_sum(sum); }

// Element `index` of a vector in registers.
template <typename T> __device__ __forceinline__ float element_at(const uint32_t (&packed)[4], uint32_t index) {
    constexpr int E = Packed<T>::ELEMENTS;
    uint32_t word = packed[0];
#pragma unroll
    for (int w = 1; w < 4; ++w)
        if (index / E == w) word = packed[w];
    return E == 2 && index % 2 ? Packed<T>::element(word, 1) : Packed<T>::element(word, 0);
}

// Loads that the compiler leaves where they are. So they are in flight together with the loads of a row, which do not wait for them.
__device__ __forceinline__ int load_target(const int64_t* from) {
    int low;  // rows have less than 2^31 elements
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(low) : "l"(from));
    return low;
}
__device__ __forceinline__ int64_t load_word(const int64_t* from) {
    int64_t word;
    asm volatile("ld.global.b64 %0, [%1];" : "=l"(word) : "l"(from));
    return word;
}
__device__ __forceinline__ float load_number(const float* from) {
    float number;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(number) : "l"(from));
    return number;
}
// Loads an element into the lower part of `bits`, if `inside`. It converts nothing, since that would wait for the load.
template <typename T> __device__ __forceinline__ void load_element_if(bool inside, uint32_t& bits, const T* from) {
    if constexpr (sizeof(T) == 4)
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p ld.global.b32 %0, [%2];\n}" : "+r"(bits) : "r"(unsigned(inside)), "l"(from));
    else asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\n@p ld.global.u16 %0, [%2];\n}" : "+r"(bits) : "r"(unsigned(inside)), "l"(from));
}

// What the rows of FusedCrossEntropy have beside x and dx. Rows whose target is `ignore_index` have zeros as loss and gradient.
struct LossRows {
    const int64_t* targets;
    float *loss, *lse;  // lse may be null
    int ignore_index;
    float z_loss;
};

// Cross entropy and its gradient in one pass over a row, for g = 1 and without smoothing or softcap: an operation of the tiers of softmax.
//
// The thread that writes the target's element also writes the row's loss, as it has z_t. It finds the element by the lower half of its address, so a
// row has less than 2^32 bytes. The target of an ignored row is the first element here, with bit 0 of the address set: no element has that address.
// With a target outside of the row, loss and gradient are NaN.
template <typename T> struct FusedCrossEntropy : Forward<T, T, CROSS_ENTROPY> {
    using Base = Forward<T, T, CROSS_ENTROPY>;
    using Base::V, Base::E, Base::exponent;
    using Inputs = LossRows;
    using Out = T;
    struct Total {
        float maximum, scale, sum;
        uint32_t hot;  // see above
    };

    LossRows rows;
    uint32_t results, row_bytes, row;  // the lower halves of: the address of the results, the bytes between rows, and the row
    int N, target;

    template <typename Given>
    __device__ __forceinline__ FusedCrossEntropy(const Given& given, int64_t row)
        : Base(Scales<false>{}, row), rows(given), results(uint32_t(reinterpret_cast<uintptr_t>(given.target))), row_bytes(uint32_t(given.target_stride * sizeof(T))),
          row(uint32_t(row)), N(given.N), target(load_target(given.targets + row)) {}

    __device__ __forceinline__ Total finalize(Partial partial) const {
        const bool ignored = target == rows.ignore_index;
        uint32_t hot = results + row * row_bytes;
        if (ignored) hot |= 1u;
        else if (unsigned(target) < unsigned(N)) hot += unsigned(target) * unsigned(sizeof(T));
        else partial.sum = NOT_A_NUMBER;
        const float maximum = finite_or_zero(partial.maximum);
        float scale = reciprocal(partial.sum);
        if (rows.z_loss != 0.0f) scale *= fmaf(2.0f * rows.z_loss, maximum + log_of_row_sum(partial.sum), 1.0f);
        return {maximum, scale, partial.sum, hot};
    }
    __device__ __forceinline__ float result(float x, const Total& total) const { return exp2_fast(exponent(x, total.maximum)) * total.scale; }
    // Writes the element at the target again, and the loss. `x` is that element.
    __device__ __forceinline__ void write_target(T* to, float x, const Total& total) const {
        const float log_sum = log_of_row_sum(total.sum), lse = total.maximum + log_sum, loss = (total.maximum - x) + log_sum;
        if (rows.lse) rows.lse[row] = lse;
        if (total.hot & 1) {
            rows.loss[row] = 0.0f;
            return;
        }
        *to = from_float<T>(result(x, total) - 1.0f);
        rows.loss[row] = rows.z_loss == 0.0f ? loss : fmaf(rows.z_loss * lse, lse, loss);
    }
    __device__ __forceinline__ void write_one(T* to, const float (&x)[1], const Total& total) const {
        *to = from_float<T>(total.hot & 1 ? 0.0f : result(x[0], total));
        if ((total.hot & ~1u) == uint32_t(reinterpret_cast<uintptr_t>(to))) write_target(to, x[0], total);
    }
    __device__ __forceinline__ void write(T* to, const Operands<1>& operands, const Total& total) const {
        if (total.hot & 1) {
            store16(to, 0, 0, 0, 0);
        } else {
            float value[V];
#pragma unroll
            for (int v = 0; v < V; ++v) value[v] = result(Packed<T>::element(operands.packed[0][v / E], v % E), total);
            store_vector<T, V>(to, value);
        }
        const uint32_t bytes = total.hot - uint32_t(reinterpret_cast<uintptr_t>(to));
        if (bytes < VECTOR_BYTES) write_target(to + bytes / sizeof(T), element_at<T>(operands.packed[0], bytes / sizeof(T)), total);
    }
    __device__ __forceinline__ void write(T* to, const Operands<1>& operands, const Total& total, Partial) const { write(to, operands, total); }
};

// Cross entropy of the rows of logits: whether z is x, whether mean(z) is needed, and whether z has a softcap or a scale. The last has the mean too.
enum Logits { PLAIN, SMOOTHED, SOFTCAPPED };

struct Softcap {
    float cap, inverse;  // cap 0: z = inverse * x
    bool is_plain() const { return cap == 0.0f && inverse == 1.0f; }
    __device__ __forceinline__ float tangent(float x) const { return tanhf(x * inverse); }
    __device__ __forceinline__ float logit(float x) const { return cap == 0.0f ? x * inverse : cap * tangent(x); }
};
inline Softcap softcap_of(float cap, float scale) { return {cap, cap == 0.0f ? scale : scale / cap}; }

// The result of reducing a part of a row. `third`: SMOOTHED and SOFTCAPPED have the sum of (maximum - z) and `count`, the number of elements;
// logprob has the sum of exp(x - maximum) (maximum - x). A part that contains only -inf uses 0 in place of its maximum.
struct Sums {
    float maximum, sum, third, count;
};

// The operations of row_statistics.cuh. `logit` is z of an element. `add` adds a z to Sums from `base`. `rescaled` changes the maximum. COUNTS: the
// elements are counted. HAS_THIRD: `third` is not always 0. CLAMPS: `add` raises z - base to FAR_BELOW if it is less. NEAR: it is known not to be.
// `finish` gets the Sums of a row, and its element at the target if it has one. `given` has the pointers to what a row has beside x.
struct CrossEntropyRows {
    const int64_t* target;
    float *loss, *lse;
    float2* statistics;  // maximum and sum, for a gradient as exact as that of one pass; or null
    int64_t ignore_index;
    float smoothing, z_loss;
    Softcap softcap;
};
template <typename T, Logits LOGITS> struct CrossEntropy {
    using Element = T;
    using Given = CrossEntropyRows;
    static constexpr int V = VECTOR_BYTES / sizeof(T), E = Packed<T>::ELEMENTS;
    static constexpr bool COUNTS = LOGITS != PLAIN, HAS_THIRD = COUNTS, CLAMPS = false;

    static __device__ __forceinline__ float logit(const Given& given, float x) {
        return LOGITS == SOFTCAPPED ? given.softcap.logit(x) : x;
    }
    template <bool> static __device__ __forceinline__ void add(float z, float base, Sums& sums) {
        const float below = z - base;
        sums.sum += exp2_fast(below * LOG2_E);
        if constexpr (COUNTS) sums.third -= below;
    }
    static __device__ __forceinline__ Sums rescaled(Sums sums, float maximum) {
        const float base = finite_or_zero(maximum);
        sums.sum *= exp2_fast((sums.maximum - base) * LOG2_E);
        if constexpr (COUNTS) sums.third = fmaf(sums.count, base - finite_or_zero(sums.maximum), sums.third);
        sums.maximum = maximum;
        return sums;
    }
    static __device__ __forceinline__ void finish(const Given& given, int64_t row, int N, int64_t target, float x, const Sums& sums) {
        const float base = finite_or_zero(sums.maximum), log_sum = log_of_row_sum(sums.sum), lse = base + log_sum;
        float loss = (base - logit(given, x)) + log_sum;
        if constexpr (COUNTS) {
            if (given.smoothing != 0.0f) loss = (1.0f - given.smoothing) * loss + given.smoothing * (sums.third / float(N) + log_sum);
        }
        if (given.z_loss != 0.0f) loss = fmaf(given.z_loss * lse, lse, loss);
        if (target < 0 || target >= N) loss = NOT_A_NUMBER;
        given.loss[row] = target == given.ignore_index ? 0.0f : loss;
        if (given.lse) given.lse[row] = lse;
        if (given.statistics) given.statistics[row] = make_float2(base, sums.sum);
    }
};

struct LogprobRows {
    const int64_t* target;
    float *logprob, *entropy, *lse;
    float2* statistics;  // as those of CrossEntropyRows, or null
    int64_t ignore_index;
    float scale;
};
template <typename T> struct Logprob {
    using Element = T;
    using Given = LogprobRows;
    static constexpr int V = VECTOR_BYTES / sizeof(T), E = Packed<T>::ELEMENTS;
    static constexpr bool COUNTS = false, HAS_THIRD = true, CLAMPS = true;

    static __device__ __forceinline__ float logit(const Given& given, float x) { return x * given.scale; }
    template <bool NEAR> static __device__ __forceinline__ void add(float x, float base, Sums& sums) {
        const float below = NEAR ? x - base : max_or_nan(x - base, FAR_BELOW), exponential = exp2_fast(below * LOG2_E);
        sums.sum += exponential;
        sums.third = fmaf(exponential, -below, sums.third);
    }
    static __device__ __forceinline__ Sums rescaled(Sums sums, float maximum) {
        const float below = max_or_nan(sums.maximum - finite_or_zero(maximum), FAR_BELOW), factor = exp2_fast(below * LOG2_E);
        return {maximum, sums.sum * factor, fmaf(sums.sum, -below, sums.third) * factor, 0.0f};
    }
    static __device__ __forceinline__ void finish(const Given& given, int64_t row, int N, int64_t target, float x, const Sums& sums) {
        const float base = finite_or_zero(sums.maximum), log_sum = log_of_row_sum(sums.sum);
        const float logprob = target < 0 || target >= N ? NOT_A_NUMBER : (logit(given, x) - base) - log_sum;
        given.logprob[row] = target == given.ignore_index ? 0.0f : logprob;
        given.entropy[row] = log_sum + sums.third / sums.sum;  // 0 / 0 in a row that contains only -inf
        if (given.lse) given.lse[row] = base + log_sum;
        if (given.statistics) given.statistics[row] = make_float2(base, sums.sum);
    }
};

// The operations of row_gradient.cuh, for one row: `result` of an element, and `at_target` of the one at the target. `Loaded` is what a row has beside
// x, before anything is computed.
struct CrossEntropyGradients {
    const int64_t* target;
    const float* lse;         // of each row, or null
    const float* statistics;  // then the maximum and the sum of each row
    const float* dloss;       // of each row, `dloss_stride` apart; null: 1
    int64_t ignore_index;
    float smoothing, even_smoothing, z_loss;  // even: for each column of the vocabulary
    Softcap softcap;
    float scale;  // of the logits, which softcap has too
    int64_t dloss_stride = 1;
    const float* counted = nullptr;  // a number that dloss is divided by, or null
};
template <typename T, bool CAPPED> struct CrossEntropyGradient {
    using Element = T;
    using Given = CrossEntropyGradients;
    static constexpr int V = VECTOR_BYTES / sizeof(T), E = Packed<T>::ELEMENTS;
    struct Loaded {
        int64_t target;
        float g, base, sum;  // sum 1: base is lse

        __device__ __forceinline__ Loaded(const Given& given, int64_t row) : target(load_word(given.target + row)), g(1.0f), sum(1.0f) {
            if (given.dloss) g = load_number(given.dloss + row * given.dloss_stride);
            if (given.counted) g /= load_number(given.counted);
            g *= given.scale;
            base = load_number(given.lse ? given.lse + row : given.statistics + 2 * row);
            if (!given.lse) sum = load_number(given.statistics + 2 * row + 1);
        }
    };

    float base, factor, even, hot;  // dx = factor * exp(z - base) + even, and hot more at the target
    int target;                     // -1: none
    bool ignored;
    Softcap softcap;

    __device__ __forceinline__ CrossEntropyGradient(const Given& given, const Loaded& loaded, int N) : base(loaded.base), softcap(given.softcap) {
        factor = loaded.g * reciprocal(loaded.sum);
        if (given.z_loss != 0.0f) factor *= fmaf(2.0f * given.z_loss, base + log_of_row_sum(loaded.sum), 1.0f);
        even = -loaded.g * given.even_smoothing;
        hot = -loaded.g * (1.0f - given.smoothing);
        ignored = loaded.target == given.ignore_index;
        const bool outside = loaded.target < 0 || loaded.target >= N;
        if (outside && loaded.target != ELSEWHERE) factor = NOT_A_NUMBER;
        target = ignored || outside ? -1 : int(loaded.target);
    }
    __device__ __forceinline__ float with(float x, float more) const {
        if (CAPPED && softcap.cap == 0.0f) {
            return fmaf(exp2_fast((x * softcap.inverse - base) * LOG2_E), factor, even) + more;
        } else if constexpr (CAPPED) {
            const float tangent = softcap.tangent(x), dz = fmaf(exp2_fast((softcap.cap * tangent - base) * LOG2_E), factor, even) + more;
            return dz * fmaf(-tangent, tangent, 1.0f);
        } else {
            return fmaf(exp2_fast((x - base) * LOG2_E), factor, even) + more;
        }
    }
    __device__ __forceinline__ float result(float x) const { return with(x, 0.0f); }
    __device__ __forceinline__ float at_target(float x) const { return with(x, hot); }
};

struct LogprobGradients {
    const int64_t* target;
    const float* lse;                            // of each row, or null
    const float* statistics;                     // then the maximum and the sum of each row
    const float *entropy, *dlogprob, *dentropy;  // a gradient that is null is 0
    int64_t ignore_index;
    float scale;
    int64_t dlogprob_stride = 1, dentropy_stride = 1;
};
template <typename T> struct LogprobGradient {
    using Element = T;
    using Given = LogprobGradients;
    static constexpr int V = VECTOR_BYTES / sizeof(T), E = Packed<T>::ELEMENTS;
    struct Loaded {
        int64_t target;
        float base, sum, entropy, a, b;  // sum 1: base is lse

        __device__ __forceinline__ Loaded(const Given& given, int64_t row)
            : target(load_word(given.target + row)), base(load_number(given.lse ? given.lse + row : given.statistics + 2 * row)), sum(1.0f),
              entropy(load_number(given.entropy + row)), a(given.dlogprob ? load_number(given.dlogprob + row * given.dlogprob_stride) : 0.0f),
              b(given.dentropy ? load_number(given.dentropy + row * given.dentropy_stride) : 0.0f) {
            if (!given.lse) sum = load_number(given.statistics + 2 * row + 1);
        }
    };

    float base, entropy, a, b, hot, scale;  // relative to the sum, but for hot, which is added at the target
    int target;
    static constexpr bool ignored = false;

    __device__ __forceinline__ LogprobGradient(const Given& given, const Loaded& loaded, int N)
        : base(loaded.base), entropy(loaded.entropy), a(loaded.a * given.scale), b(loaded.b * given.scale), scale(given.scale) {
        const bool outside = loaded.target < 0 || loaded.target >= N;
        if (loaded.target == given.ignore_index) a = 0.0f;
        else if (outside && loaded.target != ELSEWHERE) a = NOT_A_NUMBER;
        target = outside ? -1 : int(loaded.target);
        hot = a;
        if (!given.lse) {
            const float inverse = reciprocal(loaded.sum);
            entropy -= log_of_row_sum(loaded.sum);
            a *= inverse;
            b *= inverse;
        }
    }
    __device__ __forceinline__ float result(float x) const {
        const float y = max_or_nan(x * scale - base, FAR_BELOW);
        return -exp2_fast(y * LOG2_E) * fmaf(b, y + entropy, a);
    }
    __device__ __forceinline__ float at_target(float x) const { return result(x) + hot; }
};

}  // namespace softbench
