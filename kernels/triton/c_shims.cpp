// C functions that launch softbench's Triton kernels in a package of AOTInductor, which calls no Python. c_shims.py compiles them.
#include <cuda.h>
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "c_shims.h"

namespace softbench {
namespace {

constexpr uintptr_t ALIGNMENT = 16;  // bytes; the plans assume that each input starts at such a boundary
constexpr unsigned PORTABLE_CTAS = 8;  // of a cluster; more need an attribute
constexpr int RESERVED_SHARED_BYTES = 1024;  // of each CTA, which the driver takes

[[noreturn]] void fail(const std::string& text) { throw std::runtime_error("softbench: " + text); }

// A function of CUDA's driver. The library is opened here, so that a package needs no driver to be linked.
void* symbol(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void* found = driver ? dlsym(driver, name) : nullptr;
    if (!found) fail(std::string("CUDA's driver (libcuda.so.1) lacks ") + name);
    return found;
}
#define TEXT(name) #name
#define NAME(name) TEXT(name)  // cuda.h defines some names as others
#define CU(name)                                                                             \
    ([] {                                                                                    \
        static const auto found = reinterpret_cast<decltype(&name)>(symbol(NAME(name)));     \
        return found;                                                                        \
    }())

void check(CUresult result, const char* call, const std::string& more = "") {
    if (result == CUDA_SUCCESS) return;
    const char* text = nullptr;
    CU(cuGetErrorString)(result, &text);
    fail(std::string(call) + ": " + (text ? text : "unknown error") + more);
}

void check(AOTITorchError error, const char* call) {
    if (error != AOTI_TORCH_SUCCESS) fail(std::string(call) + " failed");
}

// Owns a tensor.
struct Owned {
    AtenTensorHandle tensor = nullptr;
    Owned() = default;
    Owned(const Owned&) = delete;
    ~Owned() {
        if (tensor) aoti_torch_delete_tensor_object(tensor);
    }
};

char* address_of(AtenTensorHandle tensor) {
    void* data = nullptr;
    check(aoti_torch_get_data_ptr(tensor, &data), "aoti_torch_get_data_ptr");
    return static_cast<char*>(data);
}

AtenTensorHandle empty(std::vector<int64_t> sizes, int32_t dtype, int32_t device) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (size_t i = sizes.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * std::max<int64_t>(1, sizes[i]);
    AtenTensorHandle made = nullptr;
    check(
        aoti_torch_empty_strided(sizes.size(), sizes.data(), strides.data(), dtype, aoti_torch_device_type_cuda(), device, &made),
        "aoti_torch_empty_strided");
    return made;
}

// Sets how an SM's memory is divided, as devices.py does. A failure changes nothing but speed.
void prefer_shared_memory(CUfunction function, const Launch& launch, int32_t device) {
    int fixed = 0, programs = 0, capacity = 0;
    if (CU(cuFuncGetAttribute)(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function)) return;
    if (CU(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&programs, function, launch.threads, launch.shared_bytes)) return;
    if (CU(cuDeviceGetAttribute)(&capacity, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, device) || capacity <= 0) return;
    const int64_t needed = int64_t(programs) * (fixed + int64_t(launch.shared_bytes) + RESERVED_SHARED_BYTES);
    const int percent = int(std::min<int64_t>(100, (100 * needed + capacity - 1) / capacity));
    (void)CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, percent);
}

CUfunction load(const Launch& launch, int32_t device) {
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    check(
        CU(cuModuleLoadData)(&module, launch.cubin), "cuModuleLoadData",
        "; the package was compiled for GPUs of sm_" + std::to_string(launch.architecture));
    check(CU(cuModuleGetFunction)(&function, module, launch.kernel), "cuModuleGetFunction");
    if (launch.ctas > PORTABLE_CTAS)
        check(CU(cuFuncSetAttribute)(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1), "cuFuncSetAttribute");
    if (launch.keeps_rows_in_shared_memory) prefer_shared_memory(function, launch, device);
    return function;
}

std::mutex mutex;

CUfunction function_of(const Launch& launch, int32_t device) {
    static std::map<std::pair<const Launch*, int32_t>, CUfunction> loaded;
    const std::lock_guard<std::mutex> guard(mutex);
    CUfunction& function = loaded[{&launch, device}];
    if (!function) function = load(launch, device);
    return function;
}

char* zeros(AtenTensorHandle tensor, int64_t words, CUstream stream) {
    char* data = address_of(tensor);
    check(CU(cuMemsetD8Async)(CUdeviceptr(data), 0, words * sizeof(int64_t), stream), "cuMemsetD8Async");
    return data;
}

// The counter and slots for a launch on `stream`, as in grid_exchange.py. Launches on one stream follow each other, so they share a workspace,
// which is zeroed once and kept until the process ends. A captured launch may be replayed beside others. It has a workspace of its own,
// which each replay zeroes; `captured` owns it until the launch is recorded.
char* workspace(const Launch& launch, int32_t device, CUstream stream, Owned& captured) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(CU(cuStreamIsCapturing)(stream, &status), "cuStreamIsCapturing");
    if (status != CU_STREAM_CAPTURE_STATUS_NONE) {
        captured.tensor = empty({launch.workspace_words}, aoti_torch_dtype_int64(), device);
        return zeros(captured.tensor, launch.workspace_words, stream);
    }
    unsigned long long id = 0;
    if (stream == CU_STREAM_PER_THREAD) check(CU(cuStreamGetId)(stream, &id), "cuStreamGetId");  // the handle is the same in all threads
    static std::map<std::tuple<int32_t, CUstream, unsigned long long>, char*> kept;
    const std::lock_guard<std::mutex> guard(mutex);
    char*& data = kept[{device, stream, id}];
    if (!data) {
        int64_t words = 0;
        for (int i = 0; i < launch_count; ++i) words = std::max(words, launches[i].workspace_words);
        data = zeros(empty({words}, aoti_torch_dtype_int64(), device), words, stream);
    }
    return data;
}

// Makes the device's primary context current, which Triton's kernels and torch use. A fresh thread may have none.
void ensure_context(int32_t device) {
    CUcontext context = nullptr;
    check(CU(cuCtxGetCurrent)(&context), "cuCtxGetCurrent");
    if (context) return;
    check(CU(cuDevicePrimaryCtxRetain)(&context, device), "cuDevicePrimaryCtxRetain");
    check(CU(cuCtxSetCurrent)(context), "cuCtxSetCurrent");
}

void check_input(const Launch& launch, AtenTensorHandle tensor, int input, int32_t device) {
    int64_t dimensions = 0, *sizes = nullptr, *strides = nullptr;
    int32_t dtype = 0, own_device = 0;
    check(aoti_torch_get_dim(tensor, &dimensions), "aoti_torch_get_dim");
    check(aoti_torch_get_sizes(tensor, &sizes), "aoti_torch_get_sizes");
    check(aoti_torch_get_strides(tensor, &strides), "aoti_torch_get_strides");
    check(aoti_torch_get_dtype(tensor, &dtype), "aoti_torch_get_dtype");
    check(aoti_torch_get_device_index(tensor, &own_device), "aoti_torch_get_device_index");
    const std::string name = "input " + std::to_string(input) + " of " + launch.kernel;
    if (dtype != launch.dtype || own_device != device) fail(name + " must have the dtype of the package, and the device of input 0");
    const bool same = dimensions == 2 && sizes[0] == launch.rows && sizes[1] == launch.columns && (strides[1] == 1 || sizes[1] == 1) &&
                      (strides[0] == launch.row_strides[input] || sizes[0] == 1);
    if (!same)
        fail(
            name + " must have " + std::to_string(launch.rows) + " x " + std::to_string(launch.columns) +
            " elements, as in the package, with rows " + std::to_string(launch.row_strides[input]) + " apart");
}

AOTITorchError run(const std::vector<AtenTensorHandle>& inputs, bool log, int64_t number, AtenTensorHandle* out) {
    const bool known = number >= 0 && number < launch_count;
    if (!known || launches[number].log != log || launches[number].inputs != int(inputs.size()))
        fail("launch " + std::to_string(number) + " is not in the package; compile the graph by AOTInductor inside c_shims()");
    const Launch& launch = launches[number];
    int32_t device = 0;
    check(aoti_torch_get_device_index(inputs[0], &device), "aoti_torch_get_device_index");
    void* current = nullptr;
    check(aoti_torch_get_current_cuda_stream(device, &current), "aoti_torch_get_current_cuda_stream");
    const auto stream = static_cast<CUstream>(current);
    ensure_context(device);

    char* operands[5];  // the inputs, the result, and the workspace's counter and slots
    int count = 0;
    Owned aligned[2], captured, result;
    for (int i = 0; i < launch.inputs; ++i) {
        check_input(launch, inputs[i], i, device);
        operands[count] = address_of(inputs[i]);
        if (uintptr_t(operands[count]) % ALIGNMENT) {
            check(aoti_torch_clone_preserve_strides(inputs[i], &aligned[i].tensor), "aoti_torch_clone_preserve_strides");
            operands[count] = address_of(aligned[i].tensor);
        }
        ++count;
    }
    result.tensor = empty({launch.rows, launch.columns}, launch.dtype, device);
    operands[count++] = address_of(result.tensor);
    if (launch.workspace_words) {
        operands[count] = workspace(launch, device, stream, captured);
        operands[count + 1] = operands[count] + counter_words * sizeof(int64_t);
        count += 2;
    }
    void* scratch = nullptr;  // the last two parameters are Triton's scratch memories, which these kernels do not have
    std::vector<void*> parameters;
    for (int i = 0; i < count; ++i) parameters.push_back(&operands[i]);
    for (int i = 0; i < launch.argument_count; ++i) parameters.push_back(const_cast<int64_t*>(&launch.arguments[i]));
    parameters.insert(parameters.end(), 2, &scratch);

    CUlaunchAttribute attributes[2] = {};
    CUlaunchConfig config = {};
    config.gridDimX = launch.programs * launch.ctas;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = launch.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = launch.shared_bytes;
    config.hStream = stream;
    config.attrs = attributes;
    if (launch.ctas > 1) {  // as Triton's launcher
        attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[0].value.clusterDim = {launch.ctas, 1, 1};
        attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
        attributes[1].value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD;
        config.numAttrs = 2;
    }
    check(CU(cuLaunchKernelEx)(&config, function_of(launch, device), parameters.data(), nullptr), "cuLaunchKernelEx");
    *out = std::exchange(result.tensor, nullptr);
    return AOTI_TORCH_SUCCESS;
}

}  // namespace
}  // namespace softbench

extern "C" {

AOTITorchError aoti_torch_cuda_triton_softmax_rows(AtenTensorHandle x, int64_t launch, AtenTensorHandle* y) {
    return softbench::run({x}, false, launch, y);
}
AOTITorchError aoti_torch_cuda_triton_log_softmax_rows(AtenTensorHandle x, int64_t launch, AtenTensorHandle* y) {
    return softbench::run({x}, true, launch, y);
}
AOTITorchError aoti_torch_cuda_triton_softmax_rows_backward(
    AtenTensorHandle dy, AtenTensorHandle y, int64_t launch, AtenTensorHandle* dx) {
    return softbench::run({dy, y}, false, launch, dx);
}
AOTITorchError aoti_torch_cuda_triton_log_softmax_rows_backward(
    AtenTensorHandle dy, AtenTensorHandle y, int64_t launch, AtenTensorHandle* dx) {
    return softbench::run({dy, y}, true, launch, dx);
}

}  // extern "C"
