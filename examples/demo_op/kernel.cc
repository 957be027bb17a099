// The kernel of distance.yaml. On a mesh it gets the local shards of a rank; it does not depend on the mesh.
#include "kernel.h"

#include <shard/kernel.h>

using namespace shard;

namespace {

void squared_distance(const OpContext& ctx, const DenseTensor& x, const DenseTensor& y, DenseTensor& out) {
  if (x.dims().rank() != 2 || y.dims().rank() != 2)
    fail(ErrorCode::shape_mismatch, "[{}] x and y must have 2 dims", ctx.op);
  const int64_t m = x.dims()[0], n = y.dims()[0], k = x.dims()[1];
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        const float difference = x.data<float>()[i * k + l] - y.data<float>()[j * k + l];
        sum += difference * difference;
      }
      out.data<float>()[i * n + j] = sum;
    }
  }
}

}  // namespace

void register_squared_distance() {
  register_kernel("squared_distance", kCpu.backend, DType::float32, &squared_distance);
}
