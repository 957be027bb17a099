// The report of rule_check.h as text and JSON, and the command line of shard_verify_rules.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdio>
#include <set>

#include "shard/testing/rule_check.h"

namespace shard::testing {
namespace {

constexpr const char* kUsage =
    "shard_verify_rules: tries the placement rule of every op on every layout along one mesh axis, against one rank.\n"
    "\n"
    "  --all             every choice of layouts; without it a sample of them, and fewer sizes\n"
    "  --op NAME         only this op (add, or add_ for its in-place form), all its layouts\n"
    "  --case NAME       only this case of the op\n"
    "  --dtype NAME      only this dtype\n"
    "  --layouts TEXT    only these layouts, one per tensor: \"[a] ; [-] sum(a)\"\n"
    "  --ranks N         only on N ranks (else on 2 and on 3)\n"
    "  --seed S          of sizes, values and samples (1)\n"
    "  --format json     the report as JSON (else text)\n"
    "\n"
    "The exit code is 0 where no rule is wrong, 1 where one is, 2 when the command line is wrong.\n";

std::string row_text(const std::string& name, const RuleCounts& c) {
  return fmt::format("{:<28} {:>8} {:>7} {:>9} {:>12} {:>10}\n", name, c.correct, c.wrong, c.missing, c.suboptimal,
                     c.accepted);
}

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) < 0x20) out += fmt::format("\\u{:04x}", static_cast<int>(c));
    else out += c;
  }
  return out + "\"";
}

std::string counts_json(const RuleCounts& c) {
  return fmt::format("{{\"correct\": {}, \"wrong\": {}, \"missing\": {}, \"suboptimal\": {}, \"accepted\": {}}}",
                     c.correct, c.wrong, c.missing, c.suboptimal, c.accepted);
}

struct CommandLine {
  RuleCheckOptions options;
  bool all = false, json = false;
  std::string problem;
};

template <class T>
bool parse_number(const std::string& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine line;
  RuleCheckOptions& options = line.options;
  const std::map<std::string, std::string*> texts = {
      {"--op", &options.op}, {"--case", &options.name}, {"--dtype", &options.dtype}, {"--layouts", &options.layouts}};
  for (int i = 1; i < argc && line.problem.empty(); ++i) {
    const std::string key = argv[i];
    if (key == "--all") {
      line.all = true;
      continue;
    }
    if (i + 1 == argc) {
      line.problem = fmt::format("unknown option '{}', or its value is missing", key);
      break;
    }
    const std::string value = argv[++i];
    int ranks = 0;
    if (const auto text = texts.find(key); text != texts.end()) *text->second = value;
    else if (key == "--ranks" && parse_number(value, ranks) && ranks > 0) options.ranks = {ranks};
    else if (key == "--seed" && parse_number(value, options.seed)) continue;
    else if (key == "--format" && (value == "json" || value == "text")) line.json = value == "json";
    else line.problem = fmt::format("invalid value: '{} {}'", key, value);
  }
  if (!line.all && options.op.empty()) {
    options.most_layouts = 10;
    options.trials = 2;
  }
  return line;
}

}  // namespace

RuleCounts RuleReport::total() const {
  RuleCounts sum;
  for (const auto& [op, c] : ops) {
    sum.correct += c.correct;
    sum.wrong += c.wrong;
    sum.missing += c.missing;
    sum.suboptimal += c.suboptimal;
    sum.accepted += c.accepted;
  }
  return sum;
}

std::string to_text(const RuleReport& report) {
  std::string text = fmt::format("{:<28} {:>8} {:>7} {:>9} {:>12} {:>10}\n", "op", "correct", "wrong", "missing",
                                 "suboptimal", "accepted");
  for (const auto& [op, counts] : report.ops) text += row_text(op, counts);
  text += row_text("total", report.total());
  // for each verdict, op and layouts: one of many cases, dtypes and numbers of ranks is enough
  std::map<std::string, int> shown;
  std::map<std::string, std::set<std::string>> reasons;  // to ops
  for (const RuleFinding& finding : report.findings) {
    if (!finding.accepted.empty()) reasons[finding.accepted].insert(finding.op);
    else ++shown[fmt::format("{} {}: {}", to_string(finding.verdict), finding.op, finding.layouts)];
  }
  for (const RuleFinding& finding : report.findings) {
    const auto found = shown.find(fmt::format("{} {}: {}", to_string(finding.verdict), finding.op, finding.layouts));
    if (!finding.accepted.empty() || found == shown.end()) continue;
    text += fmt::format("\n{}{}: {}\n    {}\n", found->first,
                        found->second == 1 ? "" : fmt::format(" ({} times)", found->second), finding.detail,
                        finding.command);
    shown.erase(found);
  }
  if (!reasons.empty()) text += "\naccepted:\n";
  for (const auto& [reason, ops] : reasons) text += fmt::format("  {}: {}\n", reason, fmt::join(ops, ", "));
  return text;
}

std::string to_json(const RuleReport& report) {
  std::string text = "{\n  \"ops\": {";
  const char* separator = "\n";
  for (const auto& [op, counts] : report.ops) {
    text += fmt::format("{}    {}: {}", separator, quoted(op), counts_json(counts));
    separator = ",\n";
  }
  text += fmt::format("\n  }},\n  \"total\": {},\n  \"findings\": [", counts_json(report.total()));
  separator = "\n";
  for (const RuleFinding& f : report.findings) {
    text += fmt::format(
        "{}    {{\"verdict\": \"{}\", \"op\": {}, \"layouts\": {}, \"detail\": {}, \"command\": {}, \"accepted\": {}}}",
        separator, to_string(f.verdict), quoted(f.op), quoted(f.layouts), quoted(f.detail), quoted(f.command),
        quoted(f.accepted));
    separator = ",\n";
  }
  return text + "\n  ]\n}\n";
}

int verify_rules_main(int argc, const char* const* argv, const OpCases& cases, const std::vector<Accepted>& accepted) {
  if (argc == 2 && std::string(argv[1]) == "--help") {
    std::fputs(kUsage, stdout);
    return 0;
  }
  CommandLine line = parse_command_line(argc, argv);
  RuleReport report;
  try {
    if (line.problem.empty()) report = check_rules(cases, accepted, line.options);
    if (line.problem.empty() && report.ops.empty()) line.problem = "no case has that op, name and dtype";
  } catch (const Error& error) { line.problem = error.what(); }
  if (!line.problem.empty()) {
    std::fprintf(stderr, "shard_verify_rules: %s\n\n%s", line.problem.c_str(), kUsage);
    return 2;
  }
  std::fputs((line.json ? to_json(report) : to_text(report)).c_str(), stdout);
  return report.total().wrong > 0 ? 1 : 0;
}

}  // namespace shard::testing
