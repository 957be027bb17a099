#include <algorithm>
#include <set>

#include "shard/program/ir/live.h"
#include "shard/program/ir/merger.h"
#include "shard/program/ir/refusals.h"
#include "shard/program/passes/passes.h"

namespace shard::program {
namespace {

/// Runs ops as soon as they can if that frees more bytes than it takes. Views cost nothing and run
/// early too. All other ops keep their order.
class Scheduler {
 public:
  explicit Scheduler(const Program& program)
      : program_(program), trees_(program), after_(program.ops.size()), before_(program.ops.size(), 0),
        done_(program.ops.size(), false), users_(program.value_count()), left_(program.value_count(), 0) {
    find_dependences();
    keep_failures();
  }

  Program run() {
    Program result;
    Rewriter copy(program_, result);
    copy.enter_all();
    for (size_t next = 0; next < program_.ops.size();) {
      if (!promising_.empty()) {
        const size_t i = *promising_.begin();
        promising_.erase(promising_.begin());
        if (done_[i] || before_[i] != 0 || !frees(i)) continue;
        copy.copy(i);
        finish(i);
      } else if (done_[next]) {
        ++next;
      } else {
        copy.copy(next);
        finish(next);
      }
    }
    copy.leave_all();
    return result;
  }

 private:
  void depend(int earlier, size_t later) {
    if (earlier < 0 || static_cast<size_t>(earlier) == later) return;
    after_[static_cast<size_t>(earlier)].push_back(later);
    ++before_[later];
  }

  /// An op runs after the ops that create and write what it reads. A write runs after the ops that
  /// read the previous state.
  void find_dependences() {
    std::vector<int> writer(program_.value_count(), -1);               // by root
    std::vector<std::vector<size_t>> readers(program_.value_count());  // by root: readers since the last write
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      const Op& op = program_.ops[i];
      for (const Operand& input : op.inputs) {
        if (input.value == 0) continue;
        const ValueId root = program_.value(input.value).root;
        depend(program_.value(input.value).op, i);
        depend(writer[root], i);
        readers[root].push_back(i);
        std::vector<size_t>& users = users_[root];
        if (users.empty() || users.back() != i) users.push_back(i);
      }
      for (size_t o = 0; o < op.outputs.size(); ++o) {
        if (op.outputs[o] == 0 || !op.writes[o]) continue;
        const ValueId root = program_.value(op.outputs[o]).root;
        for (const size_t reader : readers[root]) depend(static_cast<int>(reader), i);
        depend(writer[root], i);
        readers[root] = {i};
        writer[root] = static_cast<int>(i);
      }
    }
    for (size_t root = 0; root < users_.size(); ++root) left_[root] = users_[root].size();
  }

  /// If a run fails, it has done exactly the writes before the op that failed. So writes that
  /// outlive the run keep their place among ops that may refuse values.
  void keep_failures() {
    const std::vector<bool> refuses = find_refusals(program_), lasts = find_lasting_writes(program_);
    int refusal = -1;
    std::vector<size_t> writes;  // lasting writes since the last op that may refuse values
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      if (!refuses[i] && !lasts[i]) continue;
      depend(refusal, i);
      if (!refuses[i]) {
        writes.push_back(i);
        continue;
      }
      for (const size_t write : writes) depend(static_cast<int>(write), i);
      writes.clear();
      refusal = static_cast<int>(i);
    }
  }

  /// All ranks must run ops on a mesh in one order. Plain tensors may differ from rank to rank, so
  /// ops between them and a mesh keep their order. So do random ops, which draw in that order.
  bool stays(const Op& op) const {
    return crosses_mesh(program_, op) || (op.kind == Kind::call && op.entry->op->random);
  }

  bool frees(size_t i) const {
    const Op& op = program_.ops[i];
    if (stays(op)) return false;
    const auto is_view = [&](ValueId id) { return id != 0 && program_.value(id).source != 0; };
    const bool writes = std::find(op.writes.begin(), op.writes.end(), true) != op.writes.end();
    // Other ops wait for it.
    if (!writes && std::all_of(op.outputs.begin(), op.outputs.end(), is_view)) return true;
    int64_t bytes = 0;
    std::vector<ValueId> seen;
    for (const Operand& input : op.inputs) {
      const ValueId root = program_.value(input.value).root;
      if (input.value == 0 || left_[root] != 1 || std::find(seen.begin(), seen.end(), root) != seen.end()) continue;
      seen.push_back(root);
      const AliasTree& tree = trees_.of(root);
      if (!tree.entry && !tree.output) bytes += bytes_of(program_.value(root).type);
    }
    for (const ValueId id : op.outputs) {
      if (id != 0 && program_.value(id).source == 0) bytes -= bytes_of(program_.value(id).type);
    }
    return bytes > 0;
  }

  void finish(size_t i) {
    done_[i] = true;
    for (const size_t later : after_[i]) {
      if (--before_[later] == 0) promising_.insert(later);
    }
    std::vector<ValueId> seen;
    for (const Operand& input : program_.ops[i].inputs) {
      const ValueId root = program_.value(input.value).root;
      if (input.value == 0 || std::find(seen.begin(), seen.end(), root) != seen.end()) continue;
      seen.push_back(root);
      if (--left_[root] != 1) continue;
      const std::vector<size_t>& users = users_[root];
      promising_.insert(*std::find_if(users.begin(), users.end(), [&](size_t user) { return !done_[user]; }));
    }
  }

  const Program& program_;
  const AliasTrees trees_;
  std::vector<std::vector<size_t>> after_;  // for each op: the ops that wait for it
  std::vector<size_t> before_;              // for each op: how many ops it waits for
  std::vector<bool> done_;
  std::vector<std::vector<size_t>> users_;  // by root: the ops that use members
  std::vector<size_t> left_;                // by root: how many of those have not run
  std::set<size_t> promising_;              // ops that may free bytes now
};

}  // namespace

Program schedule(const Program& program) { return Scheduler(program).run(); }

}  // namespace shard::program
