#include "services.h"

namespace shard::python {

void register_arrays(nb::module_&) {}

}  // namespace shard::python
