// The rule of ops that keep the row-major order of elements and change the shape: reshape, flatten,
// squeeze, unsqueeze.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "shard/reshard/boxes.h"
#include "shard/spmd/builtin_rules.h"
#include "shard/spmd/rule.h"

namespace shard::spmd {
namespace {

using Group = DimGroup;

/// How many of the first `axes` leave every process with the same elements of the group when they
/// shard its first dim.
int exact_prefix(const RuleArgs& args, const Group& g, const Dims& in, const Dims& out, const AxisList& axes) {
  if (g.in_begin == g.in_end || g.out_begin == g.out_end) return 0;
  const int64_t in_inner = in.numel(g.in_begin + 1, g.in_end);
  const int64_t out_inner = out.numel(g.out_begin + 1, g.out_end);
  AxisList prefix;
  for (int k = 0; k < axes.size(); ++k) {
    prefix.push_back(axes[k]);
    for (int p = 0; p < args.mesh->size(); ++p) {
      const Coordinate at = args.mesh->coordinate_at(p);
      const Range a = shard_range(in[g.in_begin], *args.mesh, prefix, at);
      const Range b = shard_range(out[g.out_begin], *args.mesh, prefix, at);
      const bool empty = a.size == 0 && b.size == 0;
      if (!empty && (a.begin * in_inner != b.begin * out_inner || a.size * in_inner != b.size * out_inner)) return k;
    }
  }
  return axes.size();
}

/// The elements of a tensor that a process holds, in row-major order: the first one, and loops over
/// the others, outermost last. Shapes in which a process holds the same elements have equal values.
struct Held {
  bool any = true;
  int64_t first = 0;
  std::vector<std::pair<int64_t, int64_t>> loops;  // number of iterations, and stride

  Held(const Layout& layout, const Dims& dims, const Coordinate& at) {
    const ShardBox shard = shard_box(layout, dims, at);
    int64_t stride = 1;
    for (int d = dims.rank() - 1; d >= 0; --d) {
      const int64_t count = shard.dims[d];
      any = any && count != 0;
      first += shard.begin[d] * stride;
      const bool continues = !loops.empty() && loops.back().first * loops.back().second == stride;
      if (count > 1 && continues) loops.back().first *= count;
      else if (count > 1) loops.emplace_back(count, stride);
      stride *= dims[d];
    }
  }
  bool operator==(const Held& other) const {
    return any == other.any && (!any || (first == other.first && loops == other.loops));
  }
};

/// Searches for a layout of the output in which every process holds the same elements as of the
/// input, in the same order. Axes of size 1 are left out on both sides.
class ExactView {
 public:
  ExactView(const RuleArgs& args, const Layout& in, const Dims& out)
      : args_(args), in_(in), sofar_(in.mesh, in.rank), found_(in.mesh, out.rank()), out_(out) {
    found_.partial = in.partial;
    double ways = 1;
    for (int d = 0; d < in.rank; ++d) {
      const AxisList& axes = in.dims[static_cast<size_t>(d)];
      for (int i = 0; i < axes.size(); ++i) {
        if (in.mesh->size(axes[i]) == 1) continue;
        ways *= out.rank() + static_cast<int>(axes_.size());
        axes_.emplace_back(axes[i], d);
      }
    }
    step_by_step_ = ways > kMostWays;
  }

  std::optional<Layout> find() { return place(0) ? std::optional(found_) : std::nullopt; }

 private:
  static constexpr double kMostWays = 5000;

  /// Tries every dim and every position among its axes. Where there are too many possibilities, an
  /// axis that does not fit without those after it is given up.
  bool place(size_t i) {
    if ((i == axes_.size() || step_by_step_) && !same()) return false;
    if (i == axes_.size()) return true;
    const auto [axis, from] = axes_[i];
    sofar_.dims[static_cast<size_t>(from)].push_back(axis);
    for (int d = 0; d < out_.rank(); ++d) {
      AxisList& axes = found_.dims[static_cast<size_t>(d)];
      const AxisList before = axes;
      for (int at = before.size(); at >= 0; --at) {
        axes = {};
        for (int k = 0; k <= before.size(); ++k) {
          if (k == at) axes.push_back(axis);
          if (k < before.size()) axes.push_back(before[k]);
        }
        if (place(i + 1)) return true;
      }
      axes = before;
    }
    sofar_.dims[static_cast<size_t>(from)].pop_back();
    return false;
  }

  bool same() const {
    const Dims& dims = args_.tensors[0].meta.dims;
    for (int p = 0; p < in_.mesh->size(); ++p) {
      const Coordinate at = in_.mesh->coordinate_at(p);
      if (!(Held(sofar_, dims, at) == Held(found_, out_, at))) return false;
    }
    return true;
  }

  const RuleArgs& args_;
  const Layout& in_;
  Layout sofar_;  // of the input, with the axes that have been placed
  Layout found_;
  const Dims& out_;
  std::vector<std::pair<int, int>> axes_;  // with the dims of the input that they shard
  bool step_by_step_ = false;
};

/// Tries every assignment of the axes that dropped their dim to the output dims of their group (or to
/// none), and keeps the one that sends the fewest bytes; ties go to the first, which prefers
/// leading dims.
class Placer {
 public:
  using Dropped = std::vector<std::pair<int, Group>>;  // axes, and the groups whose dims they sharded
  Placer(const RuleArgs& args, const Layout& start, Dropped dropped)
      : args_(args), dropped_(std::move(dropped)), best_(start), current_(start) {}

  Layout place() {
    visit(0);
    return best_;
  }

 private:
  void visit(size_t i) {
    if (i == dropped_.size()) {
      const TensorArg& x = args_.tensors[0];
      const int64_t bytes = plan_relayout(x.meta, x.spec, args_.outputs[0].dims, DistSpec::make(current_))->bytes;
      if (bytes < best_bytes_) {
        best_bytes_ = bytes;
        best_ = current_;
      }
      return;
    }
    const auto& [axis, group] = dropped_[i];
    for (int d = group.out_begin; d < group.out_end; ++d) {
      current_.dims[static_cast<size_t>(d)].push_back(axis);
      visit(i + 1);
      current_.dims[static_cast<size_t>(d)].pop_back();
    }
    if (group.out_begin == group.out_end) visit(i + 1);
  }

  const RuleArgs& args_;
  Dropped dropped_;
  int64_t best_bytes_ = std::numeric_limits<int64_t>::max();
  Layout best_;
  Layout current_;
};

/// The axes of the wanted output with which every process has the same elements of the input;
/// neither side uses the others.
RuleResult reverse_reshape(const RuleArgs& args) {
  const Dims& in = args.tensors[0].meta.dims;
  const Dims& out = args.outputs[0].dims;
  RuleResult result;
  result.inputs.emplace_back(args.mesh, in.rank());
  result.outputs.emplace_back(args.mesh, out.rank());
  if (in.numel() == 0 || args.wanted[0] == nullptr) return result;
  for (const Group& g : group_dims(in, out)) {
    if (g.out_begin == g.out_end) continue;
    const AxisList& axes = args.wanted[0]->axes(g.out_begin);
    const int kept = exact_prefix(args, g, in, out, axes);
    for (int k = 0; k < kept; ++k) {
      result.inputs[0].dims[static_cast<size_t>(g.in_begin)].push_back(axes[k]);
      result.outputs[0].dims[static_cast<size_t>(g.out_begin)].push_back(axes[k]);
    }
  }
  return result;
}

/// Axes of size 1 stay with the elements that they do not split, for later calls.
void add_unit_axes(const RuleArgs& args, Layout& layout) {
  const TensorArg& x = args.tensors[0];
  for (const Group& g : group_dims(x.meta.dims, args.outputs[0].dims)) {
    for (int d = g.in_begin; d < g.in_end && g.out_begin < g.out_end; ++d) {
      const AxisList& axes = x.spec->axes(d);
      for (int k = 0; k < axes.size(); ++k) {
        if (args.mesh->size(axes[k]) == 1) layout.dims[static_cast<size_t>(g.out_begin)].push_back(axes[k]);
      }
    }
  }
}

/// A pending reduction passes through where the op commutes with it; any other is done first.
RuleResult reshape(const RuleArgs& args) {
  if (!args.wanted.empty()) return reverse_reshape(args);
  const TensorArg& x = args.tensors[0];
  const Dims& in = x.meta.dims;
  const Dims& out = args.outputs[0].dims;
  RuleResult result;
  result.inputs.push_back(x.spec->layout());
  Layout layout(args.mesh, out.rank());
  layout.partial = x.spec->layout().partial;
  Placer::Dropped dropped;
  if (in.numel() == 0) {
    // No elements: every shard is empty in any layout, so nothing is sent. Dims that do not change
    // keep their axes.
    int left = 0, right = 0;
    while (left < std::min(in.rank(), out.rank()) && in[left] == out[left]) ++left;
    while (left + right < std::min(in.rank(), out.rank()) && in[in.rank() - 1 - right] == out[out.rank() - 1 - right])
      ++right;
    for (int d = 0; d < left; ++d) layout.dims[static_cast<size_t>(d)] = x.spec->axes(d);
    for (int d = 1; d <= right; ++d) layout.dims[static_cast<size_t>(out.rank() - d)] = x.spec->axes(in.rank() - d);
    result.outputs.push_back(layout);
    return result;
  }
  for (const Group& g : group_dims(in, out)) {
    for (int d = g.in_begin; d < g.in_end; ++d) {
      const AxisList& axes = x.spec->axes(d);
      const int kept = d == g.in_begin ? exact_prefix(args, g, in, out, axes) : 0;
      for (int k = 0; k < kept; ++k) layout.dims[static_cast<size_t>(g.out_begin)].push_back(axes[k]);
      for (int k = kept; k < axes.size(); ++k) dropped.emplace_back(axes[k], g);
    }
  }
  if (!dropped.empty()) {
    if (auto exact = ExactView(args, x.spec->layout(), out).find()) {
      add_unit_axes(args, *exact);
      result.outputs.push_back(*exact);
      return result;
    }
  }
  result.relayout = !dropped.empty();
  result.outputs.push_back(dropped.empty() ? layout : Placer(args, layout, dropped).place());
  return result;
}

}  // namespace

void register_reshape_rule() { register_rule("ReshapeInferSpmd", reshape); }

}  // namespace shard::spmd
