// Checks of data within kernels: they report the first wrong element, without a synchronisation, and the kernel skips it.
//
// A kernel takes a DataCheck as an argument. Where an element is wrong, it calls report(position, value), and neither reads nor
// writes what the element names; results that would depend on it are zeros. The host throws at the next synchronisation
// (core/cuda/data_error.cuh).
#pragma once

#include <string>

#include "shard/core/cuda/data_error.cuh"
#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/words.cuh"
#include "shard/kernels/data_text.h"

namespace shard::cuda {

/// A check of a launch. `Description` has what the text of its error is made of, and a member
/// [[noreturn]] void fail(int64_t position, int64_t value) const, which throws on the host. It is copied bit by bit.
template <class Description>
class DataCheck {
  static_assert(std::is_trivially_copyable_v<Description> && sizeof(Description) <= DataError::kDescriptionBytes);
  static_assert(sizeof(Description) % sizeof(uint64_t) == 0);

 public:
  using IsDataCheck = void;

  /// On the device of the DeviceScope.
  explicit DataCheck(const Description& description)
      : error_(data_error()), number_(next_check()), description_(description), report_(&fail_as_described) {}

  /// Element `position` of the argument has `value`, which is wrong. Of all that are reported, the first is kept.
  __device__ void report(int64_t position, int64_t value) const {
    volatile DataError* const error = error_;
    for (bool done = false; !done;) {
      if (error->is_set != 0 && (error->check != number_ || error->position <= position)) return;
      if (atomicCAS(&error_->lock, 0u, 1u) != 0u) continue;
      __threadfence_system();
      if (error->is_set == 0 || (error->check == number_ && position < error->position)) write(position, value);
      __threadfence_system();
      atomicExch(&error_->lock, 0u);
      done = true;
    }
  }

 private:
  static void fail_as_described(const void* description, int64_t position, int64_t value) {
    static_cast<const Description*>(description)->fail(position, value);
  }

  /// With the lock.
  __device__ void write(int64_t position, int64_t value) const {
    volatile DataError* const error = error_;
    error->check = number_;
    error->position = position;
    error->value = value;
    error->report = report_;
    volatile uint64_t* const to = reinterpret_cast<volatile uint64_t*>(error_->description);
#pragma unroll
    for (size_t i = 0; i < sizeof(Description) / sizeof(uint64_t); ++i) {
      uint64_t word;
      memcpy(&word, reinterpret_cast<const char*>(&description_) + i * sizeof(word), sizeof(word));
      to[i] = word;
    }
    __threadfence_system();
    error->is_set = 1;
  }

  DataError* error_;
  uint64_t number_;
  Description description_;
  void (*report_)(const void*, int64_t, int64_t);
};

/// Describes an index that must be from low to high - 1. Of a list of arguments, `element` is the number of the one; else it is
/// -1. `name` lives as long as the program.
struct alignas(8) IndexRange {
  const char* op;
  const char* name;
  int64_t low, high;
  int64_t element;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    const std::string argument = element < 0 ? name : fmt::format("{}[{}]", name, element);
    fail_check(ErrorCode::out_of_range, "{}", outside_text(op, argument, place, position, value, low, high));
  }
};

/// Describes a length of a sequence, which must be from `least` to `most`. `name` lives as long as the program.
struct alignas(8) LengthRange {
  const char* op;
  const char* name;
  int64_t least, most;
  ArgumentPlace place;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "[{}] {} is {} at element {}, but must be from {} to {}, the size of that dim",
               op, name, value, place.index_text(position), least, most);
  }
};

/// Checks that the elements of argument `name`, which is flat input `input`, are from low to high - 1.
class IndexCheck : public DataCheck<IndexRange> {
 public:
  IndexCheck(const OpContext& ctx, size_t input, const char* name, const DenseTensor& index, int64_t low, int64_t high,
             int64_t element = -1)
      : DataCheck(IndexRange{ctx.op, name, low, high, element, ArgumentPlace(ctx, input, index)}), low_(low),
        high_(high) {}

  /// Whether `value`, element `position` of the argument, is in the range; reports it where not.
  __device__ bool admits(int64_t position, int64_t value) const {
    if (value >= low_ && value < high_) return true;
    report(position, value);
    return false;
  }

 private:
  int64_t low_, high_;
};

/// A kernel that does nothing but check `count` indices, for those that do not read each index.
template <class I>
__global__ void check_indices_kernel(I index, int64_t count, IndexCheck check) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) check.admits(i, index[i]);
}

/// Describes a position along a dim of x, in an index [.., k] whose rows name slices of x.
struct alignas(8) RowRange {
  const char* op;
  int64_t k;
  Dims x;  // whole
  ArgumentPlace index;

  [[noreturn]] void fail(int64_t position, int64_t value) const {
    fail_check(ErrorCode::out_of_range, "{}", row_outside_text(op, index, x, k, position, value));
  }
};

/// Checks the rows of an index [.., k], flat input 1, each of which names a slice of x, flat input 0, by positions in its
/// first k dims; and numbers these slices.
class RowCheck : public DataCheck<RowRange> {
 public:
  RowCheck(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index)
      : DataCheck(describe(ctx, x, index)), k_(static_cast<int>(index.dims()[index.dims().rank() - 1])),
        rows_(index.dims().numel(0, index.dims().rank() - 1)) {
    const Box box = ctx.input_box(0, x);
    for (int d = 0; d < k_; ++d) {
      global_[d] = box.global[d];
      begin_[d] = box.begin[d];
      local_[d] = x.dims()[d];
    }
  }
  __host__ __device__ int64_t rows() const { return rows_; }

  /// The number of the slice that a row names among those of this rank; negative where it is another rank's, or where there is
  /// none, which is reported if `reports`.
  __device__ int64_t slice_of(const Indices& index, int64_t row, bool reports) const {
    int64_t slice = 0;
    bool is_here = true;
    for (int d = 0; d < k_; ++d) {
      const int64_t value = index[row * k_ + d];
      if (value < -global_[d] || value >= global_[d]) {
        if (reports) report(row * k_ + d, value);
        return -1;
      }
      const int64_t at = value + (value < 0 ? global_[d] : 0) - begin_[d];
      is_here = is_here && at >= 0 && at < local_[d];
      slice = slice * local_[d] + at;
    }
    return is_here ? slice : -1;
  }
  /// For kernels that write nothing.
  void launch_alone(const OpContext& ctx, const DenseTensor& index) const;

 private:
  static RowRange describe(const OpContext& ctx, const DenseTensor& x, const DenseTensor& index) {
    return {ctx.op, index.dims()[index.dims().rank() - 1], ctx.input_box(0, x).global, ArgumentPlace(ctx, 1, index)};
  }

  int k_;
  int64_t rows_;
  int64_t global_[kMaxRank], begin_[kMaxRank], local_[kMaxRank];
};

template <class I>
__global__ void check_rows_kernel(I index, RowCheck check) {
  for (int64_t row = grid_first<int64_t>(); row < check.rows(); row += grid_step<int64_t>())
    check.slice_of(index, row, true);
}

inline void RowCheck::launch_alone(const OpContext& ctx, const DenseTensor& index) const {
  if (rows_ != 0) launch(ctx, check_rows_kernel<Indices>, grid_for(rows_, 256), 256, Indices(index), *this);
}

}  // namespace shard::cuda
