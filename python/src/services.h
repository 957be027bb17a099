// What the files of the module share: the conversions that bindings use too, and scopes with and without the interpreter's lock.
#pragma once

#include "module.h"
#include "shard/python/binding.h"

namespace shard::python {

/// Sets the Python error for the C++ exception that is being handled.
void raise_current();
/// The line of the Python program that is running, outside of this package. Its file name lives as long as the process.
CallSite current_site();
/// The tensor of an instance of the class. TypeError for one that Tensor.__new__ made, which has none.
Tensor& tensor_in(PyObject* object);
/// A Python object that holds the tensor; None for an undefined one.
nb::object wrap(Tensor tensor);
/// Reads a shard.dtype, its name, or a dtype of NumPy. False where the object is none.
bool dtype_of(nb::handle object, DType& dtype);
/// Reads a shard.Device or its name. False where the object is none.
bool device_of(nb::handle object, Device& device);
/// The layout that a Python object stands for (layouts.cc), of a tensor with `rank` dims (-1: not known).
const DistSpec* layout_of(nb::handle object, int rank);

/// Calls f without the interpreter's lock.
template <class F>
auto released(F f) {
  const ReleaseLock release;
  return f();
}

/// A Python object that C++ code may copy and drop without the interpreter's lock, in any thread, also after the interpreter has ended.
class SharedObject {
 public:
  explicit SharedObject(nb::object object);
  nb::handle get() const { return nb::handle(object_.get()); }

 private:
  std::shared_ptr<PyObject> object_;
};

/// Runs C++ code that called back into Python with the lock: Python exceptions become PythonError, which passes through the library.
template <class F>
auto called_back(F f) {
  const HoldLock lock;
  try {
    return f();
  } catch (nb::python_error& error) {
    error.restore();
    throw PythonError();
  } catch (const nb::builtin_exception&) {
    raise_current();
    throw PythonError();
  }
}

}  // namespace shard::python
