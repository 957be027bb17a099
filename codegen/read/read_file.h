// Reads whole op YAML files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "diag/diagnostics.h"
#include "model/op.h"

namespace shardgen {

/// The bytes of a file, or nothing when it cannot be read.
std::optional<std::string> read_bytes(const std::string& path);
/// The same for an input of the tool; reports why it cannot be read.
std::optional<std::string> read_input(const std::string& path, DiagnosticSink& sink);
/// The ops of a YAML file with these bytes. Ops that cannot be read are reported and left out.
Family read_family(const std::string& path, std::string bytes, DiagnosticSink& sink);

}  // namespace shardgen
