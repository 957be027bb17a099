// The table of functions for generated bindings.
#include "services.h"

#include <mutex>
#include <string>
#include <unordered_set>

namespace shard::python {
namespace {

bool finalizing() {
#if PY_VERSION_HEX >= 0x030D0000 || defined(Py_LIMITED_API)
  return !Py_IsInitialized();
#else
  return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

/// The text, kept for ever.
const char* interned(const char* text) {
  static std::mutex mutex;
  static auto* const texts = new std::unordered_set<std::string>();  // read by errors at any time, also at exit
  const std::lock_guard lock(mutex);
  return texts->emplace(text).first->c_str();
}

}  // namespace

SharedObject::SharedObject(nb::object object)
    : object_(object.release().ptr(), [](PyObject* each) {
        if (finalizing()) return;  // the interpreter is gone, and its objects with it
        const HoldLock lock;
        Py_DECREF(each);
      }) {}

CallSite current_site() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return {};
  Py_INCREF(frame);
  const int line = PyFrame_GetLineNumber(frame);
  PyCodeObject* const code = PyFrame_GetCode(frame);
  PyObject* const file = PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), "co_filename");
  const char* const text = file != nullptr ? PyUnicode_AsUTF8AndSize(file, nullptr) : nullptr;
  const CallSite site{text != nullptr ? interned(text) : nullptr, static_cast<uint32_t>(line)};
  Py_XDECREF(file);
  Py_DECREF(code);
  Py_DECREF(frame);
  if (text == nullptr) PyErr_Clear();
  return site;
}

nb::object wrap(Tensor tensor) { return tensor.defined() ? nb::cast(std::move(tensor)) : nb::none(); }

bool dtype_of(nb::handle object, DType& dtype) {
  if (nb::try_cast(object, dtype)) return true;
  nb::object name;
  if (nb::isinstance<nb::str>(object)) {
    name = nb::borrow(object);
  } else if (nb::hasattr(object, "dtype") && nb::hasattr(object, "names")) {
    name = object.attr("name");
  } else if (nb::hasattr(object, "name") && nb::hasattr(object, "itemsize")) {  // numpy.dtype
    name = object.attr("name");
  } else if (nb::isinstance<nb::type_object>(object) && nb::hasattr(object, "__name__")) {  // numpy.float32, ml_dtypes.bfloat16
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

void register_services(nb::module_& module) {
  static const Services table = {
      .version = Services::kVersion,
      .tensor = [](PyObject* object) -> Tensor* {
        Tensor* tensor = nullptr;
        return nb::try_cast<Tensor*>(nb::handle(object), tensor, false) ? tensor : nullptr;
      },
      .wrap = [](Tensor tensor) { return nb::cast(std::move(tensor)).release().ptr(); },
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
