// Lowers ops to template data: JSON in which every value is the text of one place of a template.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lower/runtime.h"
#include "lower/support.h"
#include "model/op.h"

namespace shardgen {

using Json = nlohmann::json;

/// The key under which an item of a list names the ops because of which it is there. No tag shows
/// it: the symbols that the item needs are those that these ops need.
inline constexpr const char* kOps = "@ops";

/// A group of ops that share their generated files.
struct Part {
  std::string name;    // "math" or "math_0"
  std::string source;  // "math.yaml"
  std::vector<const Op*> ops;
};

/// Facts about all parts that the data of each part needs.
struct LowerContext {
  const Selection& selection;
  const Runtime& runtime;
  /// The parts of each family, to find the header of an invoked op. An imported family has none.
  const std::vector<std::vector<Part>>& parts;
  std::string_view umbrella = "";  // the name of the header that includes all others
};

/// The data of a part's files.
Json api_header_data(const LowerContext& context, const Part& part);
Json api_source_data(const LowerContext& context, const Part& part);
Json dense_header_data(const LowerContext& context, const Part& part);
Json dense_source_data(const LowerContext& context, const Part& part);
Json dist_header_data(const LowerContext& context, const Part& part);
Json dist_source_data(const LowerContext& context, const Part& part);
Json ops_data(const LowerContext& context, const Part& part);
Json autograd_header_data(const LowerContext& context, const Part& part);
Json autograd_source_data(const LowerContext& context, const Part& part);
Json program_data(const LowerContext& context, const Part& part);
Json python_source_data(const LowerContext& context, const Part& part);
Json python_stub_data(const LowerContext& context, const Part& part);
/// The data of the files that name all parts: the header, the source and the stub of the Python layer.
Json umbrella_data(const LowerContext& context);
Json python_umbrella_data(const LowerContext& context);
Json python_umbrella_stub_data(const LowerContext& context);

}  // namespace shardgen
