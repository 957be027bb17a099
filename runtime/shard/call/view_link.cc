#include "shard/call/view_link.h"

#include <fmt/format.h>

#include <algorithm>

#include "shard/call/plan_cache.h"
#include "shard/core/tracer.h"
#include "shard/dist/view_use.h"
#include "shard/reshard/execute.h"

namespace shard::call {
namespace {

/// The function that a Detachment holds. Its copies share the link.
struct Refresh {
  std::shared_ptr<ViewLink> link;
  void operator()() const { link->refresh(); }
};
struct WriteBack {
  std::shared_ptr<ViewLink> link;
  void operator()() const { link->write_back(); }
};

void copy_bytes(DenseTensor to, const DenseTensor& from) {
  if (Tracer* const tracer = Tracer::current()) tracer->copy(to, from);
  else if (from.storage()->state() != Storage::State::absent) copy_into(to, from);
}

void add_moves(PlannedTraffic& moves, const ReshardPlans& plans, std::string_view what, const Detachment& of,
               bool all) {
  for (const auto& plan : plans) add_reshard(moves, *plan, fmt::format("{} by [{}]", what, of.op), all);
}

/// The link of a storage that can be resharded both ways, else null.
ViewLink* whole_link_of(const Storage& copy) {
  const Detachment* const detachment = copy.detachment();
  return detachment != nullptr && detachment->refresh && detachment->write_back ? ViewLink::of(copy) : nullptr;
}

ViewLink* link_in(const Detachment& detachment) {
  if (const Refresh* const refresh = detachment.refresh.target<Refresh>()) return refresh->link.get();
  const WriteBack* const write_back = detachment.write_back.target<WriteBack>();
  return write_back == nullptr ? nullptr : write_back->link.get();
}

DenseTensor execute(Rank& rank, const ReshardPlans& plans, DenseTensor value, CommCause cause) {
  for (const auto& plan : plans) {
    if (!plan->steps.empty()) value = execute_reshard(rank, *plan, value, cause);
  }
  return value;
}

}  // namespace

void add_reshard(PlannedTraffic& moves, const ReshardPlan& plan, std::string_view what, bool all) {
  moves.bytes += plan.bytes;
  if (plan.bytes == 0 && (!all || plan.steps.empty())) return;
  moves.text += fmt::format(" {} ({}) from {} to {} ({} bytes);", what, to_string(plan.meta), plan.from->text(),
                            plan.to->text(), plan.bytes);
}

ReshardPlans plan_between(const Meta& from_meta, const DistSpec* from, const Meta& to_meta, const DistSpec* to,
                          SumPolicy sums) {
  const auto move = [&](const DistSpec* target) {
    return plan_reshard(from_meta, from, target, 0, {"reshard", "tensor"}, sums);
  };
  if (from_meta.dims == to_meta.dims) return {move(to)};
  if (from->layout().partial == to->layout().partial) return {plan_relayout(from_meta, from, to_meta.dims, to, sums)};
  // A relayout leaves pending reductions as they are, so the first step reshards and the second
  // changes the shape.
  Layout reduced(from->mesh(), from->rank());
  reduced.partial = to->layout().partial;
  for (int dim = 0; dim < reduced.rank; ++dim) {
    for (int k = 0; k < from->axes(dim).size(); ++k) {
      const int axis = from->axes(dim)[k];
      if (!to->partial(axis)) reduced.dims[static_cast<size_t>(dim)].push_back(axis);
    }
  }
  const DistSpec* const between = DistSpec::make(reduced);
  return {move(between), plan_relayout(from_meta, between, to_meta.dims, to, sums)};
}

ViewLink::ViewLink(Rank& rank, DenseTensor source, const DenseTensor& copy, std::shared_ptr<const ReshardPlan> forth,
                   std::shared_ptr<const ReshardPlan> back, CommCause cause)
    : rank_(rank), source_{std::move(source), forth ? forth->meta : back->after_meta, forth ? forth->from : back->to},
      copy_(copy.storage().get()), copy_meta_(copy.meta()), copy_symbol_(copy.symbol()),
      copy_global_(forth ? forth->after_meta : back->meta), copy_spec_(forth ? forth->to : back->from),
      sums_(rank.policies.sums), cause_(cause) {
  if (forth) forth_ = {std::move(forth)};
  if (back) back_ = {std::move(back)};
}

const ReshardPlans& ViewLink::forth() {
  if (forth_.empty()) forth_ = plan_between(source_.global, source_.spec, copy_global_, copy_spec_, sums_);
  return forth_;
}

const ReshardPlans& ViewLink::back() {
  if (back_.empty()) back_ = plan_between(copy_global_, copy_spec_, source_.global, source_.spec, sums_);
  return back_;
}

DenseTensor ViewLink::copy() const {
  copy_->retain();
  DenseTensor tensor(Ref<Storage>::adopt(copy_), copy_meta_);
  tensor.set_symbol(copy_symbol_);
  return tensor;
}

void ViewLink::refresh() { copy_bytes(copy(), execute(rank_, forth(), source_.shard, cause_)); }

void ViewLink::write_back() { copy_bytes(source_.shard, execute(rank_, back(), copy(), cause_)); }

DenseTensor ViewLink::follow(const LinkEnd& source) {
  DenseTensor before = std::exchange(source_.shard, source.shard);
  source_.global = source.global;
  source_.spec = source.spec;
  forth_.clear();
  back_.clear();
  return before;
}

LinkEnd ViewLink::source_of(LinkEnd tensor) {
  const ViewLink* const link = whole_link_of(*tensor.shard.storage());
  return link == nullptr ? tensor : link->source_;
}

void ViewLink::attach(const std::shared_ptr<ViewLink>& link, const Ref<Storage>& copy, uint64_t version, const char* op,
                      std::string_view argument, std::string from, std::string to) {
  const Ref<Storage> source = link->source_.shard.storage();
  const DType of = link->source_.global.dtype;  // another one than that of the bytes where a view of them has it
  if (const ViewLink* const of_source = whole_link_of(*source);
      of_source != nullptr && of_source->source_.global.dtype == of) {
    const uint64_t synced = source->detachment()->source_version;
    version = version == source->version() ? synced : synced - 1;
    link->follow(of_source->source_);
  }
  Detachment detachment{link->source_.shard.storage(),
                        version,
                        op,
                        std::string(argument),
                        std::move(from),
                        std::move(to),
                        {},
                        {},
                        source};
  const DType dtype = link->copy_global_.dtype;
  if (!loses_values(dtype, *link->source_.spec, *link->copy_spec_)) detachment.refresh = Refresh{link};
  if (!loses_values(dtype, *link->copy_spec_, *link->source_.spec)) detachment.write_back = WriteBack{link};
  copy->detach(std::move(detachment));
  if (whole_link_of(*copy) == nullptr) return;
  std::vector<DenseTensor> before;  // destroyed only after their links have changed
  copy->reparent_copies([&](const Detachment& of_copy) {
    ViewLink* const theirs = link_in(of_copy);
    if (theirs == nullptr || theirs->source_.global.dtype != of) return false;
    before.push_back(theirs->follow(link->source_));
    return true;
  });
}

ViewLink* ViewLink::of(const Storage& copy) {
  const Detachment* const detachment = copy.detachment();
  return detachment == nullptr ? nullptr : link_in(*detachment);
}

void StaleViews::add(Storage& storage, ViewPolicy policy) {
  if (policy == ViewPolicy::strict || !storage.stale()) return check_read(storage, policy);
  if (policy == ViewPolicy::temporary) return stale_.push_back(&storage);
  std::vector<Storage*> chain;
  for (Storage* s = &storage; s->stale(); s = s->detachment()->source.get()) {
    if (!s->detachment()->refresh) return check_read(*s, policy);
    chain.push_back(s);
  }
  for (auto s = chain.rbegin(); s != chain.rend(); ++s) {
    if (std::find(stale_.begin(), stale_.end(), *s) == stale_.end()) stale_.push_back(*s);
  }
}

void StaleViews::plan(PlannedTraffic& moves, bool all) const {
  for (const Storage* s : stale_) {
    if (ViewLink* const link = ViewLink::of(*s))
      add_moves(moves, link->forth(), "the refresh of a view", *s->detachment(), all);
  }
}

void StaleViews::settle(ViewPolicy policy) {
  for (Storage* s : stale_) {
    if (policy == ViewPolicy::temporary) check_read(*s, policy);
    else s->refresh_if_stale();
  }
  stale_.clear();
}

void plan_write_back(Storage& target, const char* op, PlannedTraffic& moves, bool all) {
  for (Storage* s = &target; s->detachment() != nullptr; s = s->detachment()->source.get()) {
    if (!s->detachment()->write_back) return check_write(*s, op, ViewPolicy::sync);
    if (ViewLink* const link = ViewLink::of(*s))
      add_moves(moves, link->back(), "the write through a view", *s->detachment(), all);
  }
}

void refresh_views(Rank& rank, const ProcessMesh& mesh, std::span<Storage* const> storages) {
  constexpr const char* kName = "refresh";
  StaleViews stale;
  for (Storage* const storage : storages) {
    if (storage->stale()) stale.add(*storage, ViewPolicy::sync);
  }
  if (stale.empty()) return;
  PlannedTraffic moves;
  stale.plan(moves, rank.policies.comm == CommPolicy::forbid_reshards);
  check_comm_policy(rank, kName, mesh, moves);
  const int64_t begin_ns = now_ns();
  const CommStats before = rank.stats();
  stale.settle(ViewPolicy::sync);
  if (rank.trace_calls)
    rank.trace.record(
        {.name = kName, .op = kName, .argument = {}, .bytes = moves.bytes, .begin_ns = begin_ns, .end_ns = now_ns()});
  if (rank.dry) PlanCache::of(rank).dry_calls.add(kName, "", rank.stats(), before);
  if (rank.observer)
    rank.observer(
        {.op = kName, .inputs = "", .reshards = moves.text, .outputs = "", .aliases = "", .bytes = moves.bytes});
}

}  // namespace shard::call
