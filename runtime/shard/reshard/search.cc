#include "shard/reshard/search.h"

#include <algorithm>
#include <array>
#include <limits>

#include "shard/reshard/search_nodes.h"
#include "shard/reshard/step_kind.h"

namespace shard {
namespace {

using namespace search;
using Kind = ReshardStep::Kind;

constexpr double kLocalNs = 100;  // to start a step that sends nothing

/// A* from one layout to another. Costs are those of the rank with the largest shards; where the overlap of shards
/// matters, dims are treated as evenly divided. The estimate of the remaining time (start-up times of the axes that
/// must act, bytes that must arrive) ends most searches after a few nodes.
class Search {
 public:
  enum class Goal { fastest, smallest };

  Search(const Meta& meta, const Layout& from, const Layout& to, int64_t cap, SumPolicy sums, Goal goal)
      : mesh_(*from.mesh), meta_(meta), cap_(static_cast<double>(cap)), goal_(goal) {
    for (int axis = 0; axis < mesh_.rank(); ++axis) {
      if (mesh_.size(axis) > 1) mesh_axes_[static_cast<size_t>(axes_++)] = static_cast<int8_t>(axis);
    }
    element_ = static_cast<double>(size_of(meta.dtype));
    if (sums == SumPolicy::float32)
      widened_ = static_cast<double>(size_of(compute_dtype(meta.dtype))) / static_cast<double>(size_of(meta.dtype));
    copy_ = mesh_.costs().copy_ns_per_byte;
    least_beta_ = std::numeric_limits<double>::infinity();
    for (int a = 0; a < axes_; ++a) {
      least_beta_ = std::min(least_beta_, cost(a).ns_per_byte);
      uniform_ = uniform_ && cost(a) == cost(0);
    }
    start_ = view(key_of(from));
    end_ = view(key_of(to));
    const auto held = [&](const View& at, const Layout& layout) {
      return at.bytes / element_ / widening(at.key) * static_cast<double>(size_of(shard_dtype(meta.dtype, layout)));
    };
    input_bytes_ = held(start_, from);
    output_bytes_ = held(end_, to);
    find_reductions();
    find_dims();
  }

  /// False when no plan is within the cap.
  bool run() {
    table_.clear();
    add({start_.key, Kind::copy, -1, 0}, -1);
    while (!table_.open.empty()) {
      std::pop_heap(table_.open.begin(), table_.open.end(), std::greater<>());
      const int index = table_.open.back().second;
      table_.open.pop_back();
      Node& node = table_.nodes[static_cast<size_t>(index)];
      if (node.closed) continue;
      node.closed = true;
      if (node.key == end_.key) return true;
      expand(index);
    }
    return false;
  }

  void append_steps(std::vector<ReshardStep>& all) const {
    std::vector<int> path;
    for (int i = goal_node(); table_.nodes[static_cast<size_t>(i)].parent >= 0;
         i = table_.nodes[static_cast<size_t>(i)].parent)
      path.push_back(i);
    all.reserve(all.size() + path.size());
    for (auto i = path.rbegin(); i != path.rend(); ++i) {
      const Node& node = table_.nodes[static_cast<size_t>(*i)];
      const Key before = table_.nodes[static_cast<size_t>(node.parent)].key;
      ReshardStep step;
      step.kind = node.kind;
      step.before = layout_of(before);
      step.after = layout_of(node.key);
      step.dims = step.after_dims = meta_.dims;
      step.group = &mesh_;
      step.ns = node.ns;
      if (node.axis >= 0) {
        step.axes = {mesh_axes_[static_cast<size_t>(node.axis)]};
        const int pending = std::max(place(before, node.axis), place(node.key, node.axis));
        if (step.reduces()) step.type = static_cast<ReduceType>(place(before, node.axis) - kPending);
        else if (step.kind == Kind::partial_init) step.type = static_cast<ReduceType>(pending - kPending);
      }
      if (!step.reduces() && step.kind != Kind::partial_init)
        step.kind = kind_of_move(step.before, step.after, step.axes);
      all.push_back(step);
    }
  }
  double cost_of_goal() const { return table_.nodes[static_cast<size_t>(goal_node())].cost; }

 private:
  int size(int a) const { return mesh_.size(mesh_axes_[static_cast<size_t>(a)]); }
  const AxisCost& cost(int a) const { return mesh_.cost(mesh_axes_[static_cast<size_t>(a)]); }

  Key key_of(const Layout& layout) const {
    Key key = 0;
    for (int a = 0; a < axes_; ++a) {
      const auto axis = static_cast<size_t>(mesh_axes_[static_cast<size_t>(a)]);
      const auto type = layout.partial[axis];
      key = with(key, a, type ? kPending + static_cast<int>(*type) : kNowhere, 0);
    }
    for (int d = 0; d < layout.rank; ++d) {
      const AxisList& list = layout.dims[static_cast<size_t>(d)];
      for (int i = 0; i < list.size(); ++i) {
        const auto end = mesh_axes_.begin() + axes_;
        key = with(key, static_cast<int>(std::find(mesh_axes_.begin(), end, list[i]) - mesh_axes_.begin()), d, i);
      }
    }
    return key;
  }
  Layout layout_of(Key key) const {
    Layout layout(&mesh_, meta_.dims.rank());
    const View at = view(key);
    for (int d = 0; d < layout.rank; ++d) {
      for (int i = 0; i < at.count[static_cast<size_t>(d)]; ++i) {
        layout.dims[static_cast<size_t>(d)].push_back(
            mesh_axes_[static_cast<size_t>(at.axes[static_cast<size_t>(d)][static_cast<size_t>(i)])]);
      }
    }
    for (int a = 0; a < axes_; ++a) {
      if (place(key, a) < kPending) continue;
      layout.partial[static_cast<size_t>(mesh_axes_[static_cast<size_t>(a)])] =
          static_cast<ReduceType>(place(key, a) - kPending);
    }
    return layout;
  }

  /// The ratio of the element size in this layout to that in a layout without pending sums.
  double widening(Key key) const {
    for (int a = 0; a < axes_ && widened_ != 1; ++a) {
      if (is_linear(place(key, a))) return widened_;
    }
    return 1;
  }

  View view(Key key) const {
    View at;
    at.key = key;
    at.shards.fill(1);
    for (int a = 0; a < axes_; ++a) {
      const int d = place(key, a);
      if (d >= kNowhere) continue;
      at.axes[static_cast<size_t>(d)][static_cast<size_t>(order(key, a))] = static_cast<int8_t>(a);
      ++at.count[static_cast<size_t>(d)];
      at.shards[static_cast<size_t>(d)] *= size(a);
    }
    at.bytes = element_ * widening(key);
    for (int d = 0; d < meta_.dims.rank(); ++d) {
      const int64_t n = at.shards[static_cast<size_t>(d)];
      at.bytes *= static_cast<double>(n == 1 ? meta_.dims[d] : (meta_.dims[d] + n - 1) / n);
    }
    return at;
  }

  /// Which axes are to be reduced and which are to become pending. Reductions are done from the last axis to the first,
  /// so an axis that stays pending is reduced where an earlier one does, or begins, a reduction that does not commute.
  void find_reductions() {
    for (int a = 0; a < axes_; ++a) {
      const int now = place(start_.key, a);
      const int wanted = place(end_.key, a);
      if (now >= kPending) {
        bool must = now != wanted;
        for (int e = 0; e < a; ++e) {
          const bool reduced = (reduce_ >> e & 1) != 0 && !commute(place(start_.key, e), now);
          const bool begun = (begin_ >> e & 1) != 0 && !commute(place(end_.key, e), now);
          must = must || reduced || begun;
        }
        if (must) {
          reduce_ |= 1 << a;
          start_.key = with(start_.key, a, now, 1);
        }
      }
      if (wanted >= kPending && (now != wanted || (reduce_ >> a & 1) != 0)) begin_ |= 1 << a;
    }
  }
  /// Dims that axes may shard in between: those of either layout, and for each axis that may need one (to reduce, or
  /// to share data from a slower axis) one of the others, those that split most evenly.
  void find_dims() {
    int64_t shards = 1;
    int wanted = 0;
    for (int a = 0; a < axes_; ++a) {
      if (uniform_ && (reduce_ >> a & 1) == 0) continue;
      shards *= size(a);
      ++wanted;
    }
    const auto waste = [&](int d) {  // of the largest shard, relative to an even split
      const auto even = static_cast<double>(meta_.dims[d]) / static_cast<double>(shards);
      return static_cast<double>((meta_.dims[d] + shards - 1) / shards) / even;
    };
    std::array<int8_t, kMaxRank> others;
    int other_count = 0;
    for (int d = 0; d < meta_.dims.rank(); ++d) {
      const auto k = static_cast<size_t>(d);
      if (start_.count[k] > 0 || end_.count[k] > 0) dims_[static_cast<size_t>(dim_count_++)] = static_cast<int8_t>(d);
      else others[static_cast<size_t>(other_count++)] = static_cast<int8_t>(d);
    }
    wanted = std::min(wanted, other_count);
    std::stable_sort(others.begin(), others.begin() + other_count, [&](int a, int b) { return waste(a) < waste(b); });
    for (int i = 0; i < wanted; ++i) dims_[static_cast<size_t>(dim_count_++)] = others[static_cast<size_t>(i)];
  }

  /// The reductions still to be done at `key`, encoded in the position, which an axis that shards no dim does not need.
  int pending(Key key) const {
    int mask = 0;
    for (int a = 0; a < axes_; ++a) mask |= (place(key, a) >= kPending && order(key, a) == 1 ? 1 : 0) << a;
    return mask;
  }

  bool next_in_order(Key key, int axis, int type) const {
    for (int later = axis + 1; later < axes_; ++later) {
      if (place(key, later) >= kPending && !commute(type, place(key, later))) return false;
    }
    return true;
  }

  /// The goal's dims, as far as they do not need axes with pending reductions.
  Key towards_goal(Key key) const {
    Key to = key;
    for (int a = 0; a < axes_; ++a) {
      if (place(key, a) < kPending) to = with(to, a, kNowhere, 0);
    }
    for (int i = 0; i < dim_count_; ++i) {
      const auto d = static_cast<size_t>(dims_[static_cast<size_t>(i)]);
      for (int k = 0; k < end_.count[d]; ++k) {
        const int a = end_.axes[d][static_cast<size_t>(k)];
        if (place(key, a) >= kPending) break;
        to = with(to, a, static_cast<int>(d), k);
      }
    }
    return to;
  }

  /// The length of the common prefix of the lists of a dim.
  static int common_prefix(const View& a, const View& b, size_t d) {
    int n = 0;
    while (n < a.count[d] && n < b.count[d] && a.axes[d][static_cast<size_t>(n)] == b.axes[d][static_cast<size_t>(n)])
      ++n;
    return n;
  }

  /// Bounds from above the mean share of its new shard that a process already has; exact where all lists are prefixes.
  double share_at_most(const View& from, const View& to) const {
    double share = 1;
    for (int d = 0; d < meta_.dims.rank(); ++d) {
      const auto k = static_cast<size_t>(d);
      if (from.shards[k] > to.shards[k])
        share *= static_cast<double>(to.shards[k]) / static_cast<double>(from.shards[k]);
    }
    return share;
  }
  /// The exact share: iterates over the coordinates along the axes of the dims whose lists conflict.
  double share(const View& from, const View& to) const {
    double share = 1;
    std::array<bool, kMaxRank> conflict{};
    int involved = 0;
    for (int d = 0; d < meta_.dims.rank(); ++d) {
      const auto k = static_cast<size_t>(d);
      const int shorter = std::min(from.count[k], to.count[k]);
      conflict[k] = common_prefix(from, to, k) < shorter;
      if (!conflict[k]) {
        if (from.shards[k] > to.shards[k])
          share *= static_cast<double>(to.shards[k]) / static_cast<double>(from.shards[k]);
        continue;
      }
      for (int i = 0; i < from.count[k]; ++i) involved |= 1 << from.axes[k][static_cast<size_t>(i)];
      for (int i = 0; i < to.count[k]; ++i) involved |= 1 << to.axes[k][static_cast<size_t>(i)];
    }
    if (involved == 0) return share;
    std::array<int, kMaxMeshRank> at{};
    double sum = 0;
    int64_t count = 0;
    while (true) {
      double part = 1;
      for (int d = 0; d < meta_.dims.rank() && part > 0; ++d) {
        const auto k = static_cast<size_t>(d);
        if (!conflict[k]) continue;
        int64_t i = 0;
        int64_t j = 0;
        for (int n = 0; n < from.count[k]; ++n) {
          const int8_t axis = from.axes[k][static_cast<size_t>(n)];
          i = i * size(axis) + at[static_cast<size_t>(axis)];
        }
        for (int n = 0; n < to.count[k]; ++n) {
          const int8_t axis = to.axes[k][static_cast<size_t>(n)];
          j = j * size(axis) + at[static_cast<size_t>(axis)];
        }
        const int64_t p = from.shards[k];
        const int64_t q = to.shards[k];
        const int64_t both = std::min((i + 1) * q, (j + 1) * p) - std::max(i * q, j * p);
        part *= both <= 0 ? 0 : static_cast<double>(both) / static_cast<double>(p);
      }
      sum += part;
      ++count;
      int a = axes_ - 1;
      for (; a >= 0; --a) {
        if ((involved >> a & 1) == 0) continue;
        if (++at[static_cast<size_t>(a)] < size(a)) break;
        at[static_cast<size_t>(a)] = 0;
      }
      if (a < 0) break;
    }
    return share * sum / static_cast<double>(count);
  }

  /// The axes along which shards are sent: those of the old layout whose place, or whose axes before them, differ.
  int moving_axes(const View& from, const View& to) const {
    int mask = 0;
    for (int d = 0; d < meta_.dims.rank(); ++d) {
      const auto k = static_cast<size_t>(d);
      for (int i = common_prefix(from, to, k); i < from.count[k]; ++i)
        mask |= 1 << from.axes[k][static_cast<size_t>(i)];
    }
    return mask;
  }

  /// Start-up time and time per byte of a collective along several axes: those of the slowest ones.
  std::pair<double, double> pace(int axes) const {
    double alpha = 0;
    double beta = 0;
    for (int a = 0; a < axes_; ++a) {
      if ((axes >> a & 1) == 0) continue;
      alpha = std::max(alpha, cost(a).alpha_ns);
      beta = std::max(beta, cost(a).ns_per_byte);
    }
    return {alpha, beta};
  }

  /// A lower bound of the remaining time from `at`.
  double rest(const View& at) const {
    if (at.key == end_.key || goal_ == Goal::smallest) return 0;
    double ns = copy_ * end_.bytes;
    const int moving = moving_axes(at, end_);
    // Shards may be sent before a sum becomes pending.
    if (moving != 0)
      ns += pace(moving).first + least_beta_ * (end_.bytes / widening(end_.key)) * (1 - share_at_most(at, end_));
    const int left = pending(at.key);
    if (left == 0) return ns;
    double smallest = at.bytes / widening(at.key);
    for (int a = 0; a < axes_; ++a) {
      if (place(at.key, a) == kNowhere || (left >> a & 1) != 0) smallest /= size(a);
    }
    for (int a = 0; a < axes_; ++a) {
      const double bytes = smallest * (is_linear(place(at.key, a)) ? widened_ : 1);
      if ((left >> a & 1) != 0) ns += cost(a).alpha_ns + cost(a).ns_per_byte * bytes * (size(a) - 1);
    }
    return ns;
  }

  void add(const Edge& edge, int parent) {
    const View at = view(edge.to);
    double total = 0;
    if (parent >= 0) {
      const Node& before = table_.nodes[static_cast<size_t>(parent)];
      // The caller keeps its tensor (the first step may read a rounded copy of it); a step reads and writes one shard.
      const double read = before.parent >= 0 ? before.bytes : start_.bytes == input_bytes_ ? 0 : start_.bytes;
      const double peak = input_bytes_ + read + (edge.to == end_.key ? output_bytes_ : at.bytes);
      if (goal_ == Goal::smallest) total = std::max(before.cost, peak);
      else if (cap_ > 0 && peak > cap_) return;
      else total = before.cost + edge.ns;
    }
    const double left = rest(at);
    if (total + left >= bound_) return;
    const int known = table_.find_or_reserve(edge.to);
    const Node node{edge.to, total, left, parent, edge.kind, edge.axis, edge.ns, at.bytes, false};
    int index = known;
    if (known < 0) {
      index = static_cast<int>(table_.nodes.size());
      table_.nodes.push_back(node);
    } else {
      if (table_.nodes[static_cast<size_t>(known)].cost <= total) return;
      table_.nodes[static_cast<size_t>(known)] = node;
    }
    if (edge.to == end_.key) bound_ = total;
    table_.open.emplace_back(total + left, index);
    std::push_heap(table_.open.begin(), table_.open.end(), std::greater<>());
  }

  int goal_node() const {
    int i = 0;
    while (table_.nodes[static_cast<size_t>(i)].key != end_.key) ++i;
    return i;
  }

  void expand(int index) {
    const View at = view(table_.nodes[static_cast<size_t>(index)].key);
    const int left = pending(at.key);
    exchange(at, index);
    for (int a = 0; a < axes_; ++a) {
      const int where = place(at.key, a);
      // With axes of different speed it may pay off to do a reduction that could stay pending, and to begin it again.
      if ((left >> a & 1) != 0 || (!uniform_ && where >= kPending)) reduce(at, index, a, where);
      else if (where == kNowhere) slice_or_begin(at, index, a, left);
      else if (where < kNowhere && (left != 0 || !uniform_) &&
               order(at.key, a) + 1 == at.count[static_cast<size_t>(where)])
        moves(at, index, a, where);
    }
  }
  /// Goes straight to the goal's dims.
  void exchange(const View& at, int index) {
    const View to = view(towards_goal(at.key));
    if (to.key == at.key) return;
    const int moving = moving_axes(at, to);
    if (moving == 0) return add({to.key, Kind::slice, -1, kLocalNs + copy_ * to.bytes}, index);
    const auto [alpha, beta] = pace(moving);
    const double known = table_.nodes[static_cast<size_t>(index)].cost;
    // A cheap bound first, because the exact share may have to visit many coordinates.
    if (goal_ == Goal::fastest && known + alpha + (beta * (1 - share_at_most(at, to)) + copy_) * to.bytes >= bound_)
      return;
    add({to.key, Kind::exchange, -1, alpha + (beta * (1 - share(at, to)) + copy_) * to.bytes}, index);
  }
  void reduce(const View& at, int index, int a, int where) {
    if (!next_in_order(at.key, a, where)) return;
    const double n = size(a);
    const double bytes = at.bytes;
    const AxisCost& c = cost(a);
    add({with(at.key, a, kNowhere, 0), Kind::all_reduce, a,
         2 * c.alpha_ns + (2 * c.ns_per_byte * (n - 1) / n + copy_) * bytes},
        index);
    for (int i = 0; i < dim_count_; ++i) {
      const int d = dims_[static_cast<size_t>(i)];
      const Key to = with(at.key, a, d, at.count[static_cast<size_t>(d)]);
      const double part = view(to).bytes;
      add({to, Kind::reduce_scatter, a, c.alpha_ns + (c.ns_per_byte * (n - 1) + copy_) * part}, index);
    }
  }
  /// Replicas of a shard may share a reduction, or data that arrives over a slow axis.
  void slice_or_begin(const View& at, int index, int a, int left) {
    if (left == 0) begin(at, index, a);
    if (left == 0 && uniform_) return;
    for (int i = 0; i < dim_count_; ++i) {
      const int d = dims_[static_cast<size_t>(i)];
      const Key to = with(at.key, a, d, at.count[static_cast<size_t>(d)]);
      add({to, Kind::slice, -1, kLocalNs + copy_ * view(to).bytes}, index);
    }
  }
  void begin(const View& at, int index, int a) {
    const int type = place(end_.key, a);
    if (type < kPending) return;
    if (!next_in_order(at.key, a, type)) return;
    add({with(at.key, a, type, 0), Kind::partial_init, a, kLocalNs + copy_ * at.bytes}, index);
  }
  /// A single axis stops sharding its dim, or moves to another dim.
  void moves(const View& at, int index, int a, int dim) {
    const double n = size(a);
    const AxisCost& c = cost(a);
    const Key gathered = with(at.key, a, kNowhere, 0);
    const double whole = view(gathered).bytes;
    add({gathered, Kind::all_gather, -1, c.alpha_ns + (c.ns_per_byte * (n - 1) / n + copy_) * whole}, index);
    for (int i = 0; i < dim_count_; ++i) {
      const int d = dims_[static_cast<size_t>(i)];
      if (d == dim) continue;
      const Key to = with(at.key, a, d, at.count[static_cast<size_t>(d)]);
      add({to, Kind::all_to_all, -1, c.alpha_ns + (c.ns_per_byte * (n - 1) / n + copy_) * view(to).bytes}, index);
    }
  }

  const ProcessMesh& mesh_;
  const Meta& meta_;
  double cap_;
  Goal goal_;
  int axes_ = 0;
  std::array<int8_t, kMaxMeshRank> mesh_axes_{};
  double element_ = 0, copy_ = 0;
  double widened_ = 1;  // by which factor, where a sum is pending
  double least_beta_ = 0;
  bool uniform_ = true;
  View start_;
  View end_;
  double input_bytes_ = 0;  // of the shards that the caller has and gets
  double output_bytes_ = 0;
  int reduce_ = 0;  // masks of axes
  int begin_ = 0;
  std::array<int8_t, kMaxRank> dims_{};
  int dim_count_ = 0;
  double bound_ = std::numeric_limits<double>::infinity();
  inline static thread_local NodeTable table_;
};

}  // namespace

Layout without_unit_axes(const Layout& layout) {
  Layout rest(layout.mesh, layout.rank);
  for (int d = 0; d < layout.rank; ++d) {
    const AxisList& axes = layout.dims[static_cast<size_t>(d)];
    for (int i = 0; i < axes.size(); ++i) {
      if (layout.mesh->size(axes[i]) > 1) rest.dims[static_cast<size_t>(d)].push_back(axes[i]);
    }
  }
  for (int a = 0; a < layout.mesh->rank(); ++a) {
    if (layout.mesh->size(a) > 1) rest.partial[static_cast<size_t>(a)] = layout.partial[static_cast<size_t>(a)];
  }
  return rest;
}

bool search_steps(const Meta& meta, const Layout& from, const Layout& to, int64_t cap, SumPolicy sums,
                  std::vector<ReshardStep>& steps) {
  Search search(meta, from, to, cap, sums, Search::Goal::fastest);
  if (!search.run()) return false;
  search.append_steps(steps);
  return true;
}

int64_t least_peak(const Meta& meta, const Layout& from, const Layout& to, SumPolicy sums) {
  Search search(meta, from, to, 0, sums, Search::Goal::smallest);
  if (!search.run())
    fail(ErrorCode::internal, "no reshard from {} to {} for {}", DistSpec::make(from)->text(),
         DistSpec::make(to)->text(), to_string(meta));
  return static_cast<int64_t>(search.cost_of_goal());
}

double local_ns(const ProcessMesh& mesh, double bytes) { return kLocalNs + mesh.costs().copy_ns_per_byte * bytes; }

}  // namespace shard
