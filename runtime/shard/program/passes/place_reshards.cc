#include <algorithm>
#include <map>
#include <tuple>

#include "shard/program/ir/merger.h"
#include "shard/program/passes/passes.h"
#include "shard/reshard/plan.h"

namespace shard::program {
namespace {

/// A value in one of its layouts.
struct Member {
  ValueId value = 0;  // in the original program
  ValueId state = 0;  // in the result: the value is current as long as this is its state
  double ns = 0;      // predicted time of the reshard that computes it
  uint32_t uses = 0;
};
/// All layouts of one value. The first member is the one that the others are resharded from. Each
/// layout has one member: the newest.
using Family = std::vector<Member>;

class ReshardPlacer {
 public:
  explicit ReshardPlacer(const Program& program)
      : program_(program), copy_(program, result_), uses_(program.value_count(), 0) {
    for (const Op& op : program.ops) {
      for (const Operand& input : op.inputs) ++uses_[input.value];
    }
    for (const Named& output : program.outputs) ++uses_[output.value];
    for (const GradientEffect& effect : program.gradients) ++uses_[effect.gradient];
  }

  Program run() {
    copy_.enter_all();
    for (size_t i = 0; i < program_.ops.size(); ++i) {
      if (program_.ops[i].kind == Kind::reshard) place(i);
      else copy_.copy(i);
    }
    copy_.leave_all();
    return std::move(result_);
  }

 private:
  const Type& type_of(ValueId id) const { return program_.value(id).type; }

  /// True if the result of a reshard does not depend on its path, bit for bit. A sum over several
  /// axes may be rounded differently on another path. With a memory cap the captured paths are
  /// kept, because they are known to fit.
  bool is_free(const Type& from, const DistSpec* to) const {
    const ProcessMesh* const mesh = from.spec->mesh();
    int pending = 0;
    for (int axis = 0; axis < mesh->rank(); ++axis) pending += from.spec->partial(axis).has_value();
    return to->mesh() == mesh && mesh->costs().memory_cap == 0 && !to->layout().has_partial() && pending <= 1;
  }

  /// True if no data is sent: the layouts differ only along axes with one process.
  static bool stays(const Type& from, const DistSpec* to) {
    if (from.spec->mesh() != to->mesh()) return false;
    const std::shared_ptr<const ReshardPlan> plan = plan_reshard(from.meta, from.spec, to);
    return !plan->steps.empty() && std::all_of(plan->steps.begin(), plan->steps.end(), [](const ReshardStep& step) {
      return step.kind == ReshardStep::Kind::copy;
    });
  }

  /// Predicted time in ns.
  double cost(ValueId from, const DistSpec* to) {
    const Type& type = type_of(from);
    const auto key =
        std::tuple(type.spec, to, type.meta.dtype, std::vector<int64_t>(type.meta.dims.begin(), type.meta.dims.end()));
    const auto [found, added] = costs_.try_emplace(key, 0.0);
    if (added) found->second = plan_reshard(type.meta, type.spec, to)->ns;
    return found->second;
  }

  /// The index of its family. A value that was not resharded from another one starts a new family.
  size_t family_of(ValueId id) {
    const std::pair<ValueId, ValueId> now{copy_(id), result_.state_of(copy_(id))};
    const auto [found, added] = family_of_.try_emplace(now, families_.size());
    if (added) families_.push_back({{id, now.second, 0, 0}});
    return found->second;
  }
  bool is_current(const Member& member) const { return result_.state_of(copy_(member.value)) == member.state; }

  void place(size_t i) {
    const Op& op = program_.ops[i];
    const ValueId id = op.outputs[0];
    const size_t number = family_of(op.inputs[0].value);
    Family& family = families_[number];
    if (stays(type_of(op.inputs[0].value), op.layout) && copy_.share(i, id, op.inputs[0].value))
      return add(family, number, id, 0);
    if (!is_free(type_of(family.front().value), op.layout)) return copy_.copy(i);
    const auto same = std::find_if(family.begin(), family.end(),
                                   [&](const Member& each) { return type_of(each.value).spec == op.layout; });
    if (same != family.end() && is_current(*same) && copy_.merge(i, id, same->value)) {
      same->uses += uses_[id];
      return;
    }
    const ValueId from = nearest(family, op.inputs[0].value, op.layout);
    Op move = op;
    move.outputs.clear();
    move.inputs[0].value = from;
    copy_.copy_as(i, std::move(move), {0}, {false});
    add(family, number, id, cost(from, op.layout));
  }

  void add(Family& family, size_t number, ValueId id, double ns) {
    const auto older = [&](const Member& each) { return type_of(each.value).spec == type_of(id).spec; };
    family.erase(std::remove_if(family.begin() + 1, family.end(), older), family.end());
    const ValueId state = result_.state_of(copy_(id));
    family.push_back({id, state, ns, uses_[id]});
    family_of_[{copy_(id), state}] = number;
  }

  /// The best source for a reshard of `given` to a layout. Another source also saves the reshard
  /// that computes `given`, if nothing else reads that.
  ValueId nearest(Family& family, ValueId given, const DistSpec* to) {
    const auto ours = std::find_if(family.begin() + 1, family.end(),
                                   [&](const Member& each) { return copy_(each.value) == copy_(given); });
    const bool only_use = ours != family.end() && ours->uses == 1;
    ValueId best = given;
    double least = cost(given, to) + (only_use ? ours->ns : 0);
    for (const Member& each : family) {
      if (copy_(each.value) == copy_(given) || type_of(each.value).spec == to || !is_current(each)) continue;
      const double ns = cost(each.value, to);
      if (ns < least || (only_use && best == given && ns == least)) best = each.value, least = ns;
    }
    if (only_use && best != given) family.erase(ours);  // DCE removes it
    return best;
  }

  const Program& program_;
  Program result_;
  Merger copy_;
  std::vector<uint32_t> uses_;  // by value
  std::vector<Family> families_;
  std::map<std::pair<ValueId, ValueId>, size_t> family_of_;  // by value and state in the result
  std::map<std::tuple<const DistSpec*, const DistSpec*, DType, std::vector<int64_t>>, double> costs_;
};

}  // namespace

Program place_reshards(const Program& program) { return ReshardPlacer(program).run(); }

}  // namespace shard::program
