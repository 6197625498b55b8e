// Functions that Python calls for the functions of `softbench.kernels`: they check the usual arguments, and call an operator without the
// Python of torch.ops. Calls within a transform of torch.func or in forward mode are Python's. None as the result means that Python has to make the call, which also says what is wrong with an argument.

#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include "operators.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_unsafe_view.h>

#include <cmath>

namespace softbench_host {
namespace {

using at::Tensor;

// The tensor of a Python object; undefined if it is something else, such as a tensor of a subclass.
Tensor tensor_of(PyObject* object) { return THPVariable_CheckExact(object) ? THPVariable_Unpack(object) : Tensor(); }

bool is_modified() {
  return at::impl::torch_function_mode_enabled() || c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// Whether C++ may call a function with x. Nested and sparse tensors are torch's.
bool is_taken(Function function, const Tensor& x) {
  return x.defined() && is_chosen(function, x) && x.layout() == c10::kStrided && !x.is_nested() && !has_tangent(x);
}

// The dtype of a result that the caller did not choose, as torch has it.
c10::ScalarType result_dtype(const Tensor& x) {
  return x.scalar_type() != c10::kFloat && at::autocast::is_autocast_enabled(x.device().type()) ? c10::kFloat : x.scalar_type();
}

// The first results of an operator; one result may be converted and get a shape.
template <size_t count>
PyObject* called(Function function, const c10::IValue (&arguments)[count], size_t wanted = 1, std::optional<c10::ScalarType> dtype = std::nullopt, c10::OptionalIntArrayRef sizes = std::nullopt) {
  Results results;
  Tensor& first = results.tensors[0];
  {
    std::optional<pybind11::gil_scoped_release> no_gil;
    if (function != MASKED_SOFTMAX) no_gil.emplace();  // Python launches that
    results = call(function, arguments, count);
    if (dtype && first.scalar_type() != *dtype) first = first.to(*dtype);
    if (sizes) first = at::_unsafe_view(first, *sizes);  // nothing has its base, and torch's result is no view either
  }
  if (wanted == 1) return THPVariable_Wrap(std::move(first));
  PyObject* const tuple = PyTuple_New(Py_ssize_t(wanted));
  for (size_t i = 0; tuple && i < wanted; ++i) PyTuple_SET_ITEM(tuple, Py_ssize_t(i), THPVariable_Wrap(std::move(results.tensors[i])));
  return tuple;
}

bool integer(PyObject* object, int64_t& value) {
  if (!PyLong_CheckExact(object)) return false;
  int overflow = 0;
  value = PyLong_AsLongLongAndOverflow(object, &overflow);
  return !overflow;
}
bool real(PyObject* object, double& value) {
  if (PyFloat_CheckExact(object)) return value = PyFloat_AS_DOUBLE(object), true;
  int64_t whole;
  return integer(object, whole) && (value = double(whole), true);
}

template <Function function> PyObject* call_rows(PyObject*, PyObject* const* arguments, Py_ssize_t count) {  // x, dim, dtype
  HANDLE_TH_ERRORS
  int64_t dim;
  if (count != 3 || (arguments[2] != Py_None && !THPDtype_Check(arguments[2])) || is_modified() || !integer(arguments[1], dim)) Py_RETURN_NONE;
  Tensor x = tensor_of(arguments[0]);
  if (!is_taken(function, x) || (dim != -1 && dim != x.dim() - 1)) Py_RETURN_NONE;
  const c10::ScalarType own = x.scalar_type(), dtype = arguments[2] == Py_None ? result_dtype(x) : reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  if (dtype != own && dtype != c10::kFloat) Py_RETURN_NONE;  // torch casts
  return called(function, {std::move(x), dim, dtype == own ? c10::IValue() : c10::IValue(dtype)});
  END_HANDLE_TH_ERRORS
}

// Whether x and target are logits (..., V) and their class numbers (...), on one device.
bool fit(Function function, const Tensor& x, const Tensor& target) {
  if (!is_taken(function, x) || !target.defined() || x.dim() < 2 || target.scalar_type() != c10::kLong || target.device() != x.device()) return false;
  return target.dim() == x.dim() - 1 && target.sizes() == x.sizes().slice(0, size_t(target.dim())) && x.numel() > 0;
}

bool reduction_of(PyObject* name, int64_t& value) {
  constexpr const char* names[] = {"none", "mean", "sum"};
  for (value = MEAN; PyUnicode_CheckExact(name); value = value == MEAN ? NONE : SUM) {  // the default first
    if (!PyUnicode_CompareWithASCIIString(name, names[value])) return true;
    if (value == SUM) break;
  }
  return false;
}

// input, target, reduction, ignore_index, label_smoothing, z_loss, softcap or None, logit_scale, dim, and the dtype of the loss or None
PyObject* call_cross_entropy(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  int64_t ignore_index, reduction, dim;
  double smoothing, z_loss, softcap = 0, scale;
  if (count != 10 || is_modified() || !reduction_of(arguments[2], reduction) || !integer(arguments[3], ignore_index) || !real(arguments[4], smoothing) ||
      !real(arguments[5], z_loss) || (arguments[6] != Py_None && !real(arguments[6], softcap)) || !real(arguments[7], scale) || !integer(arguments[8], dim) || !(smoothing >= 0 && smoothing <= 1) ||
      !(z_loss >= 0 && z_loss < HUGE_VAL) || !(softcap >= 0 && softcap < HUGE_VAL) || !(scale > 0 && scale < HUGE_VAL) ||
      (arguments[9] != Py_None && !(THPDtype_Check(arguments[9]) && c10::isFloatingType(reinterpret_cast<THPDtype*>(arguments[9])->scalar_type))))
    Py_RETURN_NONE;
  Tensor x = tensor_of(arguments[0]), target = tensor_of(arguments[1]);
  if (!fit(CROSS_ENTROPY, x, target) || (dim != -1 && dim != x.dim() - 1)) Py_RETURN_NONE;
  const c10::ScalarType dtype = arguments[9] == Py_None ? result_dtype(x) : reinterpret_cast<THPDtype*>(arguments[9])->scalar_type;
  const bool as_target = x.dim() > 2 && reduction == NONE;
  c10::DimVector sizes;
  if (x.dim() > 2) {
    sizes = target.sizes();
    x = x.reshape({target.numel(), x.size(-1)});
    target = target.reshape({target.numel()});
  }
  return called(CROSS_ENTROPY, {std::move(x), std::move(target), ignore_index, smoothing, z_loss, softcap, reduction, scale}, 1, dtype,
                as_target ? c10::OptionalIntArrayRef(sizes) : std::nullopt);
  END_HANDLE_TH_ERRORS
}

PyObject* call_logprob(PyObject*, PyObject* const* arguments, Py_ssize_t count) {  // logits, target, ignore_index, temperature
  HANDLE_TH_ERRORS
  int64_t ignore_index;
  double temperature;
  if (count != 4 || is_modified() || !integer(arguments[2], ignore_index) || !real(arguments[3], temperature) || !(temperature > 0 && temperature < HUGE_VAL))
    Py_RETURN_NONE;
  Tensor x = tensor_of(arguments[0]), target = tensor_of(arguments[1]);
  if (!fit(LOGPROB, x, target) || x.dim() != 2) Py_RETURN_NONE;
  return called(LOGPROB, {std::move(x), std::move(target), ignore_index, 1 / temperature}, 2);
  END_HANDLE_TH_ERRORS
}

PyObject* launches_of_scores[2];  // by pass; only with the GIL

void launch_scores_by_python(int pass, const std::array<Tensor, 5>& tensors, double scale, bool causal) {
  const pybind11::gil_scoped_acquire gil;
  THPObjectPtr objects[6];
  PyObject* given[7];
  for (size_t i = 0; i < 5; ++i) given[i] = objects[i] = THPVariable_Wrap(tensors[i]);  // None of an undefined one
  given[5] = objects[5] = PyFloat_FromDouble(scale);
  given[6] = causal ? Py_True : Py_False;
  const THPObjectPtr done(PyObject_Vectorcall(launches_of_scores[pass], given, 7, nullptr));
  if (!done) {
    python_error raised;
    raised.persist();
    throw raised;
  }
}

// Python's launches of the forward and of the backward of masked_softmax.
PyObject* take_launches_of_scores(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) Py_RETURN_NONE;
  for (int pass = 0; pass < 2; ++pass) launches_of_scores[pass] = Py_NewRef(arguments[pass]);
  launch_scores.store(&launch_scores_by_python, std::memory_order_release);
  Py_RETURN_NONE;
}

PyObject* call_masked_softmax(PyObject*, PyObject* const* arguments, Py_ssize_t count) {  // scores, mask, sink, scale, causal
  HANDLE_TH_ERRORS
  double scale;
  if (count != 5 || is_modified() || !real(arguments[3], scale) || !PyBool_Check(arguments[4])) Py_RETURN_NONE;
  Tensor x = tensor_of(arguments[0]);
  if (!is_taken(MASKED_SOFTMAX, x) || x.dim() != 4) Py_RETURN_NONE;
  c10::IValue mask, sink;
  if (arguments[1] != Py_None) {
    Tensor given = tensor_of(arguments[1]);
    const bool fits = given.defined() && given.dim() <= 4 && !given.requires_grad() && !has_tangent(given) && (given.scalar_type() == c10::kBool || number_of(given.scalar_type()) >= 0);
    if (!fits || given.device() != x.device()) Py_RETURN_NONE;
    for (int64_t d = 1; d <= given.dim(); ++d)
      if (given.size(-d) != 1 && given.size(-d) != x.size(-d)) Py_RETURN_NONE;
    mask = std::move(given);
  }
  if (arguments[2] != Py_None) {
    Tensor given = tensor_of(arguments[2]);
    if (!given.defined() || given.scalar_type() != c10::kFloat || given.dim() != 1 || given.size(0) != x.size(1) || given.device() != x.device() || has_tangent(given)) Py_RETURN_NONE;
    sink = std::move(given);
  }
  return called(MASKED_SOFTMAX, {std::move(x), std::move(mask), std::move(sink), scale, arguments[4] == Py_True, false});
  END_HANDLE_TH_ERRORS
}

PyObject* numbers(PyObject*, PyObject* const* arguments, Py_ssize_t count) {  // x, target, first class, softcap, logit_scale: numbers_of_part
  HANDLE_TH_ERRORS
  int64_t first;
  double softcap, scale;
  if (count != 5 || is_modified() || !integer(arguments[2], first) || !real(arguments[3], softcap) || !real(arguments[4], scale)) Py_RETURN_NONE;
  const Tensor x = tensor_of(arguments[0]), target = tensor_of(arguments[1]);
  if (!fit(CROSS_ENTROPY, x, target)) Py_RETURN_NONE;
  Tensor found;
  {
    const pybind11::gil_scoped_release no_gil;
    found = numbers_of_part(x, target, first, softcap, scale);
  }
  if (!found.defined()) Py_RETURN_NONE;
  return THPVariable_Wrap(std::move(found));
  END_HANDLE_TH_ERRORS
}

// loss, x, target, statistics, counted, the options of cross_entropy, classes: the loss, now with a gradient in x. None: Python records it.
PyObject* record_loss(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Tensor given[5];
  int64_t ignore_index, reduction, classes;
  double smoothing, z_loss, softcap, scale;
  if (count != 12 || is_modified() || !integer(arguments[5], ignore_index) || !real(arguments[6], smoothing) || !real(arguments[7], z_loss) ||
      !real(arguments[8], softcap) || !integer(arguments[9], reduction) || !real(arguments[10], scale) || !integer(arguments[11], classes))
    Py_RETURN_NONE;
  for (int i = 0; i < 5; ++i) {
    given[i] = tensor_of(arguments[i]);
    if (!given[i].defined()) Py_RETURN_NONE;
  }
  if (!is_taken(CROSS_ENTROPY, given[1])) Py_RETURN_NONE;
  const c10::IValue of_call[] = {given[1], given[2], ignore_index, smoothing, z_loss, softcap, reduction, scale};
  record_part(of_call, {given[0], given[3], given[4]}, classes);
  return Py_NewRef(arguments[0]);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"softmax", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_rows<SOFTMAX>)), METH_FASTCALL, nullptr},
    {"log_softmax", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_rows<LOG_SOFTMAX>)), METH_FASTCALL, nullptr},
    {"cross_entropy", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_cross_entropy)), METH_FASTCALL, nullptr},
    {"logprob", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_logprob)), METH_FASTCALL, nullptr},
    {"masked_softmax", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_masked_softmax)), METH_FASTCALL, nullptr},
    {"numbers_of_part", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&numbers)), METH_FASTCALL, nullptr},
    {"take_launches_of_scores", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&take_launches_of_scores)), METH_FASTCALL, nullptr},
    {"record_loss", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&record_loss)), METH_FASTCALL, nullptr},
};

}  // namespace
}  // namespace softbench_host

using namespace softbench_host;

// The function of a number in C.
extern "C" PyObject* softbench_entry(int function) { return PyCFunction_New(&methods[function], nullptr); }
