#include "shard/reshard/boxes.h"

#include <algorithm>

namespace shard {
namespace {

using Kind = ReshardStep::Kind;

/// The part of one dim of a box space that a process holds.
Range range_of(int64_t size, int64_t grain, const Layout& layout, int dim, const Coordinate& at) {
  Range range = shard_range(size / grain, *layout.mesh, layout.dims[static_cast<size_t>(dim)], at);
  range.begin *= grain;
  range.size *= grain;
  return range;
}

int64_t overlap(const Range& a, const Range& b) {
  return std::max<int64_t>(0, std::min(a.begin + a.size, b.begin + b.size) - std::max(a.begin, b.begin));
}

int64_t overlap(const std::vector<IndexRun>& a, const std::vector<IndexRun>& b) {
  int64_t sum = 0;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    sum += std::max<int64_t>(0, std::min(a[i].end, b[k].end) - std::max(a[i].begin, b[k].begin));
    if (a[i].end < b[k].end) ++i;
    else ++k;
  }
  return sum;
}

int64_t length(const Range& range) { return range.size; }
int64_t length(const std::vector<IndexRun>& runs) {
  int64_t sum = 0;
  for (const IndexRun& run : runs) sum += run.end - run.begin;
  return sum;
}

/// Advances to the next coordinate along `axes`; false after the last one.
bool advance(Coordinate& at, const AxisList& axes, const ProcessMesh& mesh) {
  for (int i = axes.size() - 1; i >= 0; --i) {
    int& k = at[static_cast<size_t>(axes[i])];
    if (++k < mesh.size(axes[i])) return true;
    k = 0;
  }
  return false;
}

int64_t positions(const AxisList& axes, const ProcessMesh& mesh) {
  int64_t n = 1;
  for (int i = 0; i < axes.size(); ++i) n *= mesh.size(axes[i]);
  return n;
}

size_t position(const AxisList& axes, const ProcessMesh& mesh, const Coordinate& at) {
  size_t i = 0;
  for (int k = 0; k < axes.size(); ++k)
    i = i * static_cast<size_t>(mesh.size(axes[k])) + static_cast<size_t>(at[static_cast<size_t>(axes[k])]);
  return i;
}

/// Dims of a step that are split independently of all others: which axes split them before and
/// after, and how much of a process's old part overlaps another one's new part. Parts are a Range
/// of one dim, or runs of a group of dims.
struct Unit {
  AxisList before;
  AxisList after;
  AxisList asked;  // axes of `after` over which a sender iterates: the receivers differ along them
  bool all_asked = false;
  bool same = false;
  std::vector<Range> old_ranges, new_ranges;
  std::vector<std::vector<IndexRun>> old_runs, new_runs;

  int64_t held(size_t i) const { return old_runs.empty() ? length(old_ranges[i]) : length(old_runs[i]); }
  int64_t both(size_t i, size_t k) const {
    return old_runs.empty() ? overlap(old_ranges[i], new_ranges[k]) : overlap(old_runs[i], new_runs[k]);
  }
};

/// Counts the elements that an exchange step on one mesh sends. A process sends its old shard, or
/// the needed part of it, to all that differ from it along axes that sharded something (see
/// sends_to). So the number that it sends is a product over units, and so is the number that it
/// keeps.
class MoveCount {
 public:
  explicit MoveCount(const ReshardStep& step) : mesh_(*step.before.mesh) {
    if (const auto space = box_space(step)) {
      for (int d = 0; d < space->dims.rank(); ++d) add_dim(*space, d);
    } else {
      for (const DimGroup& group : group_dims(step.dims, step.after_dims)) add_group(step, group);
    }
    AxisList sharding;  // before
    for (const Unit& unit : units_) {
      for (int i = 0; i < unit.before.size(); ++i) sharding.push_back(unit.before[i]);
    }
    for (int i = 0; i < sharding.size(); ++i) {
      const bool used =
          std::any_of(units_.begin(), units_.end(), [&](const Unit& unit) { return unit.after.contains(sharding[i]); });
      if (!used) copies_ *= mesh_.size(sharding[i]);
    }
    for (Unit& unit : units_) {
      for (int i = 0; i < unit.after.size(); ++i) {
        if (sharding.contains(unit.after[i])) unit.asked.push_back(unit.after[i]);
      }
      unit.all_asked = unit.asked.size() == unit.after.size();
    }
  }

  /// Elements that the process at `at` sends to others.
  int64_t sent(const Coordinate& at) const {
    int64_t given = copies_;
    int64_t kept = 1;
    for (const Unit& unit : units_) add_factors(unit, at, given, kept);
    return given - kept;
  }

  /// The sum and the maximum of sent() over all processes, by iterating only over the units that
  /// change.
  void count(int64_t& total, int64_t& most) const {
    int64_t every = 1;    // elements of the unchanged units, in all parts together
    int64_t largest = 1;  // elements of their largest parts
    int64_t others = mesh_.size();
    AxisList axes;  // of the units that change
    for (const Unit& unit : units_) {
      if (unit.same) {
        int64_t sum = 0;
        for (size_t i = 0; i < static_cast<size_t>(positions(unit.before, mesh_)); ++i) sum += unit.held(i);
        every *= sum;
        largest *= unit.held(0);
        others /= positions(unit.before, mesh_);
        continue;
      }
      for (const AxisList* list : {&unit.before, &unit.after}) {
        for (int i = 0; i < list->size(); ++i) {
          if (!axes.contains((*list)[i])) axes.push_back((*list)[i]);
        }
      }
    }
    others /= positions(axes, mesh_);
    int64_t sum = 0;
    int64_t top = 0;
    Coordinate at{};
    do {
      int64_t given = copies_;
      int64_t kept = 1;
      for (const Unit& unit : units_) {
        if (!unit.same) add_factors(unit, at, given, kept);
      }
      sum += given - kept;
      top = std::max(top, given - kept);
    } while (advance(at, axes, mesh_));
    total = sum * every * others;
    most = top * largest;
  }

 private:
  void add_factors(const Unit& unit, const Coordinate& at, int64_t& given, int64_t& kept) const {
    const size_t held = position(unit.before, mesh_, at);
    const int64_t stays = unit.same ? unit.held(held) : unit.both(held, position(unit.after, mesh_, at));
    kept *= stays;
    if (unit.all_asked) given *= unit.held(held);
    else if (unit.asked.empty()) given *= stays;
    else given *= asked_for(unit, held, at);
  }
  int64_t asked_for(const Unit& unit, size_t held, Coordinate at) const {
    for (int i = 0; i < unit.asked.size(); ++i) at[static_cast<size_t>(unit.asked[i])] = 0;
    int64_t sum = 0;
    do sum += unit.both(held, position(unit.after, mesh_, at));
    while (advance(at, unit.asked, mesh_));
    return sum;
  }

  void add_dim(const BoxSpace& space, int d) {
    Unit unit;
    unit.before = space.before.dims[static_cast<size_t>(d)];
    unit.after = space.after.dims[static_cast<size_t>(d)];
    unit.same = unit.before == unit.after && space.before_grain[d] == space.after_grain[d];
    Coordinate at{};
    do unit.old_ranges.push_back(range_of(space.dims[d], space.before_grain[d], space.before, d, at));
    while (advance(at, unit.before, mesh_));
    at = {};
    do unit.new_ranges.push_back(range_of(space.dims[d], space.after_grain[d], space.after, d, at));
    while (advance(at, unit.after, mesh_));
    units_.push_back(std::move(unit));
  }
  void add_group(const ReshardStep& step, const DimGroup& group) {
    Unit unit;
    unit.old_runs = runs_of(step.before, step.dims, group.in_begin, group.in_end, unit.before);
    unit.new_runs = runs_of(step.after, step.after_dims, group.out_begin, group.out_end, unit.after);
    units_.push_back(std::move(unit));
  }
  std::vector<std::vector<IndexRun>> runs_of(const Layout& layout, const Dims& dims, int begin, int end,
                                             AxisList& axes) const {
    Layout part(&mesh_, end - begin);
    Dims sizes;
    for (int d = begin; d < end; ++d) {
      part.dims[static_cast<size_t>(d - begin)] = layout.dims[static_cast<size_t>(d)];
      sizes.push_back(dims[d]);
      for (int i = 0; i < layout.dims[static_cast<size_t>(d)].size(); ++i)
        axes.push_back(layout.dims[static_cast<size_t>(d)][i]);
    }
    std::vector<std::vector<IndexRun>> all;
    Coordinate at{};
    do all.push_back(index_runs(sizes, shard_box(part, sizes, at)));
    while (advance(at, axes, mesh_));
    return all;
  }

  const ProcessMesh& mesh_;
  std::vector<Unit> units_;
  int64_t copies_ = 1;  // receivers of each element: along axes that no longer shard anything
};

/// The number of processes that hold each shard.
int64_t replicas(const Layout& layout) {
  int64_t n = layout.mesh->size();
  for (int d = 0; d < layout.rank; ++d) n /= positions(layout.dims[static_cast<size_t>(d)], *layout.mesh);
  return n;
}

/// Elements that a member of an all-reduce over n sends: a reduce-scatter and an all-gather, as
/// communicators count them.
int64_t all_reduce_sent(int64_t elements, int64_t n, int64_t k) {
  const int64_t mine = (elements + n - 1 - k) / n;
  return elements - mine + mine * (n - 1);
}

int64_t reduction_sent(const ReshardStep& step, const Coordinate& at) {
  const int64_t before = shard_box(step.before, step.dims, at).dims.numel();
  if (step.kind == Kind::all_reduce)
    return all_reduce_sent(before, step.before.mesh->size(step.axes[0]), at[static_cast<size_t>(step.axes[0])]);
  return before - shard_box(step.after, step.dims, at).dims.numel();
}

void count_reduction(const ReshardStep& step, int64_t& total, int64_t& most) {
  const ProcessMesh& mesh = *step.before.mesh;
  const int64_t n = mesh.size(step.axes[0]);
  const int64_t all = step.dims.numel();
  Coordinate at{};
  if (step.kind == Kind::all_reduce) {
    total = all * (replicas(step.before) / n) * 2 * (n - 1);
  } else {
    total = all * (replicas(step.before) - replicas(step.after));
    at[static_cast<size_t>(step.axes[0])] = static_cast<int>(n - 1);  // this process keeps least
  }
  most = reduction_sent(step, at);
}

/// Between two meshes: a process uses what it has itself, and gets any other shard from one of its
/// holders, selected by its own position.
bool is_sender(const BoxSpace& space, const Coordinate& sender, int receiver, int receiver_index) {
  const ProcessMesh& mesh = *space.before.mesh;
  if (const auto own = mesh.coordinate(receiver)) {
    bool same_box = true;
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      same_box = same_box && (space.before.dim_of(axis) < 0 ||
                              (*own)[static_cast<size_t>(axis)] == sender[static_cast<size_t>(axis)]);
    }
    if (same_box) return *own == sender;
  }
  int turn = receiver_index;
  for (int axis = mesh.rank() - 1; axis >= 0; --axis) {
    if (space.before.dim_of(axis) >= 0) continue;
    if (sender[static_cast<size_t>(axis)] != turn % mesh.size(axis)) return false;
    turn /= mesh.size(axis);
  }
  return true;
}

/// Appends the intersection of both boxes, unless it is empty.
void add_box(std::vector<BoxMove>& moves, const ProcessMesh& mesh, int index, const ShardBox& from,
             const ShardBox& to) {
  BoxMove move{mesh.processes()[static_cast<size_t>(index)], index, {}, {}, {}};
  for (int d = 0; d < from.dims.rank(); ++d) {
    const int64_t begin = std::max(from.begin[d], to.begin[d]);
    const int64_t end = std::min(from.begin[d] + from.dims[d], to.begin[d] + to.dims[d]);
    if (end <= begin) return;
    move.from_begin.push_back(begin - from.begin[d]);
    move.to_begin.push_back(begin - to.begin[d]);
    move.extent.push_back(end - begin);
  }
  moves.push_back(move);
}

/// Calls visit(index, coordinate) for the processes of `mesh` that may exchange data with the one
/// at `at`: on one mesh, those that differ from it only along axes that sharded something.
template <class Visit>
void visit_partners(const BoxSpace& space, const ProcessMesh& mesh, const Coordinate& at, Visit&& visit) {
  if (space.before.mesh != space.after.mesh) {
    for (int i = 0; i < mesh.size(); ++i) visit(i, mesh.coordinate_at(i));
    return;
  }
  AxisList sharding;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (space.before.dim_of(axis) >= 0) sharding.push_back(axis);
  }
  Coordinate other = at;
  for (int i = 0; i < sharding.size(); ++i) other[static_cast<size_t>(sharding[i])] = 0;
  do {
    int index = 0;
    for (int axis = 0; axis < mesh.rank(); ++axis) index = index * mesh.size(axis) + other[static_cast<size_t>(axis)];
    visit(index, other);
  } while (advance(other, sharding, mesh));
}

}  // namespace

ShardBox box_of(const BoxSpace& space, const Layout& layout, const Dims& grain, const Coordinate& at) {
  ShardBox shard;
  for (int d = 0; d < space.dims.rank(); ++d) {
    const Range range = range_of(space.dims[d], grain[d], layout, d, at);
    shard.begin.push_back(range.begin);
    shard.dims.push_back(range.size);
  }
  return shard;
}

std::vector<IndexRun> index_runs(const Dims& global, const ShardBox& shard) {
  std::vector<IndexRun> runs;
  if (shard.dims.numel() == 0) return runs;
  // Trailing dims that are whole are merged into one run; the `outer` dims are iterated over.
  int outer = global.rank();
  while (outer > 0 && shard.dims[outer - 1] == global[outer - 1]) --outer;
  const int64_t inner = global.numel(outer, global.rank());
  const int last = outer - 1;
  const int64_t run = outer == 0 ? inner : shard.dims[last] * inner;
  const int64_t count = outer == 0 ? 1 : shard.dims.numel(0, last);
  Dims index = Dims::filled(std::max(last, 0), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset = offset * global[d] + shard.begin[d] + index[d];
    if (outer > 0) offset = (offset * global[last] + shard.begin[last]) * inner;
    if (!runs.empty() && runs.back().end == offset) runs.back().end += run;
    else runs.push_back({offset, offset + run});
    for (int d = last - 1; d >= 0; --d) {
      if (++index[d] < shard.dims[d]) break;
      index[d] = 0;
    }
  }
  return runs;
}

std::vector<IndexRun> intersect(const std::vector<IndexRun>& a, const std::vector<IndexRun>& b) {
  std::vector<IndexRun> both;
  for (size_t i = 0, k = 0; i < a.size() && k < b.size();) {
    const int64_t begin = std::max(a[i].begin, b[k].begin);
    const int64_t end = std::min(a[i].end, b[k].end);
    if (begin < end) both.push_back({begin, end});
    if (a[i].end < b[k].end) ++i;
    else ++k;
  }
  return both;
}

std::vector<DimGroup> group_dims(const Dims& in, const Dims& out) {
  std::vector<DimGroup> groups;
  int i = 0;
  int o = 0;
  while (i < in.rank() || o < out.rank()) {
    DimGroup group{i, i, o, o};
    const bool both = i < in.rank() && o < out.rank();
    if (both && in[i] == out[o]) {
      ++i, ++o;
    } else if (i < in.rank() && in[i] == 1) {
      ++i;  // dropped: it has no counterpart on the other side
    } else if (!both || out[o] == 1) {
      ++o;
    } else {
      int64_t in_size = in[i++];
      int64_t out_size = out[o++];
      while (in_size != out_size) {
        if (in_size < out_size) in_size *= in[i++];
        else out_size *= out[o++];
      }
    }
    group.in_end = i;
    group.out_end = o;
    groups.push_back(group);
  }
  return groups;
}

std::optional<BoxSpace> box_space(const ReshardStep& step) {
  if (step.kind != Kind::relayout) {
    const Dims ones = Dims::filled(step.dims.rank(), 1);
    return BoxSpace{step.dims, ones, ones, step.before, step.after};
  }
  const auto groups = group_dims(step.dims, step.after_dims);
  if (groups.size() > kMaxRank) return std::nullopt;
  BoxSpace space{{},
                 {},
                 {},
                 Layout(step.before.mesh, static_cast<int>(groups.size())),
                 Layout(step.after.mesh, static_cast<int>(groups.size()))};
  // The first dim of a group that is longer than 1, the only one that may be sharded, is split in
  // units of the dims after it.
  const auto leading = [](const Layout& layout, const Dims& dims, int begin, int end, AxisList& axes, Dims& grains) {
    int64_t grain = dims.numel(begin, end);
    bool found = false;
    for (int d = begin; d < end; ++d) {
      const AxisList& list = layout.dims[static_cast<size_t>(d)];
      const bool first = !found && (dims[d] > 1 || !list.empty());
      if (first) {
        grain = dims.numel(d + 1, end);
        axes = list;
        found = true;
      } else if (!list.empty()) {
        return false;
      }
    }
    grains.push_back(grain);
    return true;
  };
  for (size_t g = 0; g < groups.size(); ++g) {
    const DimGroup& group = groups[g];
    space.dims.push_back(step.dims.numel(group.in_begin, group.in_end));
    if (!leading(step.before, step.dims, group.in_begin, group.in_end, space.before.dims[g], space.before_grain))
      return std::nullopt;
    if (!leading(step.after, step.after_dims, group.out_begin, group.out_end, space.after.dims[g], space.after_grain))
      return std::nullopt;
  }
  return space;
}

bool sends_to(const Layout& from, const Coordinate& sender, const Coordinate& receiver) {
  // Holders of equal shards (and of different contributions) differ along the axes that shard
  // nothing.
  for (int axis = 0; axis < from.mesh->rank(); ++axis) {
    const auto a = static_cast<size_t>(axis);
    if (from.dim_of(axis) < 0 && sender[a] != receiver[a]) return false;
  }
  return true;
}

std::vector<BoxMove> boxes_sent_by(const BoxSpace& space, int process) {
  std::vector<BoxMove> moves;
  const auto at = space.before.mesh->coordinate(process);
  if (!at) return moves;
  const ProcessMesh& mesh = *space.after.mesh;
  const bool crosses = space.before.mesh != &mesh;
  const ShardBox held = box_of(space, space.before, space.before_grain, *at);
  visit_partners(space, mesh, *at, [&](int index, const Coordinate& other) {
    const int receiver = mesh.processes()[static_cast<size_t>(index)];
    if (!crosses || is_sender(space, *at, receiver, index))
      add_box(moves, mesh, index, held, box_of(space, space.after, space.after_grain, other));
  });
  return moves;
}

std::vector<BoxMove> boxes_received_by(const BoxSpace& space, int process) {
  std::vector<BoxMove> moves;
  const auto at = space.after.mesh->coordinate(process);
  if (!at) return moves;
  const ProcessMesh& mesh = *space.before.mesh;
  const bool crosses = space.after.mesh != &mesh;
  const auto& receivers = space.after.mesh->processes();
  const int mine = static_cast<int>(std::find(receivers.begin(), receivers.end(), process) - receivers.begin());
  const ShardBox wanted = box_of(space, space.after, space.after_grain, *at);
  visit_partners(space, mesh, *at, [&](int index, const Coordinate& other) {
    if (!crosses || is_sender(space, other, process, mine))
      add_box(moves, mesh, index, box_of(space, space.before, space.before_grain, other), wanted);
  });
  return moves;
}

int64_t bytes_sent_by(const ReshardStep& step, DType dtype, int process) {
  const auto element = static_cast<int64_t>(size_of(dtype));
  const auto at = step.before.mesh->coordinate(process);
  if (!at || step.bytes == 0) return 0;
  if (step.kind == Kind::send_recv) {
    int64_t sent = 0;
    for (const BoxMove& move : boxes_sent_by(*box_space(step), process))
      sent += move.process == process ? 0 : move.extent.numel();
    return sent * element;
  }
  return (step.reduces() ? reduction_sent(step, *at) : MoveCount(step).sent(*at)) * element;
}

void count_bytes(ReshardStep& step, DType dtype) {
  int64_t total = 0;
  int64_t most = 0;
  switch (step.kind) {
    case Kind::slice:
    case Kind::copy:
    case Kind::partial_init: break;
    case Kind::reduce_scatter:
    case Kind::all_reduce: count_reduction(step, total, most); break;
    case Kind::send_recv: {
      const BoxSpace space = *box_space(step);
      for (const int process : step.before.mesh->processes()) {
        int64_t sent = 0;
        for (const BoxMove& move : boxes_sent_by(space, process))
          sent += move.process == process ? 0 : move.extent.numel();
        total += sent;
        most = std::max(most, sent);
      }
      break;
    }
    case Kind::all_gather:
    case Kind::all_to_all:
    case Kind::permute:
    case Kind::exchange:
    case Kind::relayout: MoveCount(step).count(total, most); break;
  }
  step.bytes = total * static_cast<int64_t>(size_of(dtype));
  step.bytes_max = most * static_cast<int64_t>(size_of(dtype));
}

}  // namespace shard
