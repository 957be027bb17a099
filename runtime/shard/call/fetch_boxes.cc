#include "shard/call/fetch_boxes.h"

#include <algorithm>

namespace shard::call {
namespace {

/// The elements that are in both boxes. A box without elements has a dim of 0, and any first index.
ShardBox common(const ShardBox& a, const ShardBox& b) {
  ShardBox box;
  for (int d = 0; d < a.dims.rank(); ++d) {
    const int64_t begin = std::max(a.begin[d], b.begin[d]);
    box.begin.push_back(begin);
    box.dims.push_back(std::max<int64_t>(std::min(a.begin[d] + a.dims[d], b.begin[d] + b.dims[d]) - begin, 0));
  }
  return box;
}

Dims difference(const Dims& a, const Dims& b) {
  Dims dims;
  for (int d = 0; d < a.rank(); ++d) dims.push_back(a[d] - b[d]);
  return dims;
}

/// The place of a rank in the communicator of the only axis, or of the whole mesh.
int position(const ProcessMesh& mesh, const AxisList& axes, const Coordinate& at) {
  if (axes.size() == 1) return at[static_cast<size_t>(axes[0])];
  int index = 0;
  for (int axis = 0; axis < mesh.rank(); ++axis) index = index * mesh.size(axis) + at[static_cast<size_t>(axis)];
  return index;
}

/// The transfer of what `held` and `needed` have in common between their ranks.
BoxTransfer transfer(int peer, const ShardBox& held, const ShardBox& needed) {
  const ShardBox both = common(held, needed);
  const Dims from = difference(both.begin, held.begin), to = difference(both.begin, needed.begin);
  return {peer, held.dims, from, needed.dims, to, both.dims};
}

}  // namespace

FetchedBoxes::FetchedBoxes(const CallPlan& plan, size_t i, const NeededBox& needed)
    : plan_(plan), input_(i), needed_(needed) {
  for (int k = 0; k < plan.reduce_axes.size(); ++k) {
    if (plan.inputs[i].want->layout().dim_of(plan.reduce_axes[k]) >= 0) axes_.push_back(plan.reduce_axes[k]);
  }
}

ShardBox FetchedBoxes::held(const Coordinate& at) const {
  const InputPlan& input = plan_.inputs[input_];
  return shard_box(input.want->layout(), input.global.dims, at);
}

ShardBox FetchedBoxes::needed(const Coordinate& at) const {
  const auto box = [&](const Meta& global, const DistSpec* spec) {
    return spec == nullptr ? ShardBox() : shard_box(spec->layout(), global.dims, at);
  };
  std::vector<ShardBox> inputs, outputs;
  for (const InputPlan& input : plan_.inputs) inputs.push_back(box(input.global, input.want));
  for (const OutputPlan& output : plan_.outputs) outputs.push_back(box(output.global, output.spec));
  return needed_({inputs, outputs});
}

int64_t FetchedBoxes::received(const Coordinate& at) const {
  const ShardBox box = needed(at);
  return box.dims.numel() - common(held(at), box).dims.numel();
}

Fetched fetch_box(Rank& rank, const CallPlan& plan, size_t i, const DenseTensor& shard, const NeededBox& needed,
                  CommCause cause) {
  const ProcessMesh& mesh = *plan.mesh;
  const FetchedBoxes boxes(plan, i, needed);
  const AxisList& axes = boxes.axes();
  const Coordinate here = *mesh.coordinate(rank.id());
  const ShardBox held = boxes.held(here);
  if (axes.empty()) return {shard, held.begin};
  const ShardBox wanted = boxes.needed(here);
  std::vector<BoxTransfer> sends, receives;
  Coordinate at = here;
  for (int k = 0; k < axes.size(); ++k) at[static_cast<size_t>(axes[k])] = 0;
  const bool has_all = wanted.begin == held.begin && wanted.dims == held.dims;
  do {
    if (has_all && at == here) continue;
    const int peer = position(mesh, axes, at);
    sends.push_back(transfer(peer, held, boxes.needed(at)));
    receives.push_back(transfer(peer, boxes.held(at), wanted));
  } while (next_place(mesh, axes, at));
  const auto nothing = [](const BoxTransfer& box) { return box.extent.numel() == 0; };
  std::erase_if(sends, nothing);
  std::erase_if(receives, nothing);
  const DenseTensor box =
      has_all ? shard : DenseTensor::allocate(shard.device(), {wanted.dims, shard.dtype()}, rank.dry.get());
  Communicator& group = axes.size() == 1 ? rank.communicator(&mesh, axes[0]) : rank.communicator(&mesh);
  group
      .exchange(cause, shard.raw(), sends, has_all ? nullptr : box.raw(), receives, size_of(shard.dtype()),
                shard.device())
      .wait();
  return {box, wanted.begin};
}

}  // namespace shard::call
