#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "shard/program/ir/alias.h"
#include "shard/program/ir/cost.h"
#include "shard/program/ir/infer.h"
#include "shard/program/ir/live.h"
#include "shard/program/ir/merger.h"
#include "shard/program/ir/rewrite.h"
#include "shard/program/passes/rematerialize.h"

namespace shard::program {
namespace {

int64_t most(const std::vector<int64_t>& live) {
  return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
}

/// Facts about the program that do not depend on what is kept.
class Plan {
 public:
  /// The ops before `until` are the first phase. Its results are kept or recomputed.
  Plan(const Program& program, size_t until)
      : program(program), trees(program), until(until), on_mesh_(is_on_mesh(program)), ops_(program.value_count()) {
    for (size_t i = 0; i < until; ++i) {
      for (const ValueId id : program.ops[i].outputs) {
        std::vector<size_t>& ops = ops_[program.value(id).root];
        if (id != 0 && (ops.empty() || ops.back() != i)) ops.push_back(i);
      }
    }
    read_before_.resize(program.value_count(), -1);
    read_after_.resize(program.value_count(), false);
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const Op& op = program.ops[i];
      for (size_t k = 0; k < op.inputs.size(); ++k) {
        const ValueId root = program.value(op.inputs[k].value).root;
        if (i < until) read_before_[root] = static_cast<int>(i);
        else if (op.reads_bytes(k)) read_after_[root] = true;
      }
    }
    for (const AliasTree& tree : trees.all()) {
      if (can_repeat(tree)) repeatable_.insert(tree.root);
    }
  }

  const Program& program;
  const AliasTrees trees;
  const size_t until;

  /// True if the first phase computes it with ops that may run again.
  bool is_repeatable(ValueId root) const { return repeatable_.contains(root); }
  /// The ops of the first phase that create or write members of a tree.
  const std::vector<size_t>& ops(ValueId root) const { return ops_[root]; }
  /// The state of a tree before op `i`.
  ValueId state(ValueId root, size_t i) const {
    const TreeWrite* const write = trees.last_write(root, static_cast<int>(i));
    return write == nullptr ? 0 : write->value;
  }
  /// True if its bytes wait for the second phase.
  bool is_waiting(ValueId root) const { return is_repeatable(root) && read_after_[root]; }
  /// The first and the last cut across which the first phase needs the tree. A cut is before the op
  /// of that number. first > last: none.
  std::pair<int, int> across(const AliasTree& tree) const {
    return {program.value(tree.root).op + 1, tree.entry ? -1 : read_before_[tree.root]};
  }

 private:
  /// True if it makes no visible difference that its ops run twice: they compute, and write nothing
  /// but new buffers of their own.
  bool can_repeat(const AliasTree& tree) const {
    if (tree.entry || tree.output || program.value(tree.root).op >= static_cast<int>(until)) return false;
    // Plain values may differ from rank to rank, and all ranks must decide alike.
    if (on_mesh_ && program.value(tree.root).type.spec == nullptr) return false;
    for (const size_t i : ops_[tree.root]) {
      const Op& op = program.ops[i];
      if ((op.kind != Kind::call && op.kind != Kind::alias) || crosses_mesh(program, op) || sends(program, op))
        return false;
      for (size_t o = 0; o < op.outputs.size(); ++o) {
        const ValueId id = op.outputs[o];
        if (id != 0 && program.value(id).source != 0 && program.value(id).root != tree.root) return false;
      }
    }
    return true;
  }

  const bool on_mesh_;
  std::vector<std::vector<size_t>> ops_;  // by root
  std::vector<int> read_before_;          // by root: the last op of the first phase that reads it
  std::vector<bool> read_after_;          // by root: whether the second phase reads it
  std::set<ValueId> repeatable_;
};

/// Writes the program in which trees that are not kept are recomputed where the second phase first
/// reads them.
class Rematerializer {
 public:
  Rematerializer(const Plan& plan, std::vector<bool> kept)
      : plan_(plan), program_(plan.program), copy_(program_, result_), kept_(std::move(kept)) {}

  Program run() {
    repeated_.resize(plan_.until, false);
    copy_.enter_all();
    for (now_ = 0; now_ < program_.ops.size(); ++now_) {
      const Op& op = program_.ops[now_];
      for (size_t k = 0; k < op.inputs.size() && now_ >= plan_.until; ++k) {
        if (op.reads_bytes(k)) restore(program_.value(op.inputs[k].value).root);
      }
      copy_.copy(now_);
    }
    copy_.leave_all();
    return std::move(result_);
  }
  const Rewriter& map() const { return copy_; }
  double cost() const { return cost_; }

 private:
  bool is_dropped(ValueId root) const { return plan_.is_repeatable(root) && !kept_[root]; }

  void restore(ValueId root) {
    std::set<size_t> ops;
    while (is_dropped(root) && !collect(root, ops)) ops.clear();
    for (const size_t i : ops) repeat(i);
  }

  /// Collects the ops that have to run to recompute a tree. Returns false if one of them would not
  /// find its arguments as they were. What it would have computed is kept instead.
  bool collect(ValueId root, std::set<size_t>& ops) {
    std::vector<ValueId> wanted = {root};
    std::set<ValueId> seen = {root};
    for (size_t next = 0; next < wanted.size(); ++next) {
      for (const size_t i : plan_.ops(wanted[next])) {
        if (repeated_[i] || !ops.insert(i).second) continue;
        const Op& op = program_.ops[i];
        for (size_t k = 0; k < op.inputs.size(); ++k) {
          const ValueId other = program_.value(op.inputs[k].value).root;
          if (other == wanted[next] || !op.reads_bytes(k)) continue;
          if (plan_.state(other, now_) != op.inputs[k].state) {
            keep(wanted[next]);
            return false;
          }
          if (is_dropped(other) && seen.insert(other).second) wanted.push_back(other);
        }
      }
    }
    return true;
  }

  /// Keeps the tree after all. No op of the second phase has used it so far, and the original is
  /// still there.
  void keep(ValueId root) {
    kept_[root] = true;
    for (const ValueId id : plan_.trees.of(root).members) {
      if (const auto first = first_.find(id); first != first_.end()) copy_.map(id, first->second);
    }
  }

  void repeat(size_t i) {
    repeated_[i] = true;
    cost_ += cost_of(program_, program_.ops[i]);
    for (const ValueId id : program_.ops[i].outputs) first_[id] = copy_(id);
    copy_.copy(i);
    for (const ValueId id : program_.ops[i].outputs) {
      if (id != 0 && !is_dropped(program_.value(id).root)) copy_.map(id, first_[id]);
    }
  }

  const Plan& plan_;
  const Program& program_;
  Program result_;
  Rewriter copy_;
  std::vector<bool> kept_;            // by root
  std::vector<bool> repeated_;        // by op of the first phase
  std::map<ValueId, ValueId> first_;  // for recomputed values: the values that they replace
  size_t now_ = 0;                    // the op that is being copied
  double cost_ = 0;
};

/// Tries different choices of values to drop and to keep, and remembers the best one.
class Search {
 public:
  Search(const Program& program, size_t until, int64_t goal)
      : plan_(program, until), goal_(goal), peak_(most(live_bytes(program))) {}

  /// The trees to keep; nullopt if nothing is better than the program as it is.
  std::optional<std::vector<bool>> run() {
    if (peak_ <= goal_) return std::nullopt;
    measure_cuts();
    // Even deep programs need no more segments than this: beyond it, what is kept between segments
    // outweighs what is dropped.
    for (const size_t parts : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128}) {
      for (const bool keep_products : {true, false}) attempt(parts, keep_products);
    }
    if (peak_ <= goal_) keep_more();
    return std::move(best_);
  }
  const Plan& plan() const { return plan_; }

 private:
  /// Computes, for each place between two ops of the first phase, the bytes that are dropped or
  /// kept before it and the bytes that are needed on both sides.
  void measure_cuts() {
    waiting_.resize(plan_.until + 1, 0);
    across_.resize(plan_.until + 1, 0);
    for (const AliasTree& tree : plan_.trees.all()) {
      const Value& root = plan_.program.value(tree.root);
      const int64_t bytes = bytes_of(root.type);
      if (plan_.is_waiting(tree.root)) waiting_[static_cast<size_t>(root.op) + 1] += bytes;
      const auto [first, last] = plan_.across(tree);
      if (last < first) continue;
      across_[static_cast<size_t>(first)] += bytes;
      across_[static_cast<size_t>(last) + 1] -= bytes;
    }
    for (size_t cut = 1; cut < waiting_.size(); ++cut) {
      waiting_[cut] += waiting_[cut - 1];
      across_[cut] += across_[cut - 1];
    }
  }

  /// Cuts the first phase so that each segment drops about the same number of bytes and few bytes
  /// are needed across the cuts.
  std::vector<int> cuts(size_t parts) const {
    std::vector<int> cuts;
    const double step = static_cast<double>(waiting_.back()) / static_cast<double>(parts);
    for (size_t part = 1; part < parts; ++part) {
      size_t best = 0;
      for (size_t cut = 1; cut < plan_.until; ++cut) {
        if (std::abs(static_cast<double>(waiting_[cut]) - step * static_cast<double>(part)) > step / 2) continue;
        if (best == 0 || across_[cut] < across_[best]) best = cut;
      }
      if (best != 0 && (cuts.empty() || cuts.back() < static_cast<int>(best))) cuts.push_back(static_cast<int>(best));
    }
    return cuts;
  }

  void attempt(size_t parts, bool keep_products) {
    const Program& program = plan_.program;
    std::vector<bool> kept(program.value_count(), false);
    const std::vector<int> cuts = this->cuts(parts);
    for (const AliasTree& tree : plan_.trees.all()) {
      const auto [first, last] = plan_.across(tree);
      const auto cut = std::lower_bound(cuts.begin(), cuts.end(), first);
      const auto is_product = [&](size_t i) { return products_of(program, program.ops[i]) > 0; };
      const std::vector<size_t>& ops = plan_.ops(tree.root);
      kept[tree.root] =
          (cut != cuts.end() && *cut <= last) || (keep_products && std::any_of(ops.begin(), ops.end(), is_product));
    }
    // What the first op of the second phase reads is live there in any case.
    if (plan_.until < program.ops.size()) {
      for (const Operand& input : program.ops[plan_.until].inputs) kept[program.value(input.value).root] = true;
    }
    consider(std::move(kept));
  }

  /// Keeps as many of the dropped values as the goal allows, starting with those that take the
  /// longest to recompute per byte.
  void keep_more() {
    std::vector<std::pair<double, ValueId>> dropped;
    for (const AliasTree& tree : plan_.trees.all()) {
      if (!plan_.is_waiting(tree.root) || (*best_)[tree.root]) continue;
      double cost = 0;
      for (const size_t i : plan_.ops(tree.root)) cost += cost_of(plan_.program, plan_.program.ops[i]);
      dropped.emplace_back(
          -cost / static_cast<double>(std::max<int64_t>(bytes_of(plan_.program.value(tree.root).type), 1)), tree.root);
    }
    std::sort(dropped.begin(), dropped.end());
    const std::vector<bool> least = *best_;
    for (size_t fits = 0, too_many = dropped.size() + 1; too_many - fits > 1;) {
      const size_t count = (fits + too_many) / 2;
      std::vector<bool> kept = least;
      for (size_t i = 0; i < count; ++i) kept[dropped[i].second] = true;
      (consider(std::move(kept)) <= goal_ ? fits : too_many) = count;
    }
  }

  /// Tries a choice, remembers it if it is the best so far, and returns its bytes.
  int64_t consider(std::vector<bool> kept) {
    Rematerializer repeating(plan_, kept);
    const int64_t peak = most(live_bytes(repeating.run()));
    const bool better = peak_ > goal_ ? peak < peak_ : peak <= goal_ && repeating.cost() < cost_;
    if (!better) return peak;
    peak_ = peak;
    cost_ = repeating.cost();
    best_ = std::move(kept);
    return peak;
  }

  const Plan plan_;
  const int64_t goal_;
  int64_t peak_;
  double cost_ = 0;
  std::optional<std::vector<bool>> best_;
  std::vector<int64_t> waiting_, across_;
};

}  // namespace

Program rematerialize(const Program& program, int64_t goal) {
  const std::vector<int64_t> live = live_bytes(program);
  Search search(program, static_cast<size_t>(std::max_element(live.begin(), live.end()) - live.begin()), goal);
  const std::optional<std::vector<bool>> kept = search.run();
  return kept ? Rematerializer(search.plan(), *kept).run() : program;
}

Trace rematerialize(Trace trace, int64_t goal) {
  Search search(trace.program, trace.gradient->forward_ops, goal);
  const std::optional<std::vector<bool>> kept = search.run();
  if (!kept) return trace;
  Rematerializer repeating(search.plan(), *kept);
  Program program = repeating.run();
  for (ValueId& wanted : trace.gradient->wanted) wanted = repeating.map()(wanted);
  for (Leaf& leaf : trace.leaves) leaf.value = repeating.map()(leaf.value);
  for (DetachedOutput& each : trace.detached) each.source = repeating.map()(each.source);
  for (ViewOutput& each : trace.views) each.source = repeating.map()(each.source);
  trace.program = std::move(program);
  return trace;
}

}  // namespace shard::program
