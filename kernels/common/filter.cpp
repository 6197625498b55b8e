// Decides in C++ whether an operator of torch runs our kernel or torch's own, and launches our CUDA kernels, without Python.
//
// `override.py` has the rule, and `filter.py` calls this file. A filter is registered for an operator and a dispatch key. It looks at one
// tensor and at `dim`, and calls torch's kernel or ours. Ours is a Python function. Where that function has named a launcher in C, the
// filter calls the launcher itself, for contiguous tensors and launches that need no workspace.

#include "operators.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace softbench_host {
namespace {

constexpr int FILTERS = 8;   // operators with a filter at once

// When our kernel runs: the tensor has this many elements or rows of this many columns, or along another dimension than the last `others` elements.
struct Rule {
  int64_t tensor;   // the index of the tensor among the arguments; `dim` follows it
  uint64_t devices;  // a bit for each device index
  std::array<int64_t, DTYPES> elements, columns, others;
};

// softbench_forward and softbench_backward of softmax.cu. Strides and sizes are in elements; the last three arguments are a workspace and its
// bytes, the stream and a plan. They return 0, or another number if nothing was launched.
using RowForward = int64_t(const void* x, void* y, int64_t, int64_t, int64_t M, int64_t N, int, int, void*, int64_t, void* stream, void*);
using RowBackward = int64_t(const void* dy, const void* y, void* dx, int64_t, int64_t, int64_t, int64_t M, int64_t N, int, int, void*, int64_t,
                         void* stream, void*);

struct Launcher {
  std::atomic<CurrentStream*> stream{nullptr};
  std::atomic<void*> function{nullptr};  // RowForward for one tensor, RowBackward for two; null: Python launches
};

struct Filter {
  Filter(Rule rule, c10::SafeKernelFunction torchs, c10::SafeKernelFunction ours)
      : rule(rule), torchs(std::move(torchs)), ours(std::move(ours)) {}
  Rule rule;
  c10::SafeKernelFunction torchs, ours;
  mutable std::array<std::array<Launcher, DTYPES>, DEVICES> launchers;
};

// Calls in other threads may still run when a filter is removed, so it stays until the slot is used again and these calls have ended.
std::array<std::shared_ptr<const Filter>, FILTERS> filters;
std::array<std::unique_ptr<torch::Library>, FILTERS> overrides;
std::mutex filters_mutex;
std::string filter_error;

bool is_last(const at::Tensor& x, int64_t dim) { return dim == -1 || dim == x.dim() - 1; }

bool fits(const Rule& rule, const at::Tensor& x, int64_t dim) {
  const int dtype = number_of(x.scalar_type());
  if (dtype < 0 || x.dim() == 0) return false;
  if (!is_last(x, dim)) {
    if (x.numel() < rule.others[dtype] || dim < -x.dim() || dim >= x.dim()) return false;
  } else if (x.numel() < rule.elements[dtype] && (x.numel() == 0 || x.size(-1) < rule.columns[dtype])) {
    return false;
  }
  const int index = index_of(x);
  return index < DEVICES && (rule.devices >> index & 1);
}

// Launches our kernel and replaces the arguments on the stack by the result; false if Python has to do it.
bool launched(const Filter& filter, const c10::IValue* arguments, size_t count, torch::jit::Stack* stack) {
  const int64_t last = filter.rule.tensor;  // of the one or two tensors
  const at::Tensor& x = arguments[last].toTensor();
  const int dtype = number_of(x.scalar_type()), index = index_of(x);
  const Launcher& launcher = filter.launchers[index][dtype];
  void* function = launcher.function.load(std::memory_order_acquire);
  if (!function || !x.is_contiguous() || !is_last(x, arguments[last + 1].toInt())) return false;
  const at::Tensor& first = arguments[0].toTensor();
  const bool alike = first.scalar_type() == x.scalar_type() && first.sizes() == x.sizes() && first.device() == x.device();
  if (!alike || !first.is_contiguous()) return false;
  // The last argument is `half_to_float` of a forward, and `input_dtype` of a gradient.
  const c10::IValue& given = arguments[count - 1];
  const c10::ScalarType result = last ? given.toScalarType() : given.toBool() ? c10::kFloat : x.scalar_type();
  const int out = number_of(result);
  if (out < 0) return false;
  const c10::DeviceGuard guard(x.device());
  void* current = nullptr;
  if (launcher.stream.load(std::memory_order_relaxed)(index, &current)) return false;
  at::Tensor y = at::empty(x.sizes(), x.options().dtype(result));
  const int64_t N = x.size(-1), M = x.numel() / N;
  const void *read = first.const_data_ptr(), *also = x.const_data_ptr();
  void* written = y.mutable_data_ptr();
  const int64_t code =
      last ? reinterpret_cast<RowBackward*>(function)(read, also, written, N, N, N, M, N, dtype, out, nullptr, 0, current, nullptr)
           : reinterpret_cast<RowForward*>(function)(read, written, N, N, M, N, dtype, out, nullptr, 0, current, nullptr);
  if (code) return false;
  torch::jit::drop(*stack, count);
  stack->emplace_back(std::move(y));
  return true;
}

template <int slot>
void filter(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::shared_ptr<const Filter> found = std::atomic_load(&filters[slot]);
  const size_t count = op.schema().arguments().size();
  const c10::IValue* arguments = stack->data() + stack->size() - count;
  const bool ours = fits(found->rule, arguments[found->rule.tensor].toTensor(), arguments[found->rule.tensor + 1].toInt());
  if (ours && launched(*found, arguments, count, stack)) return;
  (ours ? found->ours : found->torchs).callBoxed(op, keys, stack);
}

template <int... slots>
torch::CppFunction function(int slot, std::integer_sequence<int, slots...>) {
  using Make = torch::CppFunction (*)();
  static constexpr Make makers[] = {[] { return torch::CppFunction::makeFromBoxedFunction<&filter<slots>>(); }...};
  return makers[slot]();
}


}  // namespace
}  // namespace softbench_host

using namespace softbench_host;

extern "C" {

// Registers a filter in a slot for the operator `name`, such as aten::_softmax, and a dispatch key. The kernel that the operator has there
// now is torch's; that of the operator `ours` is ours. Returns 0, or 1 after an error.
int softbench_install(int slot, const char* name, const char* ours, const char* key, int64_t tensor, uint64_t devices,
                      const int64_t* elements, const int64_t* columns, const int64_t* others) {
  const std::lock_guard<std::mutex> lock(filters_mutex);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  try {
    const auto dispatch_key = c10::parseDispatchKey(key);
    const auto kernel = [&](const char* of) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(of, "").getComputedKernelForDispatchKey(dispatch_key);
    };
    Rule rule{tensor, devices, {}, {}, {}};
    std::copy_n(elements, DTYPES, rule.elements.begin());
    std::copy_n(columns, DTYPES, rule.columns.begin());
    std::copy_n(others, DTYPES, rule.others.begin());
    std::atomic_store(&filters[slot], std::shared_ptr<const Filter>(new Filter(rule, kernel(name), kernel(ours))));
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", dispatch_key, "softbench.use", 0);
    library->impl(name, function(slot, std::make_integer_sequence<int, FILTERS>()));
    overrides[slot] = std::move(library);
    return 0;
  } catch (const std::exception& raised) {
    filter_error = raised.what();
    return 1;
  }
}

// From now on the filter in this slot calls `function` for tensors of this device and dtype, on the stream that `stream` writes.
void softbench_launch_by(int slot, int device, int dtype, void* function, void* stream) {
  const std::lock_guard<std::mutex> lock(filters_mutex);
  const std::shared_ptr<const Filter> found = std::atomic_load(&filters[slot]);
  Launcher& launcher = found->launchers.at(device).at(dtype);
  launcher.stream.store(reinterpret_cast<CurrentStream*>(stream), std::memory_order_relaxed);
  launcher.function.store(function, std::memory_order_release);
}

void softbench_remove(int slot) {
  const std::lock_guard<std::mutex> lock(filters_mutex);
  overrides[slot].reset();
}

const char* softbench_filter_error() { return filter_error.c_str(); }
}
