// Decides in C++ whether an operator of torch runs our kernel or torch's own, so that a call that keeps torch's costs no Python.
//
// `override.py` has the rule, and `filter.py` builds this file. A filter is registered for an operator and a dispatch key. It looks at one
// tensor and at `dim`, and calls torch's kernel or ours, a Python function.

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace {

constexpr int SLOTS = 8;   // operators with a filter at once
constexpr int DTYPES = 3;  // float32, float16, bfloat16, as in rows.py

// When our kernel runs: `dim` is the last, and the tensor has this many elements, or rows of this many columns.
struct Rule {
  int64_t tensor;   // the index of the tensor among the arguments; `dim` follows it
  uint64_t devices;  // a bit for each device index
  std::array<int64_t, DTYPES> elements, columns;
};

struct Filter {
  Rule rule;
  c10::SafeKernelFunction torchs, ours;
};

// Calls in other threads may still run when a filter is removed, so it stays until the slot is used again and these calls have ended.
std::array<std::shared_ptr<const Filter>, SLOTS> filters;
std::array<std::unique_ptr<torch::Library>, SLOTS> libraries;
std::mutex mutex;
std::string error;

int number_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat: return 0;
    case c10::kHalf: return 1;
    case c10::kBFloat16: return 2;
    default: return -1;
  }
}

bool fits(const Rule& rule, const at::Tensor& x, int64_t dim) {
  const int dtype = number_of(x.scalar_type());
  const int64_t dimensions = x.dim();
  if (dtype < 0 || dimensions == 0 || (dim != -1 && dim != dimensions - 1)) return false;
  if (x.numel() < rule.elements[dtype] && (x.numel() == 0 || x.size(-1) < rule.columns[dtype])) return false;
  const int index = std::max<int>(0, x.device().index());
  return index < 64 && (rule.devices >> index & 1);
}

template <int slot>
void filter(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::shared_ptr<const Filter> found = std::atomic_load(&filters[slot]);
  const c10::IValue* arguments = stack->data() + stack->size() - op.schema().arguments().size();
  const bool ours = fits(found->rule, arguments[found->rule.tensor].toTensor(), arguments[found->rule.tensor + 1].toInt());
  (ours ? found->ours : found->torchs).callBoxed(op, keys, stack);
}

template <int... slots>
torch::CppFunction function(int slot, std::integer_sequence<int, slots...>) {
  using Make = torch::CppFunction (*)();
  static constexpr Make makers[] = {[] { return torch::CppFunction::makeFromBoxedFunction<&filter<slots>>(); }...};
  return makers[slot]();
}

struct Silent : c10::WarningHandler {  // torch warns of every replaced kernel
  void process(const c10::Warning&) override {}
};

}  // namespace

extern "C" {

// Registers a filter in a slot for the operator `name`, such as aten::_softmax, and a dispatch key. The kernel that the operator has there
// now is torch's; that of the operator `ours` is ours. Returns 0, or 1 after an error.
int softbench_install(int slot, const char* name, const char* ours, const char* key, int64_t tensor, uint64_t devices,
                      const int64_t* elements, const int64_t* columns) {
  const std::lock_guard<std::mutex> lock(mutex);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  try {
    const auto dispatch_key = c10::parseDispatchKey(key);
    const auto kernel = [&](const char* of) {
      return c10::Dispatcher::singleton().findSchemaOrThrow(of, "").getComputedKernelForDispatchKey(dispatch_key);
    };
    Rule rule{tensor, devices, {}, {}};
    std::copy_n(elements, DTYPES, rule.elements.begin());
    std::copy_n(columns, DTYPES, rule.columns.begin());
    std::atomic_store(&filters[slot], std::shared_ptr<const Filter>(new Filter{rule, kernel(name), kernel(ours)}));
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "aten", dispatch_key, "softbench.use", 0);
    library->impl(name, function(slot, std::make_integer_sequence<int, SLOTS>()));
    libraries[slot] = std::move(library);
    return 0;
  } catch (const std::exception& raised) {
    error = raised.what();
    return 1;
  }
}

void softbench_remove(int slot) {
  const std::lock_guard<std::mutex> lock(mutex);
  libraries[slot].reset();
}

const char* softbench_filter_error() { return error.c_str(); }
}
