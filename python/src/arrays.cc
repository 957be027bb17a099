// Tensors from Python's numbers, lists and arrays, and arrays of NumPy from tensors.
#include "arrays.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "shard/core/tracer.h"

namespace shard::python {

void raise_type_error(const std::string& message) {
  PyErr_SetString(PyExc_TypeError, message.c_str());
  nb::raise_python_error();
}

std::string name_of_type(nb::handle object) {
  return nb::cast<std::string>(nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))).attr("__name__"));
}

std::string dtype_names() {
  std::string names;
  for (const DTypeTraits& each : kDTypeTraits) names += fmt::format("{}{}", names.empty() ? "" : ", ", each.name);
  return names;
}

std::optional<DType> dtype_argument(nb::handle object, const char* function) {
  if (object.is_none()) return std::nullopt;
  if (DType dtype{}; dtype_of(object, dtype)) return dtype;
  raise_type_error(fmt::format("{}(): dtype must be a shard.dtype, its name or a dtype of NumPy, not {}", function,
                               name_of_type(object)));
}

std::optional<Device> device_argument(nb::handle object, const char* function) {
  if (object.is_none()) return std::nullopt;
  if (Device device; device_of(object, device)) return device;
  raise_type_error(
      fmt::format("{}(): device must be a shard.Device or its name, not {}", function, name_of_type(object)));
}

bool keeps_site(const Tensor& x) {
  return (x.get().grad.requires_grad && grad_enabled()) || this_thread.tracer != nullptr;
}

CallSite site_of(const Tensor& x) { return keeps_site(x) ? current_site() : CallSite{}; }

DenseTensor readable(const Tensor& x, const char* function) {
  if (Tracer* const tracer = Tracer::current()) {
    tracer->refuse(function, fmt::format("it reads the value of {}, which is known only when the program runs. Return "
                                         "the tensor and read it outside",
                                         x.get().describe()));
  }
  if (x.is_dist()) {
    fail(ErrorCode::layout,
         "[{}] {} is distributed; use full_tensor() of it, a collective call, or local() for this rank's shard",
         function, x.get().describe());
  }
  const DenseTensor& value = x.get().value;
  value.storage()->check_read();
  if (!value.has_data()) {
    fail(ErrorCode::no_data,
         "[{}] {} has no value to read: it belongs to a dry run or a captured function. Read it in a world with data",
         function, x.get().describe());
  }
  return value;
}

DenseTensor readable_on_host(const Tensor& x, const char* function) {
  DenseTensor value = readable(x, function);
  if (value.device() == kCpu) return value;
  DenseTensor host = DenseTensor::allocate(kCpu, value.meta(), nullptr, function);
  copy_into(host, value);
  return host;
}

void refuse_gradient(const Tensor& x, const char* function) {
  if (!x.requires_grad()) return;
  fail(ErrorCode::autograd,
       "[{}] {} requires a gradient, which would miss what is written through the result; use x.detach().{}()",
       function, x.get().describe(), function);
}

Tensor beside(const Tensor& like, Tensor tensor) {
  if (!like.is_dist() || tensor.is_dist()) return tensor;
  const DistSpec* const spec = DistSpec::replicated(spec_of(like)->mesh(), tensor.dims().rank());
  return distribute(tensor, spec);
}

namespace {

/// The value as a new tensor, before it gets its dtype and device.
Tensor converted(nb::handle data, std::optional<DType> dtype, const char* function) {
  if (const Tensor* const tensor = services->tensor(data.ptr())) {
    return released([&] { return assign(tensor->detach()); });
  }
  if (nb::isinstance<nb::str>(data)) {
    raise_type_error(fmt::format("{}(): data is a str; pass numbers, such as float(data)", function));
  }
  if (is_numpy(data)) return tensor_from_array(nb::module_::import_("numpy").attr("asarray")(data), function);
  if (nb::isinstance<nb::list>(data) || nb::isinstance<nb::tuple>(data)) {
    Tensor tensor = tensor_from_numbers(data, dtype, function);
    if (tensor.defined()) return tensor;
    return tensor_from_array(nb::module_::import_("numpy").attr("asarray")(data), function);
  }
  if (nb::hasattr(data, "__dlpack__")) return tensor_from_dlpack(data, true, function);
  if (Tensor tensor = tensor_from_buffer(data, function); tensor.defined()) return tensor;
  if (nb::hasattr(data, "__array__")) {
    return tensor_from_array(nb::module_::import_("numpy").attr("asarray")(data), function);
  }
  return tensor_from_numbers(data, dtype, function);
}

}  // namespace

Tensor tensor_from(nb::handle data, std::optional<DType> dtype, std::optional<Device> device, const char* function) {
  const bool is_tensor = services->tensor(data.ptr()) != nullptr;
  Tensor tensor = converted(data, dtype, function);
  return released([&] {
    if (dtype && *dtype != tensor.dtype()) tensor = cast(tensor, *dtype);
    if (tensor.is_dist()) return device && *device != tensor.device() ? to_device(tensor, *device) : tensor;
    return to_device(tensor, device ? *device : is_tensor ? tensor.device() : default_device());
  });
}

namespace {

/// An array on whose memory a tensor can be.
Tensor share_array(nb::handle array) {
  constexpr const char* kAdvice = "shard.tensor(a) copies it";
  if (!is_numpy(array) || !nb::hasattr(array, "flags") || !nb::hasattr(array, "ctypes")) {
    raise_type_error(fmt::format("from_numpy(): a must be a numpy.ndarray, not {}; {}", name_of_type(array), kAdvice));
  }
  const DType dtype = dtype_of_array(array, "from_numpy");
  const nb::object flags = array.attr("flags");
  if (!nb::cast<bool>(flags.attr("c_contiguous"))) {
    fail(ErrorCode::invalid_argument,
         "[from_numpy] the array is not C-contiguous, but tensors are; {}, and so does numpy.ascontiguousarray(a)",
         kAdvice);
  }
  if (!nb::cast<bool>(flags.attr("writeable"))) {
    fail(ErrorCode::invalid_argument, "[from_numpy] the array is read-only, but ops can write tensors; {}", kAdvice);
  }
  if (!nb::cast<bool>(flags.attr("aligned"))) {
    fail(ErrorCode::invalid_argument,
         "[from_numpy] the array is not aligned to its elements, which kernels need; {}, and so does "
         "numpy.require(a, requirements='A')",
         kAdvice);
  }
  Dims dims;
  for (const nb::handle size : array.attr("shape")) dims.push_back(nb::cast<int64_t>(size));
  void* const data = reinterpret_cast<void*>(nb::cast<uintptr_t>(array.attr("ctypes").attr("data")));
  const Meta meta{dims, dtype};
  auto owner = std::make_shared<SharedObject>(nb::borrow(array));
  return Tensor(DenseTensor(Storage::adopt(kCpu, data, meta.bytes(), std::move(owner)), meta));
}

nb::object array_of(nb::handle tensor, const nb::object& dtype, const nb::object& copy) {
  nb::object array = numpy_of(tensor, "numpy");
  const bool converts = !dtype.is_none() && !array.attr("dtype").attr("__eq__")(dtype).is(nb::handle(Py_True));
  if (converts && copy.is(nb::handle(Py_False))) {
    PyErr_SetString(PyExc_ValueError, "__array__(): another dtype needs a copy, which copy=False forbids");
    nb::raise_python_error();
  }
  if (converts) return array.attr("astype")(dtype);
  return copy.is(nb::handle(Py_True)) ? array.attr("copy")() : array;
}

constexpr const char* kTensorDoc =
    "A tensor with a copy of data: a number, nested lists or tuples of numbers and bools, a tensor, a NumPy array, or "
    "an\n"
    "object with DLPack or the buffer protocol. Without dtype arrays keep theirs, and Python's float, int and bool "
    "become\n"
    "float32, int64 and bool. Without device it is on that of data if that is a tensor, else on the default device.\n"
    "Values are converted to dtype as by cast. Errors: TypeError for strings and other objects, ShapeError for ragged\n"
    "lists, DTypeError for dtypes of arrays that tensors do not have, OutOfRangeError for integers that do not fit.";

constexpr const char* kNumpyDoc =
    "A NumPy array on the memory of this dense CPU tensor, without a copy: both see each other's writes. Writes "
    "through\n"
    "the array are not counted as versions, so autograd and stale views do not notice them. bfloat16 needs the "
    "package\n"
    "ml_dtypes. Errors: AutogradError for a tensor that requires a gradient (use detach()), DeviceError for one on "
    "another\n"
    "device (use cpu()), LayoutError for a distributed one (use full_tensor()), StaleError and NoDataError as for "
    "reads.";

}  // namespace

nb::object numpy_of(nb::handle tensor, const char* function) {
  const Tensor& x = tensor_in(tensor.ptr());
  const DenseTensor value = released([&] { return readable(x, function); });
  refuse_gradient(x, function);
  if (value.device() != kCpu) {
    fail(ErrorCode::device, "[{}] {} is on {}, but arrays of NumPy are in host memory; use x.cpu().{}()", function,
         x.get().describe(), to_string(value.device()), function);
  }
  const nb::module_ numpy = nb::module_::import_("numpy");
  if (value.dtype() != DType::bfloat16) return numpy.attr("asarray")(tensor);
  const Meta bytes{{static_cast<int64_t>(value.meta().bytes())}, DType::uint8};
  const nb::object array = numpy.attr("asarray")(wrap(Tensor(value.reinterpret(bytes))));
  nb::list shape;
  for (const int64_t size : value.dims()) shape.append(size);
  nb::object bfloat16;
  try {
    bfloat16 = nb::module_::import_("ml_dtypes").attr("bfloat16");
  } catch (nb::python_error& error) {
    raise_type_error(
        fmt::format("{}(): NumPy has bfloat16 with the package ml_dtypes alone; install it, or use "
                    "x.float().{}()",
                    function, function));
  }
  return array.attr("view")(bfloat16).attr("reshape")(shape);
}

PyObject* represent(PyObject* object) noexcept {
  const Tensor* const tensor = services->tensor(object);
  const std::string text = tensor != nullptr ? text_of(*tensor) : "tensor(not initialized)";
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

void register_arrays(nb::module_& module) {
  module.def(
      "tensor",
      [](nb::handle data, nb::handle dtype, nb::handle device, bool requires_grad) {
        Tensor tensor = tensor_from(data, dtype_argument(dtype, "tensor"), device_argument(device, "tensor"));
        if (requires_grad) tensor.set_requires_grad(true);
        return tensor;
      },
      nb::arg("data").none(), nb::arg("dtype") = nb::none(), nb::arg("device") = nb::none(),
      nb::arg("requires_grad") = false, kTensorDoc);
  module.def(
      "from_numpy", [](nb::handle array) { return share_array(array); }, nb::arg("a").none(),
      "A CPU tensor on the memory of a NumPy array, without a copy: both see each other's writes. Writes through the\n"
      "array are not counted as versions. The array must be C-contiguous, aligned and writable (else ArgumentError;\n"
      "shard.tensor(a) copies).");
  auto tensor = nb::borrow<TensorClass>(nb::type<Tensor>());
  tensor.def(
      "numpy", [](nb::handle self) { return numpy_of(self, "numpy"); }, kNumpyDoc);
  tensor.def(
      "__array__",
      [](nb::handle self, const nb::object& dtype, const nb::object& copy) { return array_of(self, dtype, copy); },
      nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none());
  tensor.def(
      "tolist", [](const Tensor& x) { return list_of(released([&] { return readable_on_host(x, "tolist"); })); },
      "The elements of a dense tensor as nested lists of numbers; the number of a tensor without dims.");
  register_conversions(tensor);
  register_dlpack(module, tensor);
  register_protocols(tensor);
  register_pickling(module, tensor);
}

}  // namespace shard::python
