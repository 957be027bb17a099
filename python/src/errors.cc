// The exceptions of the package: one class for each kind of error of the library.
#include <array>
#include <cstring>

#include "messages.h"
#include "module.h"
#include "services.h"

namespace shard::python {
namespace {

/// A class of exceptions, the Python class that it also is, and the codes that it stands for.
struct ErrorClass {
  const char* name;
  const char* builtin;  // or null
  const char* doc;
  std::vector<ErrorCode> codes;
};

const std::vector<ErrorClass>& error_classes() {
  using enum ErrorCode;
  static const std::vector<ErrorClass> classes = {
      {"ArgumentError",
       "ValueError",
       "An argument that is invalid for any tensor, or undefined.",
       {invalid_argument, undefined}},
      {"ShapeError", "ValueError", "Shapes that do not fit.", {shape_mismatch}},
      {"DTypeError",
       "TypeError",
       "Dtypes that do not fit, or that an op has no kernel for.",
       {dtype_mismatch, no_kernel}},
      {"OutOfRangeError", "IndexError", "An axis or index outside of its range.", {out_of_range}},
      {"LayoutError", "ValueError", "Meshes, layouts or ranks that do not fit.", {layout, no_rule, wrong_rank}},
      {"PolicyError", nullptr, "What a policy of the caller forbids.", {policy}},
      {"StaleError",
       nullptr,
       "A tensor whose value must not be used: a view of a copy, or one that a failed call wrote.",
       {view_of_copy, stale_view, poisoned}},
      {"NoDataError", nullptr, "The value of a tensor of a dry run.", {no_data}},
      {"CommunicationError",
       "ConnectionError",
       "Ranks that disagree or failed, and collectives that took too long.",
       {communication, timeout, peer_failed}},
      {"DeviceError",
       nullptr,
       "A device that failed, lacks memory, or is not the one of the other arguments.",
       {device, mixed_device}},
      {"AutogradError", nullptr, "Gradients that cannot be computed.", {autograd}},
      {"CaptureError", nullptr, "What a captured program cannot contain.", {capture}},
      {"InternalError", nullptr, "A defect of the library.", {internal}},
  };
  return classes;
}

PyObject* base_error = nullptr;
std::array<PyObject*, 32> errors_by_code{};

/// Sets the Python error of an error of the library: a class, the whole message, and its code as `code`.
void set_error(const Error& error) {
  PyObject* const type = errors_by_code.at(static_cast<size_t>(error.code()));
  PyObject* const value =
      PyObject_CallFunction(type != nullptr ? type : base_error, "s", in_python(error.what()).c_str());
  if (value == nullptr) return;
  PyObject* const code = PyUnicode_FromString(to_string(error.code()));
  if (code != nullptr) PyObject_SetAttrString(value, "code", code);
  Py_XDECREF(code);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
}

PyObject* builtin_of(nb::exception_type type) {
  switch (type) {
    case nb::exception_type::stop_iteration: return PyExc_StopIteration;
    case nb::exception_type::index_error: return PyExc_IndexError;
    case nb::exception_type::key_error: return PyExc_KeyError;
    case nb::exception_type::value_error: return PyExc_ValueError;
    case nb::exception_type::type_error: return PyExc_TypeError;
    case nb::exception_type::buffer_error: return PyExc_BufferError;
    case nb::exception_type::import_error: return PyExc_ImportError;
    case nb::exception_type::attribute_error: return PyExc_AttributeError;
    default: return PyExc_RuntimeError;
  }
}

}  // namespace

void raise_current() {
  try {
    throw;
  } catch (const Error& error) { set_error(error); } catch (const PythonError& error) {
    error.restore();
  } catch (nb::python_error& error) { error.restore(); } catch (const nb::builtin_exception& error) {
    PyErr_SetString(builtin_of(error.type()), error.what());
  } catch (const std::bad_alloc&) { PyErr_NoMemory(); } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  } catch (...) { PyErr_SetString(PyExc_SystemError, "an exception that is no std::exception"); }
}

void register_errors(nb::module_& module) {
  base_error = PyErr_NewExceptionWithDoc("shard.Error", "The base of the errors of shard. `code` is the kind of error.",
                                         PyExc_RuntimeError, nullptr);
  module.attr("Error") = nb::handle(base_error);
  nb::module_ builtins = nb::module_::import_("builtins");
  for (const ErrorClass& each : error_classes()) {
    nb::object bases = nb::make_tuple(nb::handle(base_error));
    if (each.builtin != nullptr) bases = nb::make_tuple(nb::handle(base_error), builtins.attr(each.builtin));
    PyObject* const type =
        PyErr_NewExceptionWithDoc((std::string("shard.") + each.name).c_str(), each.doc, bases.ptr(), nullptr);
    if (type == nullptr) nb::raise_python_error();
    module.attr(each.name) = nb::handle(type);
    for (const ErrorCode code : each.codes) errors_by_code.at(static_cast<size_t>(code)) = type;
  }
  nb::register_exception_translator([](const std::exception_ptr& exception, void*) {
    try {
      std::rethrow_exception(exception);
    } catch (const Error& error) { set_error(error); } catch (const PythonError& error) {
      error.restore();
    }
  });
}

}  // namespace shard::python
