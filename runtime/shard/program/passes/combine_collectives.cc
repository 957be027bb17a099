#include <map>
#include <set>
#include <string>

#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/combine.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// Collective combining. A reshard waits until one of the waiting results is needed or its source
/// is written. All waiting reshards of a kind then run together.
class CollectiveCombiner {
 public:
  explicit CollectiveCombiner(const Program& program)
      : program_(program), before_(program.ops.size() + 1), moved_(program.ops.size(), false),
        joins_(program.ops.size(), false), kind_of_(program.value_count(), kNone), sources_(program.value_count()) {}

  Program run() {
    for (now_ = 0; now_ < program_.ops.size(); ++now_) look_at(program_.ops[now_]);
    while (!waiting_.empty()) end(waiting_.begin()->first);
    Program result;
    Rewriter copy(program_, result);
    copy.enter_all();
    for (size_t i = 0; i <= program_.ops.size(); ++i) {
      for (const size_t move : before_[i]) {
        copy.copy(move);
        result.ops.back().joins = joins_[move];
      }
      if (i < program_.ops.size() && !moved_[i]) copy.copy(i);
    }
    copy.leave_all();
    return result;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  ValueId root_of(ValueId id) const { return program_.value(id).root; }

  void look_at(const Op& op) {
    for (const Operand& input : op.inputs) {
      if (const size_t kind = kind_of_[root_of(input.value)]; kind != kNone) end(kind);
    }
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (op.outputs[o] == 0 || !op.writes[o]) continue;
      const std::set<size_t> readers = sources_[root_of(op.outputs[o])];
      for (const size_t kind : readers) end(kind);
    }
    if (op.kind != Kind::reshard) return;
    const Type& from = program_.value(op.inputs[0].value).type;
    const std::string key = combine_key(*plan_reshard(from.meta, from.spec, op.layout));
    if (key.empty()) return;
    const size_t kind = kinds_.try_emplace(key, kinds_.size()).first->second;
    waiting_[kind].push_back(now_);
    kind_of_[op.outputs[0]] = kind;
    sources_[root_of(op.inputs[0].value)].insert(kind);
  }

  /// Schedules the waiting reshards of a kind before the current op. A single one stays in its
  /// place.
  void end(size_t kind) {
    const auto found = waiting_.find(kind);
    for (const size_t move : found->second) {
      const Op& op = program_.ops[move];
      kind_of_[op.outputs[0]] = kNone;
      sources_[root_of(op.inputs[0].value)].erase(kind);
      if (found->second.size() == 1) continue;
      moved_[move] = true;
      joins_[move] = move != found->second.front();
      before_[now_].push_back(move);
    }
    waiting_.erase(found);
  }

  const Program& program_;
  size_t now_ = 0;
  // By combine_key, numbered in order of appearance: all ranks visit them in one order.
  std::map<std::string, size_t> kinds_;
  std::map<size_t, std::vector<size_t>> waiting_;  // ops by kind
  std::vector<std::vector<size_t>> before_;        // for each op: the reshards that run before it
  std::vector<bool> moved_, joins_;                // by op
  std::vector<size_t> kind_of_;                    // for each value: the kind of the waiting reshard that computes it
  std::vector<std::set<size_t>> sources_;          // by root: kinds of waiting reshards that read it
};

}  // namespace

Program combine_collectives(const Program& program) { return CollectiveCombiner(program).run(); }

}  // namespace shard::program
