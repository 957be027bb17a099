#include "services.h"

namespace shard::python {

void register_indexing(nb::module_&) {}

}  // namespace shard::python
