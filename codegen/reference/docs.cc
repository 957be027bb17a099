// Converts facts to the data of templates/reference/page.html. The template escapes every value.
#include "reference/docs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "emit/template.h"
#include "emit/templates.h"

namespace shardgen {
namespace {

/// Letters, digits and a few marks, which need no escape in a URL either.
std::string anchor(std::string text) {
  for (char& c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '-' && c != '.') c = '_';
  }
  return text;
}

/// The anchor of each op; ops that are defined twice get a number.
std::vector<std::string> anchors(const std::vector<OpFacts>& all) {
  std::set<std::string> taken;
  std::vector<std::string> ids;
  for (const OpFacts& facts : all) {
    const std::string base = anchor(facts.family + "." + facts.name);
    std::string id = base;
    for (int i = 2; !taken.insert(id).second; ++i) id = fmt::format("{}-{}", base, i);
    ids.push_back(id);
  }
  return ids;
}

Json plain(const std::string& value) { return {{"linked", false}, {"value", value}}; }

void add_fact(Json& facts, const std::string& title, Json values) {
  if (!values.empty()) facts.push_back({{"title", title}, {"values", std::move(values)}});
}

Json facts_data(const OpFacts& op, const std::map<std::string, std::string>& targets) {
  Json facts = Json::array();
  Json placement = Json::array();
  for (const std::string& text : {op.rule_text, op.commutes}) {
    if (!text.empty()) placement.push_back(plain(text));
  }
  add_fact(facts, "Placement", std::move(placement));
  Json aliases = Json::array();
  for (const AliasFact& alias : op.aliases) aliases.push_back(plain(alias.text));
  add_fact(facts, "Aliasing", std::move(aliases));
  for (const LinkFact& link : op.links) {
    const auto target = targets.find(link.family + "." + link.name);
    Json value = plain(link.known ? link.location : link.name + " (not in these files)");
    if (target != targets.end()) value["linked"] = {{"target", target->second}, {"label", link.name}};
    std::string title = link.role;
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    add_fact(facts, title, Json::array({value}));
  }
  if (!op.infer_meta.empty()) add_fact(facts, "Infer meta", Json::array({plain(op.infer_meta)}));
  if (!op.kernel.empty()) add_fact(facts, "Kernel", Json::array({plain(op.kernel)}));
  add_fact(facts, "Source", Json::array({plain(op.location())}));
  return facts;
}

Json rows_data(const OpFacts& op) {
  Json rows = Json::array();
  const auto add = [&](const ArgumentFact& fact, const char* arrow) {
    rows.push_back({{"arrow", arrow},
                    {"argument", fact.name},
                    {"type", fact.type},
                    {"value", fact.default_value},
                    {"note", fact.note}});
  };
  for (const ArgumentFact& argument : op.arguments) add(argument, "");
  for (const ArgumentFact& output : op.outputs) add(output, "→ ");
  return rows;
}

Json steps_data(const OpFacts& op) {
  if (op.layers.empty()) return false;
  Json layers = Json::array();
  for (const LayerFact& layer : op.layers) {
    Json lines = Json::array();
    for (const std::string& step : layer.steps) lines.push_back({{"line", step}});
    layers.push_back({{"function", layer.function}, {"lines", std::move(lines)}});
  }
  return {{"layers", std::move(layers)}};
}

Json op_data(const OpFacts& op, const std::string& id, const std::map<std::string, std::string>& targets) {
  Json tags = Json::array();
  if (op.backward) tags.push_back({{"tag", "backward"}});
  for (const std::string& trait : op.traits) tags.push_back({{"tag", trait}});
  for (const AliasFact& alias : op.aliases) {
    const Json tag = {{"tag", alias.kind == "inplace" ? "in place" : alias.kind}};
    if (std::find(tags.begin(), tags.end(), tag) == tags.end()) tags.push_back(tag);
  }
  Json data = {{"id", id},
               {"name", op.name},
               {"tags", std::move(tags)},
               {"doc", false},
               {"out", false},
               {"signature", op.signature},
               {"cpp", false},
               {"arguments", false},
               {"facts", facts_data(op, targets)},
               {"steps", steps_data(op)}};
  if (!op.doc.empty()) data["doc"] = {{"text", op.doc}};
  if (!op.left_out.empty()) data["out"] = {{"reason", op.left_out}};
  if (!op.declarations.empty()) data["cpp"] = {{"code", fmt::format("{};", fmt::join(op.declarations, ";\n"))}};
  if (Json rows = rows_data(op); !rows.empty()) data["arguments"] = {{"rows", std::move(rows)}};
  return data;
}

/// The page with its style and script inserted, before any value of an op is.
std::string page_template() {
  std::string text = text_of(embedded_pages(), "page.html");
  for (const auto& [mark, name] : {std::pair("/*style*/\n", "style.css"), std::pair("/*script*/\n", "search.js")})
    text.replace(text.find(mark), std::string_view(mark).size(), text_of(embedded_pages(), name));
  return text;
}

}  // namespace

std::string reference_page(const std::vector<OpFacts>& all, std::vector<std::string>& problems) {
  const std::vector<std::string> ids = anchors(all);
  std::map<std::string, std::string> targets;
  for (size_t i = 0; i < all.size(); ++i) targets.try_emplace(all[i].family + "." + all[i].name, ids[i]);
  Json families = Json::array(), chapters = Json::array();
  for (size_t i = 0; i < all.size();) {
    const std::string& path = all[i].path;
    const std::string family = all[i].family, id = "family-" + anchor(family);
    Json items = Json::array(), ops = Json::array();
    for (; i < all.size() && all[i].path == path; ++i) {
      items.push_back({{"id", ids[i]}, {"name", all[i].name}, {"out", !all[i].left_out.empty()}});
      ops.push_back(op_data(all[i], ids[i], targets));
    }
    families.push_back(
        {{"family", family}, {"anchor", id}, {"number", fmt::format("{}", items.size())}, {"ops", std::move(items)}});
    chapters.push_back({{"family", family}, {"anchor", id}, {"path", base_name(path)}, {"ops", std::move(ops)}});
  }
  const auto generated =
      std::count_if(all.begin(), all.end(), [](const OpFacts& facts) { return facts.left_out.empty(); });
  const Json data = {{"count", fmt::format("{}", all.size())},
                     {"generated", fmt::format("{}", generated)},
                     {"families", std::move(families)},
                     {"chapters", std::move(chapters)}};
  const Template page("page.html", page_template(), Template::Language::html);
  page.check(data, problems);
  return page.render(data);
}

}  // namespace shardgen
