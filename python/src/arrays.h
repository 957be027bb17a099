// What the files about the values of tensors share: elements in host memory, and how Python objects become tensors.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "services.h"

namespace shard::python {

/// Elements in host memory that something else owns, with a step in bytes for each dim.
struct Elements {
  const void* data = nullptr;
  Meta meta;
  std::array<int64_t, kMaxRank> steps{};
  bool read_only = false;

  /// True where the elements lie one after the other in row-major order.
  bool contiguous() const;
  /// True where their address is a multiple of their size, which is what kernels need.
  bool aligned() const { return reinterpret_cast<uintptr_t>(data) % size_of(meta.dtype) == 0; }
};

/// Raises TypeError.
[[noreturn]] void raise_type_error(const std::string& message);
/// "list", the name of the type of an object.
std::string name_of_type(nb::handle object);
/// The list of dtypes for messages: "float32, float64, ...".
std::string dtype_names();
/// Reads a dtype or None. Raises TypeError naming `function` for other objects.
std::optional<DType> dtype_argument(nb::handle object, const char* function);
std::optional<Device> device_argument(nb::handle object, const char* function);
/// The line of the Python program, where a call with this tensor keeps it.
CallSite site_of(const Tensor& x);
/// Whether a call with the tensor has one: it is recorded, or traced.
bool keeps_site(const Tensor& x);

/// The value of a dense tensor, which may be read. Throws layout for a distributed tensor, stale_view, poisoned or no_data.
DenseTensor readable(const Tensor& x, const char* function);
/// The same in host memory.
DenseTensor readable_on_host(const Tensor& x, const char* function);
/// Throws autograd for a tensor that requires a gradient, because others would write it without a record.
void refuse_gradient(const Tensor& x, const char* function);

/// A copy of the elements. Called without the interpreter's lock.
DenseTensor copy_of(const Elements& elements);

/// Whether the object is an array or a scalar of NumPy.
bool is_numpy(nb::handle object);
/// The dtype of an array of NumPy. Throws dtype_mismatch for those that tensors do not have.
DType dtype_of_array(nb::handle array, const char* function);

/// A tensor with a copy of the value: nested lists and tuples of numbers, numbers, tensors, arrays, and objects with __dlpack__ or the
/// buffer protocol. Without `dtype` arrays keep theirs, and Python's float, int and bool become float32, int64 and bool. Without
/// `device` the default one, or that of a tensor. Has no history.
Tensor tensor_from(nb::handle data, std::optional<DType> dtype, std::optional<Device> device,
                   const char* function = "tensor");
/// A tensor with the numbers of nested lists, in host memory. Undefined where an item is an array, which NumPy can convert.
Tensor tensor_from_numbers(nb::handle data, std::optional<DType> dtype, const char* function);
/// A tensor with the elements of an object with the buffer protocol. Undefined where it has none.
Tensor tensor_from_buffer(nb::handle data, const char* function);
Tensor tensor_from_array(nb::handle array, const char* function);
/// A tensor with the memory of an object with __dlpack__, or a copy (always: true, never: false).
Tensor tensor_from_dlpack(nb::handle data, std::optional<bool> copy, const char* function);
/// The tensor beside a distributed one: replicated on its mesh. `tensor` itself beside a plain one.
Tensor beside(const Tensor& like, Tensor tensor);

/// Nested lists of the elements, or one number.
nb::object list_of(const DenseTensor& host);
/// What repr returns. Never throws.
std::string text_of(const Tensor& x) noexcept;
/// An array of NumPy on the memory of the tensor.
nb::object numpy_of(nb::handle tensor, const char* function);

/// Functions of the class that are slots of the type.
int get_buffer(PyObject* object, Py_buffer* view, int flags) noexcept;
void release_buffer(PyObject* object, Py_buffer* view) noexcept;
PyObject* get_item(PyObject* object, PyObject* key) noexcept;
int set_item(PyObject* object, PyObject* key, PyObject* value) noexcept;
PyObject* represent(PyObject* object) noexcept;

using TensorClass = nb::class_<Tensor>;
void register_conversions(TensorClass& tensor);
void register_dlpack(nb::module_& module, TensorClass& tensor);
void register_protocols(TensorClass& tensor);
void register_pickling(nb::module_& module, TensorClass& tensor);

}  // namespace shard::python
