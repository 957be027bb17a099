// The table of functions for generated bindings.
#include "services.h"

#include <nanobind/stl/string.h>

#include <mutex>
#include <string>
#include <unordered_map>

namespace shard::python {
namespace {

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000 || defined(Py_LIMITED_API)
  return !Py_IsInitialized();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

/// The folder of this package with a separator at its end; empty where it is not known.
std::string package_folder() {
  // No import: that may let another thread run, which would wait here for this one while it holds the interpreter's lock.
  PyObject* const name = PyUnicode_FromString("shard._core");
  PyObject* const core = name != nullptr ? PyImport_GetModule(name) : nullptr;
  PyObject* const file = core != nullptr ? PyObject_GetAttrString(core, "__file__") : nullptr;
  const char* const path = file != nullptr ? PyUnicode_AsUTF8AndSize(file, nullptr) : nullptr;
  std::string folder = path != nullptr ? path : "";
  Py_XDECREF(file);
  Py_XDECREF(core);
  Py_XDECREF(name);
  PyErr_Clear();
  const size_t end = folder.find_last_of("/\\");
  return end == std::string::npos ? std::string() : folder.substr(0, end + 1);
}

/// A file of Python code. Kept for ever: errors have the names of files at any time, also at exit.
struct SourceFile {
  std::string name;
  bool of_package = false;
};

const SourceFile& source_file(const char* name) {
  static const auto* const folder = new std::string(package_folder());
  static std::mutex mutex;
  static auto* const files = new std::unordered_map<std::string, SourceFile>();
  thread_local const SourceFile* last = nullptr;  // most calls of a thread are in the file of the call before
  if (last != nullptr && last->name == name) return *last;
  const std::lock_guard lock(mutex);
  const auto [place, added] = files->try_emplace(name);
  if (added) place->second = {place->first, !folder->empty() && place->first.starts_with(*folder)};
  last = &place->second;
  return *last;
}

PyFrameObject* as_frame(PyObject* frame) { return reinterpret_cast<PyFrameObject*>(frame); }

/// The file of the code that a frame runs; null where it is not known.
const SourceFile* file_of(PyObject* frame) {
  PyObject* const code = reinterpret_cast<PyObject*>(PyFrame_GetCode(as_frame(frame)));
  PyObject* const name = PyObject_GetAttrString(code, "co_filename");
  const char* const text = name != nullptr ? PyUnicode_AsUTF8AndSize(name, nullptr) : nullptr;
  const SourceFile* const file = text != nullptr ? &source_file(text) : nullptr;
  Py_XDECREF(name);
  Py_DECREF(code);
  if (text == nullptr) PyErr_Clear();
  return file;
}

/// The frame that called this one, or null.
PyObject* caller_of(PyObject* frame) {
  PyObject* const back = PyObject_GetAttrString(frame, "f_back");  // PyFrame_GetBack is not in the stable ABI
  if (back != nullptr && back != Py_None) return back;
  Py_XDECREF(back);
  PyErr_Clear();
  return nullptr;
}

}  // namespace

SharedObject::SharedObject(nb::object object)
    : object_(object.release().ptr(), [](PyObject* each) {
        if (finalizing()) return;  // the interpreter is gone, and its objects with it
        const HoldLock lock;
        Py_DECREF(each);
      }) {}

CallSite current_site() {
  PyObject* frame = reinterpret_cast<PyObject*>(PyEval_GetFrame());
  Py_XINCREF(frame);
  while (frame != nullptr) {
    const SourceFile* const file = file_of(frame);
    PyObject* const caller = file != nullptr && file->of_package ? caller_of(frame) : nullptr;
    if (caller == nullptr) {
      const int line = PyFrame_GetLineNumber(as_frame(frame));
      Py_DECREF(frame);
      return file != nullptr ? CallSite{file->name.c_str(), static_cast<uint32_t>(line)} : CallSite{};
    }
    Py_DECREF(frame);
    frame = caller;
  }
  return {};
}

namespace {

PyTypeObject* tensor_type = nullptr;  // the Python class

// These two are nanobind's conversions without its lookups of the class, which took a third of the time of a small call.
Tensor* tensor_of(PyObject* object) {
  if (Py_TYPE(object) == tensor_type && nb::inst_ready(object)) return nb::inst_ptr<Tensor>(nb::handle(object));
  Tensor* tensor = nullptr;
  return nb::try_cast<Tensor*>(nb::handle(object), tensor, false) ? tensor : nullptr;
}

PyObject* new_object(Tensor tensor) {
  nb::object object = nb::inst_alloc(nb::handle(reinterpret_cast<PyObject*>(tensor_type)));
  new (nb::inst_ptr<Tensor>(object)) Tensor(std::move(tensor));
  nb::inst_mark_ready(object);
  return object.release().ptr();
}

}  // namespace

Tensor& tensor_in(PyObject* object) {
  Tensor* const tensor = tensor_of(object);
  if (tensor == nullptr) throw nb::type_error("this Tensor was not initialized: shard.tensor(data) makes tensors");
  return *tensor;
}

nb::object wrap(Tensor tensor) { return tensor.defined() ? nb::steal(new_object(std::move(tensor))) : nb::none(); }

bool dtype_of(nb::handle object, DType& dtype) {
  if (nb::try_cast(object, dtype, false)) return true;  // numbers are none
  nb::object name;
  if (nb::isinstance<nb::str>(object)) {
    name = nb::borrow(object);
  } else if (nb::hasattr(object, "dtype") && nb::hasattr(object, "names")) {
    name = object.attr("name");
  } else if (nb::hasattr(object, "name") && nb::hasattr(object, "itemsize")) {  // numpy.dtype
    name = object.attr("name");
  } else if (nb::isinstance<nb::type_object>(object) &&
             nb::hasattr(object, "__name__")) {  // numpy.float32, ml_dtypes.bfloat16
    name = object.attr("__name__");
    static constexpr std::pair<const char*, DType> python_types[] = {{"float", DType::float64}, {"int", DType::int64}};
    for (const auto& [type, value] : python_types) {
      if (nb::cast<std::string>(name) != type) continue;
      dtype = value;
      return true;
    }
    if (nb::cast<std::string>(name) == "bool_") name = nb::str("bool");
  }
  if (!name.is_valid() || !nb::isinstance<nb::str>(name)) return false;
  dtype = parse_dtype(nb::cast<std::string>(name));
  return true;
}

bool device_of(nb::handle object, Device& device) {
  if (nb::try_cast(object, device)) return true;
  if (!nb::isinstance<nb::str>(object)) return false;
  device = parse_device(nb::cast<std::string>(object));
  return true;
}

void register_services(nb::module_& module, nb::handle tensor_class) {
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor_class.ptr());
  static const Services table = {
      .version = Services::kVersion,
      .tensor = tensor_of,
      .wrap = new_object,
      .dtype = [](PyObject* object, DType& dtype) { return dtype_of(object, dtype); },
      .device = [](PyObject* object, Device& device) { return device_of(object, device); },
      .layout = [](PyObject* object, int rank) { return layout_of(object, rank); },
      .raise = raise_current,
      .site = current_site,
  };
  services = &table;
  module.attr("_services") = nb::capsule(&table, "shard._core._services");
}

}  // namespace shard::python
