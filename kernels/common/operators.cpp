// The operators of softbench in C++: their autograd, and the launches of our CUDA kernels.
//
// Python defines the operators and registers a kernel and autograd for each; `extension.py` lets this file replace both. What C++ does not
// launch goes to Python's kernel: other layouts, rows that need a new workspace, the first call of a device, errors. Gradients of gradients
// go to Python's autograd. So the two agree on everything that a caller sees. All kernels are boxed, because others take a minute to compile.

#include "operators.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>

#include <algorithm>
#include <cfloat>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace softbench_host {

using at::Tensor;
using c10::IValue;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;
using torch::jit::Stack;

Operator operators[OPERATORS];
std::atomic<c10::DeviceType> device_type{c10::kCUDA};
std::atomic<uint8_t> chosen[FUNCTIONS][DEVICES];
std::atomic<LaunchScores*> launch_scores{nullptr};

namespace {

// ---- Launches. The signatures are those of the sources in kernels/cuda.

enum Which { FORWARD, BACKWARD, REDUCE, WHICH };
enum Memory { SLOTS, COUNTERS };  // the workspaces of launch.py
std::atomic<void*> addresses[FUNCTIONS][WHICH][DEVICES];

using IsCapturing = int(void* stream, int* status);  // cuStreamIsCapturing
std::atomic<CurrentStream*> current_stream{nullptr};
std::atomic<IsCapturing*> is_capturing{nullptr};

struct Workspace {
  void* memory = nullptr;
  int64_t bytes = 0;
};
std::map<std::tuple<int, int, void*>, Workspace> workspaces;  // by kind, device and stream
std::shared_mutex workspaces_mutex;

constexpr int64_t MOST_COLUMNS = (int64_t(1) << 31) - 4096;
constexpr int64_t MOST_REDUCED = 32768;  // rows whose losses one CTA adds
constexpr int64_t MOST_SCORES = 16384;   // columns of a row with mask, causal order or sink, as in triton/masked_softmax.py
constexpr int64_t MOST_ROWS_OF_SCORES = (int64_t(1) << 31) - 1024;  // as in automatic/masked_softmax.py

// Where a launch goes; `function` is null if Python has to launch. The device of x is current while this lives.
struct Launch {
  c10::DeviceGuard guard;
  void *function, *stream = nullptr;
  std::tuple<int, int, void*> where;  // its workspace

  Launch(int of, Which which, const Tensor& x, Memory memory = SLOTS) : guard(x.device()) {
    const int index = index_of(x);
    function = index < DEVICES ? addresses[of][which][index].load(std::memory_order_acquire) : nullptr;
    CurrentStream* const current = current_stream.load(std::memory_order_relaxed);
    if (!current || current(index, &stream)) function = nullptr;
    where = {memory, index, stream};
  }
  template <typename... A> bool operator()(A... arguments) const {
    auto* const launch = reinterpret_cast<int64_t (*)(A..., void*, int64_t, void*, void*)>(function);
    const int64_t code = launch(arguments..., nullptr, 0, stream, nullptr);
    if (code >= 0) return code == 0;  // below 0 it needs a workspace, as few do
    const Workspace found = workspace();
    return found.memory && launch(arguments..., found.memory, found.bytes, stream, nullptr) == 0;
  }

private:
  Workspace workspace() const {
    std::shared_lock<std::shared_mutex> lock(workspaces_mutex);
    const auto found = workspaces.find(where);
    int capturing = 1;  // a launch in a graph has a workspace of its own
    IsCapturing* const ask = is_capturing.load(std::memory_order_relaxed);
    return found != workspaces.end() && ask && !ask(stream, &capturing) && !capturing ? found->second : Workspace();
  }
};

// Memory of the device that a Launch has made current: without the dispatcher, as the results of torch's own kernels. c10 does not know an allocator
// of torch.cuda.memory.change_current_allocator.
Tensor fresh(c10::IntArrayRef sizes, c10::ScalarType dtype, const Tensor& like) {
  const bool cuda = like.device().is_cuda();
  c10::Allocator* const allocator = cuda ? at::detail::getCUDAHooks().getCUDADeviceAllocator() : c10::GetAllocator(c10::kCPU);
  const c10::DispatchKeySet keys(cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
  return Tensor(at::detail::empty_generic(sizes, allocator, keys, dtype, std::nullopt));
}
Tensor fresh_like(const Tensor& x) { return fresh(x.sizes(), x.scalar_type(), x); }

// Float32 numbers of `memory` from an element on, as a tensor. For autograd it is no view.
Tensor part(const Tensor& memory, int64_t first, c10::IntArrayRef sizes) {
  Tensor found = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory.storage()), memory.key_set(), memory.dtype());
  found.unsafeGetTensorImpl()->set_storage_offset(first);
  found.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return found;
}

using Dtype = std::optional<c10::ScalarType>;
using Arguments = const IValue*;

const void* read(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* written(const Tensor& x) { return x.defined() ? x.mutable_data_ptr() : nullptr; }
Tensor given(const IValue& argument) { return argument.isNone() ? Tensor() : argument.toTensor(); }
Dtype dtype_of(const IValue& argument) { return argument.isNone() ? Dtype() : Dtype(argument.toScalarType()); }

bool alike(const Tensor& x, const Tensor& y) { return x.scalar_type() == y.scalar_type() && x.sizes() == y.sizes() && x.device() == y.device(); }
bool adjacent(const Tensor& x) { return x.dim() == 2 && (x.stride(1) == 1 || x.size(1) == 1); }

// The distance of rows along the last dimension that C++ may launch; 0 of other tensors.
int64_t row_stride(const Tensor& x, int64_t dim) {
  const int64_t dimensions = x.dim();
  if (number_of(x.scalar_type()) < 0 || dimensions == 0 || (dim != -1 && dim != dimensions - 1) || x.numel() == 0 || x.layout() != c10::kStrided) return 0;
  return x.is_contiguous() ? x.size(-1) : adjacent(x) ? x.stride(0) : 0;
}

}  // namespace

Tensor row_result(int function, const Tensor& x, int64_t dim, Dtype wanted) {
  const c10::ScalarType dtype = x.scalar_type(), result = wanted.value_or(dtype);
  const int64_t stride = row_stride(x, dim);
  if (!stride || (result != dtype && result != c10::kFloat)) return {};
  const Launch launch(function, FORWARD, x);
  if (!launch.function) return {};
  const int64_t N = x.size(-1), M = x.numel() / N;
  Tensor y = fresh(x.sizes(), result, x);
  if (!launch(read(x), written(y), stride, N, M, N, number_of(dtype), number_of(result))) return {};
  return y;
}

Tensor row_gradient(int function, const Tensor& dy, const Tensor& y, int64_t dim, Dtype wanted) {
  const c10::ScalarType dtype = y.scalar_type(), result = wanted.value_or(dtype);
  if (!alike(dy, y) || (result != dtype && (dtype != c10::kFloat || number_of(result) < 0))) return {};
  const int64_t of_dy = row_stride(dy, dim), of_y = row_stride(y, dim);
  if (!of_dy || !of_y) return {};
  const Launch launch(function, BACKWARD, y);
  if (!launch.function) return {};
  const int64_t N = y.size(-1), M = y.numel() / N;
  Tensor dx = fresh(y.sizes(), result, y);
  if (!launch(read(dy), read(y), written(dx), of_dy, of_y, N, M, N, number_of(dtype), number_of(result))) return {};
  return dx;
}

namespace {

Results one(Tensor result) { return result.defined() ? Results(std::move(result)) : Results(); }
Results row_forward(int function, Arguments arguments) {  // x, dim, dtype
  return one(row_result(function, arguments[0].toTensor(), arguments[1].toInt(), dtype_of(arguments[2])));
}
Results row_backward(int function, Arguments arguments) {  // dy, y, dim, dtype
  return one(row_gradient(function, arguments[0].toTensor(), arguments[1].toTensor(), arguments[2].toInt(), dtype_of(arguments[3])));
}

// Whether a tensor has a float32 number for each of M rows, at any distance.
bool has_numbers(const Tensor& x, int64_t M, const Tensor& like) {
  return x.scalar_type() == c10::kFloat && x.dim() == 1 && x.size(0) == M && x.device() == like.device();
}
bool has_contiguous_numbers(const Tensor& x, int64_t M, const Tensor& like) { return has_numbers(x, M, like) && x.is_contiguous(); }
bool has_statistics(const Tensor& x, int64_t M, const Tensor& like) {  // the maximum and the sum of each row
  return x.scalar_type() == c10::kFloat && x.sizes() == c10::IntArrayRef{M, 2} && x.device() == like.device() && x.is_contiguous();
}

bool logits_fit(int function, const Tensor& x, const Tensor& target) {
  if (!is_chosen(function, x) || !adjacent(x) || x.numel() == 0 || x.size(1) > MOST_COLUMNS) return false;
  return target.scalar_type() == c10::kLong && target.dim() == 1 && target.size(0) == x.size(0) && target.device() == x.device() && target.is_contiguous();
}

// x, target, ignore_index, smoothing, z_loss, softcap, reduction, logit_scale. TOGETHER: with a reduction the results are the loss and memory of 3 M + 1 numbers,
// because an allocation takes longer than all else here but the launches: the statistics, the number of rows that are not ignored, and the losses of rows.
template <bool TOGETHER> Results cross_entropy(int function, Arguments arguments) {
  const Tensor &x = arguments[0].toTensor(), &target = arguments[1].toTensor();
  const int64_t ignore_index = arguments[2].toInt(), reduction = arguments[6].toInt();
  if (!logits_fit(function, x, target) || (reduction != NONE && x.size(0) > MOST_REDUCED)) return {};
  const Launch launch(function, FORWARD, x, COUNTERS);
  if (!launch.function) return {};
  const int64_t M = x.size(0);
  const int dtype = number_of(x.scalar_type());
  const bool together = TOGETHER && reduction != NONE;
  Tensor statistics = together ? fresh({3 * M + 1}, c10::kFloat, x) : fresh({M, 2}, c10::kFloat, x), rows = together ? Tensor() : fresh({M}, c10::kFloat, x);
  float* const of_rows = together ? static_cast<float*>(written(statistics)) + 2 * M + 1 : static_cast<float*>(written(rows));
  if (!launch(read(x), read(target), of_rows, (void*)nullptr, written(statistics), ignore_index, float(arguments[3].toDouble()), float(arguments[4].toDouble()),
              float(arguments[5].toDouble()), float(arguments[7].toDouble()), x.stride(0), M, x.size(1), dtype, dtype))
    return {};
  if (reduction == NONE) return {std::move(rows), std::move(statistics), fresh({0}, c10::kFloat, x)};
  using Reduce = int64_t(const void* loss, const void* target, void* result, void* counted, int64_t, int mean, int64_t M, void* stream);
  auto* const reduce = reinterpret_cast<Reduce*>(addresses[function][REDUCE][index_of(x)].load(std::memory_order_acquire));
  Tensor loss = fresh({}, c10::kFloat, x), counted = together ? Tensor() : fresh({1}, c10::kFloat, x);
  if (!reduce || reduce(of_rows, read(target), written(loss), together ? of_rows - 1 : written(counted), ignore_index, reduction == MEAN, M, launch.stream)) return {};
  if (together) return {std::move(loss), std::move(statistics)};
  return {std::move(loss), std::move(statistics), std::move(counted)};
}

Results cross_entropy_backward(int function, Arguments arguments) {  // x, target, statistics, dloss, counted, the options of cross_entropy, classes
  const Tensor &x = arguments[0].toTensor(), &target = arguments[1].toTensor(), &statistics = arguments[2].toTensor(), &dloss = arguments[3].toTensor();
  const Tensor& counted = arguments[4].toTensor();
  const int64_t reduction = arguments[9].toInt();
  if (!logits_fit(function, x, target)) return {};
  const int64_t M = x.size(0);
  const bool one = reduction != NONE, divides = reduction == MEAN;
  const bool fits = one ? dloss.dim() == 0 && dloss.scalar_type() == c10::kFloat && dloss.device() == x.device() : has_numbers(dloss, M, x);
  if (!fits || !has_statistics(statistics, M, x) || (divides && !has_contiguous_numbers(counted, 1, x))) return {};
  const int64_t classes = arguments[11].toInt();
  const Launch launch(function, BACKWARD, x);
  if (!launch.function) return {};
  const int dtype = number_of(x.scalar_type());
  Tensor dx = fresh_like(x);
  if (!launch(read(x), read(target), (const void*)nullptr, read(statistics), read(dloss), divides ? read(counted) : nullptr, written(dx), arguments[5].toInt(),
              float(arguments[6].toDouble()), float(arguments[7].toDouble()), float(arguments[8].toDouble()), float(arguments[10].toDouble()), x.stride(0), x.size(1),
              one ? int64_t(0) : dloss.stride(0), classes ? classes : x.size(1), M, x.size(1), dtype, dtype))
    return {};
  return {std::move(dx)};
}

Results logprob(int function, Arguments arguments) {  // x, target, ignore_index, logit_scale
  const Tensor &x = arguments[0].toTensor(), &target = arguments[1].toTensor();
  if (!logits_fit(function, x, target)) return {};
  const Launch launch(function, FORWARD, x, COUNTERS);
  if (!launch.function) return {};
  const int64_t M = x.size(0);
  const int dtype = number_of(x.scalar_type());
  Tensor found = fresh({M}, c10::kFloat, x), entropy = fresh({M}, c10::kFloat, x), statistics = fresh({M, 2}, c10::kFloat, x);
  if (!launch(read(x), read(target), written(found), written(entropy), (void*)nullptr, written(statistics), arguments[2].toInt(), float(arguments[3].toDouble()), x.stride(0), M, x.size(1), dtype, dtype)) return {};
  return {std::move(found), std::move(entropy), std::move(statistics)};
}

Results logprob_backward(int function, Arguments arguments) {  // x, target, statistics, entropy, dlogprob and dentropy or None, and two options
  const Tensor &x = arguments[0].toTensor(), &target = arguments[1].toTensor(), &statistics = arguments[2].toTensor(), &entropy = arguments[3].toTensor();
  if (!logits_fit(function, x, target)) return {};
  const int64_t M = x.size(0);
  const Tensor dlogprob = given(arguments[4]), dentropy = given(arguments[5]);
  const auto fits = [&](const Tensor& one) { return !one.defined() || has_numbers(one, M, x); };
  if (!has_statistics(statistics, M, x) || !has_contiguous_numbers(entropy, M, x) || !fits(dlogprob) || !fits(dentropy)) return {};
  const Launch launch(function, BACKWARD, x);
  if (!launch.function) return {};
  const int dtype = number_of(x.scalar_type());
  const auto stride = [](const Tensor& one) { return one.defined() ? one.stride(0) : int64_t(0); };
  Tensor dx = fresh_like(x);
  if (!launch(read(x), read(target), (const void*)nullptr, read(statistics), read(entropy), read(dlogprob), read(dentropy), written(dx), arguments[6].toInt(), float(arguments[7].toDouble()), x.stride(0),
              x.size(1), stride(dlogprob),
              stride(dentropy), M, x.size(1), dtype, dtype))
    return {};
  return {std::move(dx)};
}

bool scores_fit(const Tensor& x, double scale, bool special) {
  if (!is_chosen(MASKED_SOFTMAX, x) || x.dim() != 4 || x.numel() == 0 || !x.is_contiguous() || !(scale >= FLT_MIN && scale <= FLT_MAX)) return false;
  return x.numel() / x.size(3) <= MOST_ROWS_OF_SCORES && (!special || x.size(3) <= MOST_SCORES) && launch_scores.load(std::memory_order_acquire);
}

// Whether a mask broadcasts to x and its keys are adjacent.
bool mask_fits(const Tensor& mask, const Tensor& x) {
  const int64_t missing = 4 - mask.dim();
  if ((mask.scalar_type() != c10::kBool && number_of(mask.scalar_type()) < 0) || mask.device() != x.device() || missing < 0 || missing > 3) return false;
  for (int64_t d = missing; d < 3; ++d)
    if (mask.size(d - missing) != 1 && mask.size(d - missing) != x.size(d)) return false;
  return mask.size(-1) == x.size(3) && (mask.stride(-1) == 1 || x.size(3) == 1);
}

Results masked_softmax(int, Arguments arguments) {  // scores, mask, sink, scale, causal, invariant
  const Tensor &x = arguments[0].toTensor(), mask = given(arguments[1]), sink = given(arguments[2]);
  const double scale = arguments[3].toDouble();
  const bool causal = arguments[4].toBool();
  if (arguments[5].toBool() || !scores_fit(x, scale, mask.defined() || sink.defined() || causal) || (mask.defined() && !mask_fits(mask, x))) return {};
  if (sink.defined() && !has_contiguous_numbers(sink, x.size(1), x)) return {};
  const c10::DeviceGuard guard(x.device());
  Tensor y = fresh_like(x), share = sink.defined() ? fresh(x.sizes().slice(0, 3), c10::kFloat, x) : Tensor();
  launch_scores.load(std::memory_order_relaxed)(0, {x, mask, sink, y, share}, scale, causal);
  return {std::move(y), share.defined() ? std::move(share) : fresh({0}, c10::kFloat, x)};
}

Results masked_softmax_backward(int, Arguments arguments) {  // dy, y, share, scale, causal, invariant
  const Tensor &dy = arguments[0].toTensor(), &y = arguments[1].toTensor(), share = given(arguments[2]);
  const double scale = arguments[3].toDouble();
  const bool causal = arguments[4].toBool(), special = share.defined() || causal;
  if (arguments[5].toBool() || !alike(dy, y) || !scores_fit(dy, scale, special) || !scores_fit(y, scale, special)) return {};
  if (share.defined() && (share.scalar_type() != c10::kFloat || share.sizes() != y.sizes().slice(0, 3) || share.device() != y.device() || !share.is_contiguous()))
    return {};
  const c10::DeviceGuard guard(y.device());
  Tensor dx = fresh_like(y), dsink = share.defined() ? fresh_like(share) : Tensor();
  launch_scores.load(std::memory_order_relaxed)(1, {dy, y, share, dx, dsink}, scale, causal);
  return {std::move(dx), dsink.defined() ? std::move(dsink) : fresh({0}, c10::kFloat, y)};
}

using Kernel = Results(int, Arguments);
template <bool DIRECT>
constexpr Kernel* kernels[] = {row_forward,  row_forward,  cross_entropy<DIRECT>,  logprob,          masked_softmax,
                               row_backward, row_backward, cross_entropy_backward, logprob_backward, masked_softmax_backward};

// The kernel of an operator: those above, or Python's.
template <int number> void kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t count = op.schema().arguments().size();
  Results results = kernels<false>[number](number % FUNCTIONS, stack->data() + stack->size() - count);
  if (!results.count) return operators[number].kernel->callBoxed(op, keys, stack);
  torch::jit::drop(*stack, count);
  for (size_t i = 0; i < results.count; ++i) stack->emplace_back(std::move(results.tensors[i]));
}

// ---- Autograd. The nodes are like those that torch generates for its own operators.

// Node pointers are std::shared_ptr in older versions of torch.
template <typename T, typename... A> auto made(A&&... arguments) {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::shared_ptr<T>(new T(std::forward<A>(arguments)...), [](T* node) { deleteNode(node); });
  else return c10::make_intrusive<T>(std::forward<A>(arguments)...);
}

Results results_of(const c10::OperatorHandle& op, const Stack& stack) {  // on top of the stack
  Results found;
  found.count = op.schema().returns().size();
  for (size_t i = 0; i < found.count; ++i) found.tensors[i] = stack[stack.size() - found.count + i].toTensor();
  return found;
}
bool requires_grad(const IValue& argument) { return argument.isTensor() && argument.toTensor().requires_grad(); }

// Whether nothing but autograd would act on a call with tensors of these keys before our kernel: no mode, transform, profiler or tensor of another kind.
bool is_direct(c10::DispatchKeySet keys) {
  constexpr auto passed = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::BackendSelect);
  const c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  keys = (keys | local.included_) - local.excluded_ - passed;
  return keys.highestFunctionalityKey() == c10::DispatchKey::Dense && !at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
}
bool is_direct(Arguments arguments, size_t count) {
  c10::DispatchKeySet keys;
  for (size_t i = 0; i < count; ++i)
    if (arguments[i].isTensor()) keys = keys | arguments[i].toTensor().key_set();
  return is_direct(keys);
}

using Saved = std::array<Tensor, 4>;

// What the gradient of a forward is made of, beside tensors. It calls the operator of the backward.
struct Backward {
  int function;
  std::array<IValue, 6> options;  // the forward's arguments after its tensors
  size_t tensors = 0, numbers = 0;  // of what is saved, of options
  Dtype dtype;                  // of the input if that of a row's result differs; of the sink
  int64_t classes = 0;          // as the backward of cross entropy takes them
  bool once = false;            // a part of the vocabulary does not know the second gradient

  variable_list gradients(const variable_list& grads, const Saved& saved, size_t wanted) const {
    variable_list results(wanted);
    const auto incoming = [&](size_t index) { return index < grads.size() && grads[index].defined() ? IValue(grads[index]) : IValue(); };
    if (incoming(0).isNone() && (function != LOGPROB || incoming(1).isNone())) return results;
    if (function <= LOG_SOFTMAX && !at::GradMode::is_enabled() && is_direct(grads[0].key_set() | saved[0].key_set()) && !has_tangent(grads[0])) {
      results[0] = row_gradient(function, grads[0], saved[0], options[0].toInt(), dtype);
      if (results[0].defined()) return results;  // without the arguments of an operator, which take as long as a quarter of this
    }
    IValue arguments[MOST_ARGUMENTS];
    size_t count = 0;
    const auto add = [&](IValue one) { arguments[count++] = std::move(one); };
    const auto add_saved = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) add(saved[i]);
    };
    switch (function) {
      case CROSS_ENTROPY:
        add_saved(0, 3);
        add(incoming(0));
        add_saved(3, 4);
        break;
      case LOGPROB:
        add_saved(0, 4);
        add(incoming(0));
        add(incoming(1));
        break;
      default:
        add(incoming(0));
        add_saved(0, tensors);
        if (function == MASKED_SOFTMAX && tensors == 1) add({});
    }
    for (size_t i = 0; i < numbers; ++i) add(options[i]);
    if (function <= LOG_SOFTMAX) add(dtype);
    if (function == CROSS_ENTROPY) add(classes);
    const bool refuses = once && at::GradMode::is_enabled();
    const at::AutoGradMode records(at::GradMode::is_enabled() && !once);
    Results found = call(FUNCTIONS + function, arguments, count);
    if (refuses) {  // its edges let the engine come by
      torch::autograd::edge_list edges = torch::autograd::collect_next_edges(saved[0], grads[0]);
      torch::autograd::set_history(found.tensors[0], made<torch::autograd::Error>("the loss of a split vocabulary is differentiable once; torch's own functions have gradients of any order", std::move(edges)));
    }
    results[0] = std::move(found.tensors[0]);
    if (function == MASKED_SOFTMAX && dtype) results[1] = found.tensors[1].sum(c10::IntArrayRef{0, 2}).to(*dtype);
    return results;
  }
};

// The node of a forward in the graph.
struct Gradient : torch::autograd::Node, Backward {
  std::array<SavedVariable, 4> saved;

  std::string name() const override {
    constexpr const char* names[] = {"Softmax", "LogSoftmax", "CrossEntropy", "Logprob", "MaskedSoftmax"};
    return std::string("Softbench") + names[function] + "Backward";
  }
  void release_variables() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SavedVariable& one : saved) one.reset_data();
  }
  variable_list apply(variable_list&& grads) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    Saved unpacked;
    for (size_t i = 0; i < tensors; ++i) unpacked[i] = saved[i].unpack(getptr());
    return gradients(grads, unpacked, num_outputs());
  }

  // What compiled autograd specializes on, and the tensors that it makes inputs of its graph.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override {
    args.collect(function);
    args.collect(dtype);
    args.collect(classes);
    args.collect(once);
    for (size_t i = 0; i < numbers; ++i) args.collect(options[i], true);
    for (size_t i = 0; i < tensors; ++i) args.collect(saved[i], true);
  }
  // Puts a call of `gradients` into the graph of compiled autograd.
  variable_list apply_with_saved(const variable_list& grads, torch::dynamo::autograd::SwapSavedVariables& swap) override {
    std::vector<IValue> arguments;
    for (size_t i = 0; i < tensors; ++i) {
      swap.before(saved[i]);
      arguments.emplace_back(saved[i].unpack(getptr()));
    }
    const auto traced = [backward = static_cast<const Backward&>(*this), wanted = num_outputs()](const variable_list& incoming, const std::vector<IValue>& given) {
      Saved tensors;
      for (size_t i = 0; i < given.size(); ++i) tensors[i] = given[i].toTensor();
      return backward.gradients(incoming, tensors, wanted);
    };
    using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
    const auto metadata = torch::dynamo::autograd::IValuePacker<Metadata>::pack(torch::dynamo::autograd::get_input_metadata(next_edges()));
    const auto& python = torch::dynamo::autograd::getPyCompilerInterface();
    const std::string bound = python->bind_function(swap.get_py_compiler(), name(), traced, std::vector<at::TypePtr>(tensors, at::TensorType::get()), true, true);
    variable_list results = python->call_function(swap.get_py_compiler(), "apply_functional", bound, grads, arguments, metadata);
    for (size_t i = 0; i < tensors; ++i) swap.after(saved[i]);
    return results;
  }
};

void refuse_tangents(int function, Arguments arguments, size_t count) {
  constexpr const char* names[] = {"softmax", "log_softmax", "cross_entropy", "logprob", "masked_softmax"};
  for (size_t i = 0; i < count; ++i)
    TORCH_CHECK_NOT_IMPLEMENTED(!has_tangent(arguments[i]), names[function], " has no forward mode; its gradients are those of backward");
}

// Records a call of a forward.
void record(int function, Arguments arguments, const Results& results, int64_t classes = 0, bool once = false) {
  const auto node = made<Gradient>();
  node->function = function, node->classes = classes, node->once = once;
  const auto argument = [&](size_t index) -> const Tensor& { return arguments[index].toTensor(); };
  const auto& result = results.tensors;
  const auto save = [&](const Tensor& tensor, bool is_output) { node->saved[node->tensors++] = SavedVariable(tensor, is_output); };
  const auto keep = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) node->options[node->numbers++] = arguments[i];
  };
  const bool sink = function == MASKED_SOFTMAX && !arguments[2].isNone();
  node->set_next_edges(sink ? torch::autograd::collect_next_edges(argument(0), argument(2)) : torch::autograd::collect_next_edges(argument(0)));
  torch::autograd::set_history(result[0], node);
  switch (function) {
    case CROSS_ENTROPY:
      for (const Tensor* one : {&argument(0), &argument(1)}) save(*one, false);
      if (results.count == 3) {
        save(result[1], false), save(result[2], false);
      } else {  // as the dispatcher's call saves them, because checkpoints compare what both save
        const int64_t M = argument(0).size(0);
        save(part(result[1], 0, {M, 2}), false), save(part(result[1], 2 * M, {1}), false);
      }
      keep(2, 8);
      break;
    case LOGPROB:
      torch::autograd::set_history(result[1], node);
      for (const Tensor* one : {&argument(0), &argument(1), &result[2]}) save(*one, false);
      save(result[1], true);
      keep(2, 4);
      break;
    case MASKED_SOFTMAX:
      save(result[0], true);
      if (sink) save(result[1], false), node->dtype = argument(2).scalar_type();
      keep(3, 6);
      break;
    default:
      save(result[0], true);
      if (result[0].scalar_type() != argument(0).scalar_type()) node->dtype = argument(0).scalar_type();
      keep(1, 2);
  }
}

template <int number> void autograd(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  constexpr int function = number % FUNCTIONS;
  const size_t count = op.schema().arguments().size();
  const Arguments arguments = stack->data() + stack->size() - count;
  bool records = false, tangent = false;
  for (size_t i = 0; i < count; ++i) records |= requires_grad(arguments[i]), tangent |= has_tangent(arguments[i]);
  records &= at::GradMode::is_enabled();
  if (tangent && function > LOG_SOFTMAX) refuse_tangents(function, arguments, count);
  // Python has the gradients of backwards and of a bias, and the answer to a tangent of softmax.
  const bool of_bias = number == MASKED_SOFTMAX && requires_grad(arguments[1]);
  if ((records && (number >= FUNCTIONS || of_bias)) || tangent) return operators[number].autograd->callBoxed(op, keys, stack);
  IValue kept[MOST_ARGUMENTS];
  if (records) std::copy_n(arguments, count, kept);
  {
    const at::AutoDispatchBelowADInplaceOrView guard;
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
  }
  if (records) record(function, kept, results_of(op, *stack));
}

}  // namespace

Tensor numbers_of_part(const Tensor& x, const Tensor& target, int64_t first, double softcap, double scale) {
  if (!is_direct(x.key_set() | target.key_set())) return {};
  const Tensor local = first ? target.sub(first) : target;
  if (!logits_fit(CROSS_ENTROPY, x, local)) return {};
  const Launch launch(CROSS_ENTROPY, FORWARD, x, COUNTERS);
  if (!launch.function) return {};
  const int64_t M = x.size(0), no_class = std::numeric_limits<int64_t>::min();
  const int dtype = number_of(x.scalar_type());
  Tensor found = fresh({3 * M}, c10::kFloat, x);
  float* const statistics = static_cast<float*>(written(found));
  if (!launch(read(x), read(local), (void*)(statistics + 2 * M), (void*)nullptr, (void*)statistics, no_class, 0.0f, 0.0f, float(softcap), float(scale), x.stride(0), M,
              x.size(1), dtype, dtype))
    return {};
  return found;
}

void record_part(const IValue* arguments, const Results& results, int64_t classes) { record(CROSS_ENTROPY, arguments, results, classes, true); }

Results call(int number, const IValue* arguments, size_t count) {
  bool records = at::GradMode::is_enabled() && !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradFunctionality);
  if (records) records = std::any_of(arguments, arguments + count, requires_grad);
  // The entries refuse tangents, but an incoming gradient may have one.
  const bool of_gradients = number >= FUNCTIONS && (records || std::any_of(arguments, arguments + count, [](const IValue& one) { return has_tangent(one); }));
  if (!of_gradients && is_direct(arguments, count)) {
    Results found = kernels<true>[number](number % FUNCTIONS, arguments);
    if (found.count && records) record(number, arguments, found);
    if (found.count) return found;
  }
  Stack stack(arguments, arguments + count);
  operators[number].handle->callBoxed(stack);
  return results_of(*operators[number].handle, stack);
}

namespace {

// ---- Registration.

constexpr const char* NAMES[OPERATORS] = {
    "cuda_softmax",          "cuda_log_softmax",          "cross_entropy",          "logprob",          "masked_softmax",
    "cuda_softmax_backward", "cuda_log_softmax_backward", "cross_entropy_backward", "logprob_backward", "masked_softmax_backward"};
std::vector<std::unique_ptr<torch::Library>> libraries;
std::set<std::pair<int, c10::DispatchKey>> implemented;
std::mutex mutex;
std::string error;

using Make = torch::CppFunction (*)();
template <int... numbers> Make kernel_of(int number, std::integer_sequence<int, numbers...>) {
  static constexpr Make makers[] = {[] { return torch::CppFunction::makeFromBoxedFunction<&kernel<numbers>>(); }...};
  return makers[number];
}
template <int... numbers> Make autograd_of(int number, std::integer_sequence<int, numbers...>) {
  static constexpr Make makers[] = {[] { return torch::CppFunction::makeFromBoxedFunction<&autograd<numbers>>(); }...};
  return makers[number];
}

void implement(int number, c10::DispatchKey key) {
  constexpr auto all = std::make_integer_sequence<int, OPERATORS>();
  if (!implemented.emplace(number, key).second) return;  // a second time, what this file registered would count as Python's
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow((std::string("softbench::") + NAMES[number]).c_str(), "");
  const auto autograd_key = c10::getAutogradKeyFromBackend(c10::toBackendComponent(key));
  operators[number].kernel.emplace(handle.getComputedKernelForDispatchKey(key));
  operators[number].autograd.emplace(handle.getComputedKernelForDispatchKey(autograd_key));
  operators[number].handle.emplace(handle);
  for (const bool above : {false, true}) {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "softbench", above ? autograd_key : key, "operators.cpp", 0);
    library->impl(NAMES[number], (above ? autograd_of(number, all) : kernel_of(number, all))());
    libraries.push_back(std::move(library));
  }
}

}  // namespace
}  // namespace softbench_host

using namespace softbench_host;

extern "C" {

// Replaces the kernel for a backend such as CUDA, and its autograd, of an operator by its number. Returns 0, or 1 after an error.
int softbench_implement(int number, const char* backend) {
  const std::lock_guard<std::mutex> lock(mutex);
  Silent silent;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silent);
  try {
    const auto key = c10::parseDispatchKey(backend);
    implement(number, key);
    device_type.store(key == c10::DispatchKey::CUDA ? c10::kCUDA : c10::kCPU);
    return 0;
  } catch (const std::exception& raised) {
    error = raised.what();
    return 1;
  }
}

// Undoes all of `softbench_implement`. No call may run meanwhile.
void softbench_withdraw() {
  const std::lock_guard<std::mutex> lock(mutex);
  libraries.clear();
  implemented.clear();
  device_type.store(c10::kCUDA);
}

const char* softbench_operators_error() { return error.c_str(); }

// How launches find the current stream of a device, and whether a graph captures it.
void softbench_streams(void* current, void* capturing) {
  current_stream.store(reinterpret_cast<CurrentStream*>(current));
  is_capturing.store(reinterpret_cast<IsCapturing*>(capturing));
}

// `which` of the functions of a library is at `address` for a device; null: Python launches.
void softbench_launcher(int function, int which, int device, void* address) { addresses[function][which][device].store(address, std::memory_order_release); }

// Whether the CUDA kernels were chosen for a function, a device and a dtype.
void softbench_choose(int function, int device, int dtype, int yes) {
  if (yes) chosen[function][device].fetch_or(uint8_t(1 << dtype));
  else chosen[function][device].fetch_and(uint8_t(~(1 << dtype)));
}

// Later launches on a stream have this workspace. It stays allocated.
void softbench_workspace(int kind, int device, void* stream, void* memory, int64_t bytes) {
  const std::unique_lock<std::shared_mutex> lock(workspaces_mutex);
  workspaces[{kind, device, stream}] = {memory, bytes};
}
}
