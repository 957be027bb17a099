// What kernels read and write, by the log of the model, against the least that they could.
#pragma once

#include <functional>
#include <vector>

#include "../cuda_case.h"
#include "access.h"
#include "shard/shard.h"

namespace shard::test {

inline constexpr double kMost = 1.05;  // of the least

/// The device whose kernels are logged. The log says nothing where a sanitizer of the compiler takes the place of the model's checks.
inline std::optional<Device> logged_device() {
#ifdef CUDA_HOST_INSTRUMENTED
  return cuda_device();
#else
  return std::nullopt;
#endif
}

/// A random tensor on the device.
inline Tensor on(Device device, const Dims& dims, DType dtype) {
  return Tensor(copy_to(device, random_tensor(dims, dtype, 3)));
}

inline int64_t bytes_of(const Tensor& tensor) { return static_cast<int64_t>(tensor.meta().bytes()); }
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

/// What kernels access beyond kMost of the least, as factors of all bytes and of all sectors, and why.
struct Excess {
  double bytes = 1, sectors = 1;
  const char* why = "";
};

/// Kernels access at least these bytes, and at most kMost of them and of the sectors that they need; where there is an excess it is exact.
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

}  // namespace shard::test
