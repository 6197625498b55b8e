// Stands in for torch and CUDA's driver, and calls the C functions of c_shims.cpp. Prints a line of JSON for each thing that they ask for.
#include <cuda.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "c_shims.h"

struct AtenTensorOpaque {
    std::vector<int64_t> sizes, strides;
    uintptr_t address;
    int32_t dtype = 15, device = 3;
};
using Tensor = AtenTensorOpaque;

static std::set<Tensor*> alive;
static uintptr_t next_address = 1 << 20;
static CUstream current_stream;
static bool capturing;
static CUresult failure = CUDA_SUCCESS;  // of the next launch
static AOTITorchError refusal = AOTI_TORCH_SUCCESS;  // of the next allocation
static int module_loads;
static unsigned long long thread;  // of the calls, which has a default stream of its own
static bool context;  // whether one is current

static Tensor* made(std::vector<int64_t> sizes, std::vector<int64_t> strides, uintptr_t odd = 0) {
    next_address += 1 << 20;
    auto* tensor = new Tensor{sizes, strides, next_address + odd};
    alive.insert(tensor);
    return tensor;
}

static const softbench::Launch& launch_of(CUfunction function) {
    const softbench::Launch* launch = softbench::launches;
    while (launch->cubin != reinterpret_cast<const unsigned char*>(function)) ++launch;
    return *launch;
}

extern "C" {

AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor) {
    if (!alive.erase(tensor)) throw std::logic_error("deleted twice");
    delete tensor;
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_data_ptr(AtenTensorHandle tensor, void** data) {
    *data = reinterpret_cast<void*>(tensor->address);
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* dimensions) {
    *dimensions = tensor->sizes.size();
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** sizes) {
    *sizes = tensor->sizes.data();
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** strides) {
    *strides = tensor->strides.data();
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* dtype) {
    *dtype = tensor->dtype;
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* device) {
    *device = tensor->device;
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream) {
    *stream = current_stream;
    return device == 3 || device == 4 ? AOTI_TORCH_SUCCESS : AOTI_TORCH_FAILURE;
}
int32_t aoti_torch_device_type_cuda() { return 1; }
int32_t aoti_torch_dtype_int64() { return 4; }
AOTITorchError aoti_torch_empty_strided(
    int64_t dimensions, const int64_t* sizes, const int64_t* strides, int32_t dtype, int32_t type, int32_t device, AtenTensorHandle* result) {
    if (refusal) return std::exchange(refusal, AOTI_TORCH_SUCCESS);
    *result = made({sizes, sizes + dimensions}, {strides, strides + dimensions});
    std::printf("{\"made\": [");
    for (int i = 0; i < dimensions; ++i) std::printf("%s[%lld, %lld]", i ? ", " : "", (long long)sizes[i], (long long)strides[i]);
    std::printf("], \"dtype\": %d, \"device\": [%d, %d], \"address\": %llu}\n", dtype, type, device, (unsigned long long)(*result)->address);
    return AOTI_TORCH_SUCCESS;
}
AOTITorchError aoti_torch_clone_preserve_strides(AtenTensorHandle tensor, AtenTensorHandle* result) {
    *result = made(tensor->sizes, tensor->strides);
    std::printf("{\"cloned\": %llu, \"address\": %llu}\n", (unsigned long long)tensor->address, (unsigned long long)(*result)->address);
    return AOTI_TORCH_SUCCESS;
}

CUresult cuGetErrorString(CUresult, const char** text) {
    *text = "the driver says no";
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* current) {
    *current = context ? CUcontext(1) : nullptr;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* primary, CUdevice device) {
    *primary = CUcontext(uintptr_t(device) + 100);
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext current) {
    std::printf("{\"context\": %zu}\n", size_t(current));
    context = true;
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    ++module_loads;
    *module = reinterpret_cast<CUmodule>(const_cast<void*>(image));
    return std::memcmp(image, "\x7f" "ELF", 4) ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    *function = reinterpret_cast<CUfunction>(module);
    return std::strcmp(launch_of(*function).kernel, name) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction) {
    *value = 16;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute attribute, int value) {
    std::printf("{\"attribute\": %d, \"value\": %d}\n", attribute, value);
    return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* programs, CUfunction, int, size_t) {
    *programs = 3;
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR ? 233472 : 1;
    return CUDA_SUCCESS;
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
    *id = stream == CU_STREAM_PER_THREAD ? thread : 0;
    return CUDA_SUCCESS;
}
CUresult cuStreamIsCapturing(CUstream, CUstreamCaptureStatus* status) {
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr address, unsigned char byte, size_t bytes, CUstream stream) {
    std::printf("{\"set\": %llu, \"to\": %d, \"bytes\": %zu, \"stream\": %zu}\n", address, byte, bytes, size_t(stream));
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
    const softbench::Launch* launch = &launch_of(function);
    const int operands = launch->inputs + 1 + (launch->workspace_words ? 2 : 0);
    std::printf("{\"kernel\": \"%s\", \"grid\": [%u, %u, %u], \"threads\": [%u, %u, %u], \"shared\": %u, \"stream\": %zu, \"operands\": [",
        launch->kernel, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ,
        config->sharedMemBytes, size_t(config->hStream));
    for (int i = 0; i < operands; ++i) std::printf("%s%llu", i ? ", " : "", *(unsigned long long*)parameters[i]);
    std::printf("], \"arguments\": [");
    for (int i = 0; i < launch->argument_count; ++i) std::printf("%s%lld", i ? ", " : "", *(long long*)parameters[operands + i]);
    std::printf("], \"scratch\": [");
    for (int i = 0; i < 2; ++i) std::printf("%s%llu", i ? ", " : "", *(unsigned long long*)parameters[operands + launch->argument_count + i]);
    std::printf("], \"cluster\": [");
    for (unsigned i = 0; i < config->numAttrs; ++i)
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
            const auto& size = config->attrs[i].value.clusterDim;
            std::printf("%u, %u, %u", size.x, size.y, size.z);
        } else {
            std::printf(", %d", config->attrs[i].value.clusterSchedulingPolicyPreference);
        }
    std::printf("], \"extra\": %zu}\n", size_t(extra));
    const CUresult result = failure;
    failure = CUDA_SUCCESS;
    return result;
}

AOTITorchError aoti_torch_cuda_triton_softmax_rows(AtenTensorHandle, int64_t, AtenTensorHandle*);
AOTITorchError aoti_torch_cuda_triton_log_softmax_rows(AtenTensorHandle, int64_t, AtenTensorHandle*);
AOTITorchError aoti_torch_cuda_triton_softmax_rows_backward(AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*);
AOTITorchError aoti_torch_cuda_triton_log_softmax_rows_backward(AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*);

}  // extern "C"

struct Change {
    uintptr_t odd = 0;
    int64_t rows = 0, columns = 0, stride = 0, column_stride = 0;
    int32_t dtype = 0, device = 0;
    bool third_dimension = false, other_function = false, other_direction = false;
    int only_input = -1;  // that is changed; -1: all
};

static void call(const char* what, int64_t number, Change change = {}) {
    const auto& launch = softbench::launches[number < softbench::launch_count && number >= 0 ? number : 0];
    std::printf("{\"call\": \"%s\", \"launch\": %lld, \"strides\": [%lld, %lld]}\n", what, (long long)number,
        (long long)launch.row_strides[0], (long long)launch.row_strides[1]);
    std::vector<Tensor*> inputs;
    for (int i = 0; i < launch.inputs; ++i) {
        const Change now = change.only_input < 0 || change.only_input == i ? change : Change{};
        auto* tensor = made(
            {launch.rows + now.rows, launch.columns + now.columns}, {launch.row_strides[i] + now.stride, 1 + now.column_stride}, now.odd);
        tensor->dtype += now.dtype;
        tensor->device += now.device;
        if (now.third_dimension) tensor->sizes.push_back(1), tensor->strides.push_back(1);
        inputs.push_back(tensor);
    }
    const size_t before = alive.size();
    Tensor* result = nullptr;
    const bool log = launch.log != change.other_function;
    const auto forward = log ? aoti_torch_cuda_triton_log_softmax_rows : aoti_torch_cuda_triton_softmax_rows;
    const auto backward = log ? aoti_torch_cuda_triton_log_softmax_rows_backward : aoti_torch_cuda_triton_softmax_rows_backward;
    try {
        const AOTITorchError error =
            (launch.inputs == 1) != change.other_direction ? forward(inputs[0], number, &result)
                                                           : backward(inputs[0], inputs.back(), number, &result);
        std::printf("{\"inputs\": [%llu", (unsigned long long)inputs[0]->address);
        for (size_t i = 1; i < inputs.size(); ++i) std::printf(", %llu", (unsigned long long)inputs[i]->address);
        std::printf("], \"result\": %llu, \"error\": %d, \"kept\": %zu}\n", (unsigned long long)result->address, error, alive.size() - before - 1);
    } catch (const std::runtime_error& error) {
        std::printf("{\"raised\": \"%s\", \"kept\": %zu}\n", error.what(), alive.size() - before);
    }
}

static void call_all(const char* what, Change change = {}) {
    for (int i = 0; i < softbench::launch_count; ++i) call(what, i, change);
}

extern "C" void run() {
    setvbuf(stdout, nullptr, _IONBF, 0);
    call_all("first");
    current_stream = CUstream(8);
    call_all("other stream");
    call_all("other device", {.device = 1});
    current_stream = CU_STREAM_PER_THREAD;
    for (const char* what : {"first thread", "second thread"}) {
        ++thread;
        call_all(what);
    }
    current_stream = CUstream(8);
    call_all("2 bytes off", {.odd = 2});
    call_all("8 bytes off", {.odd = 8});
    call_all("16 bytes off", {.odd = 16});
    capturing = true;
    call_all("captured");
    capturing = false;
    call_all("more rows", {.rows = 1});
    call_all("fewer columns", {.columns = -1});
    call_all("other stride", {.stride = 8});
    call_all("columns apart", {.column_stride = 1});
    call_all("three dimensions", {.third_dimension = true});
    call_all("other dtype", {.dtype = -10});
    call_all("other function", {.other_function = true});
    call_all("other direction", {.other_direction = true});
    for (int i = 0; i < softbench::launch_count; ++i) {
        if (softbench::launches[i].inputs == 1) continue;
        call("second input's rows", i, {.rows = 1, .only_input = 1});
        call("second input's stride", i, {.stride = 8, .only_input = 1});
        call("second input's dtype", i, {.dtype = -10, .only_input = 1});
        call("second input's device", i, {.device = 1, .only_input = 1});
    }
    for (int i = 0; i < softbench::launch_count; ++i) {
        failure = CUDA_ERROR_LAUNCH_FAILED;
        call("failing", i);
        refusal = AOTI_TORCH_FAILURE;
        call("without memory", i);
    }
    call("no such launch", softbench::launch_count);
    call("no such launch", -1);
    std::printf("{\"module_loads\": %d}\n", module_loads);
}
