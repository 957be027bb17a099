// What generated bindings call: a binding takes its arguments from Python, calls the op without holding the interpreter's lock, and
// returns the results to Python. Needs the module shard._core at run time, and nothing of nanobind.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <concepts>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <shard/runtime.h>

namespace shard::python {

/// What shard._core does for bindings. It hands them a pointer to its table when they are imported.
struct Services {
  /// The layout of this table. A module that was compiled for another one is refused.
  static constexpr int kVersion = 1;

  int version = kVersion;
  /// The tensor that a Python object holds, or null.
  Tensor* (*tensor)(PyObject* object) = nullptr;
  /// A new Python object that holds the tensor.
  PyObject* (*wrap)(Tensor tensor) = nullptr;
  /// Reads a dtype or a device. False where the object is none.
  bool (*dtype)(PyObject* object, DType& dtype) = nullptr;
  bool (*device)(PyObject* object, Device& device) = nullptr;
  /// The layout that an object stands for, of a tensor with `rank` dims (-1: not known). Null where it is none.
  const DistSpec* (*layout)(PyObject* object, int rank) = nullptr;
  /// Sets the Python error for the C++ exception that is being handled.
  void (*raise)() = nullptr;
  /// The line of the Python program that is running.
  CallSite (*site)() = nullptr;
};

/// The table of shard._core; null before connect().
extern const Services* services;
/// Imports shard._core. Returns false with a Python error where that fails, or is of another version.
bool connect();

/// A Python exception on its way through C++ code.
class PythonError final : public std::exception {
 public:
  /// Takes the current Python error.
  PythonError();
  PythonError(const PythonError& other);
  ~PythonError() override;
  /// Makes it the current Python error again.
  void restore() const;
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  PyObject* error_;
  std::string text_;
};

/// PyEval_RestoreThread and PyGILState_Ensure, for other threads than the main one after the interpreter has begun to end: they never
/// return then, as in Python 3.14. Earlier ones would end the thread by unwinding its frames of C++, which ends the process.
void restore_thread(PyThreadState* state);
PyGILState_STATE ensure_lock();

/// Waits and computes without the interpreter's lock for a scope, unless told to keep it.
class ReleaseLock {
 public:
  explicit ReleaseLock(bool keep = false) : state_(keep ? nullptr : PyEval_SaveThread()) {}
  ReleaseLock(const ReleaseLock&) = delete;
  ReleaseLock& operator=(const ReleaseLock&) = delete;
  ~ReleaseLock() {
    if (state_ != nullptr) restore_thread(state_);
  }

 private:
  PyThreadState* state_;  // null where it was kept
};

/// Holds the interpreter's lock for a scope, in any thread.
class HoldLock {
 public:
  HoldLock() : state_(ensure_lock()) {}
  HoldLock(const HoldLock&) = delete;
  HoldLock& operator=(const HoldLock&) = delete;
  ~HoldLock() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

struct Parameter {
  const char* name;
  /// The accepted types, as messages and stubs have them: "int | Sequence[int]".
  const char* accepts;
  /// The default as Python writes it; null for an argument that must be passed.
  const char* initial = nullptr;
};

inline constexpr size_t kMaxParameters = 48;

struct Function;

/// The arguments of one call, by position. Functions that read one throw PythonError (a TypeError) for a wrong type.
class Arguments {
 public:
  /// `self`: the first argument of a method, else null. Throws for missing, unknown and repeated arguments.
  Arguments(const Function& function, PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  /// The function itself, or the first of its overloads that the arguments of a call fit.
  static const Function& chosen(const Function& function, bool method, Py_ssize_t count, PyObject* names);

  bool given(int i) const { return values_[static_cast<size_t>(i)] != nullptr; }
  bool given_and_not_none(int i) const { return given(i) && values_[static_cast<size_t>(i)] != Py_None; }

  const Tensor& tensor(int i) { return required_tensor(i); }
  /// Undefined for None.
  const Tensor& optional_tensor(int i);
  std::vector<Tensor> tensors(int i) { return tensors_of(i, false); }
  /// Empty for None.
  std::vector<Tensor> optional_tensors(int i) { return given_and_not_none(i) ? tensors(i) : std::vector<Tensor>(); }
  /// An argument that the call writes in place.
  Tensor& target(int i);
  /// The same for an optional one. None becomes an undefined tensor.
  Tensor& optional_target(int i);
  /// A list that is written in place. The Python list keeps its tensors.
  std::vector<Tensor>& targets(int i);

  /// An attribute.
  template <class T>
  T value(int i) {
    T result{};
    read(i, result);
    return result;
  }
  /// Null unless given. `shape`: the position of the argument whose length is the number of dims, or -1.
  const DistSpec* layout(int i, int shape);

  /// Calls `function`, with the call site where it takes one, and returns its results: a tensor, a list for several in one output, a
  /// tuple for several outputs. An undefined tensor is None, and a reference is the argument itself.
  template <class Function>
  PyObject* call(Function function) {
    return call_with(function, false);
  }
  /// The same for an op that makes views alone. With plain tensors it takes less time than to hand the interpreter's lock over, so keeps it.
  template <class Function>
  PyObject* call_view(Function function) {
    return call_with(function, !distributed_);
  }

 private:
  template <class Function>
  PyObject* call_with(Function function, bool keep_lock) {
    if constexpr (std::invocable<Function, CallSite>) {
      const CallSite site = site_for_call();
      return returned([&]() -> decltype(auto) { return function(site); }, keep_lock);
    } else {
      return returned(function, keep_lock);
    }
  }
  template <class Function>
  PyObject* returned(Function function, bool keep_lock) {
    using Result = decltype(function());
    if constexpr (std::is_void_v<Result>) {
      {
        const ReleaseLock release(keep_lock);
        function();
      }
      finish();
      return none();
    } else {
      std::optional<Held<Result>> result;
      {
        const ReleaseLock release(keep_lock);
        result.emplace(Held<Result>{function()});
      }
      finish();
      return to_python(static_cast<Result&&>(result->value));
    }
  }
  /// A result, which may be a reference.
  template <class T>
  struct Held {
    T value;
  };

  PyObject* to_python(Tensor&& tensor);
  PyObject* to_python(Tensor& target);  // an argument
  PyObject* to_python(std::vector<Tensor>&& tensors);
  PyObject* to_python(std::vector<Tensor>& targets);
  template <class... T>
  PyObject* to_python(std::tuple<T...>&& results) {
    return std::apply(
        [&](auto&&... each) {
          PyObject* const items[] = {to_python(static_cast<T&&>(each))...};
          return tuple_of(items);
        },
        std::move(results));
  }
  static PyObject* none();
  static PyObject* tuple_of(std::span<PyObject* const> items);

  void read(int i, bool& value);
  void read(int i, int& value);
  void read(int i, int64_t& value);
  void read(int i, float& value);
  void read(int i, double& value);
  void read(int i, std::string& value);
  void read(int i, DType& value);
  void read(int i, Device& value);
  void read(int i, Scalar& value);
  void read(int i, IntArray& value);
  template <class T>
  void read(int i, std::optional<T>& value) {
    if (given_and_not_none(i)) read(i, value.emplace());
  }
  template <class T>
  void read(int i, std::vector<T>& values) {
    each_item(i, [&](PyObject* item) { return append(item, values); });
  }
  static bool append(PyObject* item, std::vector<bool>& values);
  static bool append(PyObject* item, std::vector<float>& values);
  static bool append(PyObject* item, std::vector<double>& values);
  static bool append(PyObject* item, std::vector<std::string>& values);
  static bool append(PyObject* item, std::vector<Scalar>& values);
  /// Calls f(item) for each item of a list or tuple. False from f is a TypeError.
  template <class F>
  void each_item(int i, F f) {
    PyObject* const list = sequence(i);
    for (Py_ssize_t at = 0; at < (PyList_Check(list) ? PyList_Size(list) : PyTuple_Size(list)); ++at) {
      PyObject* const item = item_of(list, at);
      const bool good = item != nullptr && f(item);
      Py_XDECREF(item);
      if (!good) fail_item(i, at, list);
    }
  }

  /// The ints of a call that passes them one by one, as a tuple; null where it does not.
  PyObject* gathered(PyObject* self, PyObject* const* values, Py_ssize_t count) const;
  void note(const Tensor& tensor);
  Tensor& required_tensor(int i);
  std::vector<Tensor> tensors_of(int i, bool writable);
  PyObject* sequence(int i);
  /// A new reference to an item of a list or tuple. Null with a Python error.
  static PyObject* item_of(PyObject* list, Py_ssize_t at) {
#ifndef Py_GIL_DISABLED
    PyObject* const item = PyList_Check(list) ? PyList_GetItem(list, at) : PyTuple_GetItem(list, at);
    Py_XINCREF(item);
    return item;
#else
    return PySequence_GetItem(list, at);
#endif
  }
  [[noreturn]] void fail_type(int i, const char* hint = "");
  [[noreturn]] void fail_item(int i, Py_ssize_t at, PyObject* list);
  void assign_names(PyObject* const* values, PyObject* names);
  CallSite site_for_call() const;
  /// After the call: the lists that were written in place get their tensors back.
  void finish();

  struct List {
    int position;
    std::vector<Tensor> tensors;
  };

  const Function& function_;
  PyObject* values_[kMaxParameters];  // borrowed; null: not passed
  struct Owned {
    PyObject* object = nullptr;
    ~Owned() { Py_XDECREF(object); }
  };
  Owned ints_;  // those that were passed one by one, as a tuple
  bool writes_ = false;
  bool records_ = false;      // a tensor among the arguments requires a gradient
  bool distributed_ = false;  // or is distributed
  std::vector<std::pair<PyObject*, Tensor*>> targets_;
  std::vector<std::unique_ptr<List>> lists_;
  Tensor absent_;
};

/// An attribute, or its default where it is not passed or None.
template <class T>
T value(Arguments& arguments, int i) {
  return arguments.value<T>(i);
}
template <class T>
T value(Arguments& arguments, int i, const T& initial) {
  return arguments.given_and_not_none(i) ? arguments.value<T>(i) : initial;
}

/// A function of a generated API.
struct Function {
  const char* name;
  std::span<const Parameter> parameters;
  PyObject* (*body)(Arguments& arguments);
  const char* doc;
  /// The position of ints that may be passed one by one, as in reshape(x, 3, 2), or -1.
  int ints = -1;
  /// What calls mean that lack arguments of this function; null: nothing.
  const Function* overload = nullptr;
};

/// "add(x: Tensor, y: Tensor)"
std::string describe(const Function& function);
/// Calls the function. Sets the Python error and returns null where it throws.
PyObject* run(const Function& function, PyObject* self, PyObject* const* values, Py_ssize_t count,
              PyObject* names) noexcept;

/// A function of a module and, where its first argument is a tensor, a method of tensors.
struct Binding {
  const Function* function;
  PyCFunction entry;
  PyCFunction method;  // or null
};

/// How Python calls a function whose arguments it passes as an array.
using FastCall = PyObject* (*)(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names);
inline PyCFunction as_entry(FastCall call) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call)); }

template <const Function& function, bool method>
Binding bind() {
  static_assert(function.parameters.size() <= kMaxParameters, "raise kMaxParameters: an op has more parameters");
  const FastCall entry = [](PyObject*, PyObject* const* values, Py_ssize_t count, PyObject* names) {
    return run(function, nullptr, values, count, names);
  };
  if constexpr (!method) return {&function, as_entry(entry), nullptr};
  const FastCall bound = [](PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
    return run(function, self, values, count, names);
  };
  return {&function, as_entry(entry), as_entry(bound)};
}

/// Adds functions to a module, and methods to `type` (null: to none). False with a Python error.
bool add_bindings(PyObject* module, PyObject* type, std::span<const Binding> bindings);

/// A new module with the functions that `add` adds (`register_my_ops_api` of generated code), after `setup`, which registers kernels.
/// Null with a Python error.
PyObject* make_module(const char* name, bool (*add)(PyObject* module, PyObject* type), void (*setup)());

}  // namespace shard::python

/// Defines the Python module `name`: SHARD_PYTHON_MODULE(my_ops, shard::python::register_my_ops_api, register_my_kernels)
#define SHARD_PYTHON_MODULE(name, add, setup)                                  \
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name(); \
  PyObject* PyInit_##name() { return shard::python::make_module(#name, add, setup); }
