// Reads the arguments of a call from Python.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "shard/python/binding.h"

namespace shard::python {
namespace {

/// The text of a Python string, valid as long as the object. Null with a Python error.
const char* utf8(PyObject* text) {
  Py_ssize_t size;
  return PyUnicode_AsUTF8AndSize(text, &size);
}

/// The name of the type of an object: "int", "numpy.ndarray".
std::string type_name(PyObject* object) {
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  std::string text;
  for (const char* const attribute : {"__module__", "__qualname__"}) {
    PyObject* const value = PyObject_GetAttrString(type, attribute);
    const char* const part = value != nullptr && PyUnicode_Check(value) ? utf8(value) : nullptr;
    if (part != nullptr && std::strcmp(part, "builtins") != 0) text += (text.empty() ? "" : ".") + std::string(part);
    Py_XDECREF(value);
  }
  PyErr_Clear();
  return text;
}

[[noreturn]] void fail_call(const std::string& text) {
  PyErr_SetString(PyExc_TypeError, text.c_str());
  throw PythonError();
}

/// Ends a conversion that Python refused. Other errors than that, such as an interrupt, are passed on.
void forget_refusal() {
  if (PyErr_Occurred() == nullptr) return;
  if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError) &&
      !PyErr_ExceptionMatches(PyExc_OverflowError))
    throw PythonError();
  PyErr_Clear();
}

/// An integer, also one of another library (__index__), but no float. Nothing where the object is none, or is too large.
std::optional<int64_t> integer_of(PyObject* object) {
  int overflow = 0;
  if (PyLong_Check(object)) {
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow != 0 ? std::nullopt : std::optional<int64_t>(value);
  }
  if (PyIndex_Check(object) == 0) return std::nullopt;
  PyObject* const number = PyNumber_Index(object);
  if (number == nullptr) {
    forget_refusal();
    return std::nullopt;
  }
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  return overflow != 0 ? std::nullopt : std::optional<int64_t>(value);
}

std::optional<double> real_of(PyObject* object) {
  if (PyUnicode_Check(object) || PyBytes_Check(object)) return std::nullopt;
  const double value = PyFloat_AsDouble(object);
  if (value != -1.0 || PyErr_Occurred() == nullptr) return value;
  forget_refusal();
  return std::nullopt;
}

std::optional<Scalar> scalar_of(PyObject* object) {
  if (services->tensor(object) != nullptr) return std::nullopt;  // its value would have to be read: item() says so
  if (PyBool_Check(object)) return Scalar(object == Py_True);
  if (PyFloat_Check(object)) return Scalar(PyFloat_AsDouble(object));
  if (const std::optional<int64_t> integer = integer_of(object)) return Scalar(*integer);
  if (const std::optional<double> real = real_of(object)) return Scalar(*real);
  return std::nullopt;
}

/// A truth value of Python or NumPy. Numbers are none, so that axes passed in the place of flags are found.
std::optional<bool> truth_of(PyObject* object) {
  if (PyBool_Check(object)) return object == Py_True;
  const std::string type = type_name(object);
  if (type == "numpy.bool" || type == "numpy.bool_") return PyObject_IsTrue(object) == 1;
  return std::nullopt;
}

/// Whether a keyword names the parameter. Places of the YAML are also called "device".
bool is_named(PyObject* keyword, const Parameter& parameter) {
  if (PyUnicode_CompareWithASCIIString(keyword, parameter.name) == 0) return true;
  return std::strcmp(parameter.name, "place") == 0 && PyUnicode_CompareWithASCIIString(keyword, "device") == 0;
}

/// Whether a call passes all that the function needs, and nothing else.
bool fits(const Function& function, size_t by_position, PyObject* names) {
  if (by_position > function.parameters.size()) return false;
  const Py_ssize_t named = names != nullptr ? PyTuple_Size(names) : 0;
  Py_ssize_t known = 0;
  for (const Parameter& parameter : function.parameters.subspan(by_position)) {
    bool passed = false;
    for (Py_ssize_t k = 0; !passed && k < named; ++k) passed = is_named(PyTuple_GetItem(names, k), parameter);
    if (!passed && parameter.initial == nullptr) return false;
    known += passed ? 1 : 0;
  }
  return known == named;
}

}  // namespace

const Function& Arguments::chosen(const Function& function, bool method, Py_ssize_t count, PyObject* names) {
  if (function.overload == nullptr) return function;
  const size_t by_position = static_cast<size_t>(count) + (method ? 1 : 0);
  for (const Function* each = &function; each != nullptr; each = each->overload) {
    if (fits(*each, by_position, names)) return *each;
  }
  return function;
}

Arguments::Arguments(const Function& function, PyObject* self, PyObject* const* values, Py_ssize_t count,
                     PyObject* names)
    : function_(function) {
  const size_t size = function.parameters.size();
  PyObject* const* const keywords = values + count;
  size_t given = static_cast<size_t>(count) + (self != nullptr ? 1 : 0);
  if (function.ints >= 0 && given > static_cast<size_t>(function.ints) + 1)
    ints_.object = gathered(self, values, count);
  if (ints_.object != nullptr) given = static_cast<size_t>(function.ints) + 1;
  if (given > size)
    fail_call(fmt::format("[{}] takes {} arguments, but {} were passed: {}", function.name,
                          size - (self != nullptr ? 1 : 0), count, describe(function)));
  size_t i = 0;
  if (self != nullptr) values_[i++] = self;
  for (; i < given; ++i) values_[i] = *values++;
  if (ints_.object != nullptr) values_[function.ints] = ints_.object;
  for (; i < size; ++i) values_[i] = nullptr;
  if (names != nullptr) assign_names(keywords, names);
  for (i = given; i < size; ++i) {
    if (values_[i] == nullptr && function.parameters[i].initial == nullptr)
      fail_call(fmt::format("[{}] needs the argument '{}' ({}): {}", function.name, function.parameters[i].name,
                            function.parameters[i].accepts, describe(function)));
  }
}

PyObject* Arguments::gathered(PyObject* self, PyObject* const* values, Py_ssize_t count) const {
  const Py_ssize_t first = function_.ints - (self != nullptr ? 1 : 0);
  for (Py_ssize_t at = first; at < count; ++at) {
    if (PyBool_Check(values[at]) || PyIndex_Check(values[at]) == 0 || services->tensor(values[at]) != nullptr)
      return nullptr;
  }
  PyObject* const ints = PyTuple_New(count - first);
  if (ints == nullptr) throw PythonError();
  for (Py_ssize_t at = first; at < count; ++at) {
    Py_INCREF(values[at]);
    PyTuple_SetItem(ints, at - first, values[at]);
  }
  return ints;
}

void Arguments::assign_names(PyObject* const* values, PyObject* names) {
  const Py_ssize_t count = PyTuple_Size(names);
  for (Py_ssize_t k = 0; k < count; ++k) {
    PyObject* const name = PyTuple_GetItem(names, k);
    size_t i = 0;
    while (i < function_.parameters.size() && !is_named(name, function_.parameters[i])) ++i;
    if (i == function_.parameters.size())
      fail_call(fmt::format("[{}] has no argument '{}': {}", function_.name, utf8(name), describe(function_)));
    if (values_[i] != nullptr)
      fail_call(fmt::format("[{}] argument '{}' was passed twice", function_.name, utf8(name)));
    values_[i] = values[k];
  }
}

std::string describe(const Function& function) {
  std::string text = std::string(function.name) + "(";
  for (const Parameter& parameter : function.parameters) {
    if (&parameter != function.parameters.data()) text += ", ";
    text += fmt::format("{}: {}", parameter.name, parameter.accepts);
    if (parameter.initial != nullptr) text += fmt::format(" = {}", parameter.initial);
  }
  return text + ")";
}

void Arguments::fail_type(int i, const char* hint) {
  const Parameter& parameter = function_.parameters[static_cast<size_t>(i)];
  fail_call(fmt::format("[{}] argument '{}' must be {}, not {}{}", function_.name, parameter.name, parameter.accepts,
                        type_name(values_[i]), hint));
}

void Arguments::fail_item(int i, Py_ssize_t at, PyObject* list) {
  const Parameter& parameter = function_.parameters[static_cast<size_t>(i)];
  PyErr_Clear();
  PyObject* const item = PySequence_GetItem(list, at);
  const std::string type = item != nullptr ? type_name(item) : "missing";
  Py_XDECREF(item);
  PyErr_Clear();
  fail_call(fmt::format("[{}] argument '{}' must be {}, but its item {} is {}", function_.name, parameter.name,
                        parameter.accepts, at, type));
}

void Arguments::note(const Tensor& tensor) {
  if (!tensor.defined()) return;
  records_ |= tensor.impl()->grad.requires_grad;
  distributed_ |= tensor.is_dist();
}

Tensor& Arguments::required_tensor(int i) {
  Tensor* const tensor = services->tensor(values_[i]);
  if (tensor == nullptr)
    fail_type(i,
              PyFloat_Check(values_[i]) || PyLong_Check(values_[i])
                  ? "; shard.full makes a tensor of a number, and the operators (+, -, *, /) take numbers as they are"
                  : "; shard.tensor makes a tensor of data");
  note(*tensor);
  return *tensor;
}

const Tensor& Arguments::optional_tensor(int i) { return given_and_not_none(i) ? required_tensor(i) : absent_; }

Tensor& Arguments::target(int i) {
  Tensor& tensor = required_tensor(i);
  writes_ = true;
  targets_.emplace_back(values_[i], &tensor);
  return tensor;
}

Tensor& Arguments::optional_target(int i) { return given_and_not_none(i) ? target(i) : absent_; }

std::vector<Tensor> Arguments::tensors_of(int i, bool writable) {
  std::vector<Tensor> tensors;
  if (writable && !PyList_Check(values_[i])) fail_type(i, "; the call writes it in place");
  each_item(i, [&](PyObject* item) {
    Tensor* const tensor = services->tensor(item);
    if (tensor == nullptr) return false;
    note(*tensor);
    tensors.push_back(*tensor);
    return true;
  });
  return tensors;
}

std::vector<Tensor>& Arguments::targets(int i) {
  writes_ = true;
  const Parameter& parameter = function_.parameters[static_cast<size_t>(i)];
  const bool optional = std::string_view(parameter.accepts).ends_with("None");
  const bool absent = optional && !given_and_not_none(i);
  lists_.push_back(std::make_unique<List>(List{i, absent ? std::vector<Tensor>() : tensors_of(i, true)}));
  return lists_.back()->tensors;
}

PyObject* Arguments::sequence(int i) {
  PyObject* const value = values_[i];
  if (!PyList_Check(value) && !PyTuple_Check(value)) fail_type(i);
  return value;
}

void Arguments::finish() {
  for (const std::unique_ptr<List>& list : lists_) {
    for (size_t at = 0; at < list->tensors.size(); ++at) {
      PyObject* const item = PySequence_GetItem(values_[list->position], static_cast<Py_ssize_t>(at));
      if (item == nullptr) throw PythonError();
      if (Tensor* const tensor = services->tensor(item)) *tensor = list->tensors[at];
      Py_DECREF(item);
    }
  }
}

CallSite Arguments::site_for_call() const {
  // To look the line up takes as long as a small op. Only calls that keep it need it.
  return writes_ || (records_ && grad_enabled()) || this_thread.tracer != nullptr ? services->site() : CallSite{};
}

const DistSpec* Arguments::layout(int i, int shape) {
  if (!given_and_not_none(i)) return nullptr;
  int rank = -1;
  if (shape >= 0 && given(shape)) {
    const Py_ssize_t size = PyObject_Size(values_[shape]);
    PyErr_Clear();
    rank = size < 0 ? 1 : static_cast<int>(size);
  }
  const DistSpec* const spec = services->layout(values_[i], rank);
  if (spec == nullptr) fail_type(i);
  return spec;
}

void Arguments::read(int i, bool& value) {
  const std::optional<bool> truth = truth_of(values_[i]);
  if (!truth) fail_type(i);
  value = *truth;
}

void Arguments::read(int i, int64_t& value) {
  const std::optional<int64_t> integer = PyBool_Check(values_[i]) ? std::nullopt : integer_of(values_[i]);
  if (!integer) fail_type(i, PyLong_Check(values_[i]) && !PyBool_Check(values_[i]) ? " of more than 64 bits" : "");
  value = *integer;
}

void Arguments::read(int i, int& value) {
  int64_t wide;
  read(i, wide);
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max())
    fail_type(i, " of more than 32 bits");
  value = static_cast<int>(wide);
}

void Arguments::read(int i, double& value) {
  const std::optional<double> real = services->tensor(values_[i]) != nullptr ? std::nullopt : real_of(values_[i]);
  if (!real) fail_type(i);
  value = *real;
}

void Arguments::read(int i, float& value) {
  double wide;
  read(i, wide);
  value = static_cast<float>(wide);
}

void Arguments::read(int i, std::string& value) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_Check(values_[i]) ? PyUnicode_AsUTF8AndSize(values_[i], &size) : nullptr;
  if (text == nullptr) fail_type(i);
  value.assign(text, static_cast<size_t>(size));
}

void Arguments::read(int i, DType& value) {
  if (!services->dtype(values_[i], value)) fail_type(i);
}

void Arguments::read(int i, Device& value) {
  if (values_[i] == Py_None) value = default_device();
  else if (!services->device(values_[i], value)) fail_type(i);
}

void Arguments::read(int i, Scalar& value) {
  const std::optional<Scalar> scalar = scalar_of(values_[i]);
  if (!scalar) fail_type(i, services->tensor(values_[i]) != nullptr ? "; item() reads the number of a tensor" : "");
  value = *scalar;
}

void Arguments::read(int i, IntArray& value) {
  if (!PyList_Check(values_[i]) && !PyTuple_Check(values_[i])) {
    int64_t one;
    read(i, one);
    value.push_back(one);
    return;
  }
  each_item(i, [&](PyObject* item) {
    const std::optional<int64_t> integer = PyBool_Check(item) ? std::nullopt : integer_of(item);
    if (integer) value.push_back(*integer);
    return integer.has_value();
  });
}

bool Arguments::append(PyObject* item, std::vector<bool>& values) {
  const std::optional<bool> truth = truth_of(item);
  if (truth) values.push_back(*truth);
  return truth.has_value();
}

bool Arguments::append(PyObject* item, std::vector<double>& values) {
  const std::optional<double> real = real_of(item);
  if (real) values.push_back(*real);
  return real.has_value();
}

bool Arguments::append(PyObject* item, std::vector<float>& values) {
  const std::optional<double> real = real_of(item);
  if (real) values.push_back(static_cast<float>(*real));
  return real.has_value();
}

bool Arguments::append(PyObject* item, std::vector<std::string>& values) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_Check(item) ? PyUnicode_AsUTF8AndSize(item, &size) : nullptr;
  if (text != nullptr) values.emplace_back(text, static_cast<size_t>(size));
  return text != nullptr;
}

bool Arguments::append(PyObject* item, std::vector<Scalar>& values) {
  const std::optional<Scalar> scalar = scalar_of(item);
  if (scalar) values.push_back(*scalar);
  return scalar.has_value();
}

}  // namespace shard::python
