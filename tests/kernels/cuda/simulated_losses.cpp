// Compares the loss kernels on a simulated GPU with float64, for rows of all alignments and lengths about the limits of vectors, CTAs and loops.
// Prints how many launches it compared, and a line for each of the first that are off.
#include "simulated_gpu.h"

#include "block.cuh"
#include "by_column.cuh"
#include "generic.cuh"
#include "loss_reduction.cuh"
#include "row_gradient.cuh"
#include "statistics_launch.cuh"
#include "sub_warp.cuh"

#include <random>

using namespace softbench;

long tested = 0, bad = 0;
std::mt19937 generator(1);

template <typename T> T rounded(float v);
template <> float rounded<float>(float v) { return v; }
template <> __half rounded<__half>(float v) { return __float2half_rn(v); }
template <> __nv_bfloat16 rounded<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

constexpr int IGNORED = -100;

struct Options {
    double smoothing, z_loss, cap;
};

template <typename T> struct Aligned {  // to 128 bytes
    using value_type = T;
    Aligned() = default;
    template <typename U> Aligned(const Aligned<U>&) {}
    T* allocate(size_t n) { return static_cast<T*>(std::aligned_alloc(128, (n * sizeof(T) + 127) / 128 * 128)); }
    void deallocate(T* p, size_t) { std::free(p); }
    bool operator==(const Aligned&) const { return true; }
    bool operator!=(const Aligned&) const { return false; }
};
template <typename T> using Memory = std::vector<T, Aligned<T>>;

// M rows of N logits, `offset` elements from a 128-byte boundary and `stride` apart, with NaN between them; and the results in float64.
template <typename T> struct Rows {
    int M, N, offset, stride;
    Memory<T> memory, results;
    std::vector<int64_t> target;
    T *x, *dx;

    Rows(int M, int N, int offset, int pad, int dx_offset) : M(M), N(N), offset(offset), stride(N + pad), memory(offset + M * (N + pad) + 256), results(memory.size()) {
        x = memory.data() + offset;
        dx = results.data() + dx_offset;
        for (T& v : memory) v = rounded<T>(NAN);
        for (T& v : results) v = rounded<T>(12345.0f);
        std::normal_distribution<float> normal;
        for (int m = 0; m < M; ++m) {
            target.push_back(int64_t(generator() % unsigned(N)));
            const int kind = int(generator() % 10);
            for (int n = 0; n < N; ++n) {
                float v = 3 * normal(generator);
                if (kind == 1) v += 1e4f;
                if (kind == 2) v -= 1e4f;
                if (kind == 3 && n < N / 2 && n != target[m]) v = -INFINITY;
                if (kind == 4) v = n == target[m] ? 50.0f : -50.0f;
                if (kind == 5) v = n == (target[m] + 1) % N ? 50.0f : -50.0f;
                x[int64_t(m) * stride + n] = rounded<T>(v);
            }
            if (kind == 6) target[m] = 0;
            if (kind == 7) target[m] = N - 1;
            if (kind == 8) target[m] = IGNORED;
            if (kind == 9) x[int64_t(m) * stride + target[m]] = rounded<T>(-INFINITY);
        }
    }
    double z(int m, int n, double cap) const {
        const double v = to_float(x[int64_t(m) * stride + n]);
        return cap ? cap * std::tanh(v / cap) : v;
    }
    double lse(int m, double cap, double* largest = nullptr) const {
        double most = -INFINITY, sum = 0;
        for (int n = 0; n < N; ++n) most = std::max(most, z(m, n, cap));
        for (int n = 0; n < N; ++n) sum += std::exp(z(m, n, cap) - most);
        if (largest) *largest = std::max(most, -1e300);
        return std::isinf(most) ? most : most + std::log(sum);
    }
};

bool near(double got, double wanted, double relative, double absolute) {
    if (std::isnan(wanted) || std::isinf(wanted)) return std::isnan(wanted) ? std::isnan(got) : got == wanted;
    return std::abs(got - wanted) <= absolute + relative * std::abs(wanted);
}
template <typename T> void report(const char* what, const Rows<T>& r, int m, int n, double got, double wanted, const Plan& p) {
    if (++bad <= 20)
        std::printf("%s %dx%d + %d, %d apart, %zu bytes: row %d column %d target %lld: %g for %g; tier %d, %d vectors, %d threads, %d a row\n", what, r.M, r.N, r.offset,
                    r.stride, sizeof(T), m, n, (long long)r.target[m], got, wanted, p.tier, p.vectors, p.threads, p.per_row);
}

template <typename T> void compare_loss(const char* what, const Rows<T>& r, const std::vector<float>& loss, const Options& o, const Plan& p) {
    for (int m = 0; m < r.M; ++m) {
        double lse = r.lse(m, o.cap), mean = 0;
        for (int n = 0; n < r.N; ++n) mean += (lse - r.z(m, n, o.cap)) / r.N;
        double wanted = r.target[m] == IGNORED ? 0 : (1 - o.smoothing) * (lse - r.z(m, int(r.target[m]), o.cap)) + o.z_loss * lse * lse;
        if (o.smoothing && r.target[m] != IGNORED) wanted += o.smoothing * mean;
        if (!near(loss[m], wanted, 3e-6, 3e-6)) report(what, r, m, -1, loss[m], wanted, p);
    }
}
// dx against a function of row and column. No element outside of the rows may change. `dloss`: what the gradient of each row was multiplied by, and so
// its rounding, too.
template <typename T, typename F>
void compare_gradient(const char* what, const Rows<T>& r, F wanted, const Plan& p, const T* dx, const Memory<T>& all, int stride, const std::vector<float>& dloss = {}) {
    const double relative = sizeof(T) == 2 ? 4e-3 : 1e-5;
    std::vector<char> own(all.size());
    for (int m = 0; m < r.M; ++m)
        for (int n = 0; n < r.N; ++n) {
            const T* at = dx + int64_t(m) * stride + n;
            own[at - all.data()] = 1;
            const double w = wanted(m, n);
            if (!near(to_float(*at), w, relative, 3e-6 * std::max(1.0f, dloss.empty() ? 1.0f : std::abs(dloss[m])))) report(what, r, m, n, to_float(*at), w, p);
        }
    for (size_t i = 0; i < all.size(); ++i)
        if (!own[i] && to_float(all[i]) != to_float(rounded<T>(12345.0f))) report("outside of rows", r, 0, int(i), to_float(all[i]), 12345, p);
}

std::vector<char> workspace(1 << 22);
template <typename Op> void run_rows(const Rows<typename Op::Element>& r, const typename Op::Given& given, Plan& p) {
    StatisticsRows<Op> rows{given, r.x, r.stride, r.M, r.N, 0, 0, nullptr, nullptr};
    const int64_t code = run_statistics<Op>(rows, &p, workspace.data(), int64_t(workspace.size()), nullptr);
    if (code) report("code of statistics", r, 0, 0, double(code), 0, p);
    for (int i = 0; i < COUNTED_ROWS * 4; ++i)
        if (workspace[i]) return report("a counter is not 0", r, 0, i, 1, 0, p);
}

template <typename T, Logits LOGITS> void test_cross_entropy(const Rows<T>& r, const Options& o, Plan plan) {
    ++tested;
    std::vector<float> loss(r.M, 7.0f), lse(r.M, 7.0f);
    std::vector<float2> statistics(r.M);
    const Softcap softcap = softcap_of(float(o.cap), 1.0f);
    run_rows<CrossEntropy<T, LOGITS>>(r, {r.target.data(), loss.data(), lse.data(), statistics.data(), IGNORED, float(o.smoothing), float(o.z_loss), softcap}, plan);
    compare_loss("loss", r, loss, o, plan);
    std::vector<double> exact_lse(r.M);
    for (int m = 0; m < r.M; ++m) {
        double largest, wanted = r.lse(m, o.cap, &largest);
        exact_lse[m] = wanted;
        if (!near(lse[m], wanted, 3e-7, 3e-6)) report("lse", r, m, -1, lse[m], wanted, plan);
        if (!std::isinf(wanted) && (!near(statistics[m].x, largest, 3e-7, 1e-6) || !near(std::log(double(statistics[m].y)), wanted - largest, 3e-6, 3e-6)))
            report("statistics", r, m, -1, statistics[m].y, std::exp(wanted - largest), plan);
    }
    for (const bool exact : {false, true}) {  // from lse, and from the statistics
        Memory<T> out = r.results;
        T* const dx = out.data() + (r.dx - r.results.data());
        constexpr int apart = 3;  // of the numbers of dloss
        std::vector<float> dloss(r.M), spread(apart * r.M, NAN);
        const float counted = 2;
        for (int m = 0; m < r.M; ++m) spread[apart * m] = counted * (dloss[m] = float(generator() % 9) - 4);
        auto target = r.target;
        if (exact) target.back() = ELSEWHERE;
        using Gradient = CrossEntropyGradient<T, LOGITS == SOFTCAPPED>;
        const typename Gradient::Given given{target.data(), exact ? nullptr : lse.data(), &statistics[0].x, exact ? nullptr : spread.data(), IGNORED, float(o.smoothing),
                                             float(o.smoothing / r.N), float(o.z_loss), softcap, 1.0f, apart, exact ? nullptr : &counted};
        Plan p = {AUTO};
        if (const int64_t code = run_gradient<Gradient>({given, r.x, dx, r.stride, r.stride, r.M, r.N}, &p, nullptr)) report("code of gradient", r, 0, 0, double(code), 0, p);
        auto wanted = [&](int m, int n) {
            if (target[m] == IGNORED) return 0.0;
            const double z = r.z(m, n, o.cap), l = exact ? exact_lse[m] : double(lse[m]), slope = o.cap ? 1 - z / o.cap * z / o.cap : 1;
            const double dz = (1 + 2 * o.z_loss * l) * std::exp(z - l) - (n == target[m] ? 1 - o.smoothing : 0) - o.smoothing / r.N;
            return (exact ? 1 : double(dloss[m])) * dz * slope;
        };
        compare_gradient(exact ? "dx from statistics" : "dx", r, wanted, p, dx, out, r.stride, exact ? std::vector<float>() : dloss);
    }
}

template <typename T> void test_logprob(const Rows<T>& r, Plan plan) {
    ++tested;
    std::vector<float> logprob(r.M), entropy(r.M), lse(r.M), a(r.M), b(r.M);
    std::vector<float2> statistics(r.M);
    std::vector<int64_t> target = r.target;
    for (int64_t& t : target) t = t == IGNORED ? 0 : t;
    const int64_t ignored = r.N % 4 < 2 ? 0 : IGNORED;  // a class of the row, or none
    run_rows<Logprob<T>>(r, {target.data(), logprob.data(), entropy.data(), lse.data(), statistics.data(), ignored, 1.0f}, plan);
    for (int m = 0; m < r.M; ++m) {
        const double l = r.lse(m, 0);
        double h = 0;
        for (int n = 0; n < r.N; ++n)
            if (const double y = r.z(m, n, 0) - l; !(y <= -700)) h -= std::exp(y) * y;
        const double found = target[m] == ignored ? 0 : r.z(m, int(target[m]), 0) - l;
        if (!near(logprob[m], found, 3e-6, 3e-6)) report("logprob", r, m, -1, logprob[m], found, plan);
        if (!near(entropy[m], h, 3e-6, 3e-6)) report("entropy", r, m, -1, entropy[m], h, plan);
        if (!near(lse[m], l, 3e-7, 3e-6)) report("lse of logprob", r, m, -1, lse[m], l, plan);
        a[m] = float(generator() % 5) - 2;
        b[m] = float(generator() % 5) - 2;
    }
    const bool without = r.N % 2;  // a gradient of the entropy
    if (without) std::fill(b.begin(), b.end(), 0.0f);
    if (r.M > 1) std::fill(a.begin(), a.end(), a[0]);  // as one number for all rows
    for (const bool exact : {false, true}) {  // from lse, and from the statistics
        if (exact) target.back() = ELSEWHERE;
        Memory<T> out = r.results;
        T* const dx = out.data() + (r.dx - r.results.data());
        Plan p = {AUTO};
        run_gradient<LogprobGradient<T>>({{target.data(), exact ? nullptr : lse.data(), &statistics[0].x, entropy.data(), a.data(), without ? nullptr : b.data(), ignored,
                                           1.0f, r.M > 1 ? 0 : 1}, r.x, dx, r.stride, r.stride, r.M, r.N}, &p, nullptr);
        auto wanted = [&](int m, int n) {
            const double y = r.z(m, n, 0) - (exact ? r.lse(m, 0) : double(lse[m])), p = std::exp(y);
            return (target[m] == ignored ? 0 : a[m]) * ((n == target[m]) - p) - (p == 0 ? 0 : b[m] * p * (y + entropy[m]));
        };
        compare_gradient(exact ? "dx of logprob from statistics" : "dx of logprob", r, wanted, p, dx, out, r.stride);
    }
}

// The fused operation in tiers block, sub_warp, generic and by_column; in place too.
template <typename T> void test_fused(const Rows<T>& given, double z_loss) {
    using Op = FusedCrossEntropy<T>;
    constexpr int V = Op::V;
    const Options o = {0, z_loss, 0};
    std::vector<double> lse;
    for (int m = 0; m < given.M; ++m) lse.push_back(given.lse(m, 0));
    for (int tier = 0; tier < 10; ++tier)
        for (const bool in_place : {false, true}) {
            Rows<T> r = given;
            r.x = r.memory.data() + given.offset;
            if (in_place) {  // what is between the rows of x has the value that compare_gradient expects
                for (T& v : r.memory)
                    if (std::isnan(to_float(v))) v = rounded<T>(12345.0f);
            }
            r.dx = in_place ? r.x : r.results.data() + given.offset;
            std::vector<float> loss(r.M, 7.0f);
            const Tensors<Op> t{{r.target.data(), loss.data(), nullptr, IGNORED, float(z_loss)}, {r.x}, r.dx, {r.stride}, r.stride, r.M, r.N};
            const int from_16 = (r.N + V - 1 + V - 1) / V, from_128 = (128 / int(sizeof(T)) - 1 + r.N) / V;
            Plan p = {BLOCK, 2, 64, 1, 0, 128, 0, 0};
            if (tier == 0 && from_128 <= 2 * 64) simulated::launch(dim3(r.M), 64, 0, nullptr, [&] { block<Op, 2, 1024, false, false>(t, 128); });
            else if (tier == 1 && from_128 <= 4 * 96) simulated::launch(dim3(r.M), 96, 0, nullptr, [&] { block<Op, 4, 512, false, false>(t, 128); });
            else if (tier == 2 && from_128 <= 8 * 32) simulated::launch(dim3(r.M), 32, 0, nullptr, [&] { block<Op, 8, 1024, false, false>(t, 128); });
            else if (tier == 3 && from_16 <= 2 * 16) simulated::launch(dim3((r.M + 3) / 4), 64, 0, nullptr, [&] { sub_warp_unaligned<Op, 2, 16, false>(t); });
            else if (tier == 4 && from_16 <= 4 * 32) simulated::launch(dim3((r.M + 1) / 2), 64, 0, nullptr, [&] { sub_warp_unaligned<Op, 4, 32, false>(t); });
            else if (tier == 5) simulated::launch(dim3((r.M + 1) / 2), 64, 0, nullptr, [&] { generic<Op, true>(t, r.N); });
            else if (tier == 6) simulated::launch(dim3(r.M), 64, 0, nullptr, [&] { generic<Op, false>(t, r.N); });
            else if (tier == 7 && given.offset == 0 && r.N % V == 0 && r.stride * sizeof(T) % 128 == 0 && r.N / V <= 4 * 64)
                simulated::launch(dim3(r.M), 64, 0, nullptr, [&] { block<Op, 4, 512, true, false>(t, 128); });
            else if (tier == 8 && from_16 <= 2 * 64) simulated::launch(dim3(r.M), 64, 0, nullptr, [&] { by_column<Op, 2, false>(t, 1); });
            else if (tier == 9 && from_16 <= 8 * 96) simulated::launch(dim3(r.M), 96, 0, nullptr, [&] { by_column<Op, 8, false>(t, 1); });
            else continue;
            ++tested;
            p.tier = tier;
            compare_loss("fused loss", given, loss, o, p);
            auto wanted = [&](int m, int n) {
                const double l = lse[m];
                return given.target[m] == IGNORED ? 0.0 : (1 + 2 * z_loss * l) * std::exp(given.z(m, n, 0) - l) - (n == given.target[m]);
            };
            compare_gradient("fused dx", given, wanted, p, r.dx, in_place ? r.memory : r.results, r.stride);
        }
}

template <typename T> void test_all(int M, int N) {
    constexpr int V = VECTOR_BYTES / sizeof(T);
    for (int round = 0; round < 4; ++round) {
        const int offset = round == 0 ? 0 : int(generator() % (128 / sizeof(T))), pad = round == 0 ? 0 : round == 1 ? (V - N % V) % V : int(generator() % 9);
        const int dx_offset = round == 3 ? int(generator() % (128 / sizeof(T))) : offset;
        const Rows<T> r(M, N, offset, pad, dx_offset);
        const Options plain{0, round % 2 ? 1e-3 : 0, 0}, smooth{0.1, 1e-4, 0}, capped{round % 2 ? 0.1 : 0, 0, 30};
        for (const Plan& p : {Plan{AUTO}, Plan{ONE_WARP, 4, 64, 1, 0, 16, 0, 0}, Plan{SPLIT, 4, 64, 1, 0, 128, 0, 0}, Plan{SPLIT, 4, 96, 3, 0, 128, 0, 0}, Plan{SPLIT, 8, 32, 2, 0, 128, 0, 0}, Plan{SPLIT, 8, 32, 1, 0, 128, 0, 0},
                              Plan{CLUSTER, 4, 32, 1, 0, 128, 0, 0}, Plan{CLUSTER, 4, 96, 3, 0, 128, 0, 0}, Plan{CLUSTER, 4, 256, 16, 0, 128, 0, 0}}) {
            test_cross_entropy<T, PLAIN>(r, plain, p);
            test_logprob<T>(r, p);
            if (p.vectors == 8) continue;
            test_cross_entropy<T, SMOOTHED>(r, smooth, p);
            test_cross_entropy<T, SOFTCAPPED>(r, capped, p);
        }
        if (round < 3) test_fused<T>(Rows<T>(M, N, offset, pad, offset), plain.z_loss);
    }
}

// The sums of one row with a plan of invariant.cuh, in batches of several sizes, at each place, and for rows of other lengths than vectors at any address.
template <typename Op> void test_invariant(int N) {
    using T = typename Op::Element;
    constexpr int VECTOR = VECTOR_BYTES / int(sizeof(T));
    const int unit = N * int(sizeof(T)) % LINE_BYTES == 0 ? LINE_BYTES / int(sizeof(T)) : N % VECTOR ? 1 : VECTOR;
    const Rows<T> r(9, N, 0, 0, 0);
    std::vector<float> first;
    for (const int M : {1, 2, 9})
        for (int place = 0; place < M; ++place) {
            ++tested;
            Rows<T> batch(M, N, unit * place, 0, 0);
            std::copy_n(r.x, N, batch.x + int64_t(place) * N);
            std::copy_n(r.target.begin(), 1, batch.target.begin() + place);
            std::vector<float> one(M), two(M), three(M);
            Plan p = {INVARIANT};
            if constexpr (Op::COUNTS || !Op::HAS_THIRD) run_rows<Op>(batch, {batch.target.data(), one.data(), two.data(), nullptr, IGNORED, 0.1f, 0.0f, softcap_of(0.0f, 1.0f)}, p);
            else run_rows<Op>(batch, {batch.target.data(), one.data(), two.data(), three.data(), nullptr, IGNORED, 1.0f}, p);
            const std::vector<float> found{one[place], two[place], three[place]};
            if (first.empty()) first = found;
            if (std::memcmp(found.data(), first.data(), sizeof(float) * found.size())) report("invariant sums", batch, place, -1, two[place], first[1], p);
        }
}

// Three equal rows in tier by_column, each at another distance from a vector: all bits are the same, and no others change.
template <typename Op> void test_by_column(int N) {
    using T = typename Op::Element;
    using Out = typename Op::Out;
    constexpr int R = Op::READS, K = 8 / R, M = 3;
    if (N > 32 * K * 3 * Op::V - Op::V) return;
    std::normal_distribution<float> normal;
    std::vector<T> row[R];
    for (auto& values : row)
        for (int n = 0; n < N; ++n) values.push_back(rounded<T>(normal(generator)));
    Memory<Out> first;
    for (int offset = 0; offset < Op::V; ++offset) {
        ++tested;
        Memory<T> source[R];
        for (int r = 0; r < R; ++r) {
            source[r].assign(M * N + 32, rounded<T>(NAN));
            for (int m = 0; m < M; ++m) std::copy_n(row[r].begin(), N, source[r].begin() + offset + m * N);
        }
        Memory<Out> result(M * N + 32, rounded<Out>(12345.0f));
        Tensors<Op> t{{}, {}, result.data() + offset, {}, N, M, N};
        for (int r = 0; r < R; ++r) t.source[r] = source[r].data() + offset, t.source_stride[r] = N;
        simulated::launch(dim3(M), 96, 0, nullptr, [&] { by_column<Op, K, false>(t, 1); });
        if (first.empty()) first.assign(result.begin(), result.begin() + N);
        double sum = 0;
        for (int n = 0; n < N; ++n) sum += to_float(first[n]);
        bool right = Op::READS == 2 || Op::LOG || std::abs(sum - 1) < 1e-2;
        for (int i = 0; i < M * N + 32; ++i) {
            const bool own = i >= offset && i < offset + M * N;
            right &= own ? !std::memcmp(&result[i], &first[(i - offset) % N], sizeof(Out)) : to_float(result[i]) == to_float(rounded<Out>(12345.0f));
        }
        if (!right && ++bad <= 20) std::printf("by_column: %d columns + %d, %zu bytes, %d tensors, sum %g\n", N, offset, sizeof(T), R, sum);
    }
}

void test_reduction(int M) {
    for (const bool mean : {false, true}) {
        ++tested;
        std::vector<float> loss(M);
        std::vector<int64_t> target(M);
        double sum = 0, count = 0;
        for (int m = 0; m < M; ++m) {
            target[m] = generator() % 3 ? m : IGNORED;
            loss[m] = target[m] == IGNORED ? 0 : float(generator() % 1000) / 8;
            sum += loss[m];
            count += target[m] != IGNORED;
        }
        float result = 7, counted = 7;
        const int64_t code = reduce_losses(loss.data(), target.data(), &result, &counted, IGNORED, mean, M, nullptr);
        if (code || counted != count || !near(result, mean ? sum / count : sum, 1e-6, 0)) std::printf("reduction of %d: %g of %g\n", M, result, counted), ++bad;
    }
}

int main(int count, char** given) {  // the lengths of rows
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    for (int i = 1; i < count; ++i) {
        const int N = std::atoi(given[i]);
        test_reduction(N);
        const int M = N < 100 ? 11 : N < 1000 ? 4 : 2;
        test_all<float>(M, N);
        test_all<__nv_bfloat16>(M, N);
        test_invariant<CrossEntropy<float, PLAIN>>(N);
        test_invariant<CrossEntropy<__nv_bfloat16, SMOOTHED>>(N);
        test_invariant<Logprob<__nv_bfloat16>>(N);
        test_by_column<Forward<float, float>>(N);
        test_by_column<Forward<__nv_bfloat16, __nv_bfloat16>>(N);
        test_by_column<Forward<__nv_bfloat16, float>>(N);
        test_by_column<Backward<float>>(N);
        test_by_column<Backward<__nv_bfloat16>>(N);
        if (i == count - 1) test_all<__half>(M, N);  // it differs from bfloat16 in `Packed` only
    }
    std::printf("%ld launches, %ld results off\n", tested, bad);
    return bad != 0;
}
