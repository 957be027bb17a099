// Formats facts. A section without facts is left out.
#include "reference/explain.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardgen {
namespace {

using OrderedJson = nlohmann::ordered_json;

void add_section(std::string& text, const std::string& title, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  text += "\n" + title + "\n";
  for (const std::string& line : lines) text += "  " + line + "\n";
}

std::vector<std::string> argument_lines(const std::vector<ArgumentFact>& arguments) {
  size_t width = 0;
  for (const ArgumentFact& argument : arguments) width = std::max(width, argument.name.size());
  std::vector<std::string> lines;
  for (const ArgumentFact& argument : arguments) {
    std::string line = fmt::format("{:<{}}  {}", argument.name, width, argument.type);
    if (!argument.default_value.empty()) line += " = " + argument.default_value;
    if (!argument.note.empty()) line += "  (" + argument.note + ")";
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> placement_lines(const OpFacts& facts) {
  std::vector<std::string> lines;
  if (!facts.rule_text.empty()) lines.push_back(facts.rule_text);
  if (!facts.commutes.empty()) lines.push_back(facts.commutes);
  for (const std::string& trait : facts.traits) {
    const auto known =
        std::find_if(kTraits.begin(), kTraits.end(), [&](const TraitInfo& each) { return each.name == trait; });
    if (known != kTraits.end()) lines.emplace_back(known->meaning);
    else if (trait == "elementwise") lines.emplace_back("Elementwise: its output may be exactly an argument.");
    else if (trait == "random") lines.emplace_back("Random: all ranks draw one key.");
    else lines.push_back("Dynamic: the " + trait + ".");
  }
  return lines;
}

std::vector<std::string> link_lines(const std::vector<LinkFact>& links) {
  std::vector<std::string> lines;
  for (const LinkFact& link : links) {
    lines.push_back(fmt::format("{} {} ({})", link.role, link.name, link.known ? link.location : "not in these files"));
  }
  return lines;
}

OrderedJson to_json(const std::vector<ArgumentFact>& arguments) {
  OrderedJson array = OrderedJson::array();
  for (const ArgumentFact& argument : arguments) {
    OrderedJson item = {{"name", argument.name}, {"type", argument.type}};
    if (!argument.default_value.empty()) item["default"] = argument.default_value;
    if (!argument.note.empty()) item["note"] = argument.note;
    array.push_back(std::move(item));
  }
  return array;
}

}  // namespace

std::string to_text(const OpFacts& facts) {
  std::string text = facts.signature + "\n";
  text += fmt::format("{}:{}, {} op of family {}\n", facts.path, facts.line, facts.backward ? "backward" : "forward",
                      facts.family);
  if (!facts.left_out.empty()) text += fmt::format("Not generated: {}.\n", facts.left_out);
  if (!facts.doc.empty()) text += "\n" + facts.doc + "\n";
  add_section(text, "C++", facts.declarations);
  add_section(text, "Arguments", argument_lines(facts.arguments));
  add_section(text, "Outputs", argument_lines(facts.outputs));
  std::vector<std::string> aliases;
  for (const AliasFact& alias : facts.aliases) aliases.push_back(alias.text);
  add_section(text, "Aliasing", aliases);
  add_section(text, "Placement", placement_lines(facts));
  std::vector<std::string> functions;
  if (!facts.infer_meta.empty()) functions.push_back("infer_meta " + facts.infer_meta);
  if (!facts.kernel.empty()) functions.push_back("kernel " + facts.kernel);
  add_section(text, "Functions that it needs", functions);
  add_section(text, "Links", link_lines(facts.links));
  for (const LayerFact& layer : facts.layers) {
    std::vector<std::string> lines;
    for (size_t i = 0; i < layer.steps.size(); ++i) lines.push_back(fmt::format("{:>2}. {}", i + 1, layer.steps[i]));
    add_section(text, layer.function, lines);
  }
  return text;
}

nlohmann::ordered_json to_json(const OpFacts& facts) {
  OrderedJson json = {{"name", facts.name},
                      {"family", facts.family},
                      {"location", {{"file", facts.path}, {"line", facts.line}}},
                      {"backward", facts.backward},
                      {"signature", facts.signature},
                      {"doc", facts.doc},
                      {"generated", facts.left_out.empty()},
                      {"left_out", facts.left_out.empty() ? OrderedJson() : OrderedJson(facts.left_out)},
                      {"declarations", facts.declarations},
                      {"arguments", to_json(facts.arguments)},
                      {"outputs", to_json(facts.outputs)},
                      {"aliases", OrderedJson::array()},
                      {"infer_meta", facts.infer_meta},
                      {"kernel", facts.kernel},
                      {"rule", facts.rule.empty() ? OrderedJson() : OrderedJson(facts.rule)},
                      {"commutes", facts.commutes},
                      {"traits", facts.traits},
                      {"links", OrderedJson::array()},
                      {"layers", OrderedJson::array()}};
  for (const AliasFact& alias : facts.aliases)
    json["aliases"].push_back({{"output", alias.output}, {"input", alias.input}, {"kind", alias.kind}});
  for (const LinkFact& link : facts.links) {
    json["links"].push_back({{"role", link.role}, {"name", link.name}, {"known", link.known}});
    if (link.known) json["links"].back()["location"] = link.location;
  }
  for (const LayerFact& layer : facts.layers)
    json["layers"].push_back({{"function", layer.function}, {"steps", layer.steps}});
  return json;
}

}  // namespace shardgen
