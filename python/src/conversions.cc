// Methods of tensors that change dtype, device or shape, and that copy.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "arrays.h"

namespace shard::python {
namespace {

Tensor to_dtype(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const CallSite site = site_of(x);
  return released([&] { return cast(x, dtype, site); });
}

Tensor to_device_of(const Tensor& x, Device device) {
  if (x.device() == device) return x;  // also for distributed tensors
  return released([&] { return x.to(device); });
}

/// x.to(...) with a device, a dtype, a tensor, or several of them.
nb::object to(nb::handle self, nb::args positional, nb::kwargs named) {
  const Tensor& x = tensor_in(self.ptr());
  Tensor result = x;
  nb::list targets;
  for (const nb::handle target : positional) targets.append(target);
  for (const auto& [name, target] : named) {
    const std::string text = nb::cast<std::string>(name);
    if (text != "dtype" && text != "device")
      raise_type_error(fmt::format("to(): there is no argument '{}': there are dtype and device", text));
    if (!target.is_none()) targets.append(target);
  }
  for (const nb::handle target : targets) {
    if (const Tensor* const other = services->tensor(target.ptr())) {
      result = to_device_of(to_dtype(result, other->dtype()), other->device());
      continue;
    }
    Device device;
    DType dtype{};
    const bool name = nb::isinstance<nb::str>(target);
    const auto same = [&](const DTypeTraits& each) { return nb::cast<std::string>(target) == each.name; };
    if (name && std::none_of(std::begin(kDTypeTraits), std::end(kDTypeTraits), same)) {
      result = to_device_of(result, parse_device(nb::cast<std::string>(target)));
    } else if (!name && device_of(target, device)) {
      result = to_device_of(result, device);
    } else if (dtype_of(target, dtype)) {
      result = to_dtype(result, dtype);
    } else {
      raise_type_error(fmt::format(
          "to(): each argument must be a device, a dtype, the name of one, or a tensor, not {}", name_of_type(target)));
    }
  }
  return result.impl() == x.impl() ? nb::borrow(self) : wrap(std::move(result));
}

nb::object with_dtype(nb::handle self, DType dtype) {
  const Tensor& x = tensor_in(self.ptr());
  return x.dtype() == dtype ? nb::borrow(self) : wrap(to_dtype(x, dtype));
}

nb::object on_device(nb::handle self, Device device) {
  const Tensor& x = tensor_in(self.ptr());
  Tensor result = to_device_of(x, device);
  return result.impl() == x.impl() ? nb::borrow(self) : wrap(std::move(result));
}

/// The integers of f(1, 2) or f((1, 2)).
IntArray integers(const nb::args& values, const char* function) {
  nb::object list = nb::borrow(values);
  if (values.size() == 1 && (nb::isinstance<nb::list>(values[0]) || nb::isinstance<nb::tuple>(values[0]))) {
    list = nb::borrow(values[0]);
  }
  IntArray found;
  for (const nb::handle value : list) {
    int64_t number = 0;
    if (PyBool_Check(value.ptr()) || !PyIndex_Check(value.ptr()) ||
        !nb::try_cast(nb::int_(nb::borrow(value)), number)) {
      raise_type_error(fmt::format("{}(): the arguments must be ints, or one list or tuple of them, not {}", function,
                                   name_of_type(value)));
    }
    found.push_back(number);
  }
  return found;
}

Tensor permuted(const Tensor& x, const IntArray& order) {
  const CallSite site = site_of(x);
  return released([&] { return transpose(x, order, site); });
}

Tensor reversed(const Tensor& x) {
  IntArray order;
  for (int d = x.dims().rank() - 1; d >= 0; --d) order.push_back(d);
  return permuted(x, order);
}

Tensor matrices_transposed(const Tensor& x) {
  const int rank = x.dims().rank();
  if (rank < 2) fail(ErrorCode::shape_mismatch, "[mT] {} must have two dims or more", x.get().describe());
  IntArray order;
  for (int d = 0; d < rank; ++d) order.push_back(d < rank - 2 ? d : 2 * rank - 3 - d);
  return permuted(x, order);
}

bool contains(const Tensor& x, nb::handle value) {
  const nb::object equal = nb::steal(PyObject_RichCompare(wrap(x).ptr(), value.ptr(), Py_EQ));
  if (!equal.is_valid()) nb::raise_python_error();
  const Tensor* const found = services->tensor(equal.ptr());
  if (found == nullptr) {
    raise_type_error(fmt::format("in: a tensor contains numbers and tensors, not {}", name_of_type(value)));
  }
  return released([&] { return is_true(any(*found)); });
}

void register_dtypes(TensorClass& tensor) {
  static constexpr std::pair<const char*, DType> names[] = {
      {"float", DType::float32}, {"double", DType::float64}, {"half", DType::float16}, {"bfloat16", DType::bfloat16},
      {"int", DType::int32},     {"long", DType::int64},     {"bool", DType::boolean},
  };
  for (const auto& [name, dtype] : names) {
    tensor.def(
        name, [dtype = dtype](nb::handle self) { return with_dtype(self, dtype); },
        fmt::format("x as {}: converted as by cast, or x itself where that is its dtype.", to_string(dtype)).c_str());
  }
  tensor.def("to", &to,
             "x on another device, with another dtype, or both: x.to('cuda'), x.to(shard.float64), x.to('cpu', "
             "'float32'),\n"
             "x.to(dtype=shard.float64), or as another tensor is: x.to(y). x itself where it is that already. Recorded "
             "for autograd. Errors: "
             "ArgumentError for\n"
             "names of neither, LayoutError for another device of a distributed tensor.");
  tensor.def(
      "astype",
      [](const Tensor& x, nb::handle dtype) {
        const std::optional<DType> wanted = dtype_argument(dtype, "astype");
        if (!wanted) raise_type_error("astype(): dtype must be a shard.dtype, its name or a dtype of NumPy, not None");
        const CallSite site = site_of(x);
        return released([&] { return *wanted == x.dtype() ? assign(x, site) : cast(x, *wanted, site); });
      },
      nb::arg("dtype").none(), "A copy of x with its elements converted to dtype as by cast.");
}

void register_devices(TensorClass& tensor) {
  tensor.def(
      "cpu", [](nb::handle self) { return on_device(self, kCpu); }, "x in host memory; x itself where it is there.");
  tensor.def(
      "cuda",
      [](nb::handle self, std::optional<int> index) {
        return on_device(self, parse_device(index ? fmt::format("cuda:{}", *index) : "cuda"));
      },
      nb::arg("index") = nb::none(),
      "x on a CUDA device, the first one without index; x itself where it is there. ArgumentError where there is "
      "none.");
}

void register_shapes(TensorClass& tensor) {
  tensor.def_prop_ro("T", &reversed, "A copy of x with its dims in reverse order.");
  tensor.def_prop_ro("mT", &matrices_transposed, "A copy of x with its last two dims exchanged.");
  tensor.def(
      "permute", [](const Tensor& x, nb::args dims) { return permuted(x, integers(dims, "permute")); }, nb::arg("dims"),
      "A copy of x with its dims in this order, which names each of them once: x.permute(1, 0) or x.permute((1, 0)).");
  tensor.def(
      "view",
      [](const Tensor& x, nb::args shape) {
        const IntArray sizes = integers(shape, "view");
        const CallSite site = site_of(x);
        return released([&] { return reshape(x, sizes, site); });
      },
      nb::arg("shape"),
      "x in another shape, on the same buffer, as reshape: x.view(2, -1) or x.view((2, -1)). ShapeError where the "
      "number\n"
      "of elements differs.");
  tensor.def_prop_ro(
      "itemsize", [](const Tensor& x) { return size_of(x.dtype()); }, "The bytes of an element.");
  tensor.def_prop_ro(
      "nbytes", [](const Tensor& x) { return x.meta().bytes(); },
      "The bytes of all elements; those of a distributed tensor on all ranks, counted once.");
}

}  // namespace

void register_conversions(TensorClass& tensor) {
  register_dtypes(tensor);
  register_devices(tensor);
  register_shapes(tensor);
  tensor.def(
      "clone",
      [](const Tensor& x) {
        const CallSite site = site_of(x);
        return released([&] { return assign(x, site); });
      },
      "A copy of x with a buffer of its own. The gradient goes through it.");
  tensor.def("__contains__", &contains, nb::arg("value"),
             "Whether an element equals value. Collective over the world where x is distributed.");
}

}  // namespace shard::python
