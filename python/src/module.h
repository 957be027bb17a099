// The parts of the module _core: each file of this folder registers what it binds.
#pragma once

#include <nanobind/nanobind.h>

#include <shard/program.h>
#include <shard/shard.h>

namespace shard::python {

namespace nb = nanobind;

void register_services(nb::module_& module, nb::handle tensor_class);
void register_errors(nb::module_& module);
void register_tensor(nb::module_& module);
void register_arrays(nb::module_& module);
void register_indexing(nb::module_& module);
void register_layouts(nb::module_& module);
void register_worlds(nb::module_& module);
void register_reports(nb::module_& module);
void register_autograd(nb::module_& module);
void register_programs(nb::module_& module);
void register_checkpoints(nb::module_& module);

}  // namespace shard::python
