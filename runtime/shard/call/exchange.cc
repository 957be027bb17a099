#include "shard/call/exchange.h"

#include <algorithm>
#include <numeric>

#include "shard/core/error.h"

namespace shard::call {
namespace {

Range common(const Range& a, const Range& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max<int64_t>(0, std::min(a.begin + a.size, b.begin + b.size) - begin)};
}

}  // namespace

std::vector<uint64_t> gather_words(Rank& rank, std::span<const uint64_t> words, CommCause cause) {
  const int ranks = rank.world().size();
  std::vector<uint64_t> all(words.size() * static_cast<size_t>(ranks));
  const std::vector<int64_t> bytes(static_cast<size_t>(ranks), static_cast<int64_t>(words.size_bytes()));
  rank.communicator(ProcessMesh::make({ranks})).all_gather(cause, words.data(), all.data(), bytes).wait();
  return all;
}

int64_t gather_bytes(int world_size, size_t bytes) {
  const int64_t ranks = world_size;
  return ranks * (ranks - 1) * static_cast<int64_t>(bytes);
}

RowShards::RowShards(const DistSpec* spec, std::vector<int64_t> rows, CommCause cause) : spec_(spec), cause_(cause) {
  const ProcessMesh& mesh = *spec->mesh();
  const AxisList& axes = spec->axes(0);
  size_t shards = 1;
  for (int i = 0; i < axes.size(); ++i) shards *= static_cast<size_t>(mesh.size(axes[i]));
  held_.resize(shards, {0, -1});
  wanted_.resize(shards);
  for (int i = 0; i < mesh.size(); ++i) {
    Range& shard = held_[place(mesh.coordinate_at(i))];
    const int process = mesh.processes()[static_cast<size_t>(i)];
    const int64_t computed = rows[static_cast<size_t>(process)];
    if (shard.size < 0) shard.size = computed;
    if (shard.size == computed) continue;
    fail(ErrorCode::internal,
         "[{}] rank {} computed {} rows of '{}', but another rank with the same shard {}; its kernel must return the "
         "same rows each time",
         cause.op, process, computed, cause.argument, shard.size);
  }
  for (Range& shard : held_) {
    shard.begin = total_;
    total_ += shard.size;
  }
  for (int i = 0; i < mesh.size(); ++i) {
    const Coordinate at = mesh.coordinate_at(i);
    wanted_[place(at)] = shard_range(total_, mesh, axes, at);
  }
}

size_t RowShards::place(const Coordinate& at) const {
  const AxisList& axes = spec_->axes(0);
  size_t index = 0;
  for (int i = 0; i < axes.size(); ++i) {
    index = index * static_cast<size_t>(spec_->mesh()->size(axes[i])) +
            static_cast<size_t>(at[static_cast<size_t>(axes[i])]);
  }
  return index;
}

DenseTensor RowShards::balance(Rank& rank, const DenseTensor& computed) const {
  const bool in_place = std::equal(held_.begin(), held_.end(), wanted_.begin(), [](const Range& a, const Range& b) {
    return a.size == b.size && (a.size == 0 || a.begin == b.begin);
  });
  if (in_place) return computed;
  const ProcessMesh& mesh = *spec_->mesh();
  const Coordinate me = *mesh.coordinate(rank.id());
  const Range held = held_[place(me)];
  const Range wanted = wanted_[place(me)];
  const int64_t row =
      static_cast<int64_t>(size_of(computed.dtype())) * computed.dims().numel(1, computed.dims().rank());
  const auto peers = static_cast<size_t>(mesh.size());
  std::vector<int64_t> send_bytes(peers, 0), receive_bytes(peers, 0), receive_at(peers, 0);
  const Device device = computed.device();
  std::vector<const char*> send_from(peers);
  for (size_t i = 0; i < peers; ++i) {
    const Coordinate at = mesh.coordinate_at(static_cast<int>(i));
    bool same_replica = true;
    for (int axis = 0; axis < mesh.rank(); ++axis) {
      same_replica = same_replica &&
                     (spec_->axes(0).contains(axis) || at[static_cast<size_t>(axis)] == me[static_cast<size_t>(axis)]);
    }
    if (!same_replica) continue;
    const Range out = common(held, wanted_[place(at)]);
    send_bytes[i] = out.size * row;
    if (send_bytes[i] != 0) send_from[i] = computed.data<char>() + (out.begin - held.begin) * row;
    const Range in = common(held_[place(at)], wanted);
    receive_bytes[i] = in.size * row;
    receive_at[i] = (in.begin - wanted.begin) * row;
  }
  Dims dims = computed.dims();
  dims[0] = wanted.size;
  DenseTensor result = DenseTensor::allocate(device, {dims, computed.dtype()});
  const auto buffer_of = [&](const std::vector<int64_t>& bytes) {
    return DenseTensor::allocate(device, {{std::accumulate(bytes.begin(), bytes.end(), int64_t{0})}, DType::uint8});
  };
  const DenseTensor send = buffer_of(send_bytes), receive = buffer_of(receive_bytes);
  char* to = send.data<char>();
  for (size_t i = 0; i < peers; ++i) {
    copy_bytes(device, to, device, send_from[i], static_cast<size_t>(send_bytes[i]));
    to += send_bytes[i];
  }
  rank.communicator(&mesh).all_to_all(cause_, send.raw(), send_bytes, receive.raw(), receive_bytes, device).wait();
  const char* from = receive.data<char>();
  for (size_t i = 0; i < peers; ++i) {
    if (receive_bytes[i] == 0) continue;
    copy_bytes(device, result.data<char>() + receive_at[i], device, from, static_cast<size_t>(receive_bytes[i]));
    from += receive_bytes[i];
  }
  return result;
}

}  // namespace shard::call
