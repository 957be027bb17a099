// Splits families into parts, makes the views, renders and lays out.
#include "emit/generate.h"

#include <array>
#include <atomic>
#include <thread>

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

constexpr std::array<FileKind, 7> kFileKinds = {{
    {"public.h.mustache", ".h"},
    {"public.cc.mustache", ".cc"},
    {"dense.h.mustache", "_dense.h"},
    {"dense.cc.mustache", "_dense.cc"},
    {"dist.h.mustache", "_dist.h"},
    {"dist.cc.mustache", "_dist.cc"},
    {"ops.h.mustache", "_ops.h"},
}};

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

std::array<Json, kFileKinds.size()> views_of(const LowerContext& context, const Part& part) {
  const Json api = api_view(context, part);
  Json dense = dense_view(context, part);
  Json dist = dist_view(context, part);
  Json dense_header = declarations(dense, "functions", {"returns", "name", "declared"});
  for (Json& function : dense["functions"]) function.erase("declared");
  Json dist_header = declarations(dist, "functions", {"public", "name"});
  dist_header["name"] = part.name;
  for (Json& function : dist["functions"]) function.erase("public");
  return {select(api, {"source", "ops"}),
          select(api, {"source", "name", "headers", "functions"}),
          std::move(dense_header),
          std::move(dense),
          std::move(dist_header),
          std::move(dist),
          ops_view(context, part)};
}

struct Rendered {
  std::array<std::string, kFileKinds.size()> texts;
  std::vector<std::string> problems;
};

std::vector<const Part*> flatten(const std::vector<std::vector<Part>>& families) {
  std::vector<const Part*> parts;
  for (const std::vector<Part>& family : families) {
    for (const Part& part : family) parts.push_back(&part);
  }
  return parts;
}

Template compile(const GenerateRequest& request, const char* name) {
  return Template(name, mark_symbols(request.templates.at(name)));
}

/// Rendered text with the runtime's spelling, laid out.
std::string finish(const GenerateRequest& request, const std::string& text, std::vector<std::string>& problems) {
  return lay_out(spell_symbols(request.runtime, text, problems));
}

/// Each thread takes the next part, and has templates of its own: an engine changes while it renders.
std::vector<Rendered> render(const LowerContext& context, const std::vector<const Part*>& parts,
                             const GenerateRequest& request) {
  std::vector<Rendered> rendered(parts.size());
  std::atomic<size_t> next = 0, done = 0;
  const auto work = [&] {
    std::vector<Template> compiled;
    for (const FileKind& kind : kFileKinds) compiled.push_back(compile(request, kind.file_template));
    for (size_t at = next++; at < parts.size(); at = next++) {
      const std::array<Json, kFileKinds.size()> views = views_of(context, *parts[at]);
      for (size_t i = 0; i < kFileKinds.size(); ++i)
        rendered[at].texts[i] = finish(request, compiled[i].render(views[i], rendered[at].problems), rendered[at].problems);
      if (request.progress) request.progress(++done, parts.size());
    }
  };
  std::vector<std::jthread> others;
  const size_t jobs = std::min(static_cast<size_t>(std::max(request.jobs, 1)), parts.size());
  for (size_t i = 1; i < jobs; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  return rendered;
}

}  // namespace

std::vector<std::vector<Part>> split_families(const std::vector<Family>& families, const Selection& selection,
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
  for (const std::vector<const Op*>& chosen : selection.ops) result.ops += chosen.size();
  const std::vector<std::vector<Part>> all = split_families(families, selection, request.parts);
  const std::vector<const Part*> flat = flatten(all);
  std::vector<Rendered> rendered = render({selection, request.runtime, all}, flat, request);
  for (size_t at = 0; at < flat.size(); ++at) {
    for (size_t i = 0; i < kFileKinds.size(); ++i)
      result.files[flat[at]->name + kFileKinds[i].suffix] = std::move(rendered[at].texts[i]);
    result.problems.insert(result.problems.end(), rendered[at].problems.begin(), rendered[at].problems.end());
  }
  if (result.files.contains(request.umbrella)) {
    result.problems.push_back("api.h.mustache: its file '" + request.umbrella + "' is also the header of a family; name it otherwise");
  }
  result.files[request.umbrella] =
      finish(request, compile(request, "api.h.mustache").render(umbrella_view(all), result.problems), result.problems);
  if (!result.problems.empty()) result.files.clear();
  return result;
}

}  // namespace shardgen
