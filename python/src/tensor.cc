// The class Tensor with its properties and operators, dtypes and devices.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "layouts.h"

namespace shard::python {
namespace {

/// An operand of an operator: a tensor, or a number that the dtype of the tensor beside it holds. Nothing for other objects.
std::optional<Operand> operand_of(PyObject* object, const Tensor* other, CallSite site) {
  if (const Tensor* const tensor = services->tensor(object)) return Operand(*tensor, site);
  if (other == nullptr || PyUnicode_Check(object)) return std::nullopt;
  if (PyBool_Check(object)) return Operand(object == Py_True, site);
  if (PyFloat_Check(object)) return Operand(PyFloat_AsDouble(object), site);
  if (PyIndex_Check(object) != 0) {
    const nb::object integer = nb::steal(PyNumber_Index(object));
    if (!integer.is_valid()) throw PythonError();
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(integer.ptr(), &overflow);
    if (overflow != 0) {
      if (is_floating(other->dtype())) return Operand(PyLong_AsDouble(integer.ptr()), site);
      fail(ErrorCode::out_of_range, "a number of more than 64 bits does not fit into {}: cast the tensor first",
           to_string(other->dtype()));
    }
    return Operand(static_cast<int64_t>(value), site);
  }
  if (!PyNumber_Check(object) || PyObject_HasAttrString(object, "__len__") != 0) return std::nullopt;
  const double value = PyFloat_AsDouble(object);  // such as numpy.float32
  if (value == -1.0 && PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw PythonError();
    PyErr_Clear();
    return std::nullopt;
  }
  return Operand(value, site);
}

PyObject* not_implemented() {
  Py_INCREF(Py_NotImplemented);
  return Py_NotImplemented;
}

/// x OP y, where at least one is a tensor.
template <class F>
PyObject* binary(PyObject* left, PyObject* right, F f) noexcept {
  try {
    const Tensor *const x = services->tensor(left), *const y = services->tensor(right);
    const CallSite site =
        (x != nullptr && keeps_site(*x)) || (y != nullptr && keeps_site(*y)) ? current_site() : CallSite{};
    const std::optional<Operand> a = operand_of(left, y, site), b = operand_of(right, x, site);
    if (!a || !b) return not_implemented();
    Tensor result;
    {
      const ReleaseLock release;
      result = f(*a, *b);
    }
    return services->wrap(std::move(result));
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

/// x OP= y
template <class F>
PyObject* inplace(PyObject* left, PyObject* right, F f) noexcept {
  try {
    const CallSite site = current_site();
    Tensor* const x = services->tensor(left);
    const std::optional<Operand> y = operand_of(right, x, site);
    if (x == nullptr || !y) return not_implemented();
    {
      const ReleaseLock release;
      f(*x, *y);
    }
    Py_INCREF(left);
    return left;
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

PyObject* compare(PyObject* left, PyObject* right, int op) noexcept {
  switch (op) {
    case Py_EQ: return binary(left, right, [](const Operand& x, const Operand& y) { return x == y; });
    case Py_NE: return binary(left, right, [](const Operand& x, const Operand& y) { return x != y; });
    case Py_LT: return binary(left, right, [](const Operand& x, const Operand& y) { return x < y; });
    case Py_LE: return binary(left, right, [](const Operand& x, const Operand& y) { return x <= y; });
    case Py_GT: return binary(left, right, [](const Operand& x, const Operand& y) { return x > y; });
    case Py_GE: return binary(left, right, [](const Operand& x, const Operand& y) { return x >= y; });
    default: return not_implemented();
  }
}

template <class F>
Tensor as_tensors(const Operand& x, const Operand& y, F f) {
  return f(x.beside(y.tensor != nullptr ? *y.tensor : *x.tensor),
           y.beside(x.tensor != nullptr ? *x.tensor : *y.tensor));
}

/// x / y. Integers are divided as float32.
Tensor true_divide(const Operand& x, const Operand& y) {
  const auto is_float = [](const Operand& each) { return each.tensor != nullptr && is_floating(each.tensor->dtype()); };
  if (is_float(x) || is_float(y)) return x / y;
  if (x.tensor == nullptr) x.number_beside(*y.tensor);
  if (y.tensor == nullptr) y.number_beside(*x.tensor);
  const auto converted = [](const Operand& each) {
    return each.tensor != nullptr ? cast(*each.tensor, DType::float32, each.site) : Tensor();
  };
  const Tensor a = converted(x), b = converted(y);
  return (a.defined() ? Operand(a, x.site) : x) / (b.defined() ? Operand(b, y.site) : y);
}

void true_divide_(Tensor& x, const Operand& y) {
  if (!is_floating(x.dtype())) {
    fail(ErrorCode::dtype_mismatch, "x is {}, and the quotient of integers is float32: use x = x / y, or x //= y",
         to_string(x.dtype()));
  }
  x /= y;
}

void check_exponent(const Tensor& x, const Operand& y) {
  if (y.tensor == nullptr && !is_floating(x.dtype()) && y.number.is_integer() && y.number.to<int64_t>() < 0)
    fail(ErrorCode::invalid_argument, "integers have no negative integer powers: cast x to a float dtype first");
}

Tensor power_of(const Operand& x, const Operand& y) {
  if (y.tensor == nullptr && x.tensor != nullptr) {
    check_exponent(*x.tensor, y);
    return pow(*x.tensor, y.number_beside(*x.tensor));
  }
  return as_tensors(x, y, [](const Tensor& a, const Tensor& b) { return elementwise_pow(a, b); });
}

void power_of_(Tensor& x, const Operand& y) {
  check_exponent(x, y);
  if (y.tensor != nullptr)
    fail(ErrorCode::invalid_argument, "powers by a tensor are not computed in place: use x = x ** y");
  pow_(x, y.number_beside(x));
}

template <class F>
PyObject* binary_of_tensors(PyObject* left, PyObject* right, F f) noexcept {
  return binary(left, right, [&](const Operand& x, const Operand& y) { return as_tensors(x, y, f); });
}

template <class F>
PyObject* unary(PyObject* object, F f) noexcept {
  try {
    Tensor result;
    const Tensor& x = tensor_in(object);
    {
      const ReleaseLock release;
      result = f(x);
    }
    return services->wrap(std::move(result));
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

/// Reads the number of a tensor of one element.
template <class F>
PyObject* number(PyObject* object, F f) noexcept {
  try {
    const Tensor& x = tensor_in(object);
    return f(released([&] { return item(x); }));
  } catch (...) {
    raise_current();
    return nullptr;
  }
}

PyObject* python_number(const Scalar& value) {
  return value.is_integer() ? PyLong_FromLongLong(value.to<int64_t>()) : PyFloat_FromDouble(value.to<double>());
}

int truth(PyObject* object) noexcept {
  try {
    const Tensor& x = tensor_in(object);
    return released([&] { return is_true(x); }) ? 1 : 0;
  } catch (...) {
    raise_current();
    return -1;
  }
}

Py_ssize_t length(PyObject* object) noexcept {
  try {
    const Tensor& x = tensor_in(object);
    if (x.dims().rank() > 0) return static_cast<Py_ssize_t>(x.dims()[0]);
    throw nb::type_error("a tensor without dims has no length");
  } catch (...) {
    raise_current();
    return -1;
  }
}

Py_hash_t hash(PyObject* object) noexcept {  // by identity, because == compares elements
  const auto value = static_cast<Py_hash_t>(reinterpret_cast<uintptr_t>(object) >> 4);
  return value == -1 ? -2 : value;
}

PyObject* power(PyObject* left, PyObject* right, PyObject* modulus) noexcept {
  return modulus != Py_None ? not_implemented() : binary(left, right, power_of);
}

PyObject* inplace_power(PyObject* left, PyObject* right, PyObject* modulus) noexcept {
  return modulus != Py_None ? not_implemented() : inplace(left, right, power_of_);
}

#define SHARD_SLOT(name) \
  { Py_##name, reinterpret_cast<void*>(+slot_##name) }
#define SHARD_BINARY(name, expression)                                                  \
  PyObject* slot_##name(PyObject* l, PyObject* r) {                                     \
    return binary(l, r, [](const Operand& x, const Operand& y) { return expression; }); \
  }
#define SHARD_TENSORS(name, function)                                                                \
  PyObject* slot_##name(PyObject* l, PyObject* r) {                                                  \
    return binary_of_tensors(l, r, [](const Tensor& x, const Tensor& y) { return function(x, y); }); \
  }
#define SHARD_INPLACE(name, expression)                                    \
  PyObject* slot_##name(PyObject* l, PyObject* r) {                        \
    return inplace(l, r, [](Tensor& x, const Operand& y) { expression; }); \
  }
#define SHARD_UNARY(name, expression)                            \
  PyObject* slot_##name(PyObject* o) {                           \
    return unary(o, [](const Tensor& x) { return expression; }); \
  }

SHARD_BINARY(nb_add, x + y)
SHARD_BINARY(nb_subtract, x - y)
SHARD_BINARY(nb_multiply, x* y)
SHARD_BINARY(nb_true_divide, true_divide(x, y))
SHARD_TENSORS(nb_floor_divide, floor_divide)
SHARD_TENSORS(nb_remainder, remainder)
SHARD_TENSORS(nb_matrix_multiply, matmul)
SHARD_TENSORS(nb_and, bitwise_and)
SHARD_TENSORS(nb_or, bitwise_or)
SHARD_TENSORS(nb_xor, bitwise_xor)
SHARD_TENSORS(nb_lshift, bitwise_left_shift)
SHARD_TENSORS(nb_rshift, bitwise_right_shift)
SHARD_INPLACE(nb_inplace_add, x += y)
SHARD_INPLACE(nb_inplace_subtract, x -= y)
SHARD_INPLACE(nb_inplace_multiply, x *= y)
SHARD_INPLACE(nb_inplace_true_divide, true_divide_(x, y))
SHARD_INPLACE(nb_inplace_floor_divide, floor_divide_(x, y.beside(x)))
SHARD_INPLACE(nb_inplace_remainder, remainder_(x, y.beside(x)))
SHARD_INPLACE(nb_inplace_and, bitwise_and_(x, y.beside(x)))
SHARD_INPLACE(nb_inplace_or, bitwise_or_(x, y.beside(x)))
SHARD_INPLACE(nb_inplace_xor, bitwise_xor_(x, y.beside(x)))
SHARD_INPLACE(nb_inplace_lshift, bitwise_left_shift_(x, y.beside(x)))
SHARD_INPLACE(nb_inplace_rshift, bitwise_right_shift_(x, y.beside(x)))
SHARD_UNARY(nb_negative, -Operand(x))
SHARD_UNARY(nb_absolute, abs(x))
SHARD_UNARY(nb_invert, x.dtype() == DType::boolean ? logical_not(x) : bitwise_not(x))
PyObject* slot_nb_positive(PyObject* object) {
  Py_INCREF(object);
  return object;
}
PyObject* slot_nb_float(PyObject* object) {
  return number(object, [](const Scalar& value) { return PyFloat_FromDouble(value.to<double>()); });
}
PyObject* slot_nb_int(PyObject* object) {
  return number(object, [](const Scalar& value) {
    return value.is_integer() ? PyLong_FromLongLong(value.to<int64_t>()) : PyLong_FromDouble(value.to<double>());
  });
}
PyObject* slot_nb_index(PyObject* object) {
  const Tensor* const x = services->tensor(object);
  if (x != nullptr && is_integral(x->dtype())) return slot_nb_int(object);
  PyErr_SetString(PyExc_TypeError, "only a tensor of integers can be an index");
  return nullptr;
}

PyType_Slot slots[] = {
    SHARD_SLOT(nb_add),
    SHARD_SLOT(nb_subtract),
    SHARD_SLOT(nb_multiply),
    SHARD_SLOT(nb_true_divide),
    SHARD_SLOT(nb_floor_divide),
    SHARD_SLOT(nb_remainder),
    SHARD_SLOT(nb_matrix_multiply),
    SHARD_SLOT(nb_and),
    SHARD_SLOT(nb_or),
    SHARD_SLOT(nb_xor),
    SHARD_SLOT(nb_lshift),
    SHARD_SLOT(nb_rshift),
    SHARD_SLOT(nb_inplace_add),
    SHARD_SLOT(nb_inplace_subtract),
    SHARD_SLOT(nb_inplace_multiply),
    SHARD_SLOT(nb_inplace_true_divide),
    SHARD_SLOT(nb_inplace_floor_divide),
    SHARD_SLOT(nb_inplace_remainder),
    SHARD_SLOT(nb_inplace_and),
    SHARD_SLOT(nb_inplace_or),
    SHARD_SLOT(nb_inplace_xor),
    SHARD_SLOT(nb_inplace_lshift),
    SHARD_SLOT(nb_inplace_rshift),
    {Py_nb_inplace_power, reinterpret_cast<void*>(+inplace_power)},
    SHARD_SLOT(nb_negative),
    SHARD_SLOT(nb_absolute),
    SHARD_SLOT(nb_invert),
    SHARD_SLOT(nb_positive),
    SHARD_SLOT(nb_float),
    SHARD_SLOT(nb_int),
    SHARD_SLOT(nb_index),
    {Py_nb_power, reinterpret_cast<void*>(+power)},
    {Py_nb_bool, reinterpret_cast<void*>(+truth)},
    {Py_mp_length, reinterpret_cast<void*>(+length)},
    {Py_mp_subscript, reinterpret_cast<void*>(+get_item)},
    {Py_mp_ass_subscript, reinterpret_cast<void*>(+set_item)},
    {Py_bf_getbuffer, reinterpret_cast<void*>(+get_buffer)},
    {Py_bf_releasebuffer, reinterpret_cast<void*>(+release_buffer)},
    {Py_tp_repr, reinterpret_cast<void*>(+represent)},
    {Py_tp_richcompare, reinterpret_cast<void*>(+compare)},
    {Py_tp_hash, reinterpret_cast<void*>(+hash)},
    {0, nullptr},
};

void register_dtypes(nb::module_& module) {
  nb::enum_<DType> dtypes(module, "dtype", "The type of the elements of a tensor.");
  for (int i = 0; i < kNumDTypes; ++i) dtypes.value(kDTypeTraits[i].name, static_cast<DType>(i));
  dtypes.export_values();
  dtypes.def_prop_ro(
      "itemsize", [](DType dtype) { return size_of(dtype); }, "The bytes of an element.");
  dtypes.def_prop_ro("is_floating", [](DType dtype) { return is_floating(dtype); });
}

void register_devices(nb::module_& module) {
  nb::class_<Device>(module, "Device", "A device: Device('cpu'), Device('cuda:1').")
      .def(
          "__init__", [](Device* self, const std::string& name) { new (self) Device(parse_device(name)); },
          nb::arg("name"))
      .def("__repr__", [](Device device) { return "Device('" + to_string(device) + "')"; })
      .def("__str__", [](Device device) { return to_string(device); })
      .def("__hash__", [](Device device) { return device.backend << 8 | device.index; })
      .def("__eq__",
           [](Device device, nb::handle other) {
             Device another;
             return device_of(other, another) && device == another;
           })
      .def("__reduce__",
           [](Device device) { return nb::make_tuple(nb::type<Device>(), nb::make_tuple(to_string(device))); });
}

}  // namespace

/// Of generated/api_python.cc: adds the functions of all ops to the module, and the methods to the class.
bool register_api(PyObject* module, PyObject* type);

void register_tensor(nb::module_& module) {
  register_dtypes(module);
  register_devices(module);
  nb::class_<Tensor> tensor(module, "Tensor", nb::type_slots(slots), nb::is_weak_referenceable(),
                            "A tensor: a dense one, or this rank's handle to a distributed one.");
  register_services(module, tensor);
  tensor.def_prop_ro(
      "shape", [](const Tensor& x) { return tuple_of(x.dims()); }, "The global shape, a tuple of ints.");
  tensor.def_prop_ro(
      "ndim", [](const Tensor& x) { return x.dims().rank(); }, "The number of dims.");
  tensor.def_prop_ro(
      "size", [](const Tensor& x) { return x.numel(); }, "The number of elements.");
  tensor.def_prop_ro("dtype", [](const Tensor& x) { return x.dtype(); });
  tensor.def_prop_ro("device", [](const Tensor& x) { return x.device(); });
  tensor.def_prop_ro(
      "is_dist", [](const Tensor& x) { return x.is_dist(); }, "Whether the tensor is distributed.");
  tensor.def_prop_ro(
      "version", [](const Tensor& x) { return x.version(); }, "The number of writes to the buffer, by any alias.");
  tensor.def(
      "shares_buffer_with", [](const Tensor& x, const Tensor& y) { return x.shares_buffer_with(y); }, nb::arg("other"),
      "Whether both tensors see each other's writes.");
  tensor.def(
      "item",
      [](const Tensor& x) {
        const Scalar value = released([&] { return item(x); });
        if (x.dtype() == DType::boolean) return nb::steal(PyBool_FromLong(value.to<bool>() ? 1 : 0));
        return nb::steal(python_number(value));
      },
      "The number of a tensor with one element. Collective over the world where the tensor is distributed.");
  tensor.attr("__array_priority__") = 1000;  // numpy.float64(2) * x is x.__rmul__(2), and no array
  if (!register_api(module.ptr(), tensor.ptr())) nb::raise_python_error();
}

}  // namespace shard::python
