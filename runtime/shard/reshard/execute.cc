#include "shard/reshard/execute.h"

#include <algorithm>
#include <numeric>

#include "shard/comm/buffers.h"
#include "shard/core/tracer.h"
#include "shard/reshard/boxes.h"

namespace shard {
namespace {

using Kind = ReshardStep::Kind;

Dims zeros(const Dims& dims) { return Dims::filled(dims.rank(), 0); }

/// One step of one tensor on this rank: its local shard before and after. A shard without data (of
/// a rank that only counts) is not copied.
struct Move {
  const ReshardStep* step;
  DenseTensor in;
  DenseTensor out;
};

/// A collective in flight, and the copies out of its result that follow. It holds the buffers that
/// are read, not those that are written: their storages hold it, and wait for it before they free
/// their bytes.
class UnderWay final : public Work::State {
 public:
  struct Part {
    void* to;
    DType dtype;
    int64_t count;
  };
  UnderWay(Work work, Device device, DenseTensor packed, DenseTensor read, std::vector<Part> parts)
      : device_(device), packed_(std::move(packed)), read_(std::move(read)), work_(std::move(work)),
        parts_(std::move(parts)) {}

  bool pending() const { return work_.pending(); }
  void wait() override {
    work_.wait();
    if (!packed_.defined() || packed_.raw() == nullptr) return;
    const char* from = packed_.data<char>();
    for (const Part& part : parts_) {
      convert_floats(device_, part.to, part.dtype, from, packed_.dtype(), part.count);
      from += static_cast<size_t>(part.count) * size_of(packed_.dtype());
    }
  }

 private:
  Device device_;
  DenseTensor packed_, read_;
  Work work_;  // destroyed, and so waited for, before the buffers are freed
  std::vector<Part> parts_;
};

/// A step of one or more tensors, which have kind, axes and dtype in common, as one collective.
class StepRun {
 public:
  /// `later`: the collective is left in flight, attached to the storages of the tensors, if it
  /// works on their own buffers or is a sum of several tensors.
  StepRun(Rank& rank, std::span<Move> moves, CommCause cause, bool later)
      : rank_(rank), moves_(moves), step_(*moves[0].step), dtype_(step_.dtype), element_(size_of(dtype_)),
        cause_(cause), later_(later) {
    before_at_ = step_.before.mesh->coordinate(rank.id());
    after_at_ = step_.after.mesh->coordinate(rank.id());
    device_ = before_at_ ? moves[0].in.device() : rank.device();
    if (after_at_) check_communicates(device_, cause.op, cause.argument);
  }

  void run() {
    if (!before_at_ && !after_at_) return;
    // Reductions convert their result themselves, so they may complete later.
    const bool converts_now = converts() && !step_.reduces();
    later_ = later_ && !converts_now;
    for (Move& move : moves_) {
      if (before_at_) move.in = as_floats(move.in, dtype_);
      const DType made = converts_now ? dtype_ : step_.after_dtype;
      move.out = after_at_ ? allocate({shard_box(move.step->after, move.step->after_dims, *after_at_).dims, made})
                           : absent_value({move.step->after_dims, made});
    }
    move_all();
    for (Move& move : moves_) {
      if (converts_now) move.out = as_floats(move.out, step_.after_dtype);
    }
  }

 private:
  bool converts() const { return step_.after_dtype != dtype_; }
  DenseTensor as_floats(const DenseTensor& tensor, DType dtype) const {
    if (device_ == kCpu || tensor.dtype() == dtype || !tensor.has_data()) return convert_floats(tensor, dtype);
    DenseTensor result = allocate({tensor.dims(), dtype});
    convert_floats(device_, result.raw(), dtype, tensor.raw(), tensor.dtype(), tensor.numel());
    return result;
  }

  void move_all() {
    std::vector<Move*> sending;
    for (Move& move : moves_) {
      if (move.step->bytes != 0) sending.push_back(&move);
      else copy_local(move);
    }
    if (sending.empty()) return;
    switch (step_.kind) {
      case Kind::reduce_scatter: return reduce_scatter(sending);
      case Kind::all_reduce: return all_reduce(sending);
      case Kind::all_gather:
        if (sending.size() == 1 && gathers_runs()) return all_gather(*sending[0]);
        return exchange(sending);
      case Kind::relayout:
        if (!box_space(step_)) {
          for (Move* move : sending) relayout_runs(*move);
          return;
        }
        return exchange(sending);
      case Kind::all_to_all:
      case Kind::permute:
      case Kind::exchange:
      case Kind::send_recv: return exchange(sending);
      case Kind::slice:
      case Kind::copy:
      case Kind::partial_init: break;
    }
    fail(ErrorCode::internal, "reshard step {} sends nothing", to_string(step_.kind));
  }

  /// Allocates the buffers of a step, without bytes on a rank that only counts.
  DenseTensor allocate(const Meta& meta) const { return DenseTensor::allocate(device_, meta, rank_.dry.get()); }

  Communicator& group() const {
    return step_.group_axis() >= 0 ? rank_.communicator(step_.group, step_.group_axis())
                                   : rank_.communicator(step_.group);
  }
  /// The position in the group of the process with this index in `mesh`.
  int position(const ProcessMesh& mesh, int index) const {
    if (step_.group_axis() >= 0) return mesh.coordinate_at(index)[static_cast<size_t>(step_.group_axis())];
    if (step_.group == &mesh) return index;
    const auto& all = step_.group->processes();
    return static_cast<int>(std::lower_bound(all.begin(), all.end(), mesh.processes()[static_cast<size_t>(index)]) -
                            all.begin());
  }

  /// The completion of a collective that reads and writes the buffers of `move` themselves.
  void finish(Work work, Move& move) const {
    if (!later_ || !work.pending()) return work.wait();
    const auto shared = std::make_shared<Work>(
        std::make_unique<UnderWay>(std::move(work), device_, DenseTensor(), move.in, std::vector<UnderWay::Part>()));
    move.in.storage()->set_pending(shared, Storage::Use::reads);
    move.out.storage()->set_pending(shared, Storage::Use::writes);
  }

  void copy_part(const DenseTensor& to, const Dims& to_dims, const Dims& to_begin, const DenseTensor& from,
                 const Dims& from_dims, const Dims& from_begin, const Dims& extent) const {
    if (to.storage()->data() == nullptr || from.storage()->data() == nullptr) return;
    copy_box(device_, {to.data<char>(), to_dims, to_begin}, {from.data<char>(), from_dims, from_begin}, extent,
             size_of(to.dtype()));
  }

  /// A step for which this rank has all data.
  void copy_local(Move& move) const {
    const ReshardStep& step = *move.step;
    if (move.out.numel() == 0 || !after_at_) return;
    if (step.kind == Kind::partial_init && !is_mean(step.type) &&
        (*before_at_)[static_cast<size_t>(step.axes[0])] != 0) {
      // An average of equal values is that value; any other type has the value on one process and
      // identities elsewhere.
      if (move.out.raw() != nullptr) fill_identity(device_, move.out.raw(), move.out.numel(), dtype_, step.type);
    } else if (step.reduces() || step.kind == Kind::partial_init || step.kind == Kind::copy) {
      copy_part(move.out, move.out.dims(), zeros(move.out.dims()), move.in, move.in.dims(), zeros(move.in.dims()),
                move.out.dims());
    } else if (const auto space = box_space(step)) {
      const ShardBox held = box_of(*space, space->before, space->before_grain, *before_at_);
      const ShardBox wanted = box_of(*space, space->after, space->after_grain, *after_at_);
      Dims begin;
      for (int d = 0; d < held.begin.rank(); ++d) begin.push_back(wanted.begin[d] - held.begin[d]);
      copy_part(move.out, wanted.dims, zeros(wanted.dims), move.in, held.dims, begin, wanted.dims);
    } else {
      copy_runs(move);
    }
  }

  /// True where shards along the first dim (after dims of size 1), sharded by one axis, are already
  /// consecutive.
  bool gathers_runs() const {
    if (step_.group_axis() < 0) return false;
    const int dim = step_.before.dim_of(step_.group_axis());
    return shard_box(step_.after, step_.dims, *after_at_).dims.numel(0, dim) == 1;
  }
  void all_gather(Move& move) const {
    std::vector<int64_t> sizes;
    Coordinate at = *before_at_;
    for (int i = 0; i < step_.group->size(step_.group_axis()); ++i) {
      at[static_cast<size_t>(step_.group_axis())] = i;
      sizes.push_back(shard_box(step_.before, step_.dims, at).dims.numel() * static_cast<int64_t>(element_));
    }
    finish(group().all_gather(cause_, move.in.raw(), move.out.raw(), sizes, device_), move);
  }

  void exchange(std::span<Move*> moves) const {
    if (moves.size() > 1) return exchange_packed(moves);
    const BoxSpace space = *box_space(*moves[0]->step);
    std::vector<BoxTransfer> sends;
    std::vector<BoxTransfer> receives;
    visit_boxes(space, [&](const BoxTransfer& box, bool sent, int) { (sent ? sends : receives).push_back(box); });
    finish(group().exchange(cause_, moves[0]->in.raw(), sends, moves[0]->out.raw(), receives, element_, device_),
           *moves[0]);
  }

  /// Calls visit(box, sent, peer) for the boxes that this rank sends, and then for those that it
  /// receives.
  template <class Visit>
  void visit_boxes(const BoxSpace& space, Visit&& visit) const {
    const ProcessMesh& before = *space.before.mesh;
    const ProcessMesh& after = *space.after.mesh;
    if (before_at_) {
      const Dims mine = box_of(space, space.before, space.before_grain, *before_at_).dims;
      for (const BoxMove& move : boxes_sent_by(space, rank_.id())) {
        const Dims theirs = box_of(space, space.after, space.after_grain, after.coordinate_at(move.index)).dims;
        visit({position(after, move.index), mine, move.from_begin, theirs, move.to_begin, move.extent}, true,
              move.process);
      }
    }
    if (after_at_) {
      const Dims mine = box_of(space, space.after, space.after_grain, *after_at_).dims;
      for (const BoxMove& move : boxes_received_by(space, rank_.id())) {
        const Dims theirs = box_of(space, space.before, space.before_grain, before.coordinate_at(move.index)).dims;
        visit({position(before, move.index), theirs, move.from_begin, mine, move.to_begin, move.extent}, false,
              move.process);
      }
    }
  }

  /// Boxes of several tensors are consecutive in one buffer per direction, ordered by peer, then by
  /// tensor.
  void exchange_packed(std::span<Move*> moves) const {
    struct Part {
      Move* move;
      BoxTransfer box;
    };
    std::vector<Part> sent;
    std::vector<Part> received;
    for (Move* move : moves) {
      visit_boxes(*box_space(*move->step), [&](const BoxTransfer& box, bool outgoing, int peer) {
        if (peer != rank_.id()) (outgoing ? sent : received).push_back({move, box});
        else if (outgoing)
          copy_part(move->out, box.to_dims, box.to_begin, move->in, box.from_dims, box.from_begin, box.extent);
      });
    }
    Communicator& all = group();
    const auto sizes_of = [&](std::vector<Part>& parts) {
      std::stable_sort(parts.begin(), parts.end(),
                       [](const Part& a, const Part& b) { return a.box.peer < b.box.peer; });
      std::vector<int64_t> sizes(static_cast<size_t>(all.size()), 0);
      for (const Part& part : parts)
        sizes[static_cast<size_t>(part.box.peer)] += part.box.extent.numel() * static_cast<int64_t>(element_);
      return sizes;
    };
    const auto send_sizes = sizes_of(sent);
    const auto receive_sizes = sizes_of(received);
    const DenseTensor send = buffer_of(send_sizes);
    const DenseTensor receive = buffer_of(receive_sizes);
    size_t begin = 0;
    for (const Part& part : sent) {
      copy_part(part_of(send, begin, part.box.extent), part.box.extent, zeros(part.box.extent), part.move->in,
                part.box.from_dims, part.box.from_begin, part.box.extent);
    }
    all.all_to_all(cause_, send.raw(), send_sizes, receive.raw(), receive_sizes, device_).wait();
    begin = 0;
    for (const Part& part : received) {
      copy_part(part.move->out, part.box.to_dims, part.box.to_begin, part_of(receive, begin, part.box.extent),
                part.box.extent, zeros(part.box.extent), part.box.extent);
    }
  }
  DenseTensor buffer_of(std::span<const int64_t> bytes) const {
    return allocate(
        {{std::accumulate(bytes.begin(), bytes.end(), int64_t{0}) / static_cast<int64_t>(element_)}, dtype_});
  }
  /// The next part of a buffer, reshaped; advances `begin` (in bytes) past it.
  DenseTensor part_of(const DenseTensor& buffer, size_t& begin, const Dims& extent) const {
    const size_t at = begin;
    begin += static_cast<size_t>(extent.numel()) * element_;
    return {buffer.storage(), {extent, dtype_}, at};
  }

  /// Packs the parts for member 0 of all tensors, then those for member 1, ...
  void reduce_scatter(std::span<Move*> moves) const {
    const int axis = step_.group_axis();
    std::vector<int64_t> counts;
    DenseTensor send;
    // Parts of the first dim (after dims of size 1) are already consecutive.
    const bool as_it_is = moves.size() == 1 && moves[0]->in.dims().numel(0, step_.after.dim_of(axis)) == 1;
    if (as_it_is) send = moves[0]->in;
    else
      send = allocate({{std::accumulate(moves.begin(), moves.end(), int64_t{0},
                                        [](int64_t n, const Move* move) { return n + move->in.numel(); })},
                       dtype_});
    size_t begin = 0;
    for (int i = 0; i < step_.group->size(axis); ++i) {
      Coordinate at = *before_at_;
      at[static_cast<size_t>(axis)] = i;
      counts.push_back(0);
      for (Move* move : moves) {
        const ShardBox whole = shard_box(move->step->before, move->step->dims, at);
        const ShardBox part = shard_box(move->step->after, move->step->dims, at);
        counts.back() += part.dims.numel();
        if (as_it_is) continue;
        Dims from;
        for (int d = 0; d < whole.begin.rank(); ++d) from.push_back(part.begin[d] - whole.begin[d]);
        copy_part(part_of(send, begin, part.dims), part.dims, zeros(part.dims), move->in, whole.dims, from, part.dims);
      }
    }
    if (moves.size() == 1 && !converts()) {
      Work work = group().reduce_scatter(cause_, send.raw(), moves[0]->out.raw(), counts, dtype_, step_.type, device_);
      return as_it_is ? finish(std::move(work), *moves[0]) : work.wait();
    }
    const DenseTensor received =
        allocate({{counts[static_cast<size_t>((*before_at_)[static_cast<size_t>(axis)])]}, dtype_});
    finish_packed(group().reduce_scatter(cause_, send.raw(), received.raw(), counts, dtype_, step_.type, device_),
                  received, moves, send);
  }
  void copy_into_shard(Move& move, const DenseTensor& value) const {
    copy_part(move.out, move.out.dims(), zeros(move.out.dims()), value, value.dims(), zeros(value.dims()),
              value.dims());
  }

  void all_reduce(std::span<Move*> moves) const {
    if (moves.size() == 1 && !converts()) {
      copy_into_shard(*moves[0], moves[0]->in);
      return finish_packed(
          group().all_reduce(cause_, moves[0]->out.raw(), moves[0]->out.numel(), dtype_, step_.type, device_), {},
          moves);
    }
    const DenseTensor all =
        allocate({{std::accumulate(moves.begin(), moves.end(), int64_t{0},
                                   [](int64_t n, const Move* move) { return n + move->in.numel(); })},
                  dtype_});
    size_t begin = 0;
    for (const Move* move : moves) {
      const DenseTensor part = part_of(all, begin, move->in.dims());
      copy_part(part, part.dims(), zeros(part.dims()), move->in, part.dims(), zeros(part.dims()), part.dims());
    }
    finish_packed(group().all_reduce(cause_, all.raw(), all.numel(), dtype_, step_.type, device_), all, moves);
  }

  /// The completion of a collective whose result `packed` holds the shards of `moves` one after the
  /// other; undefined where the result is in their own buffers. The buffers that it reads are kept
  /// alive until then.
  void finish_packed(Work work, const DenseTensor& packed, std::span<Move*> moves, const DenseTensor& read = {}) const {
    std::vector<UnderWay::Part> parts;
    for (const Move* move : moves) parts.push_back({move->out.raw(), move->out.dtype(), move->out.numel()});
    auto under_way = std::make_unique<UnderWay>(std::move(work), device_, packed, read, std::move(parts));
    if (!later_ || !under_way->pending()) return under_way->wait();
    const auto shared = std::make_shared<Work>(std::move(under_way));
    for (Move* move : moves) {
      if (read.defined() && read.storage() == move->in.storage())
        read.storage()->set_pending(shared, Storage::Use::reads);
      move->out.storage()->set_pending(shared, Storage::Use::writes);
    }
  }

  /// A relayout whose shards are not boxes: runs of elements are packed for each process.
  void relayout_runs(Move& move) const {
    const ReshardStep& step = *move.step;
    const ProcessMesh& mesh = *step.before.mesh;
    const auto held = index_runs(step.dims, shard_box(step.before, step.dims, *before_at_));
    const auto wanted = index_runs(step.after_dims, shard_box(step.after, step.after_dims, *after_at_));
    std::vector<int64_t> send_sizes(static_cast<size_t>(mesh.size()), 0);
    std::vector<int64_t> receive_sizes(static_cast<size_t>(mesh.size()), 0);
    std::vector<std::vector<IndexRun>> outgoing(static_cast<size_t>(mesh.size()));
    std::vector<std::vector<IndexRun>> incoming(static_cast<size_t>(mesh.size()));
    const auto bytes = [&](const std::vector<IndexRun>& runs) {
      return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                             [](int64_t n, const IndexRun& run) { return n + run.end - run.begin; }) *
             static_cast<int64_t>(element_);
    };
    for (int i = 0; i < mesh.size(); ++i) {
      const Coordinate peer = mesh.coordinate_at(i);
      const auto k = static_cast<size_t>(i);
      if (sends_to(step.before, *before_at_, peer))
        outgoing[k] = intersect(held, index_runs(step.after_dims, shard_box(step.after, step.after_dims, peer)));
      if (sends_to(step.before, peer, *before_at_))
        incoming[k] = intersect(wanted, index_runs(step.dims, shard_box(step.before, step.dims, peer)));
      send_sizes[k] = bytes(outgoing[k]);
      receive_sizes[k] = bytes(incoming[k]);
    }
    const DenseTensor send = buffer_of(send_sizes);
    const DenseTensor receive = buffer_of(receive_sizes);
    size_t begin = 0;
    for (const auto& runs : outgoing) {
      walk(held, runs,
           [&](size_t position, size_t length) { copy_run(send, begin, move.in, position, length), begin += length; });
    }
    rank_.communicator(&mesh).all_to_all(cause_, send.raw(), send_sizes, receive.raw(), receive_sizes, device_).wait();
    begin = 0;
    for (const auto& runs : incoming) {
      walk(wanted, runs, [&](size_t position, size_t length) {
        copy_run(move.out, position, receive, begin, length), begin += length;
      });
    }
  }
  /// The same where every process already has its elements.
  void copy_runs(Move& move) const {
    const auto held = index_runs(move.step->dims, shard_box(move.step->before, move.step->dims, *before_at_));
    const auto wanted =
        index_runs(move.step->after_dims, shard_box(move.step->after, move.step->after_dims, *after_at_));
    size_t begin = 0;
    walk(held, intersect(held, wanted), [&](size_t position, size_t length) {
      copy_run(move.out, begin, move.in, position, length), begin += length;
    });
  }
  void copy_run(const DenseTensor& to, size_t to_begin, const DenseTensor& from, size_t from_begin,
                size_t bytes) const {
    if (to.storage()->data() != nullptr && from.storage()->data() != nullptr)
      copy_bytes(device_, to.data<char>() + to_begin, device_, from.data<char>() + from_begin, bytes);
  }
  /// Calls visit(byte position, bytes) for each of `runs` in a shard that holds the runs `outer`
  /// one after the other.
  template <class Visit>
  void walk(const std::vector<IndexRun>& outer, const std::vector<IndexRun>& runs, Visit&& visit) const {
    size_t k = 0;
    int64_t position = 0;  // of outer[k] in the shard
    for (const IndexRun& run : runs) {
      while (outer[k].end <= run.begin) {
        position += outer[k].end - outer[k].begin;
        ++k;
      }
      visit(static_cast<size_t>(position + run.begin - outer[k].begin) * element_,
            static_cast<size_t>(run.end - run.begin) * element_);
    }
  }

  Rank& rank_;
  std::span<Move> moves_;
  const ReshardStep& step_;
  DType dtype_;
  size_t element_;
  CommCause cause_;
  bool later_;
  Device device_;                        // of the shards of this rank; where it had none, the rank's default
  std::optional<Coordinate> before_at_;  // nothing on a rank outside the mesh
  std::optional<Coordinate> after_at_;
};

void check_movable(const DenseTensor& shard, CommCause cause) {
  if (shard.symbol() != 0 && !shard.has_data())
    fail_escaped(cause.op, fmt::format("argument '{}' ({} here)", cause.argument, to_string(shard.meta())));
  check_communicates(shard.device(), cause.op, cause.argument);
}

/// Whether to share collectives is decided alike on all ranks, also on those that hold nothing, so that devices cannot decide it.
void check_one_device(std::span<const DenseTensor> shards, CommCause cause) {
  const DenseTensor* first = nullptr;
  for (const DenseTensor& shard : shards) {
    if (shard.storage()->state() == Storage::State::absent) continue;
    if (first == nullptr) first = &shard;
    if (shard.device() == first->device()) continue;
    fail(ErrorCode::mixed_device,
         "[{}] argument '{}' has tensors on {} and on {}; reshard those of each device in a call of their own",
         cause.op, cause.argument, to_string(first->device()), to_string(shard.device()));
  }
}

/// True when the plans can share their collectives.
bool equal_steps(const ReshardPlan& a, const ReshardPlan& b) {
  const auto same = [](const ReshardStep& x, const ReshardStep& y) {
    return x.kind == y.kind && x.axes == y.axes && x.group == y.group && x.before.mesh == y.before.mesh &&
           x.after.mesh == y.after.mesh && x.type == y.type && x.dtype == y.dtype && x.after_dtype == y.after_dtype;
  };
  return a.meta.dtype == b.meta.dtype &&
         std::equal(a.steps.begin(), a.steps.end(), b.steps.begin(), b.steps.end(), same);
}

}  // namespace

DenseTensor execute_reshard(Rank& rank, const ReshardPlan& plan, const DenseTensor& shard, CommCause cause,
                            bool later) {
  if (Tracer* const tracer = Tracer::current()) return tracer->reshard(plan, shard, cause.op, cause.argument);
  check_movable(shard, cause);
  DenseTensor value = shard;
  for (const ReshardStep& step : plan.steps) {
    Move move{&step, std::move(value), {}};
    StepRun(rank, {&move, 1}, cause, later && &step == &plan.steps.back()).run();
    value = move.out.defined() ? std::move(move.out) : std::move(move.in);
  }
  // A rank outside the new mesh has taken part in nothing, or has only sent.
  return plan.to->mesh()->coordinate(rank.id()) ? value : absent_value(plan.after_meta);
}

std::vector<DenseTensor> execute_reshards(Rank& rank, std::span<const ReshardPlan* const> plans,
                                          std::span<const DenseTensor> shards, CommCause cause, bool later) {
  std::vector<DenseTensor> values(shards.begin(), shards.end());
  if (Tracer::current() != nullptr) {
    for (size_t i = 0; i < plans.size(); ++i) values[i] = execute_reshard(rank, *plans[i], shards[i], cause);
    return values;
  }
  for (const DenseTensor& shard : shards) check_movable(shard, cause);
  check_one_device(shards, cause);
  std::vector<bool> done(plans.size(), false);
  for (size_t first = 0; first < plans.size(); ++first) {
    if (done[first]) continue;
    std::vector<size_t> batch;
    for (size_t i = first; i < plans.size(); ++i) {
      if (done[i] || !equal_steps(*plans[first], *plans[i])) continue;
      done[i] = true;
      batch.push_back(i);
    }
    for (size_t s = 0; s < plans[first]->steps.size(); ++s) {
      std::vector<Move> moves;
      for (size_t i : batch) moves.push_back({&plans[i]->steps[s], std::move(values[i]), {}});
      StepRun(rank, moves, cause, later && s + 1 == plans[first]->steps.size()).run();
      for (size_t i = 0; i < batch.size(); ++i)
        values[batch[i]] = moves[i].out.defined() ? std::move(moves[i].out) : std::move(moves[i].in);
    }
  }
  for (size_t i = 0; i < plans.size(); ++i) {
    if (!plans[i]->to->mesh()->coordinate(rank.id())) values[i] = absent_value(plans[i]->after_meta);
  }
  return values;
}

void observe_move(const Rank& rank, std::string_view op, std::string_view argument, const ReshardPlan& plan,
                  int64_t more_bytes) {
  if (!rank.observer || Tracer::current() != nullptr) return;
  const std::string name(argument);
  rank.observer({.op = std::string(op),
                 .inputs = name + " " + plan.from->text(),
                 .reshards = plan.steps.empty() ? "" : name + ": " + plan.describe(),
                 .outputs = "out " + plan.to->text(),
                 .aliases = "",
                 .bytes = plan.bytes + more_bytes});
}

}  // namespace shard
