// The extension module shard._core.
#include "module.h"

NB_MODULE(_core, module) {
  using namespace shard::python;
  // Tensors may live until the process ends: in globals of other modules, in cycles with hooks.
  nanobind::set_leak_warnings(false);
  module.attr("__version__") = SHARD_VERSION;
  register_errors(module);
  register_tensor(module);
  register_arrays(module);
  register_indexing(module);
  register_layouts(module);
  register_worlds(module);
  register_reports(module);
  register_autograd(module);
  register_programs(module);
  register_checkpoints(module);
}
