// The extension module shard._core.
#include "module.h"

NB_MODULE(_core, module) {
  using namespace shard::python;
  register_errors(module);
  register_tensor(module);
  register_arrays(module);
  register_indexing(module);
  register_layouts(module);
  register_worlds(module);
  register_reports(module);
  register_autograd(module);
  register_programs(module);
}
