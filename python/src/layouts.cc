#include "services.h"

namespace shard::python {

void register_layouts(nb::module_&) {}

}  // namespace shard::python
namespace shard::python {
const DistSpec* layout_of(nb::handle, int) { return nullptr; }
}
