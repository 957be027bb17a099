// Implements the reducer with which kernels combine values over the ranks of a mesh.
#pragma once

#include "shard/call/fetch_boxes.h"

namespace shard::call {

/// Combines a kernel's partial results over the mesh axes that the placement rule asked for, one
/// axis after the other, and fetches what the kernel needs of other ranks.
class MeshReducer final : public AxisReducer {
 public:
  /// `plan` and `op` must outlive the reducer.
  MeshReducer(Rank& rank, const CallPlan& plan, std::string_view op)
      : rank_(rank), plan_(plan), mesh_(plan.mesh), axes_(plan.reduce_axes), op_(op) {}
  Fetched fetch(size_t i, const DenseTensor& shard, const NeededBox& needed) override {
    used_ = true;
    return fetch_box(rank_, plan_, i, shard, needed, {op_, "kernel"});
  }
  void all_reduce(DenseTensor& value, ReduceType type) override {
    used_ = true;
    for (int i = 0; i < axes_.size(); ++i) {
      rank_.communicator(mesh_, axes_[i])
          .all_reduce({op_, "kernel"}, value.raw(), value.numel(), value.dtype(), type, value.device())
          .wait();
    }
  }
  /// From the innermost axis outwards, so that ranks are in row-major order of their coordinates.
  Gathered all_gather(const DenseTensor& value) override {
    used_ = true;
    Gathered result{value, 0};
    int64_t ranks = 1;
    for (int i = axes_.size(); i-- > 0;) {
      Communicator& group = rank_.communicator(mesh_, axes_[i]);
      const DenseTensor part = result.all;
      result.mine += group.rank() * ranks;
      ranks *= group.size();
      result.all = DenseTensor::allocate(value.device(), {Dims{ranks, value.numel()}, value.dtype()}, rank_.dry.get());
      const std::vector<int64_t> bytes(static_cast<size_t>(group.size()), static_cast<int64_t>(part.meta().bytes()));
      group.all_gather({op_, "kernel"}, part.raw(), result.all.raw(), bytes, value.device()).wait();
    }
    return result;
  }
  /// True once a kernel has combined something.
  bool used() const { return used_; }

 private:
  bool used_ = false;
  Rank& rank_;
  const CallPlan& plan_;
  const ProcessMesh* mesh_;
  AxisList axes_;
  std::string_view op_;
};

}  // namespace shard::call
