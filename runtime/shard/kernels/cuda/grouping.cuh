// Which sources each destination has: lists of them in their order, for sums that need no atomic operation on floats; and the last source of
// each destination, for values that replace each other. Everything is determined by the destinations alone.
#pragma once

#include "shard/kernels/cuda/device.cuh"
#include "shard/kernels/cuda/radix_sort.cuh"
#include "shard/kernels/cuda/words.cuh"

namespace shard::cuda {

/// Calls body with the unsigned type in which numbers up to `most` are counted.
template <class Body>
void visit_number(int64_t most, const Body& body) {
  if (most < int64_t{1} << 31) body(uint32_t{0});
  else body(uint64_t{0});
}

/// Writes the row of each source, or `none` for those that have no row, and its number, unless `sources` is null. `row_of(i)` is negative
/// where there is no row; it may be a DataCheck (device.cuh).
template <class N, class RowOf>
__global__ void write_rows_of_sources(RowOf row_of, int64_t count, N none, N* rows, N* sources) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    const int64_t row = row_of(i);
    rows[i] = row < 0 ? none : static_cast<N>(row);
    if (sources != nullptr) sources[i] = static_cast<N>(i);
  }
}

/// Groups are lists of sources with the same row. Long ones are split into parts of so many sources, except for the last.
inline constexpr int kPart = 64;

/// A group of several parts: the place of its first source, and their number.
struct LongGroup {
  int64_t begin, count;
};

/// What kernels see of a Grouping: sources in the order of their rows, those of a row in their own order. `part` is 0 unless
/// a part of a group begins at that place; else it is the number of its sources, and two bits.
struct Groups {
  static constexpr int kFirst = 1 << 8, kLast = 1 << 9;  // whether the part is the first or the last one of its group

  int64_t count;
  Indices row, source;  // of each place; without data, sources are at the places of their numbers
  const int* part;
  const LongGroup* long_groups;
  const unsigned* long_count;

  __device__ int64_t source_at(int64_t place) const { return source.data == nullptr ? place : source[place]; }
  /// A number for a part of a long group that begins at `place`, below slots().
  __device__ static int64_t slot(int64_t place, bool is_last) { return place / kPart * 2 + (is_last ? 1 : 0); }
  __host__ __device__ int64_t slots() const { return (count / kPart + 1) * 2; }
  /// Long groups that there can be.
  int64_t most_long() const { return count / (kPart + 1); }
};

/// The groups of the sources 0 to count - 1, whose rows are below `size`.
class Grouping {
 public:
  /// `row_of(i)` is the row of source i, negative for sources that are left out. With `sorted` it never falls, and no source is
  /// left out.
  template <class RowOf>
  Grouping(const OpContext& ctx, int64_t size, int64_t count, const RowOf& row_of, bool sorted = false)
      : size_(size), count_(count), memory_(bytes(size, count)), is_sorted_(sorted) {
    if (count == 0) return;
    pairs_ = {count, is_wide(size, count), is_wide(size, count), array(0), array(1), array(2), array(3)};
    visit_number(std::max(size, count), [&]<class N>(N) {
      launch(ctx, write_rows_of_sources<N, RowOf>, grid_for(count, 256), 256, row_of, count, static_cast<N>(size),
             static_cast<N*>(pairs_.keys), sorted ? nullptr : static_cast<N*>(pairs_.places));
    });
    group(ctx);
  }
  Groups groups() const;

 private:
  static bool is_wide(int64_t size, int64_t count) { return std::max(size, count) >= int64_t{1} << 31; }
  static size_t bytes(int64_t size, int64_t count);
  /// The array of this number: rows, sources, another two for the sort, parts, long groups, their number.
  char* array(int number) const;
  void group(const OpContext& ctx);

  int64_t size_, count_;
  Scratch memory_;
  bool is_sorted_;
  Pairs pairs_{};  // of rows and sources
};

/// Notes the last source of each row.
template <class N, class Signed>
__global__ void find_last_sources(const N* rows, int64_t count, N none, Signed* last) {
  for (int64_t i = grid_first<int64_t>(); i < count; i += grid_step<int64_t>()) {
    if (rows[i] != none) atomicMax(&last[rows[i]], static_cast<Signed>(i));
  }
}

/// What kernels see of a LastSources.
struct LastSourcesView {
  int64_t none;
  Indices rows, last;

  /// The row that a source writes; -1 where it has none or a later source replaces it.
  __device__ int64_t row_written_by(int64_t source) const {
    const int64_t row = rows[source];
    return row == none || last[row] != source ? -1 : row;
  }
};

/// The last of the sources 0 to count - 1 of each row below `size`.
class LastSources {
 public:
  template <class RowOf>
  LastSources(const OpContext& ctx, int64_t size, int64_t count, const RowOf& row_of)
      : size_(size), count_(count), memory_(static_cast<size_t>(size + count) * (is_wide() ? 8 : 4)) {
    if (size != 0)
      check(cudaMemsetAsync(memory_.data(), 0xff, static_cast<size_t>(size) * (is_wide() ? 8 : 4), stream()),
            "cudaMemsetAsync");
    if (count == 0) return;
    visit_number(std::max(size, count), [&]<class N>(N) {
      using Signed = std::conditional_t<sizeof(N) == 8, long long, int>;  // those that CUDA has atomic operations for
      auto* const last = static_cast<Signed*>(memory_.data());
      N* const rows = reinterpret_cast<N*>(last + size);
      launch(ctx, write_rows_of_sources<N, RowOf>, grid_for(count, 256), 256, row_of, count, static_cast<N>(size), rows,
             nullptr);
      launch(ctx, find_last_sources<N, Signed>, grid_for(count, 256), 256, rows, count, static_cast<N>(size), last);
    });
  }
  LastSourcesView view() const {
    char* const rows = static_cast<char*>(memory_.data()) + size_ * (is_wide() ? 8 : 4);
    return {size_, Indices(rows, is_wide()), Indices(memory_.data(), is_wide())};
  }
  int64_t size() const { return size_; }
  int64_t count() const { return count_; }

 private:
  bool is_wide() const { return std::max(size_, count_) >= int64_t{1} << 31; }

  int64_t size_, count_;
  Scratch memory_;
};

}  // namespace shard::cuda
