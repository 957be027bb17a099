// The buffer protocol: tensors as buffers of Python, and tensors from buffers and arrays of NumPy.
#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <cstring>
#include <memory>

#include "arrays.h"
#include "messages.h"

namespace shard::python {
namespace {

/// How the module struct names the elements of a dtype; null where it cannot.
const char* format_of(DType dtype) {
  switch (dtype) {
    case DType::float32: return "f";
    case DType::float64: return "d";
    case DType::float16: return "e";
    case DType::int32: return "i";
    case DType::int64: return sizeof(long) == 8 ? "l" : "q";
    case DType::uint8: return "B";
    case DType::boolean: return "?";
    case DType::bfloat16: return nullptr;
  }
  return nullptr;
}

/// What a buffer that was handed out refers to: the memory stays, even where an op gives the tensor another one.
struct Exported {
  Ref<Storage> storage;
  std::array<Py_ssize_t, kMaxRank> shape{}, steps{};
};

void fill_view(Py_buffer* view, const DenseTensor& value, int flags) {
  auto exported = std::make_unique<Exported>();
  exported->storage = value.storage();
  const int rank = value.dims().rank();
  auto step = static_cast<Py_ssize_t>(size_of(value.dtype()));
  for (int d = rank - 1; d >= 0; --d) {
    const auto at = static_cast<size_t>(d);
    exported->shape[at] = static_cast<Py_ssize_t>(value.dims()[d]);
    exported->steps[at] = step;
    step *= exported->shape[at];
  }
  static char nothing[64];  // the address of buffers without bytes
  view->buf = value.meta().bytes() == 0 ? nothing : value.raw();
  view->len = static_cast<Py_ssize_t>(value.meta().bytes());
  view->readonly = 0;
  view->itemsize = static_cast<Py_ssize_t>(size_of(value.dtype()));
  view->format = (flags & PyBUF_FORMAT) != 0 ? const_cast<char*>(format_of(value.dtype())) : nullptr;
  view->ndim = rank;
  view->shape = (flags & PyBUF_ND) != 0 ? exported->shape.data() : nullptr;
  view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? exported->steps.data() : nullptr;
  view->suboffsets = nullptr;
  view->internal = exported.release();
}

/// Holds the buffer of an object while its elements are read.
class HeldBuffer {
 public:
  explicit HeldBuffer(nb::handle object) : held_(PyObject_GetBuffer(object.ptr(), &view_, PyBUF_RECORDS_RO) == 0) {}
  HeldBuffer(const HeldBuffer&) = delete;
  HeldBuffer& operator=(const HeldBuffer&) = delete;
  ~HeldBuffer() {
    if (held_) PyBuffer_Release(&view_);
  }
  bool held() const { return held_; }
  const Py_buffer& view() const { return view_; }

 private:
  Py_buffer view_{};
  bool held_;
};

Elements elements_of(const Py_buffer& view, DType dtype) {
  Elements elements{.data = view.buf, .meta = {Dims(), dtype}, .steps = {}, .read_only = view.readonly != 0};
  for (int d = 0; d < view.ndim; ++d) elements.meta.dims.push_back(view.shape[d]);
  for (int d = 0; d < view.ndim; ++d) elements.steps[static_cast<size_t>(d)] = view.strides[d];
  return elements;
}

/// The dtype of a format of the module struct. False for those that tensors do not have.
bool dtype_of_format(const char* format, Py_ssize_t itemsize, DType& dtype) {
  std::string_view text = format == nullptr ? "B" : format;
  constexpr char kForeign = std::endian::native == std::endian::little ? '>' : '<';
  if (!text.empty() && (text[0] == kForeign || text[0] == '!') && itemsize > 1) return false;
  if (!text.empty() && std::string_view("@=<>!").find(text[0]) != std::string_view::npos) text.remove_prefix(1);
  if (text.size() != 1) return false;
  const auto among = [&](std::string_view letters) { return letters.find(text[0]) != std::string_view::npos; };
  if (among("?")) dtype = DType::boolean;
  else if (among("e")) dtype = DType::float16;
  else if (among("f")) dtype = DType::float32;
  else if (among("d")) dtype = DType::float64;
  else if (among("bhilqn") && itemsize == 4) dtype = DType::int32;
  else if (among("bhilqn") && itemsize == 8) dtype = DType::int64;
  else if (among("B")) dtype = DType::uint8;
  else return false;
  return static_cast<Py_ssize_t>(size_of(dtype)) == itemsize;
}

void copy_dims(const Elements& from, int dim, const char* source, char*& to) {
  const size_t size = size_of(from.meta.dtype);
  if (dim == from.meta.dims.rank()) {
    std::memcpy(to, source, size);
    to += size;
    return;
  }
  const int64_t step = from.steps[static_cast<size_t>(dim)];
  for (int64_t i = 0; i < from.meta.dims[dim]; ++i) copy_dims(from, dim + 1, source + i * step, to);
}

[[noreturn]] void fail_dtype(const char* function, const std::string& dtype) {
  fail(ErrorCode::dtype_mismatch,
       "[{}] tensors have no dtype {}, but {}; convert the array first, as with a.astype('float32')", function, dtype,
       dtype_names());
}

}  // namespace

bool Elements::contiguous() const {
  if (meta.numel() == 0) return true;
  auto step = static_cast<int64_t>(size_of(meta.dtype));
  for (int d = meta.dims.rank() - 1; d >= 0; --d) {
    if (meta.dims[d] != 1 && steps[static_cast<size_t>(d)] != step) return false;
    step *= meta.dims[d];
  }
  return true;
}

DenseTensor copy_of(const Elements& elements) {
  DenseTensor copy = DenseTensor::allocate(kCpu, elements.meta, nullptr, "tensor");
  auto* to = static_cast<char*>(copy.raw());
  if (elements.meta.numel() == 0) return copy;
  if (elements.contiguous()) std::memcpy(to, elements.data, elements.meta.bytes());
  else copy_dims(elements, 0, static_cast<const char*>(elements.data), to);
  return copy;
}

int get_buffer(PyObject* object, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  try {
    const Tensor& x = tensor_in(object);
    const DenseTensor value = released([&] { return readable(x, "buffer"); });
    const char* problem = x.requires_grad()        ? "requires a gradient; use detach()"
                          : value.device() != kCpu ? "is not in host memory; use cpu()"
                          : format_of(value.dtype()) == nullptr
                              ? "is bfloat16, which buffers have no format for; use numpy()"
                              : nullptr;
    if (problem != nullptr) {
      PyErr_Format(PyExc_BufferError, "[buffer] the tensor %s", problem);
      return -1;
    }
    if ((flags & PyBUF_F_CONTIGUOUS) == PyBUF_F_CONTIGUOUS && value.dims().rank() > 1) {
      PyErr_SetString(PyExc_BufferError, "[buffer] the tensor is C-contiguous, not Fortran-contiguous");
      return -1;
    }
    fill_view(view, value, flags);
    Py_INCREF(object);
    view->obj = object;
    return 0;
  } catch (const Error& error) {
    PyErr_SetString(PyExc_BufferError, in_python(error.what()).c_str());
    return -1;
  } catch (...) {
    raise_current();
    return -1;
  }
}

void release_buffer(PyObject*, Py_buffer* view) noexcept { delete static_cast<Exported*>(view->internal); }

bool is_numpy(nb::handle object) {
  return nb::hasattr(nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr()))), "__array_interface__");
}

DType dtype_of_array(nb::handle array, const char* function) {
  const nb::object type = array.attr("dtype");
  const auto name = nb::cast<std::string>(nb::str(type.attr("name")));
  if (!nb::cast<bool>(type.attr("isnative"))) {
    fail(ErrorCode::dtype_mismatch,
         "[{}] the elements of the array are in the byte order of another machine; use a.astype('{}')", function, name);
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    if (name == kDTypeTraits[i].name) return static_cast<DType>(i);
  }
  fail_dtype(function, name);
}

Tensor tensor_from_array(nb::handle array, const char* function) {
  const DType dtype = dtype_of_array(array, function);
  const nb::object same = dtype == DType::bfloat16 ? array.attr("view")(nb::str("uint16")) : nb::borrow(array);
  const HeldBuffer buffer(same);
  if (!buffer.held()) nb::raise_python_error();
  const Elements elements = elements_of(buffer.view(), dtype);
  return released([&] { return Tensor(copy_of(elements)); });
}

Tensor tensor_from_buffer(nb::handle data, const char* function) {
  if (PyObject_CheckBuffer(data.ptr()) == 0) return {};
  const HeldBuffer buffer(data);
  if (!buffer.held()) nb::raise_python_error();
  DType dtype{};
  const Py_buffer& view = buffer.view();
  if (!dtype_of_format(view.format, view.itemsize, dtype)) {
    fail_dtype(function, fmt::format("of the format '{}'", view.format == nullptr ? "B" : view.format));
  }
  const Elements elements = elements_of(view, dtype);
  return released([&] { return Tensor(copy_of(elements)); });
}

}  // namespace shard::python
