// "Did you mean": the known word nearest to a misspelt one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardgen {

/// "; did you mean 'kernel'?" when a known word is near enough, else ".": the end of a sentence.
std::string suggestion(std::string_view word, const std::vector<std::string_view>& known);

}  // namespace shardgen
