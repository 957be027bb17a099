// Prints the model of ops as JSON, for other programs: everything that the YAML says, with defaults
// filled in.
#pragma once

#include <string>
#include <vector>

#include "model/op.h"

namespace shardgen {

/// A JSON array with an object per op, in the order of the files. Parameters that the YAML leaves
/// out are filled in; facts that an op does not have are null.
std::string dump_json(const std::vector<Family>& families);

}  // namespace shardgen
