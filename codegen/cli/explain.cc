// The subcommand explain.
#include "cli/explain.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <set>

#include "diag/suggest.h"
#include "reference/explain.h"

namespace shardgen {
namespace {

/// The ops with that name, or with an in-place form or a function with intermediates of that name.
std::vector<const OpFacts*> find_ops(const std::vector<Family>& families, const std::vector<OpFacts>& all,
                                     const std::string& name) {
  std::vector<const OpFacts*> exact, by_function;
  size_t next = 0;
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      const OpFacts& facts = all[next++];
      const std::vector<std::string> functions = function_names(op);
      if (facts.name == name) exact.push_back(&facts);
      else if (std::find(functions.begin(), functions.end(), name) != functions.end()) by_function.push_back(&facts);
    }
  }
  return exact.empty() ? by_function : exact;
}

int fail_unknown(const std::vector<OpFacts>& all, const std::string& name) {
  std::vector<std::string_view> known;
  for (const OpFacts& facts : all) known.push_back(facts.name);
  return fail(fmt::format("No op '{}' in these files{}", name, suggestion(name, known)));
}

}  // namespace

int run_explain(const ExplainOptions& options) {
  std::optional<std::vector<std::string>> contents = read_all(options);
  if (!contents) return kUsage;
  DiagnosticSink sink(options.strict);
  const std::vector<Family> families = read_and_check(options, std::move(*contents), own_runtime(), sink);
  const std::vector<OpFacts> all = collect_facts(families, sink.all(), own_runtime());
  const std::vector<const OpFacts*> found = find_ops(families, all, options.op);
  if (found.empty()) {
    // Files without any op have a finding that says why.
    if (all.empty()) print_stderr(to_text(sink.all()));
    return fail_unknown(all, options.op);
  }
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  bool errors = false;
  for (const OpFacts* facts : found) {
    print_stderr(to_text(facts->findings));
    for (const Diagnostic& finding : facts->findings) errors = errors || finding.severity == Severity::error;
    if (options.json) array.push_back(to_json(*facts));
    else put((facts == found.front() ? "" : "\n") + to_text(*facts));
  }
  if (options.json) put(dump(array));
  return errors ? kFindings : kFine;
}

std::function<int()> add_explain(CLI::App& app) {
  const auto options = std::make_shared<ExplainOptions>();
  app.add_option("op", options->op, "Name of the op or of one of its functions")->required()->type_name("OP");
  add_inputs(app, *options);
  add_imports(app, *options);
  add_format(app, *options, "the op is described");
  return [options] { return run_explain(*options); };
}

}  // namespace shardgen
