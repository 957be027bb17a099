// The reference of all ops as an HTML page that a browser opens from disk; it loads nothing else.
#pragma once

#include <string>
#include <vector>

#include "reference/facts.h"

namespace shardgen {

/// The page. Mismatches with its template are added to `problems`.
std::string reference_page(const std::vector<OpFacts>& all, std::vector<std::string>& problems);

}  // namespace shardgen
