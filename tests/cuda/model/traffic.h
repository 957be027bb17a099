// What kernels read and write, by the log of the model, against the least that they could.
#pragma once

#include <functional>
#include <vector>

#include "../cuda_case.h"
#include "access.h"
#include "shard/program/ir/op_table.h"
#include "shard/shard.h"
#include "shard/testing/op_cases.h"

namespace shard::test {

inline constexpr double kMost = 1.05;  // of the least

/// A random tensor on the device, whose buffer has `before` elements more at its beginning.
inline Tensor on(Device device, const Dims& dims, DType dtype, int64_t before = 0) {
  const DenseTensor all = copy_to(device, random_tensor({before + dims.numel()}, dtype, 3));
  return Tensor(DenseTensor(all.storage(), {dims, dtype}, static_cast<size_t>(before) * size_of(dtype)));
}

template <class... T>
int64_t bytes_of(const T&... tensors) {
  return (int64_t{0} + ... + static_cast<int64_t>(tensors.meta().bytes()));
}
inline int64_t bytes_of(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& each : tensors) bytes += each.defined() ? bytes_of(each) : 0;
  return bytes;
}

/// What the kernels of `work` read and write together. Work that was issued runs when somebody waits for it.
inline cuda_host::GridLog traffic_of(Device device, const std::function<void()>& work) {
  const auto wait = [&] { backend_of(device).synchronize(device.index); };
  wait();
  cuda_host::begin_log();
  work();
  wait();
  cuda_host::GridLog sum;
  for (const cuda_host::GridLog& log : cuda_host::end_log()) {
    sum.bytes_read += log.bytes_read;
    sum.bytes_written += log.bytes_written;
    sum.sectors += log.sectors;
  }
  return sum;
}

inline double ratio(uint64_t a, int64_t b) { return static_cast<double>(a) / static_cast<double>(b); }

/// Kernels read and write at most kMost of these bytes, in at most kMost of the sectors that these need. They write all of them
/// at least once, and read at least `least_read`, which is all where nothing is broadcast.
inline void check_traffic(const cuda_host::GridLog& sum, int64_t read, int64_t written,
                          std::optional<int64_t> least_read = {}) {
  CHECK(sum.bytes_read >= static_cast<uint64_t>(least_read.value_or(read)));
  CHECK(sum.bytes_written >= static_cast<uint64_t>(written));
  CHECK(ratio(sum.bytes_read, read) <= kMost);
  CHECK(ratio(sum.bytes_written, written) <= kMost);
  CHECK(ratio(sum.sectors * 32, read + written) <= kMost * 1.01);  // the last sector of each tensor is not full
}

inline void check_traffic(Device device, int64_t read, int64_t written, const std::function<void()>& work) {
  check_traffic(traffic_of(device, work), read, written);
}

/// What kernels access beyond kMost of the least, as factors of all bytes and of all sectors, and why.
struct Excess {
  double bytes = 1, sectors = 1;
  const char* why = "";
};

/// The same of all bytes together, where kernels keep parts of results in between, or where there is an excess, which is exact.
inline void check_total(const cuda_host::GridLog& sum, int64_t bytes, const Excess& excess = {}) {
  const double of_bytes = ratio(sum.bytes_read + sum.bytes_written, bytes), of_sectors = ratio(sum.sectors * 32, bytes);
  const auto check = [&](double factor, double expected, double most) {
    INFO(excess.why);
    if (expected == 1) {
      CHECK(factor >= 1);
      CHECK(factor <= most);
    } else {
      CHECK(factor >= 0.98 * expected);
      CHECK(factor <= 1.02 * expected);
    }
  };
  check(of_bytes, excess.bytes, kMost);
  check(of_sectors, excess.sectors, kMost * 1.01);
}

/// An op case with tensors on the device.
struct DeviceCase {
  testing::CaseCall call;
  std::vector<Tensor> inputs;

  /// `size` is that of the dims it draws.
  DeviceCase(Device device, const testing::OpCase& of, DType dtype, int64_t size) {
    testing::Draw draw(7, dtype, {size});
    call = of.make(draw);
    for (const testing::CaseInput& input : call.inputs) {
      std::vector<float> values(static_cast<size_t>(input.dims.numel()));
      for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(input.low + static_cast<int64_t>(i) % (input.high - input.low + 1));
      inputs.emplace_back(copy_to(device, cast(Tensor::from_data(values, input.dims), input.dtype).get().value));
    }
  }
};

}  // namespace shard::test
