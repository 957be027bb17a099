// Runs bindings, returns their results to Python, and connects a module to shard._core.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "shard/python/binding.h"

namespace shard::python {

const Services* services = nullptr;

namespace {

/// Stops the thread for ever when its frames are unwound. (Not in functions that are noexcept: these end the process first.)
struct StopThread {
  bool armed = true;
  ~StopThread() {
    while (armed) std::this_thread::sleep_for(std::chrono::hours(1));
  }
};

}  // namespace

void restore_thread(PyThreadState* state) {
  StopThread stop;
  PyEval_RestoreThread(state);
  stop.armed = false;
}

PyGILState_STATE ensure_lock() {
  StopThread stop;
  const PyGILState_STATE state = PyGILState_Ensure();
  stop.armed = false;
  return state;
}

bool connect() {
  if (services != nullptr) return true;
  PyObject* const core = PyImport_ImportModule("shard._core");
  PyObject* const capsule = core != nullptr ? PyObject_GetAttrString(core, "_services") : nullptr;
  Py_XDECREF(core);
  if (capsule == nullptr) return false;
  const auto* const found = static_cast<const Services*>(PyCapsule_GetPointer(capsule, "shard._core._services"));
  Py_DECREF(capsule);  // the module keeps it, and modules are never unloaded
  if (found == nullptr) return false;
  if (found->version != Services::kVersion) {
    PyErr_Format(PyExc_ImportError,
                 "this module was compiled for version %d of shard's bindings, and the installed shard has version %d: "
                 "compile it again",
                 Services::kVersion, found->version);
    return false;
  }
  services = found;
  return true;
}

PythonError::PythonError() {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  error_ = value;
  PyObject* const text = PyObject_Str(value);
  const char* const bytes = text != nullptr ? PyUnicode_AsUTF8AndSize(text, nullptr) : nullptr;
  text_ = bytes != nullptr ? bytes : "an exception in Python";
  Py_XDECREF(text);
  PyErr_Clear();
}

PythonError::PythonError(const PythonError& other) : error_(other.error_), text_(other.text_) {
  const HoldLock lock;
  Py_XINCREF(error_);
}

PythonError::~PythonError() {
  const HoldLock lock;
  Py_XDECREF(error_);
}

void PythonError::restore() const { PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error_)), error_); }

PyObject* Arguments::none() {
  Py_INCREF(Py_None);
  return Py_None;
}

PyObject* Arguments::to_python(Tensor&& tensor) {
  return tensor.defined() ? services->wrap(std::move(tensor)) : none();
}

PyObject* Arguments::to_python(Tensor& target) {
  for (const auto& [object, tensor] : targets_) {
    if (tensor != &target) continue;
    Py_INCREF(object);
    return object;
  }
  return none();  // an optional argument that was not passed
}

PyObject* Arguments::to_python(std::vector<Tensor>&& tensors) {
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(tensors.size()));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyObject* const item = to_python(std::move(tensors[i]));
    if (item == nullptr || PyList_SetItem(list, static_cast<Py_ssize_t>(i), item) != 0) {
      Py_DECREF(list);
      return nullptr;
    }
  }
  return list;
}

PyObject* Arguments::to_python(std::vector<Tensor>& targets) {
  for (const std::unique_ptr<List>& list : lists_) {
    if (&list->tensors != &targets) continue;
    PyObject* const object = given(list->position) ? values_[list->position] : Py_None;
    Py_INCREF(object);
    return object;
  }
  return none();
}

PyObject* Arguments::tuple_of(std::span<PyObject* const> items) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(items.size()));
  for (size_t i = 0; i < items.size(); ++i) {
    if (tuple == nullptr || items[i] == nullptr) {
      for (; i < items.size(); ++i) Py_XDECREF(items[i]);
      Py_XDECREF(tuple);
      return nullptr;
    }
    PyTuple_SetItem(tuple, static_cast<Py_ssize_t>(i), items[i]);
  }
  return tuple;
}

PyObject* run(const Function& function, PyObject* self, PyObject* const* values, Py_ssize_t count,
              PyObject* names) noexcept {
  try {
    const Function& chosen = Arguments::chosen(function, self != nullptr, count, names);
    Arguments arguments(chosen, self, values, count, names);
    return chosen.body(arguments);
  } catch (const PythonError& error) { error.restore(); } catch (...) {
    services->raise();
  }
  return nullptr;
}

namespace {

/// The doc of a function as inspect.signature() reads it: the signature, a mark, the text.
std::string doc_of(const Function& function, bool method) {
  std::string text = std::string(function.name) + "(";
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    const Parameter& parameter = function.parameters[i];
    if (i > 0) text += ", ";
    text += i == 0 && method ? "$self" : parameter.name;
    if (parameter.initial != nullptr) text += fmt::format("={}", parameter.initial);
  }
  return text + ")\n--\n\n" + function.doc;
}

/// A method definition that is never freed, as the functions made of it.
PyMethodDef* definition(const Function& function, PyCFunction entry, bool method) {
  const auto* const doc = new std::string(doc_of(function, method));
  return new PyMethodDef{function.name, entry, METH_FASTCALL | METH_KEYWORDS, doc->c_str()};
}

bool set(PyObject* owner, const char* name, PyObject* value) {
  const bool good = value != nullptr && PyObject_SetAttrString(owner, name, value) == 0;
  Py_XDECREF(value);
  return good;
}

}  // namespace

bool add_bindings(PyObject* module, PyObject* type, std::span<const Binding> bindings) {
  PyObject* const name = PyModule_GetNameObject(module);
  bool good = name != nullptr;
  for (const Binding& binding : bindings) {
    const Function& function = *binding.function;
    good = good &&
           set(module, function.name, PyCFunction_NewEx(definition(function, binding.entry, false), nullptr, name));
    // What the class has already is not replaced: `shape` is a property.
    if (type != nullptr && binding.method != nullptr && PyObject_HasAttrString(type, function.name) == 0)
      good = good &&
             set(type, function.name,
                 PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type), definition(function, binding.method, true)));
  }
  Py_XDECREF(name);
  return good;
}

PyObject* make_module(const char* name, bool (*add)(PyObject* module, PyObject* type), void (*setup)()) {
  if (!connect()) return nullptr;
  auto* const definition =
      new PyModuleDef{PyModuleDef_HEAD_INIT, name, nullptr, -1, nullptr, nullptr, nullptr, nullptr, nullptr};
  PyObject* const module = PyModule_Create(definition);
  if (module == nullptr) return nullptr;
#ifdef Py_GIL_DISABLED
  PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
  try {
    setup();
    if (add(module, nullptr)) return module;
  } catch (...) { services->raise(); }
  Py_DECREF(module);
  return nullptr;
}

}  // namespace shard::python
