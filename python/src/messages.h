// What messages of the library call things, in Python's terms.
#pragma once

#include <string>
#include <string_view>

namespace shard::python {

/// The text with the names of C++ replaced by those of this package: "allow it with CommPolicy::allow" becomes
/// "allow it with policies(comm='allow')".
std::string in_python(std::string_view text);

}  // namespace shard::python
