// shard_spmd_cases: runs files of placement cases against the rules of this library or, with
// --compat, with the options that reproduce the peer from which the cases were recorded.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "case.h"
#include "rules.h"
#include "run.h"

namespace {

using namespace spmd_cases;
using nlohmann::json;

constexpr int kPassed = 0;
constexpr int kFailed = 1;
constexpr int kBadInput = 2;

struct Outcome {
  std::string id;
  std::vector<std::string> differences;
  Answer answer;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw BadInput("cannot be read");
  return text.str();
}

Outcome run_case(const Case& c, bool compat) {
  Outcome outcome{c.id, {}, {}};
  try {
    outcome.answer = answer(c, compat);
    outcome.differences = differences(c, outcome.answer);
  } catch (const UnknownRule& problem) { outcome.differences = {fmt::format("rule '{}': {}", c.rule, problem.what())}; }
  return outcome;
}

json to_json(const AnswerSide& side) {
  json at = json::object();
  for (size_t s = 0; s < side.slots.size(); ++s) {
    for (size_t i = 0; i < side.slots[s].size(); ++i) {
      const Placed& placed = side.slots[s][i];
      json mapping = json::array();
      for (const auto& axes : placed.axes)
        mapping.push_back(axes.empty() ? json(-1) : axes.size() == 1 ? json(axes[0]) : json(axes));
      at[side.lists[s] ? fmt::format("{}.{}", s, i) : fmt::format("{}", s)] = {{"dims_mapping", mapping},
                                                                               {"partial", placed.partial}};
    }
  }
  return {{"count", side.slots.size()}, {"at", at}};
}

json to_json(const Outcome& outcome) {
  json result = {{"id", outcome.id}, {"passed", outcome.differences.empty()}, {"differences", outcome.differences}};
  if (outcome.answer.error) result["actual"] = {{"error", outcome.answer.message}};
  else result["actual"] = {{"inputs", to_json(outcome.answer.inputs)}, {"outputs", to_json(outcome.answer.outputs)}};
  return result;
}

void print(const Outcome& outcome, bool verbose) {
  if (!outcome.differences.empty()) fmt::print("FAIL {}: {}\n", outcome.id, fmt::join(outcome.differences, "; "));
  else if (verbose) fmt::print("pass {}\n", outcome.id);
  if (!verbose || outcome.answer.error) return;
  for (const auto& [name, side] :
       {std::pair{"inputs", &outcome.answer.inputs}, std::pair{"outputs", &outcome.answer.outputs}}) {
    for (size_t s = 0; s < side->slots.size(); ++s) {
      for (const Placed& placed : side->slots[s]) fmt::print("  {} {}: {}\n", name, s, to_text(placed));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Runs cases of placement rules: docs/sharding.md describes the format and --compat.\nExit status: 0 all pass, 1 "
      "some fail, 2 bad input.");
  std::vector<std::string> files;
  std::string filter;
  std::string format = "text";
  bool compat = false;
  bool verbose = false;
  bool list_rules = false;
  app.add_option("files", files, "Files of cases");
  app.add_flag("--compat", compat, "Decide as the peer does: first come, no costs");
  app.add_option("--filter", filter, "Run only the cases with this text in their id");
  app.add_option("--format", format, "text or json")->check(CLI::IsMember({"text", "json"}));
  app.add_flag("--verbose", verbose, "Print the result of each case");
  app.add_flag("--list-rules", list_rules, "Print the names that cases may use, and exit");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) { return app.exit(problem) == 0 ? kPassed : kBadInput; }
  if (list_rules) {
    for (const std::string& name : rule_names()) fmt::print("{}\n", name);
    return kPassed;
  }
  if (files.empty()) {
    fmt::print(stderr, "no file of cases; see --help\n");
    return kBadInput;
  }
  register_own_rules();
  std::vector<Outcome> outcomes;
  for (const std::string& file : files) {
    try {
      for (const Case& c : read_cases(read_file(file))) {
        if (c.id.find(filter) == std::string::npos) continue;
        outcomes.push_back(run_case(c, compat));
        if (format == "text") print(outcomes.back(), verbose);
      }
    } catch (const BadInput& problem) {
      fmt::print(stderr, "{}: {}\n", file, problem.what());
      return kBadInput;
    }
  }
  const auto failed = static_cast<size_t>(
      std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& o) { return !o.differences.empty(); }));
  const size_t passed = outcomes.size() - failed;
  if (format == "json") {
    json report = {{"passed", passed}, {"failed", failed}, {"cases", json::array()}};
    for (const Outcome& outcome : outcomes) report["cases"].push_back(to_json(outcome));
    std::cout << report.dump(1) << "\n";
  } else {
    fmt::print("{} passed, {} failed\n", passed, failed);
  }
  return failed == 0 ? kPassed : kFailed;
}
