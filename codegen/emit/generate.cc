// Splits families into parts, makes the views, renders and lays out.
#include "emit/generate.h"

#include <array>

#include "emit/layout.h"
#include "emit/template.h"
#include "lower/identifiers.h"
#include "lower/view.h"

namespace shardgen {
namespace {

/// A kind of generated file: its template, and what follows the part's name. views_of() has the same order.
struct FileKind {
  const char* file_template;
  const char* suffix;
};

constexpr std::array<FileKind, 8> kFileKinds = {{
    {"public.h.mustache", ".h"},
    {"public.cc.mustache", ".cc"},
    {"dense.h.mustache", "_dense.h"},
    {"dense.cc.mustache", "_dense.cc"},
    {"dist.h.mustache", "_dist.h"},
    {"dist.cc.mustache", "_dist.cc"},
    {"ops.h.mustache", "_ops.h"},
    {"ops.cc.mustache", "_ops.cc"},
}};

std::vector<std::vector<Part>> split(const std::vector<Family>& families, const Selection& selection,
                                     const std::map<std::string, int>& fixed) {
  std::vector<std::vector<Part>> all;
  for (size_t i = 0; i < families.size(); ++i) {
    const Family& family = families[i];
    const auto given = fixed.find(family.name);
    const int count = given != fixed.end() ? given->second : count_parts(family.ops.size());
    std::vector<Part>& parts = all.emplace_back();
    if (family.imported) continue;
    for (int k = 0; k < count; ++k) parts.push_back({part_name(family.name, k, count), base_name(family.path), {}});
    for (const Op* op : selection.ops[i]) parts[static_cast<size_t>(part_of(op->name.text, count))].ops.push_back(op);
  }
  return all;
}

/// Only the members of a view that a header shows; the rest belongs to the source file.
Json select(const Json& view, std::initializer_list<const char*> keys) {
  Json chosen;
  for (const char* key : keys) chosen[key] = view.at(key);
  return chosen;
}

Json declarations(const Json& view, const char* list, std::initializer_list<const char*> keys) {
  Json items = Json::array();
  for (const Json& item : view.at(list)) items.push_back(select(item, keys));
  return {{"source", view.at("source")}, {list, std::move(items)}};
}

std::array<Json, 8> views_of(const LowerContext& context, const Part& part) {
  const Json api = api_view(context, part);
  Json dense = dense_view(context, part);
  Json dist = dist_view(context, part);
  Json ops = ops_view(context, part);
  Json dense_header = declarations(dense, "functions", {"returns", "name", "declared"});
  for (Json& function : dense["functions"]) function.erase("declared");
  Json dist_header = declarations(dist, "functions", {"returns", "name", "params"});
  Json ops_header = declarations(ops, "ops", {"function"});
  ops_header["spaces"] = std::move(ops["spaces"]);
  ops.erase("spaces");
  return {select(api, {"source", "ops"}), select(api, {"source", "name", "external", "headers", "functions"}),
          std::move(dense_header),        std::move(dense),
          std::move(dist_header),         std::move(dist),
          std::move(ops_header),          std::move(ops)};
}

}  // namespace

int count_parts(size_t ops) { return ops == 0 ? 1 : static_cast<int>((ops + kOpsPerPart - 1) / kOpsPerPart); }

std::vector<std::string> output_names(const std::string& family, int parts) {
  std::vector<std::string> names;
  for (int part = 0; part < parts; ++part) {
    for (const FileKind& kind : kFileKinds) names.push_back(part_name(family, part, parts) + kind.suffix);
  }
  return names;
}

Generated generate(const std::vector<Family>& families, const GenerateRequest& request) {
  Generated result;
  const Selection selection = select_ops(families, request.runtime, request.refused);
  result.dropped = selection.dropped;
  const std::vector<std::vector<Part>> all = split(families, selection, request.parts);
  const LowerContext context{selection, request.runtime, all};
  const auto compile = [&](const char* name) { return Template(name, mark_symbols(request.templates.at(name))); };
  const auto finish = [&](const std::string& text) {
    return lay_out(spell_symbols(request.runtime, text, result.problems));
  };
  std::vector<Template> compiled;
  for (const FileKind& kind : kFileKinds) compiled.push_back(compile(kind.file_template));
  for (const std::vector<Part>& family : all) {
    for (const Part& part : family) {
      const std::array<Json, 8> views = views_of(context, part);
      for (size_t i = 0; i < kFileKinds.size(); ++i) {
        result.files[part.name + kFileKinds[i].suffix] = finish(compiled[i].render(views[i], result.problems));
      }
    }
  }
  if (result.files.contains(request.umbrella)) {
    result.problems.push_back("api.h.mustache: its file '" + request.umbrella + "' is also the header of a family; name it otherwise");
  }
  result.files[request.umbrella] = finish(compile("api.h.mustache").render(umbrella_view(all), result.problems));
  if (!result.problems.empty()) result.files.clear();
  return result;
}

}  // namespace shardgen
