// Softmax and its gradient over rows, CUDA C++: our own, simple tiers. No torch headers: it builds in seconds and is called through C.
//
// - warp, N <= 1024: a warp a row, 1 to 32 elements a lane in registers, one read. A block is WARPS rows, so that short rows fill the SM.
// - block, beyond: a block a row, two reads, the second of which finds much of the row in L2. Each thread keeps its own running
//   (max, sum); one exchange joins them. 16-byte vectors where base and stride allow them, else single elements.
//
// Arithmetic is float32; N and the thread count are run-time values, so no row length compiles anew. Offsets are 64-bit.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <type_traits>

namespace {

constexpr int WARP = 32;
constexpr int WARPS = 4;            // rows of a block in the warp tier
constexpr int WARP_COLUMNS = 1024;  // 32 elements a lane, in registers
constexpr int BLOCK = 512;          // threads of the block tier
constexpr int VECTOR_BYTES = 16;
constexpr float MINUS_INFINITY = -__builtin_huge_valf();

__device__ float widen(float v) { return v; }
__device__ float widen(__half v) { return __half2float(v); }
__device__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ T narrow(float v);
template <> __device__ float narrow<float>(float v) { return v; }
template <> __device__ __half narrow<__half>(float v) { return __float2half_rn(v); }
template <> __device__ __nv_bfloat16 narrow<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }

template <typename T, int V> struct alignas(sizeof(T) * V) Vector { T value[V]; };

// A running maximum and the sum of exp(x - maximum). A part that has seen only -inf is measured from 0, so that -inf - -inf makes no NaN
// of it; a NaN stays in the sum, and a row of nothing but -inf ends as 0 / 0 = NaN, as torch has it.
struct Part {
    float top = MINUS_INFINITY, sum = 0.0f;
    __device__ void add(float x) {
        float top_now = fmaxf(top, x);
        float base = top_now == MINUS_INFINITY ? 0.0f : top_now;
        sum = sum * __expf(top - base) + __expf(x - base);
        top = top_now;
    }
    __device__ void join(float other_top, float other_sum) {
        float top_now = fmaxf(top, other_top);
        float base = top_now == MINUS_INFINITY ? 0.0f : top_now;
        sum = sum * __expf(top - base) + other_sum * __expf(other_top - base);
        top = top_now;
    }
    __device__ float scale(float x) const { return __expf(x - top) / sum; }
};

__device__ Part join_warp(Part part) {
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2)
        part.join(__shfl_xor_sync(~0u, part.top, lane), __shfl_xor_sync(~0u, part.sum, lane));
    return part;
}

__device__ float sum_warp(float sum) {
#pragma unroll
    for (int lane = WARP / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
    return sum;
}

__device__ Part join_block(Part part) {
    __shared__ Part parts[WARP];
    part = join_warp(part);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = part;
    __syncthreads();
    Part mine;
    if (threadIdx.x % WARP < blockDim.x / WARP) mine = parts[threadIdx.x % WARP];
    return join_warp(mine);
}

__device__ float sum_block(float sum) {
    __shared__ float sums[WARP];
    sum = sum_warp(sum);
    if (threadIdx.x % WARP == 0) sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    return sum_warp(threadIdx.x % WARP < blockDim.x / WARP ? sums[threadIdx.x % WARP] : 0.0f);
}

template <typename T, int K>
__global__ void __launch_bounds__(WARP * WARPS) forward_warp(const T* x, T* y, int64_t x_stride, int64_t y_stride, int64_t M, int N) {
    int64_t row = int64_t(blockIdx.x) * WARPS + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (row >= M) return;
    x += row * x_stride;
    y += row * y_stride;
    float value[K];
    float top = MINUS_INFINITY, sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int column = k * WARP + lane;
        value[k] = column < N ? widen(x[column]) : MINUS_INFINITY;
        top = fmaxf(top, value[k]);
    }
#pragma unroll
    for (int other = WARP / 2; other > 0; other /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, other));
#pragma unroll
    for (int k = 0; k < K; ++k) {
        value[k] = __expf(value[k] - top);
        sum += value[k];
    }
    sum = sum_warp(sum);
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (k * WARP + lane < N) y[k * WARP + lane] = narrow<T>(value[k] / sum);
}

template <typename T, int K>
__global__ void __launch_bounds__(WARP * WARPS)
    backward_warp(const T* dy, const T* y, T* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M, int N) {
    int64_t row = int64_t(blockIdx.x) * WARPS + threadIdx.x / WARP;
    int lane = threadIdx.x % WARP;
    if (row >= M) return;
    dy += row * dy_stride;
    y += row * y_stride;
    dx += row * dx_stride;
    float slope[K], value[K], dot = 0.0f;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        int column = k * WARP + lane;
        slope[k] = column < N ? widen(dy[column]) : 0.0f;
        value[k] = column < N ? widen(y[column]) : 0.0f;
        dot += slope[k] * value[k];
    }
    dot = sum_warp(dot);
#pragma unroll
    for (int k = 0; k < K; ++k)
        if (k * WARP + lane < N) dx[k * WARP + lane] = narrow<T>(value[k] * (slope[k] - dot));
}

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK) forward_block(const T* x, T* y, int64_t x_stride, int64_t y_stride, int64_t N) {
    auto source = reinterpret_cast<const Vector<T, V>*>(x + blockIdx.x * x_stride);
    auto target = reinterpret_cast<Vector<T, V>*>(y + blockIdx.x * y_stride);
    Part part;
    for (int64_t i = threadIdx.x; i < N / V; i += BLOCK) {
        Vector<T, V> read = source[i];
#pragma unroll
        for (int v = 0; v < V; ++v) part.add(widen(read.value[v]));
    }
    part = join_block(part);
    for (int64_t i = threadIdx.x; i < N / V; i += BLOCK) {
        Vector<T, V> read = source[i];
#pragma unroll
        for (int v = 0; v < V; ++v) read.value[v] = narrow<T>(part.scale(widen(read.value[v])));
        target[i] = read;
    }
}

template <typename T, int V>
__global__ void __launch_bounds__(BLOCK)
    backward_block(const T* dy, const T* y, T* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t N) {
    auto slopes = reinterpret_cast<const Vector<T, V>*>(dy + blockIdx.x * dy_stride);
    auto values = reinterpret_cast<const Vector<T, V>*>(y + blockIdx.x * y_stride);
    auto target = reinterpret_cast<Vector<T, V>*>(dx + blockIdx.x * dx_stride);
    float dot = 0.0f;
    for (int64_t i = threadIdx.x; i < N / V; i += BLOCK) {
        Vector<T, V> slope = slopes[i], value = values[i];
#pragma unroll
        for (int v = 0; v < V; ++v) dot += widen(slope.value[v]) * widen(value.value[v]);
    }
    dot = sum_block(dot);
    for (int64_t i = threadIdx.x; i < N / V; i += BLOCK) {
        Vector<T, V> slope = slopes[i], value = values[i];
#pragma unroll
        for (int v = 0; v < V; ++v) slope.value[v] = narrow<T>(widen(value.value[v]) * (widen(slope.value[v]) - dot));
        target[i] = slope;
    }
}

bool aligned(const void* pointer, int64_t stride_bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % VECTOR_BYTES == 0 && stride_bytes % VECTOR_BYTES == 0;
}

// Calls launch with the smallest K in {1, 2, 4, 8, 16, 32} that holds N in a warp's lanes.
template <typename Launch> void by_lane_elements(int64_t N, Launch launch) {
    if (N <= 1 * WARP) launch(std::integral_constant<int, 1>());
    else if (N <= 2 * WARP) launch(std::integral_constant<int, 2>());
    else if (N <= 4 * WARP) launch(std::integral_constant<int, 4>());
    else if (N <= 8 * WARP) launch(std::integral_constant<int, 8>());
    else if (N <= 16 * WARP) launch(std::integral_constant<int, 16>());
    else launch(std::integral_constant<int, 32>());
}

template <typename T> void forward(const T* x, T* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, cudaStream_t stream) {
    constexpr int V = VECTOR_BYTES / sizeof(T);
    if (N <= WARP_COLUMNS) {
        by_lane_elements(N, [&](auto k) {
            forward_warp<T, k.value><<<(M + WARPS - 1) / WARPS, WARP * WARPS, 0, stream>>>(x, y, x_stride, y_stride, M, int(N));
        });
    } else if (N % V == 0 && aligned(x, x_stride * sizeof(T)) && aligned(y, y_stride * sizeof(T))) {
        forward_block<T, V><<<M, BLOCK, 0, stream>>>(x, y, x_stride, y_stride, N);
    } else {
        forward_block<T, 1><<<M, BLOCK, 0, stream>>>(x, y, x_stride, y_stride, N);
    }
}

template <typename T>
void backward(const T* dy, const T* y, T* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M, int64_t N, cudaStream_t stream) {
    constexpr int V = VECTOR_BYTES / sizeof(T);
    bool vectors = aligned(dy, dy_stride * sizeof(T)) && aligned(y, y_stride * sizeof(T)) && aligned(dx, dx_stride * sizeof(T));
    if (N <= WARP_COLUMNS) {
        by_lane_elements(N, [&](auto k) {
            backward_warp<T, k.value>
                <<<(M + WARPS - 1) / WARPS, WARP * WARPS, 0, stream>>>(dy, y, dx, dy_stride, y_stride, dx_stride, M, int(N));
        });
    } else if (N % V == 0 && vectors) {
        backward_block<T, V><<<M, BLOCK, 0, stream>>>(dy, y, dx, dy_stride, y_stride, dx_stride, N);
    } else {
        backward_block<T, 1><<<M, BLOCK, 0, stream>>>(dy, y, dx, dy_stride, y_stride, dx_stride, N);
    }
}

}  // namespace

// Both launch on `stream` of the current device and return the launch's cudaError_t as an int, 0 for success. Strides are in elements;
// dtype is 0 float32, 1 float16, 2 bfloat16; 1 <= M < 2^31, N >= 1.
extern "C" int softbench_forward(const void* x, void* y, int64_t x_stride, int64_t y_stride, int64_t M, int64_t N, int dtype, cudaStream_t stream) {
    if (dtype == 0) forward((const float*)x, (float*)y, x_stride, y_stride, M, N, stream);
    if (dtype == 1) forward((const __half*)x, (__half*)y, x_stride, y_stride, M, N, stream);
    if (dtype == 2) forward((const __nv_bfloat16*)x, (__nv_bfloat16*)y, x_stride, y_stride, M, N, stream);
    return int(cudaGetLastError());
}

extern "C" int softbench_backward(const void* dy, const void* y, void* dx, int64_t dy_stride, int64_t y_stride, int64_t dx_stride, int64_t M,
                                  int64_t N, int dtype, cudaStream_t stream) {
    if (dtype == 0) backward((const float*)dy, (const float*)y, (float*)dx, dy_stride, y_stride, dx_stride, M, N, stream);
    if (dtype == 1) backward((const __half*)dy, (const __half*)y, (__half*)dx, dy_stride, y_stride, dx_stride, M, N, stream);
    if (dtype == 2)
        backward((const __nv_bfloat16*)dy, (const __nv_bfloat16*)y, (__nv_bfloat16*)dx, dy_stride, y_stride, dx_stride, M, N, stream);
    return int(cudaGetLastError());
}

extern "C" const char* softbench_error(int code) { return cudaGetErrorString(cudaError_t(code)); }
