#include "services.h"

namespace shard::python {

void register_programs(nb::module_&) {}

}  // namespace shard::python
