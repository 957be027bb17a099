// The Python module my_ops: the ops of my_ops.yaml as functions of shard's tensors.
#include <shard/python/binding.h>

#include "kernels.h"

namespace shard::python {
bool register_my_ops_library_api(PyObject* module, PyObject* type);  // of generated code
}

SHARD_PYTHON_MODULE(my_ops, shard::python::register_my_ops_library_api, register_my_kernels)
