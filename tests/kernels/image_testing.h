// Helpers of the tests of kernels of images: numbers that a formula makes, and both data formats.
#pragma once

#include "kernels/kernel_testing.h"

namespace shard::testing {

/// Element i is (i * step % period - period / 2) / divisor: also of the programs that made the expected numbers.
inline DenseTensor wave(const Dims& dims, DType dtype = DType::float64, int64_t period = 11, int64_t step = 7,
                        double divisor = 1) {
  std::vector<double> numbers;
  for (int64_t i = 0; i < dims.numel(); ++i)
    numbers.push_back(static_cast<double>(i * step % period - period / 2) / divisor);
  return tensor(numbers, dims, dtype);
}

/// x [n, rows, columns] as [n, columns, rows].
inline DenseTensor swapped(const DenseTensor& x, int64_t rows, const Dims& dims) {
  const std::vector<double> from = values(x);
  std::vector<double> to(from.size());
  const int64_t n = x.dims()[0], columns = n * rows == 0 ? 0 : x.numel() / n / rows;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c)
        to[static_cast<size_t>((i * columns + c) * rows + r)] = from[static_cast<size_t>((i * rows + r) * columns + c)];
    }
  }
  return tensor(to, dims, x.dtype());
}

/// An image [n, c, ...] as [n, ..., c], and back.
inline DenseTensor channels_last(const DenseTensor& x) {
  Dims dims = x.dims();
  dims.erase(1);
  dims.push_back(x.dims()[1]);
  return swapped(x, x.dims()[1], dims);
}
inline DenseTensor channels_first(const DenseTensor& x) {
  const int last = x.dims().rank() - 1;
  Dims dims = x.dims();
  dims.erase(last);
  dims.insert(1, x.dims()[last]);
  return swapped(x, x.dims().numel(1, last), dims);
}

}  // namespace shard::testing
