// Splits families into parts, makes the template data, renders it and lays out the text.
#include "emit/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <set>
#include <thread>

#include "emit/layout.h"
#include "emit/template.h"
#include "lower/identifiers.h"
#include "lower/template_data.h"

namespace shardgen {
namespace {

/// A kind of file that each part has.
struct FileKind {
  const char* file_template;
  const char* suffix;    // of the part's name
  bool Runtime::*layer;  // only for runtimes with that layer; null: for all
  Json (*data)(const LowerContext&, const Part&);
};

constexpr std::array<FileKind, 10> kFileKinds = {{
    {"public.h.mustache", ".h", nullptr, api_header_data},
    {"public.cc.mustache", ".cc", nullptr, api_source_data},
    {"dense.h.mustache", "_dense.h", nullptr, dense_header_data},
    {"dense.cc.mustache", "_dense.cc", nullptr, dense_source_data},
    {"dist.h.mustache", "_dist.h", &Runtime::dist, dist_header_data},
    {"dist.cc.mustache", "_dist.cc", &Runtime::dist, dist_source_data},
    {"ops.h.mustache", "_ops.h", nullptr, ops_data},
    {"autograd.h.mustache", "_autograd.h", &Runtime::autograd, autograd_header_data},
    {"autograd.cc.mustache", "_autograd.cc", &Runtime::autograd, autograd_source_data},
    {"program.cc.mustache", "_program.cc", &Runtime::program, program_data},
}};

bool is_written(const FileKind& kind, const Runtime& runtime) { return kind.layer == nullptr || runtime.*kind.layer; }

struct Rendered {
  std::array<std::string, kFileKinds.size()> texts;
  std::vector<std::string> problems;  // of templates
  std::set<std::string> missing;      // symbols that the runtime lacks
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

/// Each thread takes the next part, and has templates of its own, because an engine changes while
/// it renders.
std::vector<Rendered> render(const LowerContext& context, const std::vector<const Part*>& parts,
                             const GenerateRequest& request, const std::function<void(size_t, size_t)>& progress) {
  std::vector<Rendered> rendered(parts.size());
  std::atomic<size_t> next = 0, done = 0;
  const auto work = [&] {
    std::vector<Template> compiled;
    for (const FileKind& kind : kFileKinds) compiled.push_back(compile(request, kind.file_template));
    for (size_t at = next++; at < parts.size(); at = next++) {
      Rendered& result = rendered[at];
      for (size_t i = 0; i < kFileKinds.size(); ++i) {
        if (!is_written(kFileKinds[i], request.runtime)) continue;
        const std::string text = compiled[i].render(kFileKinds[i].data(context, *parts[at]), result.problems);
        result.texts[i] = lay_out(spell_symbols(request.runtime, text, result.missing));
      }
      if (progress) progress(++done, parts.size());
    }
  };
  std::vector<std::jthread> others;
  const size_t jobs = std::min(static_cast<size_t>(std::max(request.jobs, 1)), parts.size());
  for (size_t i = 1; i < jobs; ++i) others.emplace_back(work);
  work();
  others.clear();  // joins
  return rendered;
}

/// The ops that need symbols which the runtime lacks, and these symbols; each op is rendered alone.
/// Symbols that a part without ops needs are missing from the description itself, and go to
/// `everywhere`.
std::map<const Op*, std::string> find_lacking(const LowerContext& context, const std::vector<const Part*>& parts,
                                              const std::vector<Rendered>& rendered, const GenerateRequest& request,
                                              std::set<std::string>& everywhere) {
  std::vector<Part> single = {{"none", "", {}}};
  for (size_t at = 0; at < parts.size(); ++at) {
    if (rendered[at].missing.empty()) continue;
    for (const Op* op : parts[at]->ops) single.push_back({parts[at]->name, parts[at]->source, {op}});
  }
  std::vector<const Part*> trials;
  for (const Part& part : single) trials.push_back(&part);
  const std::vector<Rendered> tried = render(context, trials, request, nullptr);
  everywhere = tried[0].missing;
  std::map<const Op*, std::string> lacking;
  for (size_t i = 1; i < tried.size(); ++i) {
    const auto own = std::find_if(tried[i].missing.begin(), tried[i].missing.end(),
                                  [&](const std::string& symbol) { return !everywhere.contains(symbol); });
    if (own != tried[i].missing.end()) lacking.emplace(single[i].ops[0], describe_missing(*own));
  }
  return lacking;
}

/// True for a symbol in a template that no runtime has.
bool is_unknown(const std::string& symbol) {
  return !own_runtime().symbols.contains(symbol) && !symbol.starts_with("dtype::");
}

/// Adds sentences about symbols without which nothing can be generated.
void report_missing(const std::set<std::string>& missing, std::vector<std::string>& problems) {
  for (const std::string& symbol : missing) {
    problems.push_back(is_unknown(symbol) ? fmt::format("a template has '@{}', which is no symbol", symbol)
                                          : fmt::format("every file needs it, but {}", describe_missing(symbol)));
  }
}

/// The ops that can be generated, in parts, and their rendered text.
struct Run {
  Selection selection;
  std::vector<std::vector<Part>> parts;
  std::vector<const Part*> flat;
  std::vector<Rendered> rendered;
};

Run run(const std::vector<Family>& families, const GenerateRequest& request,
        const std::map<const Op*, std::string>& lacking) {
  Run run;
  run.selection = select_ops(families, request.runtime, request.refused, lacking);
  run.parts = split_families(families, run.selection, request.parts);
  run.flat = flatten(run.parts);
  run.rendered =
      render({run.selection, request.runtime, run.parts, request.umbrella}, run.flat, request, request.progress);
  return run;
}

/// Repeats until no op needs what the runtime lacks: dropping an op can change what another needs,
/// such as its gradient's rule.
Run run_supported(const std::vector<Family>& families, const GenerateRequest& request,
                  std::vector<std::string>& problems) {
  std::map<const Op*, std::string> dropped;
  while (true) {
    Run now = run(families, request, dropped);
    std::set<std::string> missing, everywhere;
    for (const Rendered& each : now.rendered) missing.insert(each.missing.begin(), each.missing.end());
    if (missing.empty()) return now;
    const LowerContext context{now.selection, request.runtime, now.parts, request.umbrella};
    std::map<const Op*, std::string> lacking = find_lacking(context, now.flat, now.rendered, request, everywhere);
    for (const std::string& symbol : missing) {
      if (is_unknown(symbol)) everywhere.insert(symbol);
    }
    report_missing(everywhere, problems);
    if (!everywhere.empty() || lacking.empty()) return now;
    dropped.merge(lacking);
  }
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

std::vector<std::string> output_names(const std::string& family, int parts, const Runtime& runtime) {
  std::vector<std::string> names;
  for (int part = 0; part < parts; ++part) {
    for (const FileKind& kind : kFileKinds) {
      if (is_written(kind, runtime)) names.push_back(part_name(family, part, parts) + kind.suffix);
    }
  }
  return names;
}

Generated generate(const std::vector<Family>& families, const GenerateRequest& request) {
  Generated result;
  Run run = run_supported(families, request, result.problems);
  result.dropped = run.selection.dropped;
  for (const std::vector<const Op*>& chosen : run.selection.ops) result.ops += chosen.size();
  for (size_t at = 0; at < run.flat.size(); ++at) {
    for (size_t i = 0; i < kFileKinds.size(); ++i) {
      if (is_written(kFileKinds[i], request.runtime))
        result.files[run.flat[at]->name + kFileKinds[i].suffix] = std::move(run.rendered[at].texts[i]);
    }
    for (const std::string& problem : run.rendered[at].problems) result.problems.push_back("template " + problem);
  }
  std::set<std::string> missing;
  std::vector<std::string> problems;
  const std::string umbrella =
      compile(request, "api.h.mustache")
          .render(umbrella_data({run.selection, request.runtime, run.parts, request.umbrella}), problems);
  result.files[request.umbrella] = lay_out(spell_symbols(request.runtime, umbrella, missing));
  for (const std::string& problem : problems) result.problems.push_back("template " + problem);
  report_missing(missing, result.problems);
  if (!result.problems.empty()) result.files.clear();
  return result;
}

}  // namespace shardgen
