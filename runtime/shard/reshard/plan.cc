#include "shard/reshard/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "shard/reshard/boxes.h"
#include "shard/reshard/search.h"

namespace shard {
namespace {

using Kind = ReshardStep::Kind;

int64_t largest_shard(const Layout& layout, const Dims& dims, DType dtype) {
  return shard_box(layout, dims, Coordinate{}).dims.numel() * static_cast<int64_t>(size_of(dtype));
}

bool share_processes(const ProcessMesh& a, const ProcessMesh& b) {
  return &a == &b || std::any_of(a.processes().begin(), a.processes().end(),
                                 [&](int process) { return b.coordinate(process).has_value(); });
}

/// Start-up time and time per byte where any axis of the mesh may be used: those of the slowest
/// axis.
AxisCost slowest(const ProcessMesh& mesh) {
  AxisCost cost{0, 0};
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    if (mesh.size(axis) == 1 && mesh.size() > 1) continue;
    cost.alpha_ns = std::max(cost.alpha_ns, mesh.cost(axis).alpha_ns);
    cost.ns_per_byte = std::max(cost.ns_per_byte, mesh.cost(axis).ns_per_byte);
  }
  return cost;
}

ReshardStep make_step(Kind kind, const Layout& before, const Layout& after, const Dims& dims, const Dims& after_dims) {
  ReshardStep step;
  step.kind = kind;
  step.before = before;
  step.after = after;
  step.dims = dims;
  step.after_dims = after_dims;
  step.group = before.mesh;
  return step;
}

ReshardStep copy_step(const Layout& before, const Layout& after, const Meta& meta, const Dims& after_dims) {
  ReshardStep step = make_step(Kind::copy, before, after, meta.dims, after_dims);
  step.ns =
      local_ns(*after.mesh, static_cast<double>(largest_shard(after, after_dims, shard_dtype(meta.dtype, after))));
  return step;
}

/// The dtype in which a step from this layout sends a tensor of `dtype`.
DType sent_dtype(DType dtype, const Layout& layout, SumPolicy sums) {
  return sums == SumPolicy::rounded ? dtype : shard_dtype(dtype, layout);
}

/// Sets what the search does not: dtypes, bytes and peaks; then the totals. The caller of a plan
/// keeps its input.
void finish(ReshardPlan& plan) {
  const DType held = shard_dtype(plan.meta.dtype, plan.from->layout());
  const int64_t input = largest_shard(plan.from->layout(), plan.meta.dims, held);
  plan.peak = input;
  bool crossed = false;
  for (ReshardStep& step : plan.steps) step.dtype = sent_dtype(plan.meta.dtype, step.before, plan.sums);
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    ReshardStep& step = plan.steps[i];
    step.after_dtype =
        i + 1 < plan.steps.size() ? plan.steps[i + 1].dtype : shard_dtype(plan.meta.dtype, plan.to->layout());
    if (step.kind != Kind::send_recv) count_bytes(step, step.dtype);  // counted when it was selected
    const bool reads_input = i == 0 && step.dtype == held;
    const int64_t before = reads_input ? 0 : largest_shard(step.before, step.dims, step.dtype);
    const int64_t after = largest_shard(step.after, step.after_dims, step.after_dtype);
    const bool disjoint = !share_processes(*step.before.mesh, *step.after.mesh);
    const bool holds_input = !crossed || share_processes(*plan.from->mesh(), *plan.to->mesh());
    step.peak = disjoint ? std::max(input + before, after) : (holds_input ? input : 0) + before + after;
    crossed = crossed || step.before.mesh != step.after.mesh;
    plan.bytes += step.bytes;
    plan.bytes_max += step.bytes_max;
    plan.peak = std::max(plan.peak, step.peak);
    plan.ns += step.ns;
  }
}

/// The processes of both meshes as one axis, in the order of their ids.
const ProcessMesh* union_of(const ProcessMesh& a, const ProcessMesh& b) {
  std::vector<int> all = a.processes();
  all.insert(all.end(), b.processes().begin(), b.processes().end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  const int size = static_cast<int>(all.size());
  return ProcessMesh::make({size}, std::move(all), {"both"});
}

ReshardStep send_step(const Meta& meta, const Layout& before, const Layout& after) {
  ReshardStep step = make_step(Kind::send_recv, before, after, meta.dims, meta.dims);
  step.group = union_of(*before.mesh, *after.mesh);
  count_bytes(step, meta.dtype);
  const auto shard = static_cast<double>(largest_shard(after, meta.dims, meta.dtype));
  const double copy = std::max(before.mesh->costs().copy_ns_per_byte, after.mesh->costs().copy_ns_per_byte);
  const AxisCost a = slowest(*before.mesh);
  const AxisCost b = slowest(*after.mesh);
  step.ns = step.bytes == 0
                ? local_ns(*after.mesh, shard)
                : std::max(a.alpha_ns, b.alpha_ns) + copy * shard +
                      std::max(a.ns_per_byte, b.ns_per_byte) * std::max(static_cast<double>(step.bytes_max), shard);
  return step;
}

/// Layouts in which the shards may leave the source mesh, or arrive on the target mesh, so that its
/// collectives do the rest: axes that shard nothing hold copies or contributions, or they share one
/// dim.
std::vector<Layout> transfer_layouts(const Layout& layout, const Dims& dims, bool spread_replicas) {
  Layout whole = layout;
  whole.partial = {};
  std::vector<Layout> all{whole};
  int longest = 0;
  for (int d = 1; d < dims.rank(); ++d) {
    if (dims[d] > dims[longest]) longest = d;
  }
  if (dims.rank() == 0) return all;
  Layout spread = whole;
  for (int axis = 0; axis < layout.mesh->rank(); ++axis) {
    const bool free = layout.partial[static_cast<size_t>(axis)] || (spread_replicas && layout.dim_of(axis) < 0);
    if (free && layout.mesh->size(axis) > 1) spread.dims[static_cast<size_t>(longest)].push_back(axis);
  }
  if (!(spread == whole)) all.push_back(spread);
  return all;
}

/// Reductions on the source mesh, one transfer, and the remaining steps on the target mesh: the
/// fastest of a few alternatives.
bool plan_between_meshes(ReshardPlan& plan, const Layout& from, const Layout& to, int64_t cap, int64_t& least) {
  const Dims& dims = plan.meta.dims;
  const ReshardPlan blank = plan;
  bool found = false;
  for (const Layout& leave : transfer_layouts(from, dims, false)) {
    for (const Layout& arrive : transfer_layouts(to, dims, true)) {
      ReshardPlan way = blank;
      if (!(leave == from)) search_steps(plan.meta, from, leave, 0, plan.sums, way.steps);
      way.steps.push_back(send_step(plan.meta, leave, arrive));
      if (!(arrive == to)) search_steps(plan.meta, arrive, to, 0, plan.sums, way.steps);
      finish(way);
      least = std::min(least, way.peak);
      if ((cap > 0 && way.peak > cap) || (found && way.ns >= plan.ns)) continue;
      plan = std::move(way);
      found = true;
    }
  }
  return found;
}

[[noreturn]] void fail_cap(const ReshardPlan& plan, int64_t cap, int64_t least, CommCause cause) {
  fail(ErrorCode::policy,
       "[{}] argument '{}': no reshard of {} from {} on {} to {} on {} fits the memory cap of {} bytes per rank; the "
       "smallest peak is {} bytes. Raise the cap, or choose a layout with smaller shards",
       cause.op, cause.argument, to_string(plan.meta), plan.from->text(), plan.from->mesh()->describe(),
       plan.to->text(), plan.to->mesh()->describe(), cap, least);
}

std::string name_of(const Layout& layout) { return DistSpec::make(layout)->text(); }

std::string axes_text(const ProcessMesh& mesh, const AxisList& axes) {
  std::string text;
  for (int i = 0; i < axes.size(); ++i) text += (i == 0 ? "" : "+") + mesh.name(axes[i]);
  return text;
}

/// "tp, dim 1": the axes that `longer` has after those of `shorter`, per dim.
std::string added_axes(const Layout& longer, const Layout& shorter) {
  std::string text;
  for (int d = 0; d < longer.rank; ++d) {
    AxisList added;
    const AxisList& axes = longer.dims[static_cast<size_t>(d)];
    for (int i = shorter.dims[static_cast<size_t>(d)].size(); i < axes.size(); ++i) added.push_back(axes[i]);
    if (!added.empty())
      text += fmt::format("{}{}, dim {}", text.empty() ? "" : ", ", axes_text(*longer.mesh, added), d);
  }
  return text;
}

std::string where(const ReshardStep& step) {
  const ProcessMesh& mesh = *step.before.mesh;
  const std::string axes = axes_text(mesh, step.axes);
  switch (step.kind) {
    case Kind::all_gather: return added_axes(step.before, step.after);
    case Kind::slice: return added_axes(step.after, step.before);
    case Kind::all_to_all:
      return fmt::format("{}, dim {} -> {}", axes, step.before.dim_of(step.axes[0]), step.after.dim_of(step.axes[0]));
    case Kind::permute:
    case Kind::exchange: return fmt::format("{}, {} -> {}", axes, name_of(step.before), name_of(step.after));
    case Kind::send_recv:
      return fmt::format("{} on {} -> {} on {}", name_of(step.before), mesh.describe(), name_of(step.after),
                         step.after.mesh->describe());
    case Kind::reduce_scatter:
      return fmt::format("{}, {}, dim {}", axes, to_string(step.type), step.after.dim_of(step.axes[0]));
    case Kind::all_reduce:
    case Kind::partial_init: return fmt::format("{}, {}", axes, to_string(step.type));
    case Kind::copy: return "";
    case Kind::relayout: return fmt::format("{} -> {}", to_string(step.dims), to_string(step.after_dims));
  }
  fail(ErrorCode::internal, "unknown reshard step {}", static_cast<int>(step.kind));
}

std::string step_text(const ReshardStep& step) { return fmt::format("{}({})", to_string(step.kind), where(step)); }

/// The group of a step's collective: "tp", "mesh(dp=2, tp=2)".
std::string group_text(const ReshardStep& step) {
  return step.group_axis() >= 0 ? step.group->name(step.group_axis()) : step.group->describe();
}

}  // namespace

std::string_view to_string(Kind kind) {
  switch (kind) {
    case Kind::all_gather: return "all_gather";
    case Kind::all_to_all: return "all_to_all";
    case Kind::permute: return "permute";
    case Kind::exchange: return "exchange";
    case Kind::send_recv: return "send_recv";
    case Kind::reduce_scatter: return "reduce_scatter";
    case Kind::all_reduce: return "all_reduce";
    case Kind::slice: return "slice";
    case Kind::partial_init: return "partial_init";
    case Kind::copy: return "copy";
    case Kind::relayout: return "relayout";
  }
  fail(ErrorCode::internal, "unknown reshard step {}", static_cast<int>(kind));
}

int64_t ReshardPlan::bytes_along(const ProcessMesh* mesh, int axis) const {
  int64_t sum = 0;
  for (const ReshardStep& step : steps) sum += step.group == mesh && step.group_axis() == axis ? step.bytes : 0;
  return sum;
}

double ReshardPlan::ns_along(const ProcessMesh* mesh, int axis) const {
  double sum = 0;
  for (const ReshardStep& step : steps)
    sum += step.bytes != 0 && step.group == mesh && step.group_axis() == axis ? step.ns : 0;
  return sum;
}

std::string ReshardPlan::describe() const {
  std::string text;
  for (const ReshardStep& step : steps) {
    text += (text.empty() ? "" : ", ") + step_text(step);
    if (step.bytes != 0) text += fmt::format(" {} B", step.bytes);
  }
  return text;
}

std::string ReshardPlan::explain() const {
  const bool one_mesh = from->mesh() == to->mesh();
  std::string text = one_mesh ? fmt::format("{} from {} to {} on {}\n", to_string(meta), from->text(), to->text(),
                                            to->mesh()->describe())
                              : fmt::format("{} from {} on {} to {} on {}\n", to_string(meta), from->text(),
                                            from->mesh()->describe(), to->text(), to->mesh()->describe());
  std::vector<const ReshardStep*> groups;  // the first step of each
  for (size_t i = 0; i < steps.size(); ++i) {
    const ReshardStep& step = steps[i];
    text += fmt::format("  {}. {}: {} B sent, at most {} B by a rank; {:.1f} us; peak {} B\n", i + 1, step_text(step),
                        step.bytes, step.bytes_max, step.ns / 1000, step.peak);
    const auto same = [&](const ReshardStep* other) {
      return other->group == step.group && other->group_axis() == step.group_axis();
    };
    if (step.bytes != 0 && std::none_of(groups.begin(), groups.end(), same)) groups.push_back(&step);
  }
  for (const ReshardStep* step : groups) {
    text += fmt::format("  over {}: {} B, {:.1f} us\n", group_text(*step), bytes_along(step->group, step->group_axis()),
                        ns_along(step->group, step->group_axis()) / 1000);
  }
  return text + fmt::format("  total: {} B sent, at most {} B by a rank; {:.1f} us; peak {} B", bytes, bytes_max,
                            ns / 1000, peak);
}

bool same_value(DType dtype, const DistSpec* from, const DistSpec* to) {
  if (from == to) return true;
  if (from->mesh() != to->mesh()) return false;
  for (int axis = 0; axis < to->mesh()->rank() && dtype != DType::boolean; ++axis) {
    const auto before = from->partial(axis), after = to->partial(axis);
    if (((before && is_logical(*before)) || (after && is_logical(*after))) && before != after) return false;
  }
  return without_unit_axes(from->layout()) == without_unit_axes(to->layout());
}

bool loses_values(DType dtype, const DistSpec& from, const DistSpec& to) {
  if (dtype == DType::boolean) return false;
  for (int axis = 0; axis < to.mesh()->rank(); ++axis) {
    const auto type = to.partial(axis);
    const bool pending_before = from.mesh() == to.mesh() && from.partial(axis) == type;
    if (!type || pending_before) continue;
    const bool wraps = is_mean(*type) && !is_floating(dtype) && to.mesh()->size(axis) > 1;
    if (is_logical(*type) || wraps) return true;
  }
  return false;
}

std::shared_ptr<const ReshardPlan> plan_reshard(const Meta& meta, const DistSpec* from, const DistSpec* to,
                                                int64_t memory_cap, CommCause cause, SumPolicy sums) {
  if (from->rank() != meta.dims.rank() || to->rank() != meta.dims.rank()) {
    fail(ErrorCode::layout,
         "[{}] argument '{}': {} has {} dims, but it is to be resharded from layout {} on {} to {} on {}; use layouts "
         "with an entry for each dim",
         cause.op, cause.argument, to_string(meta), meta.dims.rank(), from->text(), from->mesh()->describe(),
         to->text(), to->mesh()->describe());
  }
  auto plan = std::make_shared<ReshardPlan>();
  plan->meta = plan->after_meta = meta;
  plan->from = from;
  plan->to = to;
  plan->sums = sums;
  const int64_t cap = memory_cap > 0 ? memory_cap : from->mesh()->costs().memory_cap;
  const Layout before = without_unit_axes(from->layout());
  const Layout after = without_unit_axes(to->layout());
  if (from == to) {
    finish(*plan);
  } else if (meta.numel() == 0) {
    plan->steps.push_back(copy_step(before, after, meta, meta.dims));
    finish(*plan);
  } else if (from->mesh() != to->mesh()) {
    int64_t least = std::numeric_limits<int64_t>::max();
    if (!plan_between_meshes(*plan, before, after, cap, least)) fail_cap(*plan, cap, least, cause);
    return plan;
  } else if (before == after) {
    plan->steps.push_back(copy_step(before, after, meta, meta.dims));
    finish(*plan);
  } else {
    if (!search_steps(meta, before, after, cap, sums, plan->steps))
      fail_cap(*plan, cap, least_peak(meta, before, after, sums), cause);
    finish(*plan);
  }
  if (cap > 0 && plan->peak > cap) fail_cap(*plan, cap, plan->peak, cause);
  return plan;
}

std::shared_ptr<const ReshardPlan> plan_relayout(const Meta& meta, const DistSpec* from, const Dims& after,
                                                 const DistSpec* to, SumPolicy sums) {
  auto plan = std::make_shared<ReshardPlan>();
  plan->meta = meta;
  plan->after_meta = {after, meta.dtype};
  plan->from = from;
  plan->to = to;
  plan->sums = sums;
  if (meta.numel() == 0) {
    plan->steps.push_back(copy_step(from->layout(), to->layout(), meta, after));
  } else {
    ReshardStep step = make_step(Kind::relayout, from->layout(), to->layout(), meta.dims, after);
    const DType dtype = sent_dtype(meta.dtype, step.before, sums);
    count_bytes(step, dtype);
    const AxisCost cost = slowest(*from->mesh());
    const auto shard = static_cast<double>(largest_shard(step.after, after, dtype));
    step.ns = local_ns(*from->mesh(), shard);
    if (step.bytes != 0) step.ns += cost.alpha_ns + cost.ns_per_byte * std::min(shard, static_cast<double>(step.bytes));
    plan->steps.push_back(step);
  }
  finish(*plan);
  return plan;
}

}  // namespace shard
