// Tensor::index, by the ops slice, strided_slice, squeeze and unsqueeze.
#include <algorithm>
#include <vector>

#include "shard/core/error.h"
#include "shard/core/tensor.h"
#include "shard/ops/math.h"
#include "shard/ops/shape.h"

namespace shard {
namespace {

/// The arguments of strided_slice, the dims that it leaves and squeeze drops, and those to insert.
struct Slices {
  IntArray axes, starts, ends, steps, dropped, inserted;

  void add(int axis, int64_t start, int64_t end, int64_t step) {
    axes.push_back(axis);
    starts.push_back(start);
    ends.push_back(end);
    steps.push_back(step);
  }
};

void select(Slices& slices, int axis, int64_t size, int64_t position) {
  if (position < -size || position >= size) {
    fail(ErrorCode::out_of_range, "[index] position {} is outside dim {} of size {}", position, axis, size);
  }
  if (position < 0) position += size;
  slices.add(axis, position, position + 1, 1);
  slices.dropped.push_back(axis);
}

void select(Slices& slices, int axis, int64_t size, const Slice& slice) {
  const int64_t step = slice.step;
  if (step == 0) fail(ErrorCode::invalid_argument, "[index] the slice of dim {} has a step of 0", axis);
  if (!slice.start && !slice.stop && step == 1) return;
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;  // -1: before the first element
  const auto place = [&](std::optional<int64_t> position, int64_t absent) {
    if (!position) return absent;
    return std::clamp(*position < 0 ? *position + size : *position, low, high);
  };
  const int64_t start = place(slice.start, step > 0 ? low : high), stop = place(slice.stop, step > 0 ? high : low);
  if (step > 0 ? start >= stop : start <= stop) return slices.add(axis, 0, 0, step);
  slices.add(axis, start, stop, step);
}

}  // namespace

Tensor Tensor::index(const std::vector<Index>& indices) const {
  const int rank = dims().rank();
  int named = 0, ellipses = 0;
  for (const Index& index : indices) {
    named += std::holds_alternative<int64_t>(index.value) || std::holds_alternative<Slice>(index.value) ? 1 : 0;
    ellipses += std::holds_alternative<Ellipsis>(index.value) ? 1 : 0;
  }
  if (named > rank) {
    fail(ErrorCode::out_of_range, "[index] {} positions and slices for {}, which has {} dims", named, get().describe(),
         rank);
  }
  if (ellipses > 1) fail(ErrorCode::invalid_argument, "[index] {} ellipses; at most one is allowed", ellipses);
  Slices slices;
  int axis = 0, place = 0;  // of the next dim of this tensor and of the result
  for (const Index& index : indices) {
    if (std::holds_alternative<NewAxis>(index.value)) {
      slices.inserted.push_back(place++);
    } else if (std::holds_alternative<Ellipsis>(index.value)) {
      axis += rank - named;
      place += rank - named;
    } else if (const int64_t* const position = std::get_if<int64_t>(&index.value)) {
      select(slices, axis, dims()[axis], *position);
      ++axis;
    } else {
      select(slices, axis, dims()[axis], std::get<Slice>(index.value));
      ++axis;
      ++place;
    }
  }
  const CallSite site = indices.empty() ? CallSite() : indices.front().site;
  Tensor result;
  if (slices.axes.empty()) {
    result = assign(*this, site);
  } else if (std::all_of(slices.steps.begin(), slices.steps.end(), [](int64_t step) { return step == 1; })) {
    result = slice(*this, slices.axes, slices.starts, slices.ends, {}, slices.dropped, site);
  } else {
    result = strided_slice(*this, slices.axes, slices.starts, slices.ends, slices.steps, site);
    if (!slices.dropped.empty()) result = squeeze(result, slices.dropped, site);
  }
  return slices.inserted.empty() ? result : unsqueeze(result, slices.inserted, site);
}

Tensor Tensor::operator[](const Index& index) const { return this->index({index}); }

}  // namespace shard
