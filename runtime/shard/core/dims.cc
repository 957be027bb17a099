#include "shard/core/dims.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shard/core/error.h"

namespace shard {

Dims::Dims(std::span<const int64_t> values) {
  for (int64_t value : values) push_back(value);
}

Dims Dims::filled(int rank, int64_t value) {
  Dims dims;
  for (int i = 0; i < rank; ++i) dims.push_back(value);
  return dims;
}

void Dims::push_back(int64_t value) { insert(rank_, value); }

void Dims::erase(int i) {
  for (int k = i; k + 1 < rank_; ++k) (*this)[k] = (*this)[k + 1];
  --rank_;
}

void Dims::insert(int i, int64_t value) {
  if (rank_ == kMaxRank) fail(ErrorCode::out_of_range, "a tensor has at most {} dims", kMaxRank);
  for (int k = rank_; k > i; --k) (*this)[k] = (*this)[k - 1];
  (*this)[i] = value;
  ++rank_;
}

std::string to_string(const Dims& dims) { return fmt::format("[{}]", fmt::join(dims.begin(), dims.end(), ", ")); }
std::string to_string(const IntArray& values) {
  return fmt::format("[{}]", fmt::join(values.begin(), values.end(), ", "));
}
std::string to_string(const Meta& meta) { return short_name(meta.dtype) + to_string(meta.dims); }

void fail_size(const char* op, const Meta& meta) {
  const std::string who = op == nullptr ? "" : fmt::format("[{}] ", op);
  for (const int64_t size : meta.dims) {
    if (size < 0)
      fail(ErrorCode::out_of_range, "{}a tensor of shape {} has the negative dim {}; dims must be 0 or more", who,
           to_string(meta.dims), size);
  }
  fail(ErrorCode::out_of_range,
       "{}a tensor of shape {} and dtype {} would have more bytes than an int64 can count; make a dim smaller", who,
       to_string(meta.dims), to_string(meta.dtype));
}

int normalize_axis(std::string_view op, std::string_view what, int64_t axis, int rank) {
  const int64_t bound = rank == 0 ? 1 : rank;
  if (axis < -bound || axis >= bound) {
    fail(ErrorCode::out_of_range, "[{}] {} is {}, but must be from {} to {} for a tensor with {} dims", op, what, axis,
         -bound, bound - 1, rank);
  }
  return static_cast<int>(axis < 0 ? axis + bound : axis);
}

}  // namespace shard
