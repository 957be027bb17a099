#include "run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "rules.h"
#include "shard/core/error.h"

namespace spmd_cases {
namespace {

using namespace shard;
using namespace shard::spmd;

/// The value used for unknown sizes; the peer uses it in reshapes, where a size has to be known.
constexpr int64_t kUnknownSize = 256;

Dims known_dims(const std::vector<int64_t>& shape) {
  std::vector<int64_t> sizes = shape;
  std::replace(sizes.begin(), sizes.end(), int64_t{-1}, kUnknownSize);
  return Dims(std::span<const int64_t>(sizes));
}

/// How the peer represents an absent tensor.
bool is_empty(const TensorCase& tensor) { return tensor.shape.empty() || tensor.shape[0] == 0; }

/// True for the peer's xshape: its first size is 0, and that dim may have an entry in the mapping.
bool has_marker(const SlotDef& slot, const TensorCase& tensor) {
  if (tensor.shape.empty() || tensor.shape[0] != 0) return false;
  return slot.name == "xshape" || tensor.shape.size() == tensor.mapping.size() + 1;
}
bool maps_marker(const SlotDef& slot, const TensorCase& tensor) {
  return has_marker(slot, tensor) && tensor.shape.size() == tensor.mapping.size();
}
TensorCase without_marker(const SlotDef& slot, const TensorCase& tensor) {
  TensorCase result = tensor;
  if (has_marker(slot, tensor)) result.shape.erase(result.shape.begin());
  if (maps_marker(slot, tensor)) result.mapping.erase(result.mapping.begin());
  return result;
}

const DistSpec* spec_of(const ProcessMesh* mesh, const TensorCase& tensor, bool first_dim_keeps) {
  const Dims dims = known_dims(tensor.shape);
  Layout layout(mesh, dims.rank());
  // A tensor without dims may have a mapping of one entry, which is ignored.
  const bool scalar = dims.rank() == 0 && tensor.mapping.size() == 1;
  if (!tensor.mapping.empty() && !scalar && tensor.mapping.size() != tensor.shape.size()) {
    fail(ErrorCode::layout, "a tensor of {} dims has a dims_mapping of {}", tensor.shape.size(), tensor.mapping.size());
  }
  for (size_t d = 0; d < tensor.mapping.size() && !scalar; ++d) {
    const int64_t axis = tensor.mapping[d];
    if (axis < 0) continue;
    if (axis >= mesh->rank())
      fail(ErrorCode::layout, "dim {} is sharded by axis {} of a mesh with {}", d, axis, mesh->rank());
    // If a conflict is not an error, the first dim keeps an axis that occurs twice.
    if (!first_dim_keeps || layout.dim_of(static_cast<int>(axis)) < 0) layout.dims[d].push_back(static_cast<int>(axis));
  }
  for (int64_t axis : tensor.partial) {
    if (axis >= mesh->rank())
      fail(ErrorCode::layout, "a tensor is partial on axis {} of a mesh with {}", axis, mesh->rank());
    layout.partial[static_cast<size_t>(axis)] = ReduceType::sum;
  }
  return DistSpec::make(layout);
}

/// The arguments of a case, sorted by the slots of a signature.
struct Bound {
  std::vector<std::vector<TensorCase>> inputs;
  std::vector<std::vector<TensorCase>> outputs;  // for a backward case, or if the entry says so
  std::vector<AttrValue> attrs;
};

/// The arguments of a case do not match those of a signature.
struct ArgumentMismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

AttrValue attr_value(const AttrDef& def, const nlohmann::json& value) {
  const auto refuse = [&](const char* expected) {
    throw ArgumentMismatch(fmt::format("attribute '{}' must be {}, not {}", def.name, expected, value.dump()));
  };
  switch (def.kind) {
    case AttrDef::Kind::boolean:
      if (value.is_boolean()) return value.get<bool>();
      if (!value.is_number_integer()) refuse("true or false");
      return value.get<int64_t>() != 0;
    case AttrDef::Kind::integer:
      if (!value.is_number_integer()) refuse("an integer");
      return value.get<int64_t>();
    case AttrDef::Kind::number:
      if (!value.is_number()) refuse("a number");
      return value.get<double>();
    case AttrDef::Kind::integers: {
      if (value.is_number_integer()) return IntArray{value.get<int64_t>()};
      if (!value.is_array()) refuse("a list of integers");
      IntArray list;
      for (const auto& item : value) {
        if (!item.is_number_integer()) refuse("a list of integers");
        list.push_back(item.get<int64_t>());
      }
      return list;
    }
    case AttrDef::Kind::any:
      if (value.is_number_integer()) return value.get<int64_t>();
      return value.is_string() ? AttrValue(value.get<std::string>()) : AttrValue(value.dump());
  }
  return false;
}

/// Throws ArgumentMismatch.
Bound bind(const Case& c, const Entry& entry, const Signature& signature) {
  Bound bound;
  size_t next = 0;
  const auto take = [&](const std::vector<SlotDef>& slots, std::vector<std::vector<TensorCase>>& into,
                        const char* what) {
    for (const SlotDef& slot : slots) {
      const bool list = slot.kind == SlotDef::Kind::list;
      const bool more = next < c.args.size() && c.args[next].kind != Argument::Kind::attribute;
      if (!more && slot.kind == SlotDef::Kind::optional) {
        into.push_back({TensorCase{}});
        continue;
      }
      if (!more) throw ArgumentMismatch(fmt::format("argument {} should be {} '{}'", next, what, slot.name));
      // Tensors of the peer's list arguments may be listed one by one.
      if ((c.args[next].kind == Argument::Kind::list) != list) {
        throw ArgumentMismatch(fmt::format("argument {} should be {} for {} '{}'", next,
                                           list ? "a list of tensors" : "one tensor", what, slot.name));
      }
      into.push_back(c.args[next++].tensors);
    }
  };
  take(signature.inputs, bound.inputs, "tensor");
  if (c.backward || entry.outputs_given) take(signature.output_slots, bound.outputs, "output");
  // The wanted layout of xshape is ignored: no op reads it as a value.
  if (c.backward && entry.xshape && next < c.args.size() && c.args[next].kind == Argument::Kind::tensor) ++next;
  for (const AttrDef& attr : signature.attrs) {
    const bool more = next < c.args.size();
    if (more && c.args[next].kind != Argument::Kind::attribute)
      throw ArgumentMismatch(fmt::format("argument {} should be attribute '{}'", next, attr.name));
    if (!more && attr.fallback.is_null()) throw ArgumentMismatch(fmt::format("attribute '{}' is missing", attr.name));
    bound.attrs.push_back(attr_value(attr, more ? c.args[next].attribute : attr.fallback));
    if (more) ++next;
  }
  while (signature.more_attrs && next < c.args.size() && c.args[next].kind == Argument::Kind::attribute) ++next;
  if (next < c.args.size())
    throw ArgumentMismatch(fmt::format("there are {} arguments too many", c.args.size() - next));
  return bound;
}

Placed placed(const Layout& layout) {
  Placed result;
  for (int d = 0; d < layout.rank; ++d) {
    std::vector<int> axes;
    for (int i = 0; i < layout.dims[static_cast<size_t>(d)].size(); ++i)
      axes.push_back(layout.dims[static_cast<size_t>(d)][i]);
    result.axes.push_back(axes);
  }
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    if (layout.partial[static_cast<size_t>(axis)]) result.partial.push_back(axis);
  }
  return result;
}

AnswerSide side_of(const std::vector<Layout>& layouts, const std::vector<SlotDef>& slots,
                   const std::vector<SlotRange>& ranges, bool flat, const std::vector<size_t>& chosen) {
  AnswerSide side;
  for (size_t s = 0; s < slots.size(); ++s) {
    if (!chosen.empty() && std::find(chosen.begin(), chosen.end(), s) == chosen.end()) continue;
    std::vector<Placed> list;
    for (size_t i = 0; i < ranges[s].count; ++i) list.push_back(placed(layouts[ranges[s].first + i]));
    const bool is_list = slots[s].kind == SlotDef::Kind::list;
    if (is_list && flat) {
      for (Placed& one : list) {
        side.slots.push_back({std::move(one)});
        side.lists.push_back(false);
      }
      continue;
    }
    side.slots.push_back(std::move(list));
    side.lists.push_back(is_list);
  }
  return side;
}

/// One call of a rule with everything that its RuleArgs point to.
class Run {
 public:
  Run(const Case& c, const Entry& entry, const Signature& signature, bool compat)
      : case_(c), entry_(entry),
        signature_(signature), call_{.signature = signature, .backward = c.backward, .compat = compat} {
    if (!compat) return;
    PeerOptions options = entry.peer;
    if (c.backward) options.conflict = entry.peer_reverse;
    first_dim_keeps_ = options.conflict == PeerOptions::Conflict::first;
    solver_.emplace(std::move(options));
  }

  Answer run(const Bound& bound) {
    mesh_ = ProcessMesh::make(case_.mesh_shape, case_.processes);
    call_.attrs = bound.attrs;
    add_inputs(bound);
    add_outputs(bound);
    if (call_.compat && entry_.peer_check != nullptr) entry_.peer_check(call_);
    const OpDef op = definition();
    RuleArgs args{op, mesh_, call_.tensors, call_.slots, call_.attrs, outputs_, output_slots_};
    args.solver = solver_ ? &*solver_ : nullptr;
    const RuleResult result = case_.backward ? infer_reverse(args, wanted_) : infer(args);
    Answer answer;
    answer.inputs = side_of(result.inputs, signature_.inputs, call_.slots, entry_.flat, entry_.answers);
    answer.outputs = side_of(result.outputs, signature_.output_slots, output_slots_, entry_.flat, {});
    const bool by_slot = !entry_.flat && entry_.answers.empty();
    for (size_t s = 0; by_slot && s < marked_.size(); ++s) {
      if (marked_[s]) answer.inputs.slots[s][0].axes.insert(answer.inputs.slots[s][0].axes.begin(), std::vector<int>());
    }
    if (entry_.xshape) add_xshape(answer);
    return answer;
  }

 private:
  static void add_xshape(Answer& answer) {
    Placed xshape{answer.inputs.slots[0][0].axes, {}};
    xshape.axes.insert(xshape.axes.begin(), std::vector<int>());
    answer.outputs.slots.push_back({std::move(xshape)});
    answer.outputs.lists.push_back(false);
    answer.outputs.intermediate = 1;
  }

  void add_inputs(const Bound& bound) {
    for (size_t s = 0; s < signature_.inputs.size(); ++s) {
      call_.slots.push_back({call_.tensors.size(), bound.inputs[s].size()});
      marked_.push_back(!bound.inputs[s].empty() && maps_marker(signature_.inputs[s], bound.inputs[s][0]));
      for (const TensorCase& given : bound.inputs[s]) {
        TensorCase tensor = without_marker(signature_.inputs[s], given);
        TensorArg arg;
        arg.meta = {known_dims(tensor.shape), DType::float32};
        // In reverse the layouts of inputs are ignored, and may be missing.
        if (case_.backward) tensor.mapping.clear(), tensor.partial.clear();
        const bool absent = signature_.inputs[s].kind == SlotDef::Kind::optional && is_empty(given);
        if (!absent) arg.spec = spec_of(mesh_, tensor, first_dim_keeps_);
        else arg.meta.dims = Dims{};
        call_.tensors.push_back(arg);
      }
    }
  }

  void add_outputs(const Bound& bound) {
    for (const auto& list : bound.outputs) {
      // Sizes that a reshape leaves open are resolved with the shape of its input.
      for (const TensorCase& tensor : list)
        call_.given.push_back(entry_.open_sizes ? Dims(std::span<const int64_t>(tensor.shape))
                                                : known_dims(tensor.shape));
    }
    const Shapes shapes = entry_.shapes != nullptr ? entry_.shapes(call_) : shapes_like_inputs();
    for (const std::vector<Dims>& list : shapes) {
      output_slots_.push_back({outputs_.size(), list.size()});
      for (const Dims& dims : list) outputs_.push_back({dims, DType::float32});
    }
    if (!case_.backward) return;
    size_t o = 0;
    for (const auto& list : bound.outputs) {
      for (const TensorCase& tensor : list) add_wanted(tensor, o++);
    }
    wanted_.resize(outputs_.size(), nullptr);
  }

  void add_wanted(const TensorCase& tensor, size_t o) {
    if (o >= outputs_.size()) fail(ErrorCode::shape_mismatch, "the case has more outputs than the op");
    Dims& dims = outputs_[o].dims;
    const bool none = tensor.mapping.empty() && (tensor.shape.empty() || dims.rank() > 0);
    if (!none && dims.rank() == 0 && !tensor.shape.empty())
      return wanted_.push_back(nullptr);  // an output that the op does not compute
    if (!none && static_cast<size_t>(dims.rank()) != tensor.shape.size() && !entry_.free_outputs) {
      fail(ErrorCode::shape_mismatch, "output {} has {} dims, but the op computes {}", o, tensor.shape.size(),
           dims.rank());
    }
    wanted_.push_back(none ? nullptr : spec_of(mesh_, tensor, first_dim_keeps_));
    if (wanted_.back() != nullptr && wanted_.back()->rank() != dims.rank()) {
      fail(ErrorCode::shape_mismatch, "output {} has {} dims, but the op computes {}", o, wanted_.back()->rank(),
           dims.rank());
    }
  }

  Shapes shapes_like_inputs() const {
    Shapes shapes;
    for (const OutputDef& output : signature_.outputs) {
      const auto found = std::find_if(signature_.inputs.begin(), signature_.inputs.end(),
                                      [&](const SlotDef& slot) { return slot.name == output.like; });
      if (found == signature_.inputs.end())
        fail(ErrorCode::internal, "({}) does not determine the shape of '{}'", signature_.text, output.slot.name);
      shapes.push_back({call_.dims(static_cast<size_t>(found - signature_.inputs.begin()))});
    }
    return shapes;
  }

  /// The op of the call: that of the library with the arguments of the case, if the library has an
  /// op of that name.
  OpDef definition() const {
    const OpDef* known = find_op(case_.rule);
    if (known == nullptr) known = find_op(entry_.names.substr(0, entry_.names.find(' ')));
    OpDef op;
    // A guard may use attributes that the case does not have.
    if (known != nullptr && known->commute_guard.empty()) {
      op.commutes = known->commutes;
      op.commute_types = known->commute_types;
    }
    op.name = case_.rule;
    op.location = "the table of cases";
    op.inputs = signature_.inputs;
    op.attrs = signature_.attr_names;
    op.outputs = signature_.output_slots;
    op.rule = entry_.rule.empty() && known != nullptr ? known->rule : entry_.rule;
    if (call_.compat && !entry_.peer_rule.empty()) op.rule = entry_.peer_rule;
    return op;
  }

  const Case& case_;
  const Entry& entry_;
  const Signature& signature_;
  Call call_;
  std::optional<FirstComeSolver> solver_;  // with --compat
  bool first_dim_keeps_ = false;
  const ProcessMesh* mesh_ = nullptr;
  std::vector<Meta> outputs_;
  std::vector<SlotRange> output_slots_;
  std::vector<const DistSpec*> wanted_;
  // For each input slot: it is an xshape whose first size has an entry in the mapping.
  std::vector<bool> marked_;
};

std::string to_text(const std::vector<int64_t>& values) { return fmt::format("[{}]", fmt::join(values, ", ")); }

bool same_mapping(const std::vector<int64_t>& expected, const Placed& actual) {
  // A tensor without dims has the mapping [] or [-1].
  if (actual.axes.empty()) return expected.empty() || expected == std::vector<int64_t>{-1};
  if (expected.empty()) return actual.axes.size() == 1 && actual.axes[0].empty();
  if (expected.size() != actual.axes.size()) return false;
  for (size_t d = 0; d < expected.size(); ++d) {
    const std::vector<int>& axes = actual.axes[d];
    if (expected[d] < 0 ? !axes.empty() : axes != std::vector<int>{static_cast<int>(expected[d])}) return false;
  }
  return true;
}

std::string mapping_text(const Placed& placed) {
  std::vector<std::string> dims;
  for (const auto& axes : placed.axes) dims.push_back(axes.empty() ? "-1" : fmt::format("{}", fmt::join(axes, "+")));
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

void compare(const char* what, const ExpectedSide& expected, const AnswerSide& actual,
             std::vector<std::string>& found) {
  if (expected.count && *expected.count != actual.slots.size() &&
      *expected.count + actual.intermediate != actual.slots.size()) {
    found.push_back(fmt::format("{}: expected {}, got {}", what, *expected.count, actual.slots.size()));
  }
  for (const Expected& one : expected.at) {
    const std::string at =
        one.element ? fmt::format("{} {}.{}", what, one.slot, *one.element) : fmt::format("{} {}", what, one.slot);
    const size_t element = one.element.value_or(0);
    if (one.slot >= actual.slots.size() || element >= actual.slots[one.slot].size()) {
      found.push_back(fmt::format("{}: there is none", at));
      continue;
    }
    if (!one.element && actual.lists[one.slot]) {
      found.push_back(fmt::format("{}: is a list; name an element, such as \"{}.0\"", at, one.slot));
      continue;
    }
    const Placed& placed = actual.slots[one.slot][element];
    if (one.mapping && !same_mapping(*one.mapping, placed)) {
      found.push_back(
          fmt::format("{}: expected dims_mapping {}, got {}", at, to_text(*one.mapping), mapping_text(placed)));
    }
    if (one.partial && std::set<int64_t>(one.partial->begin(), one.partial->end()) !=
                           std::set<int64_t>(placed.partial.begin(), placed.partial.end())) {
      found.push_back(
          fmt::format("{}: expected partial {}, got {}", at, to_text(*one.partial), to_text(placed.partial)));
    }
    if (one.is_partial && *one.is_partial == placed.partial.empty()) {
      found.push_back(
          fmt::format("{}: expected is_partial {}, got partial {}", at, *one.is_partial, to_text(placed.partial)));
    }
  }
}

}  // namespace

Answer answer(const Case& c, bool compat) {
  const std::vector<const Entry*> entries = find_entries(c.rule);
  if (entries.empty()) throw UnknownRule(fmt::format("no rule is known by the name '{}'", c.rule));
  std::string problems;
  for (const Entry* entry : entries) {
    const Signature signature(entry->signature);
    Bound bound;
    try {
      bound = bind(c, *entry, signature);
    } catch (const ArgumentMismatch& problem) {
      problems += fmt::format("{}({}): {}", problems.empty() ? "" : "; ", entry->signature, problem.what());
      continue;
    }
    try {
      return Run(c, *entry, signature, compat).run(bound);
    } catch (const std::exception& refused) {
      Answer result;
      result.error = true;
      result.message = refused.what();
      return result;
    }
  }
  Answer result;
  result.error = true;
  result.message = "the arguments do not fit: " + problems;
  return result;
}

std::vector<std::string> differences(const Case& c, const Answer& answer) {
  if (c.error && answer.error) return {};
  if (c.error) return {"expected an error, got " + (answer.outputs.slots.empty() ? std::string("none") : "layouts")};
  if (answer.error) return {"the rule rejects: " + answer.message};
  std::vector<std::string> found;
  compare("inputs", c.inputs, answer.inputs, found);
  compare("outputs", c.outputs, answer.outputs, found);
  return found;
}

std::string to_text(const Placed& placed) {
  return mapping_text(placed) + (placed.partial.empty() ? "" : " partial " + to_text(placed.partial));
}

}  // namespace spmd_cases
