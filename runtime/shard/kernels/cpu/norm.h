// Helpers of normalisations and their gradients: elements in double, rows, scale and bias.
#pragma once

#include <string>
#include <vector>

#include "shard/core/dense_tensor.h"
#include "shard/core/op_context.h"
#include "shard/kernels/cpu/axis.h"
#include "shard/kernels/cpu/channels.h"
#include "shard/kernels/cpu/parallel.h"
#include "shard/kernels/cpu/value.h"

namespace shard::cpu {

template <class T>
double value_at(const T* x, int64_t i) {
  return static_cast<double>(static_cast<Compute<T>>(x[i]));
}

template <class T>
T from_double(double value) {
  return T(static_cast<Compute<T>>(value));
}

/// scale or bias in double, `otherwise` where it is absent.
inline std::vector<double> affine_of(const DenseTensor& affine, int64_t count, double otherwise) {
  std::vector<double> values(static_cast<size_t>(count), otherwise);
  if (!affine.defined()) return values;
  visit_dtype(affine.dtype(), [&]<class T>(TypeTag<T>) {
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_at(affine.data<T>(), i);
  });
  return values;
}

/// The rows of a tensor that are normalised: all dims from some dim on. Other ranks may hold other
/// parts of the rows.
struct NormRows {
  int64_t rows = 0;
  int64_t width = 0;               // of the part that is here
  int64_t whole_width = 0;         // of all parts
  std::vector<int64_t> positions;  // in the whole row of each element that is here; empty where rows are whole

  NormRows(const Dims& local, const Box& box, int begin)
      : rows(local.numel(0, begin)), width(local.numel(begin, local.rank())),
        whole_width(box.global.numel(begin, local.rank())) {
    if (width == whole_width) return;
    for (int64_t i = 0; i < width; ++i) positions.push_back(place_in_whole(local, box, i, begin));
  }

  /// scale or bias, of which every rank has all elements, for the elements that are here.
  std::vector<double> affine(const DenseTensor& whole, double otherwise) const {
    std::vector<double> all = affine_of(whole, whole_width, otherwise);
    if (positions.empty()) return all;
    std::vector<double> mine;
    for (const int64_t position : positions) mine.push_back(all[static_cast<size_t>(position)]);
    return mine;
  }

  /// Calls body(row) for each row, on several threads.
  template <class Body>
  void for_each(const Body& body) const {
    parallel_for(rows, 4 * width, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) body(r);
    });
  }

  /// The sums over whole rows of what term(row, sums) writes into `count` numbers per row. They are
  /// added up over ranks where those hold parts.
  template <class Term>
  DenseTensor sums(const OpContext& ctx, int count, const Term& term) const {
    DenseTensor all = DenseTensor::allocate(kCpu, {Dims{rows, count}, DType::float64});
    double* const data = all.data<double>();
    for_each([&](int64_t r) { term(r, data + r * count); });
    ctx.all_reduce(all, ReduceType::sum);
    return all;
  }
};

}  // namespace shard::cpu
