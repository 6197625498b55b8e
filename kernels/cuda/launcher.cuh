// How a kernel is launched: its attributes, its share of an SM's shared memory, and the starts of its rows.
#pragma once

#include "cluster_exchange.cuh"
#include "grid_exchange.cuh"
#include "launch_plan.cuh"

#include <map>
#include <mutex>
#include <tuple>

namespace softbench {

struct Launcher {
    cudaStream_t stream;
    Workspace* workspace;
    int64_t workspace_bytes;
    int64_t tensor_bytes;
    int64_t missing_bytes = 0;  // of the workspace; nothing was launched then
    cudaError_t error = cudaSuccess;

    bool has_workspace(int64_t slots) {
        int64_t bytes = int64_t(sizeof(Workspace)) + slots * int64_t(sizeof(Slot));
        if (workspace_bytes < bytes) missing_bytes = bytes;
        return missing_bytes == 0;
    }

    // Launches `kernel` on `grid` CTAs with `shared` bytes of dynamic shared memory. `cluster`: the CTAs of a cluster, or 1.
    template <typename... P, typename... A>
    void launch(void (*kernel)(P...), int64_t grid, int threads, size_t shared, int cluster, A... arguments) {
        if (!prepare(kernel, shared, cluster > 8)) return;
        cudaLaunchAttribute attributes[3];
        cudaLaunchConfig_t config = configuration(grid, threads, shared, cluster, attributes);
#if CUDART_VERSION >= 13000
        if (shared == 0 && tensor_bytes < LARGE_BYTES) return void(error = cudaLaunchKernelEx(&config, kernel, P(arguments)...));
        attributes[config.numAttrs].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
        attributes[config.numAttrs++].val.sharedMemCarveout = carveout(kernel, threads, shared);
        if (error != cudaSuccess) return;
#endif
        error = cudaLaunchKernelEx(&config, kernel, P(arguments)...);
    }

    // The stagger of a plan's rows, as many as the device holds at once. If it holds all rows, clusters and large launches still gain by it; small
    // launches without clusters were faster without. Rows of tier split have a stagger only if the device holds them all. It is a hint: if the
    // driver does not say how many rows fit, all rows start together. `reads`: the tensors that are read.
    template <typename... P> Stagger stagger(void (*kernel)(P...), int threads, size_t shared, bool cluster, int64_t M, const Plan& p, int reads) {
        cluster = cluster && p.per_row > 1;
        if (p.stagger_cycles <= 0 || !prepare(kernel, shared, cluster && p.per_row > 8)) return {0, 0};
        static std::mutex mutex;
        static std::map<std::tuple<const void*, int, int, size_t, int>, int> known;
        std::lock_guard<std::mutex> guard(mutex);
        auto [found, fresh] = known.try_emplace({reinterpret_cast<const void*>(kernel), current_device(), threads, shared, cluster ? p.per_row : 0}, 0);
        if (fresh) {
            int count = 0;
            cudaError_t status;
            if (cluster) {
                cudaLaunchAttribute attributes[3];
                cudaLaunchConfig_t config = configuration(int64_t(p.per_row) * device().sms, threads, shared, p.per_row, attributes);
                status = cudaOccupancyMaxActiveClusters(&count, kernel, &config);
            } else {
                status = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&count, kernel, threads, shared);
                count *= device().sms;
            }
            if (status == cudaSuccess) found->second = count;
            else cudaGetLastError();
        }
        const int rows = cluster ? found->second : found->second / p.per_row;
        const bool small = reads * tensor_bytes < (reads == 1 ? ONE_WAVE_FORWARD_BYTES : ONE_WAVE_GRADIENT_BYTES);
        const bool together = !cluster && (M > rows ? p.tier == SPLIT : small);
        return together ? Stagger{0, 0} : Stagger{rows, p.stagger_cycles};
    }

private:
    // Allows a kernel as much shared memory as the device has, and large clusters. This is set once for each kernel and device, because launches
    // with less must not take it away from other launches.
    template <typename... P> bool prepare(void (*kernel)(P...), size_t shared, bool big_cluster) {
        if (shared <= (48 << 10) - 4096 && !big_cluster) return true;
        static std::mutex mutex;
        static std::map<std::pair<const void*, int>, bool> done;
        std::lock_guard<std::mutex> guard(mutex);
        bool& ready = done[{reinterpret_cast<const void*>(kernel), current_device()}];
        if (ready) return true;
        cudaFuncAttributes attributes;
        error = cudaFuncGetAttributes(&attributes, kernel);
        if (error == cudaSuccess)
            error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, device().shared_block - int(attributes.sharedSizeBytes));
        if (error == cudaSuccess && device().major >= 9) error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
        ready = error == cudaSuccess;
        return ready;
    }

    // How much of an SM's memory should be shared memory, in percent: what the CTAs that fit need, and no more. The rest is L1, where loads in
    // flight land. If all of it is shared, too few loads to registers are in flight. Without this preference, the driver leaves the memory as it
    // is, and a kernel's speed depends on the kernels before it. A change takes an SM a moment. So a launch of some microseconds that needs next
    // to no shared memory does not ask for it.
    template <typename... P> int carveout(void (*kernel)(P...), int threads, size_t shared) {
        static std::mutex mutex;
        static std::map<std::tuple<const void*, int, int, size_t>, int> known;
        std::lock_guard<std::mutex> guard(mutex);
        auto [found, fresh] = known.try_emplace({reinterpret_cast<const void*>(kernel), current_device(), threads, shared}, 0);
        if (fresh) {
            cudaFuncAttributes attributes = {};
            int ctas = 1;
            error = cudaFuncGetAttributes(&attributes, kernel);
            if (error == cudaSuccess) error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&ctas, kernel, threads, shared);
            if (error != cudaSuccess) return void(known.erase(found)), cudaSharedmemCarveoutDefault;
            const int64_t need = int64_t(ctas) * (int64_t(shared) + int64_t(attributes.sharedSizeBytes) + 1024);
            found->second = int(std::min<int64_t>(100, ceil_div<int64_t>(100 * need, device().shared_sm)));
        }
        return found->second;
    }

    cudaLaunchConfig_t configuration(int64_t grid, int threads, size_t shared, int cluster, cudaLaunchAttribute (&attributes)[3]) {
        cudaLaunchConfig_t config = {};
        config.gridDim = dim3(unsigned(grid));
        config.blockDim = dim3(threads);
        config.dynamicSmemBytes = shared;
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = cluster > 1;
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = cluster;
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        if (cluster > 1 && grid <= device().sms) {  // few rows: each CTA gets an SM
            config.numAttrs = 2;
            attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
            attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
        }
        return config;
    }
};

}  // namespace softbench
