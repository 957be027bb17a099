// DLPack: tensors handed to other libraries, and tensors on memory of other libraries.
#include "dlpack.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>

#include "arrays.h"
#include "shard/core/cuda_stream.h"

namespace shard::python {
namespace {

using dlpack::Managed;
using dlpack::ManagedVersioned;

constexpr const char* kName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

dlpack::DataType to_dlpack(DType dtype) {
  const DTypeTraits& traits = traits_of(dtype);
  const auto code = dtype == DType::bfloat16             ? dlpack::kBfloat
                    : dtype == DType::uint8              ? dlpack::kUInt
                    : traits.kind == DTypeKind::floating ? dlpack::kFloat
                    : traits.kind == DTypeKind::integer  ? dlpack::kInt
                                                         : dlpack::kBool;
  return {code, static_cast<uint8_t>(traits.size * 8), 1};
}

DType from_dlpack(const dlpack::DataType& type, const char* function) {
  for (int i = 0; i < kNumDTypes; ++i) {
    if (to_dlpack(static_cast<DType>(i)) == type) return static_cast<DType>(i);
  }
  fail(ErrorCode::dtype_mismatch,
       "[{}] the array has {}-bit elements of DLPack's type {} with {} lanes, but tensors have {}; convert it in the "
       "library that it is from",
       function, type.bits, type.code, type.lanes, dtype_names());
}

dlpack::Device device_to_dlpack(Device device) {
  return {device.backend == 0 ? dlpack::kCpu : dlpack::kCuda, device.index};
}

Device device_from_dlpack(int32_t type, int32_t index, const char* function) {
  if (type == dlpack::kCpu || type == dlpack::kCudaHost) return kCpu;
  const int cuda = type == dlpack::kCuda || type == dlpack::kCudaManaged ? find_backend("cuda") : -1;
  if (cuda < 0) {
    fail(ErrorCode::device,
         "[{}] the array is on a device of DLPack's type {}, but shard has none here; copy it to the CPU", function,
         type);
  }
  return {static_cast<uint8_t>(cuda), static_cast<uint8_t>(index)};
}

/// What the consumer of a capsule owns. Its deleter may run in any thread, without the interpreter's lock.
template <class Handed>
struct Shared {
  Handed handed{};
  Ref<Storage> storage;
  std::array<int64_t, kMaxRank> shape{}, strides{};
};

template <class Handed>
void set_version(Handed&, uint64_t) {}
void set_version(ManagedVersioned& handed, uint64_t flags) {
  handed.version = {1, 0};
  handed.flags = flags;
}

template <class Handed>
nb::object capsule_of(const DenseTensor& value, const char* name, uint64_t flags) {
  auto shared = std::make_unique<Shared<Handed>>();
  shared->storage = value.storage();
  int64_t stride = 1;
  for (int d = value.dims().rank() - 1; d >= 0; --d) {
    shared->shape[static_cast<size_t>(d)] = value.dims()[d];
    shared->strides[static_cast<size_t>(d)] = stride;
    stride *= value.dims()[d];
  }
  Handed& handed = shared->handed;
  handed.array = {value.meta().bytes() == 0 ? nullptr : value.raw(),
                  device_to_dlpack(value.device()),
                  value.dims().rank(),
                  to_dlpack(value.dtype()),
                  shared->shape.data(),
                  shared->strides.data(),
                  0};
  set_version(handed, flags);
  handed.context = shared.get();
  handed.deleter = [](Handed* self) { delete static_cast<Shared<Handed>*>(self->context); };
  PyObject* const capsule = PyCapsule_New(&handed, name, [](PyObject* object) {
    const char* const now = PyCapsule_GetName(object);  // a consumer renames what it takes
    if (now == nullptr || std::strncmp(now, "used", 4) == 0) return;
    auto* const left = static_cast<Handed*>(PyCapsule_GetPointer(object, now));
    if (left != nullptr) left->deleter(left);
  });
  if (capsule == nullptr) nb::raise_python_error();
  shared.release();
  return nb::steal(capsule);
}

[[noreturn]] void raise_buffer_error(const std::string& message) {
  PyErr_SetString(PyExc_BufferError, message.c_str());
  nb::raise_python_error();
}

bool wants_version_1(nb::handle max_version) { return !max_version.is_none() && nb::cast<int>(max_version[0]) >= 1; }

nb::object export_tensor(const Tensor& x, nb::handle stream, nb::handle max_version, nb::handle device,
                         nb::handle copy) {
  if (x.requires_grad()) raise_buffer_error("__dlpack__(): the tensor requires a gradient; use detach()");
  DenseTensor value = released([&] { return readable(x, "__dlpack__"); });
  const bool may_copy = copy.is_none() || copy.is(nb::handle(Py_True));
  bool copied = false;
  if (!device.is_none()) {
    const Device wanted = device_from_dlpack(nb::cast<int32_t>(device[0]), nb::cast<int32_t>(device[1]), "__dlpack__");
    copied = wanted != value.device();
    if (copied && !may_copy) {
      raise_buffer_error(fmt::format("__dlpack__(): the tensor is on {}, and copy=False forbids a copy on {}",
                                     to_string(value.device()), to_string(wanted)));
    }
    if (copied) value = released([&] { return to_device(Tensor(value), wanted).get().value; });
  }
  if (!copied && copy.is(nb::handle(Py_True))) {
    value = released([&] { return clone(value); });
    copied = true;
  }
  // The consumer's stream does not wait for this thread's, so that all work is waited for here, unless it asks for none (-1).
  const bool waits = stream.is_none() || nb::cast<int64_t>(stream) != -1;
  if (value.device() == kCpu && !stream.is_none() && waits)
    raise_buffer_error("__dlpack__(): a CPU tensor has no stream; pass None");
  if (value.device() != kCpu && waits) {
    released([&] {
      backend_of(value.device()).synchronize(value.device().index);
      return 0;
    });
  }
  if (wants_version_1(max_version))
    return capsule_of<ManagedVersioned>(value, kVersionedName, copied ? dlpack::kCopied : 0);
  return capsule_of<Managed>(value, kName, 0);
}

/// An array of another library, whose capsule was taken.
struct Taken {
  dlpack::Array array{};
  bool read_only = false;
  std::shared_ptr<void> owner;  // of the capsule, which runs the deleter
};

/// Renames a capsule, as its consumer has to, and keeps it for the deleter: the capsule runs it in the end, with the interpreter's lock,
/// which a deleter of another library may need.
template <class Handed>
std::shared_ptr<void> owner_of(nb::object capsule, const char* used) {
  PyCapsule_SetName(capsule.ptr(), used);
  PyCapsule_SetDestructor(capsule.ptr(), [](PyObject* object) {
    auto* const handed = static_cast<Handed*>(PyCapsule_GetPointer(object, PyCapsule_GetName(object)));
    if (handed != nullptr && handed->deleter != nullptr) handed->deleter(handed);
  });
  return std::make_shared<SharedObject>(std::move(capsule));
}

Taken take(nb::object capsule, const char* function) {
  PyObject* const object = capsule.ptr();
  if (PyCapsule_IsValid(object, kVersionedName) != 0) {
    auto* const handed = static_cast<ManagedVersioned*>(PyCapsule_GetPointer(object, kVersionedName));
    if (handed->version.major > 1) {
      raise_buffer_error(fmt::format("{}(): the array is of DLPack {}.{}, but shard reads versions 0 and 1", function,
                                     handed->version.major, handed->version.minor));
    }
    return {handed->array, (handed->flags & dlpack::kReadOnly) != 0,
            owner_of<ManagedVersioned>(std::move(capsule), "used_dltensor_versioned")};
  }
  if (PyCapsule_IsValid(object, kName) == 0) {
    raise_type_error(fmt::format("{}(): __dlpack__() returned {}, not a capsule that was not used", function,
                                 name_of_type(capsule)));
  }
  auto* const handed = static_cast<Managed*>(PyCapsule_GetPointer(object, kName));
  return {handed->array, false, owner_of<Managed>(std::move(capsule), "used_dltensor")};
}

/// Calls data.__dlpack__, with the arguments of DLPack 1 where it has them.
nb::object capsule_from(nb::handle data, Device device, std::optional<bool> copy) {
  const nb::object method = data.attr("__dlpack__");
  nb::dict arguments;
  if (device != kCpu) arguments["stream"] = released([&] { return cuda_stream(device.index); });
  nb::dict newer = nb::borrow<nb::dict>(nb::handle(arguments.attr("copy")()));
  newer["max_version"] = nb::make_tuple(1, 0);
  if (copy && *copy) newer["copy"] = true;  // copy=False is what arrays do anyway, and some refuse the argument
  try {
    return method(**newer);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(**arguments);
}

Elements elements_of(const dlpack::Array& array, const char* function) {
  Elements elements{.data = static_cast<const char*>(array.data) + array.byte_offset,
                    .meta = {Dims(std::span<const int64_t>(array.shape, static_cast<size_t>(array.rank))),
                             from_dlpack(array.dtype, function)},
                    .steps = {},
                    .read_only = false};
  auto step = static_cast<int64_t>(size_of(elements.meta.dtype));
  const int64_t size = step;
  for (int d = array.rank - 1; d >= 0; --d) {
    elements.steps[static_cast<size_t>(d)] = array.strides != nullptr ? array.strides[d] * size : step;
    step *= array.shape[d];
  }
  return elements;
}

/// An owner that first waits for this thread's work on the memory: the other library may reuse it at once, on another stream.
std::shared_ptr<void> after_work(std::shared_ptr<void> owner, Device device) {
  if (device == kCpu) return owner;
  void* const pointer = owner.get();
  return {pointer, [owner = std::move(owner), device](void*) mutable {
            try {
              backend_of(device).synchronize(device.index);
            } catch (const Error&) {  // of the device, on which nothing runs any more
            }
            owner.reset();
          }};
}

/// Why a tensor cannot be on this memory; null where it can.
const char* obstacle(const Taken& taken, const Elements& elements) {
  if (taken.read_only) return "read-only, but ops can write tensors";
  if (!elements.contiguous()) return "not contiguous in row-major order, as tensors are";
  if (!elements.aligned()) return "not aligned to its elements, as kernels need";
  return nullptr;
}

}  // namespace

Tensor tensor_from_dlpack(nb::handle data, std::optional<bool> copy, const char* function) {
  if (!nb::hasattr(data, "__dlpack__") || !nb::hasattr(data, "__dlpack_device__")) {
    raise_type_error(
        fmt::format("{}(): the argument must have __dlpack__ and __dlpack_device__, as arrays of NumPy, "
                    "PyTorch and JAX do, but is of type {}",
                    function, name_of_type(data)));
  }
  const nb::object place = data.attr("__dlpack_device__")();
  const Device device =
      device_from_dlpack(nb::cast<int32_t>(nb::int_(place[0])), nb::cast<int32_t>(nb::int_(place[1])), function);
  const Taken taken = take(capsule_from(data, device, copy), function);
  const Elements elements = elements_of(taken.array, function);
  const bool copies = copy && *copy;
  const char* const problem = obstacle(taken, elements);
  if (problem != nullptr && !copies) {
    fail(ErrorCode::invalid_argument, "[{}] the array is {}; pass copy=True, or use shard.tensor, which copies",
         function, problem);
  }
  if (problem != nullptr && !elements.contiguous() && device != kCpu) {
    fail(ErrorCode::invalid_argument, "[{}] the array is {}; make a contiguous copy in the library that it is from",
         function, problem);
  }
  return released([&] {
    if (copies && device == kCpu) return Tensor(copy_of(elements));
    const DenseTensor shared(Storage::adopt(device, const_cast<void*>(elements.data), elements.meta.bytes(),
                                            after_work(taken.owner, device)),
                             elements.meta);
    return Tensor(copies ? clone(shared) : shared);
  });
}

void register_dlpack(nb::module_& module, TensorClass& tensor) {
  module.def(
      "from_dlpack",
      [](nb::handle data, nb::handle device, std::optional<bool> copy) {
        Tensor result = tensor_from_dlpack(data, copy, "from_dlpack");
        const std::optional<Device> wanted = device_argument(device, "from_dlpack");
        if (!wanted || *wanted == result.device()) return result;
        if (copy && !*copy) {
          fail(ErrorCode::device, "[from_dlpack] the array is on {}, and copy=False forbids a copy on {}",
               to_string(result.device()), to_string(*wanted));
        }
        return released([&] { return to_device(result, *wanted); });
      },
      nb::arg("x").none(), nb::kw_only(), nb::arg("device") = nb::none(), nb::arg("copy") = nb::none(),
      "A tensor on the memory of an array of another library, without a copy: an object with __dlpack__, such as those "
      "of\n"
      "NumPy, PyTorch and JAX. The tensor keeps the memory alive, and writes of either are seen by both, without "
      "being\n"
      "counted as versions. With copy=True the tensor has memory of its own. Errors: ArgumentError for an array that "
      "is\n"
      "read-only, not contiguous or not aligned, unless copy=True; DTypeError; DeviceError for a device without a "
      "backend.");
  tensor.def(
      "__dlpack__", &export_tensor, nb::kw_only(), nb::arg("stream") = nb::none(), nb::arg("max_version") = nb::none(),
      nb::arg("dl_device") = nb::none(), nb::arg("copy") = nb::none(),
      "A capsule of DLPack with the memory of this dense tensor, which it keeps alive. BufferError for a tensor that\n"
      "requires a gradient; the errors of reads otherwise.");
  tensor.def("__dlpack_device__", [](const Tensor& x) {
    const dlpack::Device device = device_to_dlpack(x.device());
    return nb::make_tuple(device.type, device.index);
  });
}

}  // namespace shard::python
