// Adds the losses of rows, in one launch.
#pragma once

#include "row_statistics.cuh"

namespace softbench {

constexpr int REDUCTION_THREADS = 1024;

// One CTA adds the losses of all rows and counts the rows that are not ignored. The order of the sum depends on M alone.
template <bool MEAN>
__global__ void __launch_bounds__(REDUCTION_THREADS)
    row_reduction(const float* loss, const int64_t* target, float* result, float* counted, int64_t ignore_index, int64_t M) {
    __shared__ float sums[WARP], counts[WARP];
    float sum = 0.0f, count = 0.0f;  // rows are few enough for a float
#pragma unroll 4
    for (int64_t row = threadIdx.x; row < M; row += blockDim.x) {
        sum += loss[row];
        count += target[row] != ignore_index ? 1.0f : 0.0f;
    }
    auto over_warp = [&] {
        for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
            sum += __shfl_xor_sync(0xffffffff, sum, lanes);
            count += __shfl_xor_sync(0xffffffff, count, lanes);
        }
    };
    over_warp();
    if (threadIdx.x % WARP == 0) {
        sums[threadIdx.x / WARP] = sum;
        counts[threadIdx.x / WARP] = count;
    }
    __syncthreads();
    if (threadIdx.x >= WARP) return;
    const bool has = threadIdx.x < blockDim.x / WARP;
    sum = has ? sums[threadIdx.x] : 0.0f;
    count = has ? counts[threadIdx.x] : 0.0f;
    over_warp();
    if (threadIdx.x == 0) {
        *result = MEAN ? sum / count : sum;
        *counted = count;
    }
}

inline int64_t reduce_losses(const float* loss, const int64_t* target, float* result, float* counted, int64_t ignore_index, bool mean, int64_t M,
                             cudaStream_t stream) {
    const int threads = int(std::max<int64_t>(WARP, std::min<int64_t>(REDUCTION_THREADS, round_up<int64_t>(M, WARP))));
    if (mean) row_reduction<true><<<1, threads, 0, stream>>>(loss, target, result, counted, ignore_index, M);
    else row_reduction<false><<<1, threads, 0, stream>>>(loss, target, result, counted, ignore_index, M);
    return cudaGetLastError();
}

}  // namespace softbench
