// Selects the ops that the runtime supports by the symbols that their template data needs, then
// renders each file once.
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
  const char* folder;    // in the output, with "/"; most are in none
  const char* suffix;    // of the part's name
  bool Runtime::*layer;  // only for runtimes with that layer; null: for all
  Json (*data)(const LowerContext&, const Part&);
};

/// Bindings are in a folder of their own, because only those who build a Python module compile them.
constexpr const char* kPythonFolder = "python/";

constexpr std::array<FileKind, 12> kFileKinds = {{
    {"public.h.mustache", "", ".h", nullptr, api_header_data},
    {"public.cc.mustache", "", ".cc", nullptr, api_source_data},
    {"dense.h.mustache", "", "_dense.h", nullptr, dense_header_data},
    {"dense.cc.mustache", "", "_dense.cc", nullptr, dense_source_data},
    {"dist.h.mustache", "", "_dist.h", &Runtime::dist, dist_header_data},
    {"dist.cc.mustache", "", "_dist.cc", &Runtime::dist, dist_source_data},
    {"ops.h.mustache", "", "_ops.h", nullptr, ops_data},
    {"autograd.h.mustache", "", "_autograd.h", &Runtime::autograd, autograd_header_data},
    {"autograd.cc.mustache", "", "_autograd.cc", &Runtime::autograd, autograd_source_data},
    {"program.cc.mustache", "", "_program.cc", &Runtime::program, program_data},
    {"python.cc.mustache", kPythonFolder, ".cc", &Runtime::python, python_source_data},
    {"python.pyi.mustache", kPythonFolder, ".pyi", &Runtime::python, python_stub_data},
}};

/// The files that name all parts. The name of the header is an option, and the others have it with another suffix.
constexpr std::array<FileKind, 3> kUmbrellas = {{
    {"api.h.mustache", "", ".h", nullptr,
     [](const LowerContext& context, const Part&) { return umbrella_data(context); }},
    {"python_api.cc.mustache", kPythonFolder, ".cc", &Runtime::python,
     [](const LowerContext& context, const Part&) { return python_umbrella_data(context); }},
    {"python_api.pyi.mustache", kPythonFolder, ".pyi", &Runtime::python,
     [](const LowerContext& context, const Part&) { return python_umbrella_stub_data(context); }},
}};

bool is_written(const FileKind& kind, const Runtime& runtime) { return kind.layer == nullptr || runtime.*kind.layer; }

std::string umbrella_name(const std::string& header, const FileKind& kind) {
  return kind.layer == nullptr ? header : kind.folder + header.substr(0, header.rfind('.')) + kind.suffix;
}

/// Symbols that the runtime lacks, and the names of the ops that need them; "" for the file itself.
using Missing = std::map<std::string, std::set<std::string>>;

/// A file before its text is rendered.
struct File {
  std::string name;
  const FileKind* kind;
  const Part* part;
  Json data = nullptr;
  Missing missing;
  std::vector<std::string> problems;  // of the template
};

/// The ops that are generated, and the files with them.
struct Plan {
  Selection selection;
  std::vector<std::vector<Part>> parts;
  std::vector<File> files;
};

using Compiled = std::map<std::string_view, Template>;

/// Calls work(i) for each i below `count`. Each thread takes the next one.
void in_parallel(int jobs, size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  const auto loop = [&] {
    for (size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> others;
  for (size_t i = 1; i < std::min(static_cast<size_t>(std::max(jobs, 1)), count); ++i) others.emplace_back(loop);
  loop();
}

/// Makes the data of a file, and finds what it needs that the runtime lacks.
void lower_file(const LowerContext& context, const Template& file_template, File& file) {
  file.data = file.kind->data(context, *file.part);
  for (const NeededSymbol& needed : file_template.check(file.data, file.problems)) {
    if (context.runtime.symbols.contains(needed.symbol)) continue;
    std::set<std::string>& ops = file.missing[std::string(needed.symbol)];
    if (needed.ops == nullptr) ops.insert("");
    else ops.insert(needed.ops->begin(), needed.ops->end());
  }
}

Plan plan_files(const std::vector<Family>& families, const GenerateRequest& request, const Compiled& templates,
                const std::map<const Op*, std::string>& lacking) {
  static const Part kNone;
  Plan plan;
  plan.selection = select_ops(families, request.runtime, request.refused, lacking);
  plan.parts = split_families(families, plan.selection, request.parts);
  for (const std::vector<Part>& family : plan.parts) {
    for (const Part& part : family) {
      for (const FileKind& kind : kFileKinds) {
        if (is_written(kind, request.runtime))
          plan.files.push_back({kind.folder + part.name + kind.suffix, &kind, &part, {}, {}, {}});
      }
    }
  }
  for (const FileKind& kind : kUmbrellas) {
    if (is_written(kind, request.runtime))
      plan.files.push_back({umbrella_name(request.umbrella, kind), &kind, &kNone, {}, {}, {}});
  }
  const LowerContext context{plan.selection, request.runtime, plan.parts, request.umbrella};
  in_parallel(request.jobs, plan.files.size(),
              [&](size_t i) { lower_file(context, templates.at(plan.files[i].kind->file_template), plan.files[i]); });
  return plan;
}

/// True for a symbol in a template that no runtime has.
bool is_unknown(const std::string& symbol) {
  return !own_runtime().symbols.contains(symbol) && !symbol.starts_with("dtype::");
}

/// Drops ops that need symbols which the runtime lacks, until none does: dropping an op can change
/// what another needs, such as its gradient's rule. Symbols without which nothing can be generated
/// go to `problems`.
Plan plan_supported(const std::vector<Family>& families, const GenerateRequest& request, const Compiled& templates,
                    std::vector<std::string>& problems) {
  std::map<const Op*, std::string> lacking;
  while (true) {
    Plan plan = plan_files(families, request, templates, lacking);
    Missing missing;
    for (const File& file : plan.files) {
      for (const auto& [symbol, ops] : file.missing) missing[symbol].insert(ops.begin(), ops.end());
    }
    for (const auto& [symbol, ops] : missing) {
      if (is_unknown(symbol)) {
        problems.push_back(fmt::format("a template has '@{}', which is no symbol", symbol));
      } else if (ops.contains("")) {
        problems.push_back(fmt::format("every file needs it, but {}", describe_missing(symbol)));
      } else {
        for (const std::string& op : ops) lacking.emplace(plan.selection.find(op), describe_missing(symbol));
      }
    }
    if (missing.empty() || !problems.empty()) return plan;
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
    for (const Op* op : selection.ops[i]) parts[static_cast<size_t>(part_of(*op, count))].ops.push_back(op);
  }
  return all;
}

int count_parts(size_t ops) { return ops == 0 ? 1 : static_cast<int>((ops + kOpsPerPart - 1) / kOpsPerPart); }

std::vector<std::string> output_names(const std::string& family, int parts, const Runtime& runtime) {
  std::vector<std::string> names;
  for (int part = 0; part < parts; ++part) {
    for (const FileKind& kind : kFileKinds) {
      if (is_written(kind, runtime)) names.push_back(kind.folder + part_name(family, part, parts) + kind.suffix);
    }
  }
  return names;
}

std::vector<std::string> umbrella_names(const std::string& header, const Runtime& runtime) {
  std::vector<std::string> names;
  for (const FileKind& kind : kUmbrellas) {
    if (is_written(kind, runtime)) names.push_back(umbrella_name(header, kind));
  }
  return names;
}

Generated generate(const std::vector<Family>& families, const GenerateRequest& request) {
  Compiled templates;
  for (const auto& [name, text] : request.templates) templates.emplace(name, Template(name, mark_symbols(text)));
  Generated result;
  Plan plan = plan_supported(families, request, templates, result.problems);
  result.dropped = std::move(plan.selection.dropped);
  for (const std::vector<const Op*>& chosen : plan.selection.ops) result.ops += chosen.size();
  for (const File& file : plan.files) {
    for (const std::string& problem : file.problems) result.problems.push_back("template " + problem);
  }
  if (!result.problems.empty()) return result;
  std::vector<std::string> texts(plan.files.size());
  std::atomic<size_t> done = 0;
  in_parallel(request.jobs, texts.size(), [&](size_t i) {
    File& file = plan.files[i];
    const std::string text = templates.at(file.kind->file_template).render(file.data);
    file.data = nullptr;  // so that not all data and all text are in memory at once
    texts[i] = lay_out(spell_symbols(request.runtime, text));
    if (request.progress) request.progress(++done, texts.size());
  });
  for (size_t i = 0; i < texts.size(); ++i) result.files[plan.files[i].name] = std::move(texts[i]);
  return result;
}

}  // namespace shardgen
