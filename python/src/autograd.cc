#include "services.h"

namespace shard::python {

void register_autograd(nb::module_&) {}

}  // namespace shard::python
