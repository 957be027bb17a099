// The reference of all ops as a page that a browser opens from disk: nothing is loaded from elsewhere.
#pragma once

#include <string>
#include <vector>

#include "reference/facts.h"

namespace shardgen {

/// The page. What does not fit its template is added to `problems`.
std::string reference_page(const std::vector<OpFacts>& all, std::vector<std::string>& problems);

}  // namespace shardgen
