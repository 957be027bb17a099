// Attributes as text.
#pragma once

#include <string>

#include "shard/core/attr.h"

namespace shard::program {

/// The text of an attribute: "3", "[2, 3]", "float32", "'sum'".
std::string attr_text(const Attr& attr);

}  // namespace shard::program
