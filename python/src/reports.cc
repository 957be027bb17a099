#include "services.h"

namespace shard::python {

void register_reports(nb::module_&) {}

}  // namespace shard::python
