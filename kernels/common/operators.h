// What the files of the extension share: the operators of softbench, and where C++ may launch our CUDA kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <atomic>
#include <concepts>
#include <cstdint>
#include <optional>
#include <utility>

namespace softbench_host {

constexpr int DTYPES = 3;  // float32, float16, bfloat16, as in rows.py
constexpr int DEVICES = 64;

inline int number_of(c10::ScalarType dtype) {
  switch (dtype) {
    case c10::kFloat: return 0;
    case c10::kHalf: return 1;
    case c10::kBFloat16: return 2;
    default: return -1;
  }
}

inline bool has_tangent(const at::Tensor& x) { return x._fw_grad(0).defined(); }
inline bool has_tangent(const c10::IValue& argument) { return argument.isTensor() && has_tangent(argument.toTensor()); }
inline int index_of(const at::Tensor& x) { return x.device().index() < 0 ? 0 : x.device().index(); }

// aoti_torch_get_current_cuda_stream of torch: writes a stream, and returns 0.
using CurrentStream = int32_t(int32_t device, void** stream);

// The functions, by their numbers in extension.py. Each has an operator for its forward, and one for its backward behind all forwards.
enum Function { SOFTMAX, LOG_SOFTMAX, CROSS_ENTROPY, LOGPROB, MASKED_SOFTMAX, FUNCTIONS };
constexpr int OPERATORS = 2 * FUNCTIONS;
enum Reduction { NONE, MEAN, SUM };  // as in losses.py

// An operator, and the kernels that Python registered for it before C++ replaced them.
struct Operator {
  std::optional<c10::OperatorHandle> handle;
  std::optional<c10::SafeKernelFunction> kernel, autograd;
};
extern Operator operators[OPERATORS];

// The results of an operator; none if Python has to run it.
struct Results {
  std::array<at::Tensor, 3> tensors;
  size_t count = 0;
  Results() = default;
  template <std::same_as<at::Tensor>... T> Results(T... given) : tensors{std::move(given)...}, count(sizeof...(T)) {}
};
constexpr size_t MOST_ARGUMENTS = 12;

// Calls an operator with CUDA tensors that were chosen, and records the call for autograd. It goes past the dispatcher where that would only take time.
Results call(int number, const c10::IValue* arguments, size_t count);

// softmax or log_softmax of rows along the last dimension, and dx of them; undefined if Python has to compute it.
at::Tensor row_result(int function, const at::Tensor& x, int64_t dim, std::optional<c10::ScalarType> wanted);
at::Tensor row_gradient(int function, const at::Tensor& dy, const at::Tensor& y, int64_t dim, std::optional<c10::ScalarType> wanted);

// The maximum and the sum of each row of a part of the vocabulary, then the loss of each row, NaN where the target is elsewhere: 3 M numbers. `first`: the part's
// first class. Undefined if Python has to compute them.
at::Tensor numbers_of_part(const at::Tensor& x, const at::Tensor& target, int64_t first, double softcap, double scale);

// Records the loss of a part of the vocabulary as a result of cross_entropy with these arguments. `classes`: as its backward takes them.
void record_part(const c10::IValue* arguments, const Results& results, int64_t classes);

// Launches a pass of masked_softmax by Python, which has Triton's kernels: those of launch_forward or launch_backward in kernels/triton/masked_softmax.py.
using LaunchScores = void(int pass, const std::array<at::Tensor, 5>& tensors, double scale, bool causal);
extern std::atomic<LaunchScores*> launch_scores;  // null: the operator's kernel in Python makes the call

extern std::atomic<c10::DeviceType> device_type;  // of the tensors that our kernels take
// Whether our kernels were chosen for a function, a device and a dtype: a bit for each dtype.
extern std::atomic<uint8_t> chosen[FUNCTIONS][DEVICES];

inline bool is_chosen_here(int function, const at::Tensor& x) {  // for tensors that are on a device of the kernels
  const int dtype = number_of(x.scalar_type());
  return dtype >= 0 && index_of(x) < DEVICES && (chosen[function][index_of(x)].load(std::memory_order_relaxed) >> dtype & 1);
}
inline bool is_chosen(int function, const at::Tensor& x) {
  return x.device().type() == device_type.load(std::memory_order_relaxed) && is_chosen_here(function, x);
}

struct Silent : c10::WarningHandler {  // torch warns of every replaced kernel
  void process(const c10::Warning&) override {}
};

}  // namespace softbench_host
