// Reads overlays with the same tables of keys as ops.
#include "read/overlay.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <type_traits>

#include "read/read_op.h"

namespace shardgen {
namespace {

using Ops = std::map<std::string, std::vector<Op*>>;

template <class T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, Name>) return a.text == b.text;
  else if constexpr (std::is_same_v<T, Partial>) return to_string(a) == to_string(b);
  else if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::string>) return a == b;
  else return false;  // a list counts as a different list
}

/// Copies a value that the overlay has; true when the op had another value.
template <class T>
bool put(const std::optional<T>& from, std::optional<T>& to) {
  if (!from) return false;
  const bool changes = !to || !same(*from, *to);
  to = from;
  return changes;
}

bool put_rule(const InferMeta& from, InferMeta& to) {
  if (from.spmd_rule) {
    to.expression = from.expression;
    to.wrong = from.wrong;
    to.rule_places = from.rule_places;
  }
  const bool changes[] = {put(from.spmd_rule, to.spmd_rule), put(from.local_shape, to.local_shape),
                          put(from.global_shape, to.global_shape)};
  return changes[0] || changes[1] || changes[2];
}

/// Copies the keys that say how the op itself is placed and run on a mesh.
bool put_placement(const OverlayEntry& entry, Op& op) {
  if (!op.infer_meta && (entry.infer_meta.spmd_rule || entry.infer_meta.local_shape))
    op.infer_meta.emplace().at = entry.name.at;
  bool changes = op.infer_meta && put_rule(entry.infer_meta, *op.infer_meta);
  const Extension& from = entry.extension;
  changes |= put(from.partial, op.extension.partial);
  changes |= put(from.partial_guard, op.extension.partial_guard);
  changes |= put(from.view_writes, op.extension.view_writes);
  changes |= put(from.dynamic_shape, op.extension.dynamic_shape);
  changes |= put(from.random, op.extension.random);
  changes |= put(from.elementwise, op.extension.elementwise);
  return changes;
}

bool put_others(const Extension& from, Extension& to) {
  bool changes = put(from.traits, to.traits);
  changes |= put(from.neutral, to.neutral);
  changes |= put(from.no_gradient, to.no_gradient);
  changes |= put(from.record_composite, to.record_composite);
  changes |= put(from.optional_outputs, to.optional_outputs);
  changes |= put(from.overload, to.overload);
  changes |= put(from.save_if, to.save_if);
  changes |= put(from.doc, to.doc);
  return changes;
}

/// True when a rule of the op has an effect: the op has a body, or a backward op with a body whose
/// rule may be derived from it.
bool is_placed(const Op& op, const Ops& ops) {
  if (has_body(op)) return true;
  return std::any_of(ops.begin(), ops.end(), [&](const auto& named) {
    return std::any_of(named.second.begin(), named.second.end(), [&](const Op* other) {
      return other->forward && other->forward->name.text == op.name.text && has_body(*other);
    });
  });
}

/// Applies the entry to all ops of its name. Reports an entry without effect.
void replace(const OverlayEntry& entry, const std::vector<Op*>& targets, const Ops& ops, DiagnosticSink& sink) {
  bool differs = false, has_effect = false;
  for (Op* op : targets) {
    const bool placement = put_placement(entry, *op), others = put_others(entry.extension, op->extension);
    differs |= placement || others;
    has_effect |= others || (placement && is_placed(*op, ops));
  }
  if (has_effect) return;
  const char* why =
      differs ? "the op only invokes other ops, which have their own placement" : "it adds nothing to what the op has";
  sink.warning(entry.name.at, "no-effect",
               fmt::format("The entry for op '{}' has no effect: {}.", entry.name.text, why));
}

Ops ops_by_name(std::vector<Family>& families) {
  Ops ops;
  for (Family& family : families) {
    for (Op& op : family.ops) {
      if (!family.imported) ops[op.name.text].push_back(&op);
    }
  }
  return ops;
}

std::vector<std::string_view> names_of(const Ops& ops) {
  std::vector<std::string_view> names;
  for (const auto& [op, places] : ops) names.push_back(op);
  return names;
}

}  // namespace

void apply_overlay(const std::string& path, std::string bytes, std::vector<Family>& families, DiagnosticSink& sink) {
  const std::optional<YamlFile> file = parse_yaml(path, std::move(bytes), sink);
  if (!file || file->root.kind == YamlNode::Kind::null) return;
  if (file->root.kind != YamlNode::Kind::sequence) {
    sink.error(file->at(file->root), "syntax",
               "An overlay must be a list of ops ('- op : name') with what is added to them.");
    return;
  }
  const ReadContext context{*file, sink};
  const Ops ops = ops_by_name(families);
  Suggester suggest(names_of(ops));
  std::map<std::string, Location> seen;
  for (const YamlNode& item : file->root.items) {
    const std::optional<OverlayEntry> entry = read_overlay_entry(context, item);
    if (!entry) continue;
    const auto found = ops.find(entry->name.text);
    const auto [first, fresh] = seen.emplace(entry->name.text, entry->name.at);
    if (found == ops.end()) {
      const std::string& name = entry->name.text;
      sink.error(
          entry->name.at, "unknown-op",
          fmt::format("'{}' is not an op of these files, so the overlay has nothing to add to{}", name, suggest(name)));
    } else if (!fresh) {
      sink.error(entry->name.at, "duplicate-op",
                 fmt::format("The overlay has two entries for op '{}': merge them.", entry->name.text),
                 {{first->second, "The first one."}});
    } else {
      replace(*entry, found->second, ops, sink);
    }
  }
}

}  // namespace shardgen
