#include "program/refusals.h"

#include <algorithm>
#include <map>

#include "core/dtype.h"

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
      refuses = refuses || std::none_of(readers.begin(), readers.end(), [&](size_t reader) { return meet(program_.ops[reader], op, k); });
      readers.push_back(i);
    }
    return refuses;
  }

 private:
  /// Whether the two have more in common than input `k` of the later one: a value that the earlier one reads or makes.
  static bool meet(const Op& earlier, const Op& later, size_t k) {
    for (size_t j = 0; j < later.inputs.size(); ++j) {
      const ValueId id = later.inputs[j].value;
      if (id == 0 || id == later.inputs[k].value) continue;
      const bool read = std::any_of(earlier.inputs.begin(), earlier.inputs.end(), [&](const Operand& input) { return input.value == id; });
      if (read || std::find(earlier.outputs.begin(), earlier.outputs.end(), id) != earlier.outputs.end()) return true;
    }
    return false;
  }

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
      lasting = lasting || (op.outputs[o] != 0 && op.writes[o] && program.value(program.value(op.outputs[o]).root).op < 0);
    }
    found.push_back(lasting);
  }
  return found;
}

}  // namespace shard::program
