#include "reshard/plan.h"

#include <fmt/format.h>

#include <map>
#include <queue>
#include <set>

namespace shard {
namespace {

using Kind = ReshardStep::Kind;

// The cost model: a start-up time per collective, and nanoseconds per byte that a rank sends or copies.
constexpr double kAlphaNs = 5000;
constexpr double kSendNsPerByte = 0.1;
constexpr double kCopyNsPerByte = 0.05;

/// Bytes of the largest piece.
double piece_bytes(const Layout& layout, const Dims& dims, size_t element) {
  double bytes = static_cast<double>(element);
  for (int64_t size : local_piece(layout, dims, Coordinate{}).dims) bytes *= static_cast<double>(size);
  return bytes;
}

double step_ns(const ReshardStep& step, size_t element) {
  const double n = step.after.mesh->size(step.axis);
  const double before = piece_bytes(step.before, step.dims, element);
  const double after = piece_bytes(step.after, step.dims, element);
  const double copy = (before + after) * kCopyNsPerByte;
  switch (step.kind) {
    case Kind::all_gather: return kAlphaNs + before * (n - 1) * kSendNsPerByte + copy;
    case Kind::all_to_all: return kAlphaNs + before * (n - 1) / n * kSendNsPerByte + copy;
    case Kind::reduce_scatter: return kAlphaNs + before * (n - 1) / n * kSendNsPerByte + copy;
    case Kind::all_reduce: return 2 * kAlphaNs + 2 * before * (n - 1) / n * kSendNsPerByte + copy;
    case Kind::slice:
    case Kind::partial_init: return 100 + copy;
    case Kind::relayout: return kAlphaNs + before * kSendNsPerByte + copy;
  }
  fail(ErrorCode::internal, "reshard step {} does not exist", static_cast<int>(step.kind));
}

/// What all ranks send in one step, exactly: pieces may differ in size.
int64_t step_bytes(const ReshardStep& step, size_t element) {
  const ProcessMesh& mesh = *step.before.mesh;
  const int n = mesh.size(step.axis);
  int64_t elements = 0;
  for (int i = 0; i < mesh.size(); ++i) {
    const Coordinate at = mesh.coordinate_at(i);
    const int64_t before = local_piece(step.before, step.dims, at).dims.numel();
    const int64_t after = local_piece(step.after, step.dims, at).dims.numel();
    switch (step.kind) {
      case Kind::all_gather: elements += before * (n - 1); break;
      case Kind::reduce_scatter: elements += before - after; break;
      case Kind::all_reduce: {
        const int64_t k = at[static_cast<size_t>(step.axis)];
        const int64_t mine = (before + n - 1 - k) / n;
        elements += before - mine + mine * (n - 1);
        break;
      }
      case Kind::all_to_all: {
        // The part of the old piece that stays is the part of it in the own new range of to_dim.
        Piece stays = local_piece(step.before, step.dims, at);
        stays.dims[step.to_dim] = local_piece(step.after, step.dims, at).dims[step.to_dim];
        elements += before - stays.dims.numel();
        break;
      }
      case Kind::slice:
      case Kind::partial_init:
      case Kind::relayout: break;
    }
  }
  return elements * static_cast<int64_t>(element);
}

ReshardStep make_step(Kind kind, int axis, int dim, int to_dim, ReduceType type, const Layout& before, const Dims& dims) {
  ReshardStep step{kind, axis, dim, to_dim, type, before, before, dims, dims, 0};
  if (kind == Kind::all_gather || kind == Kind::all_to_all) step.after.dims[static_cast<size_t>(dim)].pop_back();
  if (kind == Kind::reduce_scatter || kind == Kind::all_reduce) step.after.partial[static_cast<size_t>(axis)].reset();
  if (kind == Kind::all_to_all || kind == Kind::reduce_scatter || kind == Kind::slice) {
    step.after.dims[static_cast<size_t>(to_dim)].push_back(axis);
  }
  if (kind == Kind::partial_init) step.after.partial[static_cast<size_t>(axis)] = type;
  return step;
}

/// True when pending reductions of these types can be done in either order.
bool commute(ReduceType a, ReduceType b) {
  const auto linear = [](ReduceType type) { return type == ReduceType::sum || type == ReduceType::avg; };
  return a == b || (linear(a) && linear(b));
}

/// Pending reductions are done from the last mesh axis to the first: one may be done, or begun, on `axis` only while no later
/// axis has one that must come before it.
bool next_in_order(const Layout& at, int axis, ReduceType type) {
  for (int later = axis + 1; later < at.mesh->rank(); ++later) {
    const auto other = at.partial[static_cast<size_t>(later)];
    if (other && !commute(type, *other)) return false;
  }
  return true;
}

/// Every step that is possible from `at` and may lead to `goal`, in a fixed order.
std::vector<ReshardStep> steps_from(const Layout& at, const Layout& goal, const Dims& dims) {
  std::vector<ReshardStep> steps;
  for (int axis = 0; axis < at.mesh->rank(); ++axis) {
    const auto type = at.partial[static_cast<size_t>(axis)];
    const auto goal_type = goal.partial[static_cast<size_t>(axis)];
    const int dim = at.dim_of(axis);
    const auto add = [&](Kind kind, int to_dim) {
      steps.push_back(make_step(kind, axis, dim, to_dim, type ? *type : goal_type.value_or(ReduceType::sum), at, dims));
    };
    if (dim >= 0 && at.dims[static_cast<size_t>(dim)].back() == axis) add(Kind::all_gather, 0);
    const bool in_order = next_in_order(at, axis, type ? *type : goal_type.value_or(ReduceType::sum));
    if (type && in_order) add(Kind::all_reduce, 0);
    if (dim < 0 && !type && goal_type && in_order) add(Kind::partial_init, 0);
    for (int to = 0; to < dims.rank(); ++to) {
      if (dim >= 0 && to != dim && at.dims[static_cast<size_t>(dim)].back() == axis) add(Kind::all_to_all, to);
      if (type && goal_type != type && in_order) add(Kind::reduce_scatter, to);
      if (dim < 0 && !type) add(Kind::slice, to);
    }
  }
  return steps;
}

std::string key_of(const Layout& layout) {
  std::string key;
  for (int d = 0; d < layout.rank; ++d) {
    for (int i = 0; i < layout.dims[static_cast<size_t>(d)].size(); ++i) key += static_cast<char>('0' + layout.dims[static_cast<size_t>(d)][i]);
    key += ',';
  }
  for (const auto& type : layout.partial) key += type ? static_cast<char>('a' + static_cast<int>(*type)) : '.';
  return key;
}

struct Node {
  Layout layout;
  int parent;
  ReshardStep step;
};

/// Dijkstra's search; nodes are layouts. Ties go to the node that was found first.
std::vector<ReshardStep> search(const Meta& meta, const Layout& from, const Layout& to) {
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  std::vector<Node> nodes{{from, -1, {}}};
  std::set<std::string> closed;
  std::map<std::string, double> best;
  open.push({0, 0});
  while (!open.empty()) {
    const auto [cost, index] = open.top();
    open.pop();
    const Layout at = nodes[static_cast<size_t>(index)].layout;
    if (!closed.insert(key_of(at)).second) continue;
    if (at == to) {
      std::vector<ReshardStep> steps;
      for (int i = index; nodes[static_cast<size_t>(i)].parent >= 0; i = nodes[static_cast<size_t>(i)].parent) {
        steps.insert(steps.begin(), nodes[static_cast<size_t>(i)].step);
      }
      return steps;
    }
    for (ReshardStep& step : steps_from(at, to, meta.dims)) {
      const double next = cost + step_ns(step, size_of(meta.dtype));
      const auto [known, added] = best.emplace(key_of(step.after), next);
      if (!added && known->second <= next) continue;
      known->second = next;
      open.push({next, static_cast<int>(nodes.size())});
      nodes.push_back({step.after, index, step});
    }
  }
  fail(ErrorCode::internal, "no way from one layout of {} to another", to_string(meta));
}

}  // namespace

std::string ReshardPlan::describe() const {
  static constexpr const char* kNames[] = {"all_gather", "all_to_all", "reduce_scatter", "all_reduce", "slice", "partial_init", "relayout"};
  std::string text;
  for (const ReshardStep& step : steps) {
    const std::string& axis = from->mesh()->name(step.axis);
    std::string where;
    switch (step.kind) {
      case Kind::all_gather: where = fmt::format("{}, dim {}", axis, step.dim); break;
      case Kind::all_to_all: where = fmt::format("{}, dim {} -> {}", axis, step.dim, step.to_dim); break;
      case Kind::reduce_scatter: where = fmt::format("{}, {}, dim {}", axis, to_string(step.type), step.to_dim); break;
      case Kind::slice: where = fmt::format("{}, dim {}", axis, step.to_dim); break;
      case Kind::all_reduce:
      case Kind::partial_init: where = fmt::format("{}, {}", axis, to_string(step.type)); break;
      case Kind::relayout: where = fmt::format("{} -> {}", to_string(step.dims), to_string(step.after_dims)); break;
    }
    text += fmt::format("{}{}({})", text.empty() ? "" : ", ", kNames[static_cast<int>(step.kind)], where);
    if (step.bytes != 0) text += fmt::format(" {} B", step.bytes);
  }
  return text;
}

std::shared_ptr<const ReshardPlan> plan_reshard(const Meta& meta, const DistSpec* from, const DistSpec* to) {
  if (from->mesh() != to->mesh()) {
    fail(ErrorCode::layout, "cannot move {} from {} to {}: both layouts must be on one mesh", to_string(meta),
         from->mesh()->describe(), to->mesh()->describe());
  }
  if (from->rank() != meta.dims.rank() || to->rank() != meta.dims.rank()) {
    fail(ErrorCode::layout, "layouts {} and {} do not fit a tensor of shape {}", from->text(), to->text(), to_string(meta.dims));
  }
  auto plan = std::make_shared<ReshardPlan>();
  plan->meta = plan->after_meta = meta;
  plan->from = from;
  plan->to = to;
  if (from != to) plan->steps = search(meta, from->layout(), to->layout());
  for (ReshardStep& step : plan->steps) {
    step.bytes = step_bytes(step, size_of(meta.dtype));
    plan->bytes += step.bytes;
  }
  return plan;
}

std::shared_ptr<const ReshardPlan> plan_relayout(const Meta& meta, const DistSpec* from, const Dims& after, const DistSpec* to) {
  auto plan = std::make_shared<ReshardPlan>();
  plan->meta = meta;
  plan->after_meta = {after, meta.dtype};
  plan->from = from;
  plan->to = to;
  ReshardStep step{Kind::relayout, 0, 0, 0, ReduceType::sum, from->layout(), to->layout(), meta.dims, after, 0};
  const ProcessMesh& mesh = *from->mesh();
  for (int r = 0; r < mesh.size(); ++r) {
    const Coordinate receiver = mesh.coordinate_at(r);
    const auto wanted = index_runs(after, local_piece(step.after, after, receiver));
    for (int s = 0; s < mesh.size(); ++s) {
      const Coordinate sender = mesh.coordinate_at(s);
      if (s == r || !sends_to(step.before, sender, receiver)) continue;
      for (const IndexRun& run : intersect(wanted, index_runs(meta.dims, local_piece(step.before, meta.dims, sender)))) {
        step.bytes += (run.end - run.begin) * static_cast<int64_t>(size_of(meta.dtype));
      }
    }
  }
  plan->bytes = step.bytes;
  plan->steps.push_back(step);
  return plan;
}

std::vector<IndexRun> index_runs(const Dims& global, const Piece& piece) {
  std::vector<IndexRun> runs;
  if (piece.dims.numel() == 0) return runs;
  // Dims that are whole at the end join one run; `outer` dims are walked.
  int outer = global.rank();
  while (outer > 0 && piece.dims[outer - 1] == global[outer - 1]) --outer;
  const int64_t inner = global.numel(outer, global.rank());
  const int last = outer - 1;
  const int64_t length = outer == 0 ? inner : piece.dims[last] * inner;
  const int64_t count = outer == 0 ? 1 : piece.dims.numel(0, last);
  Dims index = Dims::filled(std::max(last, 0), 0);
  for (int64_t i = 0; i < count; ++i) {
    int64_t offset = 0;
    for (int d = 0; d < last; ++d) offset = offset * global[d] + piece.begin[d] + index[d];
    if (outer > 0) offset = (offset * global[last] + piece.begin[last]) * inner;
    if (!runs.empty() && runs.back().end == offset) runs.back().end += length;
    else runs.push_back({offset, offset + length});
    for (int d = last - 1; d >= 0; --d) {
      if (++index[d] < piece.dims[d]) break;
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

bool sends_to(const Layout& from, const Coordinate& sender, const Coordinate& receiver) {
  // Holders of equal pieces (and of different contributions) differ on the axes that shard nothing.
  for (int axis = 0; axis < from.mesh->rank(); ++axis) {
    const auto a = static_cast<size_t>(axis);
    if (from.dim_of(axis) < 0 && sender[a] != receiver[a]) return false;
  }
  return true;
}

}  // namespace shard
