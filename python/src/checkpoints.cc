// Checkpoints (shard/checkpoint/checkpoint.h): python/shard/checkpoints.py has the public functions.
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>

#include <shard/python/binding.h>

#include "module.h"
#include "services.h"

namespace shard::python {
namespace {

nb::dict contents(const std::string& folder) {
  nb::dict all;
  for (const auto& [name, meta] : checkpoint_tensors(folder)) {
    nb::list shape;
    for (const int64_t size : meta.dims) shape.append(size);
    all[nb::cast(name)] = nb::make_tuple(nb::tuple(shape), meta.dtype);
  }
  return all;
}

}  // namespace

void register_checkpoints(nb::module_& module) {
  using Tensors = std::map<std::string, Tensor>;
  module.def("_save_checkpoint", [](const std::string& folder, const Tensors& tensors) {
    released([&] { save_checkpoint(folder, tensors); });
  });
  module.def("_load_checkpoint", [](const std::string& folder, const Tensors& tensors) {
    released([&] { load_checkpoint(folder, tensors); });
  });
  module.def("_checkpoint_tensors", contents);
}

}  // namespace shard::python
