// What kernels that call oneDNN share.
#pragma once

#include <dlfcn.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "shard/core/dtype.h"

namespace shard::cpu {

/// Keeps oneDNN, where it uses OpenMP as Debian's does, on the calling thread: threads are ours to divide. That is a
/// setting of the thread, which the caller's code may need as it was.
class OneThread {
 public:
  OneThread() {
    if (set_ == nullptr || get_ == nullptr) return;
    before_ = get_();
    set_(1);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;
  ~OneThread() {
    if (before_ > 0) set_(before_);
  }

 private:
  // Looked up, so that we need not link the OpenMP library that oneDNN was built with.
  static inline const auto set_ = reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  static inline const auto get_ = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  int before_ = 0;
};

/// The type of bfloat16, or else of float32.
inline dnnl::memory::data_type onednn_type(DType dtype) {
  return dtype == DType::bfloat16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

}  // namespace shard::cpu
