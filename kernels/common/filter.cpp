// Decides in C++ whether an operator of torch runs our kernel or torch's own, without Python.
//
// `override.py` has the rule, and calls this file. A filter is registered for an operator and a dispatch key. It looks at one
// tensor and at `dim`, and calls torch's kernel or ours. Ours is a Python function. What operators.cpp launches does not need it.

#include "operators.h"

#include <torch/library.h>

#include <algorithm>
#include <array>
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
  int function;      // SOFTMAX or LOG_SOFTMAX
  int64_t tensor;    // the index of the tensor among the arguments; `dim` follows it
  uint64_t devices;  // a bit for each device index
  std::array<int64_t, DTYPES> elements, columns, others;
};

struct Filter {
  Filter(Rule rule, c10::SafeKernelFunction torchs, c10::SafeKernelFunction ours)
      : rule(rule), torchs(std::move(torchs)), ours(std::move(ours)) {}
  Rule rule;
  c10::SafeKernelFunction torchs, ours;
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
bool launched(const Rule& rule, const c10::IValue* arguments, size_t count, torch::jit::Stack* stack) {
  const int64_t last = rule.tensor;  // of the one or two tensors
  const at::Tensor& x = arguments[last].toTensor();
  if (!is_chosen_here(rule.function, x)) return false;
  const int64_t dim = arguments[last + 1].toInt();
  // The last argument is `half_to_float` of a forward, and `input_dtype` of a gradient.
  const c10::IValue& given = arguments[count - 1];
  at::Tensor result = last ? row_gradient(rule.function, arguments[0].toTensor(), x, dim, given.toScalarType())
                           : row_result(rule.function, x, dim, given.toBool() ? c10::kFloat : x.scalar_type());
  if (!result.defined()) return false;
  torch::jit::drop(*stack, count);
  stack->emplace_back(std::move(result));
  return true;
}

template <int slot>
void filter(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::shared_ptr<const Filter> found = std::atomic_load(&filters[slot]);
  const size_t count = op.schema().arguments().size();
  const c10::IValue* arguments = stack->data() + stack->size() - count;
  const bool ours = fits(found->rule, arguments[found->rule.tensor].toTensor(), arguments[found->rule.tensor + 1].toInt());
  if (ours && launched(found->rule, arguments, count, stack)) return;
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
int softbench_install(int slot, const char* name, const char* ours, const char* key, int function_number, int64_t tensor, uint64_t devices,
                      const int64_t* elements, const int64_t* columns, const int64_t* others) {
  const std::lock_guard<std::mutex> lock(filters_mutex);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  try {
    const auto dispatch_key = c10::parseDispatchKey(key);
    const auto kernel = [&](const char* of) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(of, "").getComputedKernelForDispatchKey(dispatch_key);
    };
    Rule rule{function_number, tensor, devices, {}, {}, {}};
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

void softbench_remove(int slot) {
  const std::lock_guard<std::mutex> lock(filters_mutex);
  overrides[slot].reset();
}

const char* softbench_filter_error() { return filter_error.c_str(); }
}
