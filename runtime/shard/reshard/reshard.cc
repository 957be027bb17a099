#include "shard/reshard/reshard.h"

#include "shard/comm/buffers.h"
#include "shard/core/tracer.h"
#include "shard/dist/view_use.h"
#include "shard/reshard/execute.h"

namespace shard {
namespace {

void check_keeps_values(std::string_view op, const Meta& meta, const DistSpec* from, const DistSpec* to) {
  if (!loses_values(meta.dtype, *from, *to)) return;
  fail(ErrorCode::layout,
       "[{}] argument 'tensor' ({}, layout {} on {}) would lose values in layout {}: a pending any or all is 0 or 1 "
       "once it is reduced, and a pending average of integers may wrap around; cast it to bool or a float dtype first, "
       "or drop that reduction",
       op, to_string(meta), from->text(), from->mesh()->describe(), to->text());
}

/// Checks that this rank may read and reshard `tensor`.
DistTensorImpl& movable(Rank& rank, const Tensor& tensor, const DistSpec* spec) {
  if (Tracer* const tracer = Tracer::current()) tracer->adopt(tensor);
  DistTensorImpl& impl = dist_impl(tensor, "reshard");
  if (impl.owner != &rank) {
    fail(ErrorCode::wrong_rank,
         "[reshard] {} belongs to rank {}, but rank {} makes the call; each rank uses its own tensors",
         argument_text("tensor", impl), impl.owner->id(), rank.id());
  }
  check_mesh_in_world(spec->mesh(), rank.world());
  check_keeps_values("reshard", impl.global, impl.spec, spec);
  if (rank.policies.view == ViewPolicy::sync) impl.value.storage()->refresh_if_stale();
  check_read(*impl.value.storage(), rank.policies.view);
  return impl;
}

/// `name`: of the call, for observers.
Tensor move_tensor(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap, bool later,
                   std::string_view name = "reshard") {
  Rank& rank = current_rank();
  const DistTensorImpl& impl = movable(rank, tensor, spec);
  if (impl.spec == spec) return tensor;
  const auto plan = plan_reshard(impl.global, impl.spec, spec, memory_cap, {"reshard", "tensor"}, rank.policies.sums);
  observe_move(rank, name, "tensor", *plan);
  return make_dist(rank, impl.global, spec, execute_reshard(rank, *plan, impl.value, {"reshard", "tensor"}, later));
}

std::vector<Tensor> move_tensors(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                 int64_t memory_cap, bool later) {
  if (tensors.size() != specs.size()) {
    fail(ErrorCode::invalid_argument, "[reshard] argument 'specs' has {} layouts for {} tensors; pass one for each",
         specs.size(), tensors.size());
  }
  Rank& rank = current_rank();
  std::vector<std::shared_ptr<const ReshardPlan>> plans;
  std::vector<const ReshardPlan*> moving;
  std::vector<DenseTensor> shards;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DistTensorImpl& impl = movable(rank, tensors[i], specs[i]);
    plans.push_back(impl.spec == specs[i] ? nullptr
                                          : plan_reshard(impl.global, impl.spec, specs[i], memory_cap,
                                                         {"reshard", "tensors"}, rank.policies.sums));
    if (!plans.back()) continue;
    observe_move(rank, "reshard", "tensor", *plans.back());
    moving.push_back(plans.back().get());
    shards.push_back(impl.value);
  }
  std::vector<DenseTensor> values = execute_reshards(rank, moving, shards, {"reshard", "tensors"}, later);
  std::vector<Tensor> moved;
  auto value = values.begin();
  for (size_t i = 0; i < tensors.size(); ++i) {
    moved.push_back(plans[i] ? make_dist(rank, tensors[i].meta(), specs[i], std::move(*value++)) : tensors[i]);
  }
  return moved;
}

}  // namespace

std::string explain_reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  const DistTensorImpl& impl = dist_impl(tensor, "explain_reshard");
  return plan_reshard(impl.global, impl.spec, spec, memory_cap, {"reshard", "tensor"}, impl.owner->policies.sums)
      ->explain();
}

namespace dist {

Tensor reshard(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return move_tensor(tensor, spec, memory_cap, false);
}

Tensor reshard_async(const Tensor& tensor, const DistSpec* spec, int64_t memory_cap) {
  return move_tensor(tensor, spec, memory_cap, true);
}

std::vector<Tensor> reshard(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                            int64_t memory_cap) {
  return move_tensors(tensors, specs, memory_cap, false);
}

std::vector<Tensor> reshard_async(const std::vector<Tensor>& tensors, const std::vector<const DistSpec*>& specs,
                                  int64_t memory_cap) {
  return move_tensors(tensors, specs, memory_cap, true);
}

Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source) {
  Rank& rank = current_rank();
  if (tensor.is_dist()) {
    fail(ErrorCode::layout, "[distribute] {} is distributed already; use reshard(tensor, spec)",
         argument_text("tensor", tensor.get()));
  }
  const ProcessMesh* mesh = spec->mesh();
  check_mesh_in_world(mesh, rank.world());
  const Meta meta = tensor.meta();
  if (spec->rank() != meta.dims.rank()) {
    fail(ErrorCode::layout,
         "[distribute] layout {} on {} has {} dims, but {} has {}; use a layout with an entry for each dim",
         spec->text(), mesh->describe(), spec->rank(), argument_text("tensor", tensor.get()), meta.dims.rank());
  }
  check_keeps_values("distribute", meta, DistSpec::replicated(mesh, spec->rank()), spec);
  Tracer* const tracer = Tracer::current();
  if (tracer != nullptr) tracer->adopt(tensor);
  DenseTensor value = tensor.get().value;
  check_read(*value.storage(), rank.policies.view);
  check_communicates(value.device(), "distribute", "tensor");
  if (source.rank >= 0 && !mesh->coordinate(source.rank)) {
    fail(ErrorCode::layout, "[distribute] from_rank({}): that rank is not in {}; name one of its processes",
         source.rank, mesh->describe());
  }
  const std::optional<Coordinate> at = mesh->coordinate(rank.id());
  if (tracer != nullptr) {
    DenseTensor shard =
        at ? DenseTensor::allocate(value.device(), shard_meta(meta, *spec, *at), &tracer->meter) : absent_value(meta);
    shard.set_symbol(tracer->convert(Tracer::Conversion::distribute, value,
                                     {.meta = meta, .spec = spec, .device = value.device()}, source.rank));
    return make_dist(rank, meta, spec, std::move(shard));
  }
  if (!at) return make_dist(rank, meta, spec, absent_value(meta));
  const auto plan = plan_reshard(meta, DistSpec::replicated(mesh, spec->rank()), spec, 0, {"distribute", "tensor"});
  if (plan->steps.empty() || source.rank >= 0)
    value = rank.dry ? DenseTensor::allocate(value.device(), meta, rank.dry.get()) : clone(value);
  if (source.rank >= 0) {
    Communicator& all = rank.communicator(mesh);
    int root = 0;
    while (all.members()[static_cast<size_t>(root)] != source.rank) ++root;
    all.broadcast({"distribute", "tensor"}, value.raw(), static_cast<int64_t>(meta.bytes()), root, value.device())
        .wait();
  }
  if (source.rank >= 0)
    observe_move(rank, "distribute", "tensor", *plan, (mesh->size() - 1) * static_cast<int64_t>(meta.bytes()));
  return make_dist(rank, meta, spec, execute_reshard(rank, *plan, value, {"distribute", "tensor"}));
}

Tensor full_tensor(const Tensor& tensor) {
  const DistTensorImpl& impl = dist_impl(tensor, "full_tensor");
  if (Tracer* const tracer = Tracer::current()) {
    tracer->adopt(tensor);
    if (!impl.has_local_shard())
      tracer->refuse("full_tensor",
                     "on a rank outside the mesh the result is undefined, which a program cannot represent");
    DenseTensor whole = DenseTensor::allocate(impl.value.device(), impl.global, &tracer->meter);
    whole.set_symbol(tracer->convert(Tracer::Conversion::full_tensor, impl.value,
                                     {.meta = impl.global, .device = impl.value.device()}, -1));
    return Tensor(std::move(whole));
  }
  Tensor whole =
      move_tensor(tensor, DistSpec::replicated(impl.spec->mesh(), impl.spec->rank()), 0, false, "full_tensor");
  if (!impl.has_local_shard()) return {};
  return Tensor(whole.get().value.storage() == impl.value.storage() ? clone(impl.value) : whole.get().value);
}

}  // namespace dist
}  // namespace shard
