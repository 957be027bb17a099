// Checks that the pairs of `inplace` and `view` can share a buffer.
#include <fmt/format.h>

#include "check/parts.h"
#include "diag/suggest.h"

namespace shardgen {
namespace {

template <class T>
std::vector<std::string_view> names_of(const std::vector<T>& items) {
  std::vector<std::string_view> names;
  for (const T& item : items) names.push_back(item.name.text);
  return names;
}

/// Reports a pair that names a missing argument or output. True when both exist.
bool check_ends(const Op& op, const AliasPair& pair, std::string_view key, DiagnosticSink& sink) {
  const bool input = find_input(op.signature, pair.input.text) >= 0;
  const bool output = find_output(op.signature, pair.output.text) >= 0;
  if (!input && find_output(op.signature, pair.input.text) >= 0) {
    sink.error(pair.input.at, "unknown-name",
               fmt::format("'{}' in '{}' is an output of op '{}': a pair leads from a tensor argument to an output.",
                           pair.input.text, key, op.name.text));
  } else if (!input) {
    sink.error(pair.input.at, "unknown-name",
               fmt::format("'{}' in '{}' is not a tensor argument of op '{}'{}", pair.input.text, key, op.name.text,
                           suggestion(pair.input.text, names_of(op.signature.inputs))));
  }
  if (!output) {
    sink.error(pair.output.at, "unknown-name",
               fmt::format("'{}' in '{}' is not an output of op '{}'{}", pair.output.text, key, op.name.text,
                           suggestion(pair.output.text, names_of(op.signature.outputs))));
  }
  return input && output;
}

void check_kinds(const Op& op, const AliasPair& pair, std::string_view key, DiagnosticSink& sink) {
  const Input& input = op.signature.inputs[find_input(op.signature, pair.input.text)];
  const Output& output = op.signature.outputs[find_output(op.signature, pair.output.text)];
  if (input.list != output.list) {
    sink.error(pair.input.at, key == "view" ? "bad-view" : "bad-inplace",
               fmt::format("'{}' and '{}' cannot share a buffer: one is a list, the other a single tensor.",
                           pair.input.text, pair.output.text));
  } else if (contains(op.optional, pair.input.text) && !contains(op.optional, pair.output.text)) {
    sink.warning(
        pair.output.at, "optional-alias",
        fmt::format("Output '{}' shares the buffer of optional '{}' and so must be listed under 'optional' too.",
                    pair.output.text, pair.input.text));
  } else if (contains(op.optional, pair.output.text) && !contains(op.optional, pair.input.text)) {
    sink.warning(
        pair.output.at, "optional-alias",
        fmt::format("Optional output '{}' shares the buffer of '{}', which is always given: list both or none under "
                    "'optional'.",
                    pair.output.text, pair.input.text));
  }
}

void check_once(const std::vector<AliasPair>& pairs, size_t index, std::string_view key, DiagnosticSink& sink) {
  for (size_t i = 0; i < index; ++i) {
    const bool same_input = pairs[i].input.text == pairs[index].input.text;
    if (!same_input && pairs[i].output.text != pairs[index].output.text) continue;
    const Name& name = same_input ? pairs[index].input : pairs[index].output;
    sink.error(name.at, "duplicate-name", fmt::format("'{}' occurs in two pairs of '{}'.", name.text, key),
               {{same_input ? pairs[i].input.at : pairs[i].output.at, "First paired here."}});
    return;
  }
}

/// A shared buffer keeps its size, but an output of complex numbers is larger than its real input.
void check_dtype(const Op& op, const AliasPair& pair, std::string_view key, DiagnosticSink& sink) {
  if (!op.kernel || find_input(op.signature, pair.input.text) < 0) return;
  for (const Candidate& candidate : op.kernel->data_type.candidates) {
    const bool other_tensor =
        find_input(op.signature, candidate.name.text) >= 0 && candidate.name.text != pair.input.text;
    if (!candidate.to_complex || other_tensor) continue;
    sink.error(pair.output.at, key == "view" ? "bad-view" : "bad-inplace",
               fmt::format("'{}' cannot {} '{}': 'data_type' makes its elements twice as large.", pair.output.text,
                           key == "view" ? "be a view of" : "be written in place of", pair.input.text));
  }
}

/// A view pair and an in-place pair of one op must name the same two tensors or four different
/// ones.
void check_both(const Op& op, const AliasPair& view, const AliasPair& inplace, DiagnosticSink& sink) {
  const bool input = view.input.text == inplace.input.text;
  const bool output = view.output.text == inplace.output.text;
  if (input == output) return;
  if (output) {
    sink.error(
        view.output.at, "bad-view",
        fmt::format("Output '{}' is a view of '{}' but is written in place of '{}': name the same argument in both.",
                    view.output.text, view.input.text, inplace.input.text),
        {{inplace.output.at, "The in-place pair."}});
  } else {
    sink.error(
        view.input.at, "bad-view",
        fmt::format(
            "Output '{}' of op '{}' is a view of '{}', but '{}' overwrites that buffer: remove one of the pairs.",
            view.output.text, op.name.text, view.input.text, inplace.output.text),
        {{inplace.output.at, "The in-place pair."}});
  }
}

/// Users do not see intermediate outputs, so these must not be views. A buffer that an output
/// shares is needed.
void check_lists(const Op& op, const AliasPair& pair, std::string_view key, DiagnosticSink& sink) {
  for (const Name& name : op.intermediate) {
    if (key != "view" || name.text != pair.output.text) continue;
    sink.error(name.at, "bad-view",
               fmt::format("Output '{}' is both intermediate and a view of '{}': remove one of the two.", name.text,
                           pair.input.text),
               {{pair.output.at, "The view."}});
  }
  for (const Name& name : op.no_need_buffer) {
    if (name.text != pair.input.text) continue;
    sink.error(
        name.at, "bad-no-need-buffer",
        fmt::format("'{}' is listed in 'no_need_buffer', but output '{}' uses its buffer: remove one of the two.",
                    name.text, pair.output.text),
        {{pair.input.at, fmt::format("The pair of '{}'.", key)}});
  }
}

void check_pairs(const Op& op, const std::vector<AliasPair>& pairs, std::string_view key, DiagnosticSink& sink) {
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (check_ends(op, pairs[i], key, sink)) check_kinds(op, pairs[i], key, sink);
    check_once(pairs, i, key, sink);
    check_dtype(op, pairs[i], key, sink);
    check_lists(op, pairs[i], key, sink);
  }
}

}  // namespace

void check_aliases(const Op& op, DiagnosticSink& sink) {
  check_pairs(op, op.inplace, "inplace", sink);
  check_pairs(op, op.view, "view", sink);
  for (const AliasPair& view : op.view) {
    for (const AliasPair& inplace : op.inplace) check_both(op, view, inplace, sink);
  }
  if (op.extension.view_writes) {
    for (const Name& name : *op.extension.view_writes) {
      bool is_view = false;
      for (const AliasPair& view : op.view) is_view = is_view || view.output.text == name.text;
      if (is_view || find_output(op.signature, name.text) < 0) continue;
      sink.error(name.at, "bad-view", fmt::format("'{}' in 'view_writes' is the output of no 'view' pair.", name.text));
    }
  }
  if (op.name.text.ends_with('_') && op.inplace.empty() && !op.extension.view_writes && !op.is_backward) {
    sink.warning(op.name.at, "missing-inplace",
                 fmt::format("The name of op '{}' implies that it writes in place, but it has no 'inplace' pair.",
                             op.name.text));
  }
}

}  // namespace shardgen
