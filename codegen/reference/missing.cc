// Renders templates/scaffold/missing.cc.mustache.
#include "reference/missing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "emit/layout.h"
#include "emit/template.h"
#include "emit/templates.h"
#include "lower/data_common.h"
#include "lower/functions.h"

namespace shardgen {
namespace {

/// The definition's parameters. The context of an infer_meta function has a name, because the
/// message uses its op.
Json function_data(const FunctionDecl& function, bool infer_meta) {
  Texts params = function.params;
  if (infer_meta) params.front() += " ctx";
  return {{"returns", function.returns},
          {"name", function.name},
          {"params", join(params)},
          {"op", infer_meta ? rt("op_of", "ctx") : "\"" + function.ops.front()->name.text + "\""}};
}

}  // namespace

MissingFunctions define_missing(const LowerContext& context) {
  MissingFunctions result;
  std::set<std::string> seen, sources;
  std::map<std::string, Json> spaces;
  Json headers = Json::array();
  for (const std::vector<Part>& family : context.parts) {
    for (const Part& part : family) {
      const std::vector<FunctionDecl> functions = missing_functions(context, part);
      if (functions.empty()) continue;
      sources.insert(part.source);
      headers.push_back({{"header", part.name + "_ops.h"}});
      for (const FunctionDecl& function : functions) {
        if (!seen.insert(function.space + function.signature()).second) continue;
        const bool infer_meta = function.space == "namespace_meta";
        ++(infer_meta ? result.infer_meta : result.external);
        const std::string space = rt(function.space) + (function.nested.empty() ? "" : "::" + function.nested);
        spaces[space].push_back(function_data(function, infer_meta));
      }
    }
  }
  Json data = {{"sources", fmt::format("{}", fmt::join(sources, ", "))},
               {"count", fmt::format("{}", result.infer_meta + result.external)},
               {"headers", std::move(headers)},
               {"spaces", Json::array()}};
  for (auto& [space, functions] : spaces)
    data["spaces"].push_back({{"space", space}, {"functions", std::move(functions)}});
  const Template skeleton("missing.cc.mustache", mark_symbols(text_of(embedded_skeletons(), "missing.cc.mustache")));
  skeleton.check(data, result.problems);
  const std::string text = skeleton.render(data);
  result.file = lay_out(spell_symbols(context.runtime, text));
  for (const std::string& symbol : missing_symbols(context.runtime, text))
    result.problems.push_back("missing.cc.mustache: " + describe_missing(symbol));
  return result;
}

}  // namespace shardgen
