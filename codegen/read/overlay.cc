// Reads overlays through the same tables of keys as ops.
#include "read/overlay.h"

#include <map>

#include "read/read_op.h"

namespace shardgen {
namespace {

void replace(const OverlayEntry& entry, Op& op) {
  if (!op.infer_meta && (entry.infer_meta.spmd_rule || entry.infer_meta.local_shape)) op.infer_meta.emplace().at = entry.name.at;
  if (entry.infer_meta.spmd_rule) {
    op.infer_meta->spmd_rule = entry.infer_meta.spmd_rule;
    op.infer_meta->expression = entry.infer_meta.expression;
    op.infer_meta->wrong = entry.infer_meta.wrong;
    op.infer_meta->rule_places = entry.infer_meta.rule_places;
  }
  if (entry.infer_meta.local_shape) op.infer_meta->local_shape = entry.infer_meta.local_shape;
  if (entry.infer_meta.global_shape) op.infer_meta->global_shape = entry.infer_meta.global_shape;
  const Extension& from = entry.extension;
  if (from.partial) op.extension.partial = from.partial;
  if (from.partial_guard) op.extension.partial_guard = from.partial_guard;
  if (from.view_writes) op.extension.view_writes = from.view_writes;
  if (from.dynamic_shape) op.extension.dynamic_shape = from.dynamic_shape;
  if (from.random) op.extension.random = from.random;
  if (from.elementwise) op.extension.elementwise = from.elementwise;
  if (from.traits) op.extension.traits = from.traits;
  if (from.neutral) op.extension.neutral = from.neutral;
  if (from.no_gradient) op.extension.no_gradient = from.no_gradient;
  if (from.record_composite) op.extension.record_composite = from.record_composite;
  if (from.save_if) op.extension.save_if = from.save_if;
  if (from.doc) op.extension.doc = from.doc;
}

std::map<std::string, std::vector<Op*>> ops_by_name(std::vector<Family>& families) {
  std::map<std::string, std::vector<Op*>> ops;
  for (Family& family : families) {
    for (Op& op : family.ops) {
      if (!family.imported) ops[op.name.text].push_back(&op);
    }
  }
  return ops;
}

std::vector<std::string_view> names_of(const std::map<std::string, std::vector<Op*>>& ops) {
  std::vector<std::string_view> names;
  for (const auto& [op, places] : ops) names.push_back(op);
  return names;
}

}  // namespace

void apply_overlay(const std::string& path, std::string bytes, std::vector<Family>& families, DiagnosticSink& sink) {
  const std::optional<YamlFile> file = parse_yaml(path, std::move(bytes), sink);
  if (!file || file->root.kind == YamlNode::Kind::null) return;
  if (file->root.kind != YamlNode::Kind::sequence) {
    sink.error(file->at(file->root), "syntax", "An overlay must be a list of ops ('- op : name') with what is added to them.");
    return;
  }
  const ReadContext context{*file, sink};
  const std::map<std::string, std::vector<Op*>> ops = ops_by_name(families);
  Suggester suggest(names_of(ops));
  std::map<std::string, Location> seen;
  for (const YamlNode& item : file->root.items) {
    const std::optional<OverlayEntry> entry = read_overlay_entry(context, item);
    if (!entry) continue;
    const auto found = ops.find(entry->name.text);
    const auto [first, fresh] = seen.emplace(entry->name.text, entry->name.at);
    if (found == ops.end()) {
      const std::string& name = entry->name.text;
      sink.error(entry->name.at, "unknown-op",
                 fmt::format("'{}' is no op of these files, so the overlay has nothing to add to{}", name, suggest(name)));
    } else if (!fresh) {
      sink.error(entry->name.at, "duplicate-op", fmt::format("The overlay has two entries for op '{}': join them.", entry->name.text),
                 {{first->second, "The first one."}});
    } else {
      for (Op* op : found->second) replace(*entry, *op);
    }
  }
}

}  // namespace shardgen
