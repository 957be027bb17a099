#include "services.h"

namespace shard::python {

void register_worlds(nb::module_&) {}

}  // namespace shard::python
