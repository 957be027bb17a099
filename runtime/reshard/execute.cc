#include "reshard/execute.h"

#include <cstring>

#include "comm/reduce.h"
#include "core/box_copy.h"

namespace shard {
namespace {

using Kind = ReshardStep::Kind;

/// The pieces of one step on this rank's line along the step's axis.
class StepRun {
 public:
  StepRun(Rank& rank, const ReshardStep& step, DType dtype, CommCause cause)
      : rank_(rank), step_(step), element_(size_of(dtype)), cause_(cause), at_(*step.before.mesh->coordinate(rank.id())) {}

  DenseTensor run(const DenseTensor& piece) {
    switch (step_.kind) {
      case Kind::all_gather: return all_gather(piece);
      case Kind::all_to_all: return all_to_all(piece);
      case Kind::reduce_scatter: return reduce_scatter(piece);
      case Kind::all_reduce: return all_reduce(piece);
      case Kind::slice: return slice(piece);
      case Kind::partial_init: return partial_init(piece);
      case Kind::relayout: return relayout(piece);
    }
    fail(ErrorCode::internal, "reshard step {} does not exist", static_cast<int>(step_.kind));
  }

 private:
  int members() const { return step_.before.mesh->size(step_.axis); }
  Coordinate member(int i) const {
    Coordinate at = at_;
    at[static_cast<size_t>(step_.axis)] = i;
    return at;
  }
  Piece before(const Coordinate& at) const { return local_piece(step_.before, step_.dims, at); }
  Piece after(const Coordinate& at) const { return local_piece(step_.after, step_.after_dims, at); }
  DenseTensor allocate(const DenseTensor& like) const {
    return DenseTensor::allocate(kCpu, {after(at_).dims, like.dtype()});
  }
  Communicator& line() { return rank_.communicator(step_.before.mesh, step_.axis); }
  int64_t bytes(const Dims& dims) const { return dims.numel() * static_cast<int64_t>(element_); }

  /// `inner` has its begin in global indices; its place within `outer`.
  static Dims within(const Dims& inner_begin, const Dims& outer_begin) {
    Dims begin = inner_begin;
    for (int d = 0; d < begin.rank(); ++d) begin[d] -= outer_begin[d];
    return begin;
  }
  static Dims zeros(const Dims& dims) { return Dims::filled(dims.rank(), 0); }

  DenseTensor all_gather(const DenseTensor& piece) {
    std::vector<int64_t> sizes;
    for (int i = 0; i < members(); ++i) sizes.push_back(bytes(before(member(i)).dims));
    DenseTensor out = allocate(piece);
    const Piece whole = after(at_);
    // Pieces along the first dim (behind dims of size 1) already lie one after the other.
    if (whole.dims.numel(0, step_.dim) == 1) {
      line().all_gather(cause_, piece.raw(), out.raw(), sizes).wait();
      return out;
    }
    std::vector<char> gathered(static_cast<size_t>(bytes(whole.dims)));
    line().all_gather(cause_, piece.raw(), gathered.data(), sizes).wait();
    char* from = gathered.data();
    for (int i = 0; i < members(); ++i) {
      const Piece part = before(member(i));
      copy_box({out.data<char>(), whole.dims, within(part.begin, whole.begin)}, {from, part.dims, zeros(part.dims)}, part.dims, element_);
      from += sizes[static_cast<size_t>(i)];
    }
    return out;
  }

  DenseTensor all_to_all(const DenseTensor& piece) {
    const Piece mine_before = before(at_);
    const Piece mine_after = after(at_);
    std::vector<int64_t> send_sizes;
    std::vector<int64_t> receive_sizes;
    std::vector<char> send(static_cast<size_t>(bytes(mine_before.dims)));
    char* to = send.data();
    for (int i = 0; i < members(); ++i) {
      // What stays of my old piece in the new range of member i.
      Piece part = mine_before;
      const Piece theirs = after(member(i));
      part.begin[step_.to_dim] = theirs.begin[step_.to_dim];
      part.dims[step_.to_dim] = theirs.dims[step_.to_dim];
      copy_box({to, part.dims, zeros(part.dims)}, {piece.data<char>(), mine_before.dims, within(part.begin, mine_before.begin)}, part.dims, element_);
      send_sizes.push_back(bytes(part.dims));
      to += send_sizes.back();
      Piece incoming = mine_after;
      incoming.dims[step_.dim] = before(member(i)).dims[step_.dim];
      receive_sizes.push_back(bytes(incoming.dims));
    }
    std::vector<char> receive(static_cast<size_t>(bytes(mine_after.dims)));
    line().all_to_all(cause_, send.data(), send_sizes, receive.data(), receive_sizes).wait();
    DenseTensor out = allocate(piece);
    char* from = receive.data();
    for (int i = 0; i < members(); ++i) {
      Piece part = mine_after;
      const Piece theirs = before(member(i));
      part.begin[step_.dim] = theirs.begin[step_.dim];
      part.dims[step_.dim] = theirs.dims[step_.dim];
      copy_box({out.data<char>(), mine_after.dims, within(part.begin, mine_after.begin)}, {from, part.dims, zeros(part.dims)}, part.dims, element_);
      from += receive_sizes[static_cast<size_t>(i)];
    }
    return out;
  }

  DenseTensor reduce_scatter(const DenseTensor& piece) {
    const Piece mine = before(at_);
    std::vector<int64_t> counts;
    std::vector<char> send(static_cast<size_t>(bytes(mine.dims)));
    char* to = send.data();
    for (int i = 0; i < members(); ++i) {
      const Piece part = after(member(i));
      copy_box({to, part.dims, zeros(part.dims)}, {piece.data<char>(), mine.dims, within(part.begin, mine.begin)}, part.dims, element_);
      counts.push_back(part.dims.numel());
      to += bytes(part.dims);
    }
    DenseTensor out = allocate(piece);
    line().reduce_scatter(cause_, send.data(), out.raw(), counts, piece.dtype(), step_.type).wait();
    return out;
  }

  DenseTensor all_reduce(const DenseTensor& piece) {
    DenseTensor out = clone(piece);
    line().all_reduce(cause_, out.raw(), out.numel(), out.dtype(), step_.type).wait();
    return out;
  }

  DenseTensor slice(const DenseTensor& piece) {
    const Piece whole = before(at_);
    const Piece part = after(at_);
    DenseTensor out = allocate(piece);
    copy_box({out.data<char>(), part.dims, zeros(part.dims)}, {piece.data<char>(), whole.dims, within(part.begin, whole.begin)}, part.dims, element_);
    return out;
  }

  DenseTensor partial_init(const DenseTensor& piece) {
    // An average of equal values is that value; any other type has the value once and identities elsewhere.
    if (step_.type == ReduceType::avg || at_[static_cast<size_t>(step_.axis)] == 0) return clone(piece);
    DenseTensor out = allocate(piece);
    fill_identity(out.raw(), out.numel(), out.dtype(), step_.type);
    return out;
  }

  DenseTensor relayout(const DenseTensor& piece) {
    const ProcessMesh& mesh = *step_.before.mesh;
    const auto held = index_runs(step_.dims, before(at_));
    const auto wanted = index_runs(step_.after_dims, after(at_));
    std::vector<int64_t> send_sizes(static_cast<size_t>(mesh.size()), 0);
    std::vector<int64_t> receive_sizes(static_cast<size_t>(mesh.size()), 0);
    std::vector<char> send;
    std::vector<std::vector<IndexRun>> incoming(static_cast<size_t>(mesh.size()));
    for (int i = 0; i < mesh.size(); ++i) {
      const Coordinate peer = mesh.coordinate_at(i);
      const auto k = static_cast<size_t>(i);
      if (sends_to(step_.before, at_, peer)) {
        const size_t start = send.size();
        pack(send, piece, held, intersect(held, index_runs(step_.after_dims, after(peer))));
        send_sizes[k] = static_cast<int64_t>(send.size() - start);
      }
      if (sends_to(step_.before, peer, at_)) {
        incoming[k] = intersect(wanted, index_runs(step_.dims, before(peer)));
        for (const IndexRun& run : incoming[k]) receive_sizes[k] += (run.end - run.begin) * static_cast<int64_t>(element_);
      }
    }
    DenseTensor out = allocate(piece);
    std::vector<char> receive(out.meta().bytes());
    if (step_.bytes != 0) {
      rank_.communicator(&mesh).all_to_all(cause_, send.data(), send_sizes, receive.data(), receive_sizes).wait();
    } else {
      receive = std::move(send);  // every element is here already
    }
    const char* from = receive.data();
    for (const auto& runs : incoming) from = unpack(out, wanted, runs, from);
    return out;
  }

  /// Appends the elements of `runs` (a part of `held`) to `buffer`.
  void pack(std::vector<char>& buffer, const DenseTensor& piece, const std::vector<IndexRun>& held, const std::vector<IndexRun>& runs) const {
    walk(held, runs, [&](size_t position, size_t length) {
      const char* begin = piece.data<char>() + position;
      buffer.insert(buffer.end(), begin, begin + length);
    });
  }
  const char* unpack(DenseTensor& out, const std::vector<IndexRun>& wanted, const std::vector<IndexRun>& runs, const char* from) const {
    walk(wanted, runs, [&](size_t position, size_t length) {
      std::memcpy(out.data<char>() + position, from, length);
      from += length;
    });
    return from;
  }
  /// Calls visit(byte position, bytes) for each of `runs` in a piece that holds the runs `outer` one after the other.
  template <class Visit>
  void walk(const std::vector<IndexRun>& outer, const std::vector<IndexRun>& runs, Visit&& visit) const {
    size_t k = 0;
    int64_t position = 0;  // of outer[k] in the piece
    for (const IndexRun& run : runs) {
      while (outer[k].end <= run.begin) {
        position += outer[k].end - outer[k].begin;
        ++k;
      }
      visit(static_cast<size_t>(position + run.begin - outer[k].begin) * element_, static_cast<size_t>(run.end - run.begin) * element_);
    }
  }

  Rank& rank_;
  const ReshardStep& step_;
  size_t element_;
  CommCause cause_;
  Coordinate at_;
};

void check_host(const DenseTensor& piece, CommCause cause) {
  if (piece.device().backend != 0) {
    fail(ErrorCode::mixed_device, "[{}] argument '{}' is on {}, but this world moves tensors between CPUs; copy it with to(kCpu) first",
         cause.op, cause.argument, to_string(piece.device()));
  }
}

}  // namespace

DenseTensor execute_reshard(Rank& rank, const ReshardPlan& plan, const DenseTensor& piece, CommCause cause) {
  if (piece.storage()->state() == Storage::State::absent) return absent_value(plan.after_meta);
  check_host(piece, cause);
  DenseTensor value = piece;
  for (const ReshardStep& step : plan.steps) value = StepRun(rank, step, plan.meta.dtype, cause).run(value);
  return value;
}

std::string explain_reshard(const Tensor& tensor, const DistSpec* spec) {
  const DistTensorImpl& impl = dist_impl(tensor, "explain_reshard");
  return plan_reshard(impl.global, impl.spec, spec)->describe();
}

Tensor reshard(const Tensor& tensor, const DistSpec* spec) {
  const DistTensorImpl& impl = dist_impl(tensor, "reshard");
  Rank& rank = current_rank();
  if (impl.owner != &rank) {
    fail(ErrorCode::wrong_rank, "[reshard] {} belongs to rank {}, but rank {} makes the call; each rank uses its own tensors",
         argument_text("tensor", impl), impl.owner->id(), rank.id());
  }
  if (rank.policies.view == ViewPolicy::sync) impl.value.storage()->refresh_if_stale();
  impl.value.storage()->check_read();
  if (impl.spec == spec) return tensor;
  const auto plan = plan_reshard(impl.global, impl.spec, spec);
  return make_dist(rank, impl.global, spec, execute_reshard(rank, *plan, impl.value, {"reshard", "tensor"}));
}

Tensor distribute(const Tensor& tensor, const DistSpec* spec, Source source) {
  Rank& rank = current_rank();
  if (tensor.is_dist()) {
    fail(ErrorCode::layout, "[distribute] {} is distributed already; use reshard(tensor, spec)", argument_text("tensor", tensor.get()));
  }
  const ProcessMesh* mesh = spec->mesh();
  check_mesh_in_world(mesh, rank.world());
  const Meta meta = tensor.meta();
  if (spec->rank() != meta.dims.rank()) {
    fail(ErrorCode::layout, "[distribute] layout {} on {} has {} dims, but {} has {}; give the layout an entry for each dim", spec->text(),
         mesh->describe(), spec->rank(), argument_text("tensor", tensor.get()), meta.dims.rank());
  }
  DenseTensor value = tensor.get().value;
  value.storage()->check_read();
  check_host(value, {"distribute", "tensor"});
  if (source.rank >= 0 && !mesh->coordinate(source.rank)) {
    fail(ErrorCode::layout, "[distribute] from_rank({}): that rank is not in {}; name one of its processes", source.rank, mesh->describe());
  }
  if (!mesh->coordinate(rank.id())) return make_dist(rank, meta, spec, absent_value(meta));
  value = clone(value);
  if (source.rank >= 0) {
    Communicator& all = rank.communicator(mesh);
    int root = 0;
    while (all.members()[static_cast<size_t>(root)] != source.rank) ++root;
    all.broadcast({"distribute", "tensor"}, value.raw(), static_cast<int64_t>(meta.bytes()), root).wait();
  }
  const auto plan = plan_reshard(meta, DistSpec::replicated(mesh, spec->rank()), spec);
  return make_dist(rank, meta, spec, execute_reshard(rank, *plan, value, {"distribute", "tensor"}));
}

Tensor full(const Tensor& tensor) {
  const DistTensorImpl& impl = dist_impl(tensor, "full");
  Tensor whole = reshard(tensor, DistSpec::replicated(impl.spec->mesh(), impl.spec->rank()));
  if (!impl.here()) return {};
  return Tensor(clone(whole.get().value));
}

}  // namespace shard
