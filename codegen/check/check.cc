// Runs every check. Checks across ops (equal names) are here.
#include "check/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "check/parts.h"

namespace shardgen {
namespace {

/// Every C++ function that is generated for an op.
std::vector<std::string> functions_of(const Op& op) {
  std::vector<std::string> names = {op.name.text};
  if (!op.inplace.empty() && !op.name.text.ends_with('_')) names.push_back(op.name.text + "_");
  if (!op.intermediate.empty()) names.push_back(op.name.text + "_intermediate");
  return names;
}

/// In one file a duplicate is a mistake. PaddlePaddle's files, however, are variants for several
/// uses, and define many ops twice.
void report_duplicate(const Op& op, const Op& first, bool imported, DiagnosticSink& sink) {
  const std::vector<Note> notes = {{first.name.at, "First defined here."}};
  if (op.name.at.file == first.name.at.file) {
    sink.error(op.name.at, "duplicate-op",
               fmt::format("Op '{}' is defined twice: remove or rename one of them.", op.name.text), notes);
  } else if (imported) {
    sink.error(op.name.at, "duplicate-op",
               fmt::format("Op '{}' is also in an imported file, whose code exists: rename this one.", op.name.text),
               notes);
  } else {
    sink.warning(op.name.at, "duplicate-op",
                 fmt::format("Op '{}' is defined in two files: the first definition counts.", op.name.text), notes);
  }
}

void check_duplicates(const std::vector<Family>& families, DiagnosticSink& sink) {
  std::map<std::string, const Op*> owners;
  std::set<std::string> imported;
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      if (family.imported) imported.insert(op.name.text);
      const auto [first, fresh] = owners.emplace(op.name.text, &op);
      if (!fresh) report_duplicate(op, *first->second, imported.contains(op.name.text), sink);
    }
  }
  // An op `x_` may coexist with an op `x` that has no in-place form, but not with the in-place form
  // of `x`.
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      for (const std::string& name : functions_of(op)) {
        const auto owner = owners.find(name);
        if (owner == owners.end() || owner->second->name.text == op.name.text) continue;
        sink.warning(
            op.name.at, "duplicate-function",
            fmt::format("Op '{}' generates a function '{}', which is also the name of an op.", op.name.text, name),
            {{owner->second->name.at, "That op."}});
      }
    }
  }
}

}  // namespace

void check_families(const std::vector<Family>& families, const Runtime& runtime, DiagnosticSink& sink) {
  for (const Family& family : families) {
    for (const Op& op : family.ops) {
      if (!check_signature_given(op, sink) || !op.complete) continue;
      check_names(op, runtime, sink);
      check_defaults(op, sink);
      check_references(op, sink);
      check_aliases(op, sink);
      check_kernel(op, sink);
    }
  }
  check_family_names(families, sink);
  check_duplicates(families, sink);
  check_invokes(families, sink);
  check_links(families, sink);
}

bool stands_in(const Diagnostic& finding, const Op& op) {
  return finding.at.file == op.name.at.file && finding.at.line >= op.first_line && finding.at.line <= op.last_line;
}

RefusedOps refused_ops(const std::vector<Family>& families, const std::vector<Diagnostic>& findings) {
  std::map<std::string_view, std::vector<const Family*>> by_path;
  for (const Family& family : families) {
    if (!family.imported) by_path[family.path].push_back(&family);
  }
  RefusedOps refused;
  for (const Diagnostic& finding : findings) {
    if (finding.severity != Severity::error) continue;
    bool found = false;
    for (const Family* family : by_path[finding.at.file]) {
      // Ops are in the order of their lines.
      auto op = std::partition_point(family->ops.begin(), family->ops.end(),
                                     [&](const Op& each) { return each.last_line < finding.at.line; });
      for (; op != family->ops.end() && stands_in(finding, *op); ++op) {
        refused.ops.insert(&*op);
        found = true;
      }
    }
    refused.elsewhere += found ? 0 : 1;
  }
  return refused;
}

}  // namespace shardgen
