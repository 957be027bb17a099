#include "call/view_link.h"

#include <fmt/format.h>

#include <algorithm>

#include "call/plan_cache.h"
#include "core/recorder.h"
#include "dist/view_use.h"
#include "reshard/execute.h"

namespace shard::call {
namespace {

/// What a Detachment holds: copies of a function share the link.
struct Refresh {
  std::shared_ptr<ViewLink> link;
  void operator()() const { link->refresh(); }
};
struct WriteBack {
  std::shared_ptr<ViewLink> link;
  void operator()() const { link->write_back(); }
};

void copy_bytes(DenseTensor to, const DenseTensor& from) {
  if (Recorder* const recorder = Recorder::current())
    recorder->copy(to, from);
  else if (from.storage()->state() != Storage::State::absent)
    copy_into(to, from);
}

void add_move(PlannedMoves& moves, const ReshardPlan& plan, std::string_view what, const Detachment& of, bool all) {
  moves.bytes += plan.bytes;
  if (plan.bytes != 0 || (all && !plan.steps.empty())) {
    moves.text += fmt::format(" {} by [{}] ({}) from {} to {} ({} bytes);", what, of.op, to_string(plan.meta),
                              plan.from->text(), plan.to->text(), plan.bytes);
  }
}

}  // namespace

std::shared_ptr<const ReshardPlan> reverse(const ReshardPlan& plan) {
  const bool same = plan.meta.dims == plan.after_meta.dims;
  return same ? plan_reshard(plan.meta, plan.to, plan.from, 0, {"reshard", "tensor"}, plan.sums)
              : plan_relayout(plan.after_meta, plan.to, plan.meta.dims, plan.from);
}

ViewLink::ViewLink(Rank& rank, DenseTensor source, const DenseTensor& copy, std::shared_ptr<const ReshardPlan> forth,
                   std::shared_ptr<const ReshardPlan> back, CommCause cause)
    : rank_(rank),
      source_(std::move(source)),
      copy_(copy.storage().get()),
      copy_meta_(copy.meta()),
      copy_symbol_(copy.symbol()),
      forth_(std::move(forth)),
      back_(std::move(back)),
      cause_(cause) {}

const ReshardPlan& ViewLink::forth() {
  if (!forth_) forth_ = reverse(*back_);
  return *forth_;
}

const ReshardPlan& ViewLink::back() {
  if (!back_) back_ = reverse(*forth_);
  return *back_;
}

DenseTensor ViewLink::copy() const {
  copy_->retain();
  DenseTensor tensor(Ref<Storage>::adopt(copy_), copy_meta_);
  tensor.set_symbol(copy_symbol_);
  return tensor;
}

void ViewLink::refresh() { copy_bytes(copy(), execute_reshard(rank_, forth(), source_, cause_)); }

void ViewLink::write_back() { copy_bytes(source_, execute_reshard(rank_, back(), copy(), cause_)); }

void ViewLink::attach(const std::shared_ptr<ViewLink>& link, const Ref<Storage>& copy, uint64_t version, const char* op,
                      std::string_view argument, std::string from, std::string to) {
  const ReshardPlan& known = link->forth_ ? *link->forth_ : *link->back_;
  const DistSpec *source = link->forth_ ? known.from : known.to, *spec = link->forth_ ? known.to : known.from;
  Detachment detachment{link->source_.storage(), version,       op, std::string(argument),
                        std::move(from),         std::move(to), {}, {}};
  if (!loses_values(known.meta.dtype, *source, *spec)) detachment.refresh = Refresh{link};
  if (!loses_values(known.meta.dtype, *spec, *source)) detachment.write_back = WriteBack{link};
  copy->detach(std::move(detachment));
}

ViewLink* ViewLink::of(const Storage& copy) {
  const Detachment* const detachment = copy.detachment();
  if (detachment == nullptr) return nullptr;
  if (const Refresh* const refresh = detachment->refresh.target<Refresh>()) return refresh->link.get();
  const WriteBack* const write_back = detachment->write_back.target<WriteBack>();
  return write_back == nullptr ? nullptr : write_back->link.get();
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

void StaleViews::plan(PlannedMoves& moves, bool all) const {
  for (const Storage* s : stale_) {
    if (ViewLink* const link = ViewLink::of(*s))
      add_move(moves, link->forth(), "the refresh of a view", *s->detachment(), all);
  }
}

void StaleViews::settle(ViewPolicy policy) {
  for (Storage* s : stale_) {
    if (policy == ViewPolicy::temporary)
      check_read(*s, policy);
    else
      s->refresh_if_stale();
  }
  stale_.clear();
}

void plan_write_back(Storage& target, const char* op, PlannedMoves& moves, bool all) {
  for (Storage* s = &target; s->detachment() != nullptr; s = s->detachment()->source.get()) {
    if (!s->detachment()->write_back) return check_write(*s, op, ViewPolicy::sync);
    if (ViewLink* const link = ViewLink::of(*s))
      add_move(moves, link->back(), "the write through a view", *s->detachment(), all);
  }
}

void refresh_views(Rank& rank, const ProcessMesh& mesh, std::span<Storage* const> storages) {
  constexpr const char* kName = "refresh";
  StaleViews stale;
  for (Storage* const storage : storages) {
    if (storage->stale()) stale.add(*storage, ViewPolicy::sync);
  }
  if (stale.empty()) return;
  PlannedMoves moves;
  stale.plan(moves, rank.policies.comm == CommPolicy::forbid_moves);
  check_comm_policy(rank, kName, mesh, moves);
  const int64_t begin_ns = now_ns();
  const CommStats before = rank.stats();
  stale.settle(ViewPolicy::sync);
  if (rank.trace_calls)
    rank.trace.record({.name = kName, .op = kName, .argument = {}, .bytes = moves.bytes, .begin_ns = begin_ns, .end_ns = now_ns()});
  PlanCache& cache = PlanCache::of(rank);
  if (rank.dry) cache.dry_calls.add(kName, "", rank.stats(), before);
  if (cache.observer)
    cache.observer(
        {.op = kName, .inputs = "", .moves = moves.text, .outputs = "", .aliases = "", .bytes = moves.bytes});
}

}  // namespace shard::call
