// Ops of optim.yaml that are composites of other ops.
#include "shard/gradients/common.h"
#include "shard/ops/api.h"
#include "shard/ops/optim_ops.h"

namespace shard::external {

Tensor clip_by_norm(const Tensor& x, float max_norm) {
  if (!(max_norm > 0))
    fail(ErrorCode::invalid_argument, "[clip_by_norm] max_norm is {}, but must be positive", max_norm);
  const Tensor norm = frobenius_norm(gradients::widened(x), {}, false, true), limit = full_like(norm, max_norm);
  return gradients::times(x, divide(limit, maximum(norm, limit)));
}

}  // namespace shard::external
