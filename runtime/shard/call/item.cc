#include "shard/call/item.h"

#include <fmt/format.h>

#include <bit>

#include "shard/call/exchange.h"
#include "shard/call/plan.h"
#include "shard/call/view_link.h"
#include "shard/core/tracer.h"
#include "shard/dist/view_use.h"
#include "shard/reshard/execute.h"

namespace shard {
namespace {

constexpr CommCause kCause{"item", "tensor"};

Scalar value_of(const DenseTensor& tensor) {
  const Tensor host = to_device(Tensor(tensor), kCpu);
  return visit_dtype(host.dtype(), [&](auto tag) -> Scalar {
    using T = typename decltype(tag)::type;
    const T value = *host.get().value.data<T>();
    if constexpr (std::is_integral_v<T>) return static_cast<int64_t>(value);
    else return static_cast<double>(value);
  });
}

void check_one(const TensorImpl& tensor) {
  if (tensor.meta().numel() == 1) return;
  fail(ErrorCode::shape_mismatch,
       "[item] {} has {} elements, but must have one; reduce it (sum, max, ...) or slice it first",
       argument_text("tensor", tensor), tensor.meta().numel());
}

Scalar distributed_item(const DistTensorImpl& impl) {
  Rank& rank = current_rank();
  if (impl.owner != &rank) {
    fail(ErrorCode::wrong_rank,
         "[item] {} belongs to rank {}, but rank {} makes the call; each rank uses its own tensors",
         argument_text("tensor", impl), impl.owner->id(), rank.id());
  }
  if (rank.dry != nullptr) {
    fail(ErrorCode::no_data,
         "[item] {} belongs to a dry world, which has no data to branch on; pass the number in from outside",
         argument_text("tensor", impl));
  }
  const int64_t begin_ns = now_ns();
  call::StaleViews stale;
  stale.add(*impl.value.storage(), rank.policies.view);
  const ProcessMesh& mesh = *impl.spec->mesh();
  const DistSpec* const whole = DistSpec::replicated(&mesh, impl.spec->rank());
  const auto plan = plan_reshard(impl.global, impl.spec, whole, 0, {"item", "tensor"}, impl.owner->policies.sums);
  const bool broadcasts = mesh.size() != rank.world().size();
  const int64_t broadcast_bytes = broadcasts ? call::gather_bytes(rank.world().size(), sizeof(uint64_t)) : 0;
  call::PlannedTraffic traffic;
  traffic.bytes = plan->bytes + broadcast_bytes;
  if (!plan->steps.empty()) {
    traffic.text += fmt::format(" argument 'tensor' ({}) from {} to {} ({} bytes);", to_string(impl.global),
                                impl.spec->text(), whole->text(), plan->bytes);
  }
  if (broadcasts) traffic.text += fmt::format(" the value to ranks outside of the mesh ({} bytes);", broadcast_bytes);
  stale.plan(traffic, rank.policies.comm == CommPolicy::forbid_reshards);
  call::check_comm_policy(rank, kCause.op, mesh, traffic);
  stale.settle(rank.policies.view);
  observe_move(rank, kCause.op, kCause.argument, *plan, broadcast_bytes);
  const DenseTensor shard = execute_reshard(rank, *plan, impl.value, kCause);
  Scalar value = impl.has_local_shard() ? value_of(shard) : Scalar(0);
  if (broadcasts) {
    const bool integer = !is_floating(impl.global.dtype);
    const uint64_t mine[] = {integer ? std::bit_cast<uint64_t>(value.to<int64_t>())
                                     : std::bit_cast<uint64_t>(value.to<double>())};
    const uint64_t word = call::gather_words(rank, mine, kCause)[static_cast<size_t>(mesh.processes().front())];
    value = integer ? Scalar(std::bit_cast<int64_t>(word)) : Scalar(std::bit_cast<double>(word));
  }
  if (rank.trace_calls) {
    rank.trace.record({.name = kCause.op,
                       .op = kCause.op,
                       .argument = kCause.argument,
                       .bytes = traffic.bytes,
                       .begin_ns = begin_ns,
                       .end_ns = now_ns()});
  }
  return value;
}

}  // namespace

Scalar item(const Tensor& tensor) {
  if (Tracer* const tracer = Tracer::current()) {
    tracer->refuse(
        "item",
        fmt::format("it reads the value of {}, which is known only when the program runs, so nothing can branch on it. "
                    "Return the tensor and branch outside, or compute both branches and select with where",
                    tensor.get().describe()));
  }
  check_one(tensor.get());
  if (tensor.is_dist()) return distributed_item(dist_impl(tensor));
  const DenseTensor& value = tensor.get().value;
  check_read(*value.storage(), view_policy());
  if (!value.has_data() && value.symbol() != 0) fail_escaped("item", tensor.get().describe());
  if (!value.has_data()) {
    fail(ErrorCode::no_data,
         "[item] {} belongs to a dry world, which has no data to branch on; pass the number in from outside",
         argument_text("tensor", tensor.get()));
  }
  return value_of(value);
}

bool is_true(const Tensor& tensor) {
  const Scalar value = item(tensor);
  return value.is_integer() ? value.to<int64_t>() != 0 : value.to<double>() != 0;
}

}  // namespace shard
