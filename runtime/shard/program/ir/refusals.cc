#include "shard/program/ir/refusals.h"

#include <algorithm>
#include <map>

#include "shard/core/dtype.h"

namespace shard::program {
namespace {

class Refusals {
 public:
  explicit Refusals(const Program& program) : program_(program) {}

  bool refuses(size_t i) {
    const Op& op = program_.ops[i];
    if (op.kind != Kind::call) return false;
    bool refuses = op.entry->op->random;
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (!op.reads_bytes(k) || !is_integral(program_.value(op.inputs[k].value).type.meta.dtype)) continue;
      std::vector<size_t>& readers = readers_[{op.inputs[k].value, op.inputs[k].state}];
      refuses = refuses || std::none_of(readers.begin(), readers.end(),
                                        [&](size_t reader) { return accepts_for(program_.ops[reader], op); });
      readers.push_back(i);
    }
    return refuses;
  }

 private:
  /// True if `later` is the gradient of `earlier` and the two have the same values for their common
  /// arguments. What `later` would refuse, `earlier` has refused already.
  static bool accepts_for(const Op& earlier, const Op& later) {
    const OpDef &of = *earlier.entry->op, &gradient = *later.entry->op;
    if (gradient.name.size() != of.name.size() + kGradient.size() || !gradient.name.starts_with(of.name) ||
        !gradient.name.ends_with(kGradient))
      return false;
    for (size_t i = 0; i < of.inputs.size(); ++i) {
      for (size_t k = 0; k < gradient.inputs.size(); ++k) {
        if (of.inputs[i].name == gradient.inputs[k].name &&
            !same_values(earlier, earlier.slots[i], later, later.slots[k]))
          return false;
      }
    }
    return true;
  }

  static bool same_values(const Op& a, const SlotRange& first, const Op& b, const SlotRange& second) {
    const auto begin = a.inputs.begin() + static_cast<std::ptrdiff_t>(first.first),
               other = b.inputs.begin() + static_cast<std::ptrdiff_t>(second.first);
    const auto same = [](const Operand& x, const Operand& y) { return x.value == y.value; };
    return std::equal(begin, begin + static_cast<std::ptrdiff_t>(first.count), other,
                      other + static_cast<std::ptrdiff_t>(second.count), same);
  }

  // The suffix of the name of an op that is the gradient of another one.
  static constexpr std::string_view kGradient = "_grad";
  const Program& program_;
  std::map<std::pair<ValueId, ValueId>, std::vector<size_t>> readers_;  // by value and state
};

}  // namespace

std::vector<bool> find_refusals(const Program& program) {
  Refusals refusals(program);
  std::vector<bool> found;
  for (size_t i = 0; i < program.ops.size(); ++i) found.push_back(refusals.refuses(i));
  return found;
}

std::vector<bool> find_lasting_writes(const Program& program) {
  std::vector<bool> found;
  for (const Op& op : program.ops) {
    bool lasting = false;
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      lasting =
          lasting || (op.outputs[o] != 0 && op.writes[o] && program.value(program.value(op.outputs[o]).root).op < 0);
    }
    found.push_back(lasting);
  }
  return found;
}

}  // namespace shard::program
