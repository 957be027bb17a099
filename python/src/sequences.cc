// Nested lists of numbers: read into tensors, and written from them.
#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "arrays.h"

namespace shard::python {
namespace {

/// What the numbers of nested lists are, from the narrowest kind.
enum class Kind { none, truth, integer, real };

bool is_list(PyObject* object) { return PyList_Check(object) || PyTuple_Check(object); }

/// Calls f(item, i) for each item of a list or tuple, which must have `size` of them.
template <class F>
void each(PyObject* list, int64_t size, F f) {
  for (int64_t i = 0; i < size; ++i) {
    const nb::object item = nb::steal(PySequence_GetItem(list, static_cast<Py_ssize_t>(i)));
    if (!item.is_valid()) nb::raise_python_error();
    f(item.ptr(), i);
  }
}

/// Finds the shape and the kind of nested lists.
class Scan {
 public:
  Scan(PyObject* data, const char* function) : function_(function) {
    for (nb::object level = nb::borrow(data); is_list(level.ptr());) {
      const Py_ssize_t size = PySequence_Size(level.ptr());
      dims.push_back(size);
      if (size == 0) break;
      level = nb::steal(PySequence_GetItem(level.ptr(), 0));
      if (!level.is_valid()) nb::raise_python_error();
    }
    visit(data, 0);
  }

  Dims dims;
  Kind kind = Kind::none;
  bool has_arrays = false;

 private:
  void visit(PyObject* object, int depth) {
    if (!is_list(object)) return number(object, depth);
    const Py_ssize_t size = PySequence_Size(object);
    if (depth >= dims.rank()) {
      fail(ErrorCode::shape_mismatch, "[{}] the lists are ragged: data{} is a list, but data{} before it is a number",
           function_, path(depth), zeros(depth));
    }
    if (size != dims[depth]) {
      fail(ErrorCode::shape_mismatch,
           "[{}] the lists are ragged: data{} has {} items, but data{} has {}; make all lists of a dim equally long",
           function_, path(depth), size, zeros(depth), dims[depth]);
    }
    each(object, size, [&](PyObject* item, int64_t i) {
      at_[static_cast<size_t>(depth)] = i;
      visit(item, depth + 1);
    });
  }

  void number(PyObject* object, int depth) {
    if (PyBool_Check(object)) return count(Kind::truth, depth);
    if (PyFloat_Check(object)) return count(Kind::real, depth);
    if (PyLong_Check(object)) return count(Kind::integer, depth);
    if (is_numpy(object)) {
      has_arrays = true;
      return;
    }
    if (const Tensor* const tensor = services->tensor(object)) {
      if (tensor->numel() != 1)
        raise_type_error(fmt::format("{}(): data{} is a Tensor of {} elements; use shard.stack to join tensors",
                                     function_, path(depth), tensor->numel()));
      const DType dtype = tensor->dtype();
      return count(is_floating(dtype) ? Kind::real : dtype == DType::boolean ? Kind::truth : Kind::integer, depth);
    }
    const bool text = PyUnicode_Check(object) || PyBytes_Check(object);
    if (!text && PyIndex_Check(object)) return count(Kind::integer, depth);
    if (!text && !PyComplex_Check(object) && nb::hasattr(object, "__float__")) return count(Kind::real, depth);
    raise_type_error(fmt::format(
        "{}(): data{} is of type {}, but must be a number, a bool, a list or tuple of them, a Tensor, an array of "
        "NumPy, or an object with DLPack or the buffer protocol",
        function_, path(depth), name_of_type(object)));
  }

  void count(Kind found, int depth) {
    if (depth < dims.rank()) {
      fail(ErrorCode::shape_mismatch, "[{}] the lists are ragged: data{} is a number, but data{} is a list", function_,
           path(depth), zeros(depth));
    }
    kind = std::max(kind, found);
  }

  /// "[1][2]"
  std::string path(int depth) const {
    std::string text;
    for (int d = 0; d < depth; ++d) text += fmt::format("[{}]", at_[static_cast<size_t>(d)]);
    return text;
  }
  std::string zeros(int depth) const {
    std::string text;
    for (int d = 0; d < depth; ++d) text += "[0]";
    return text;
  }

  const char* function_;
  std::array<int64_t, kMaxRank> at_{};
};

template <class T>
T read(PyObject* object, const char* function) {
  if constexpr (std::is_floating_point_v<T>) {
    const double value = PyFloat_AsDouble(object);
    if (value == -1.0 && PyErr_Occurred()) nb::raise_python_error();
    return static_cast<T>(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return PyObject_IsTrue(object) == 1;
  } else {
    const nb::object index = nb::steal(PyNumber_Index(object));
    if (!index.is_valid()) nb::raise_python_error();
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow == 0 && std::in_range<T>(value)) return static_cast<T>(value);
    fail(ErrorCode::out_of_range, "[{}] {} does not fit into {}; choose another dtype", function,
         nb::cast<std::string>(nb::str(index)), to_string(shard::dtype_of<T>));
  }
}

template <class T>
void fill(PyObject* object, const Dims& dims, int depth, T*& to, const char* function) {
  if (depth == dims.rank()) {
    *to++ = read<T>(object, function);
    return;
  }
  if (!is_list(object) || PySequence_Size(object) != dims[depth]) {
    fail(ErrorCode::shape_mismatch, "[{}] the lists were changed while they were read", function);
  }
  each(object, dims[depth], [&](PyObject* item, int64_t) { fill(item, dims, depth + 1, to, function); });
}

/// The dtype that the numbers are read in; a cast to the one that was asked for follows.
DType dtype_for(Kind kind, std::optional<DType> wanted) {
  switch (kind) {
    case Kind::truth: return DType::boolean;
    case Kind::integer:
      if (wanted && is_integral(*wanted)) return *wanted;
      return wanted && is_floating(*wanted) ? DType::float64 : DType::int64;
    case Kind::none:
    case Kind::real: break;
  }
  return !wanted || *wanted == DType::float32 ? DType::float32 : DType::float64;
}

template <class T>
nb::object lists(const T*& values, const Dims& dims, int depth) {
  if (depth == dims.rank()) {
    const T value = *values++;
    if constexpr (std::is_same_v<T, bool>) return nb::bool_(value);
    else if constexpr (std::is_integral_v<T>) return nb::int_(static_cast<int64_t>(value));
    else return nb::float_(static_cast<double>(static_cast<Compute<T>>(value)));
  }
  nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(dims[depth])));
  if (!list.is_valid()) nb::raise_python_error();
  for (int64_t i = 0; i < dims[depth]; ++i) {
    PyList_SetItem(list.ptr(), static_cast<Py_ssize_t>(i), lists(values, dims, depth + 1).release().ptr());
  }
  return list;
}

}  // namespace

Tensor tensor_from_numbers(nb::handle data, std::optional<DType> dtype, const char* function) {
  const Scan scan(data.ptr(), function);
  if (scan.has_arrays) return {};
  const Meta meta{scan.dims, dtype_for(scan.kind, dtype)};
  const DenseTensor tensor = DenseTensor::allocate(kCpu, meta, nullptr, function);
  visit_dtype(meta.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (!is_half<T>) {
      T* to = tensor.data<T>();
      fill(data.ptr(), scan.dims, 0, to, function);
    }
  });
  return Tensor(tensor);
}

nb::object list_of(const DenseTensor& host) {
  return visit_dtype(host.dtype(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* values = host.data<T>();
    return lists(values, host.dims(), 0);
  });
}

}  // namespace shard::python
