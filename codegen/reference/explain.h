// Prints the facts about an op, for a terminal or as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "reference/facts.h"

namespace shardgen {

std::string to_text(const OpFacts& facts);
nlohmann::ordered_json to_json(const OpFacts& facts);

}  // namespace shardgen
