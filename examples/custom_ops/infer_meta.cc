// The shape function of my_ops.yaml that the runtime lacks: my_ops_ops.h declares it.
#include "my_ops_ops.h"

namespace shard::meta {

void ScaleShiftInferMeta(const OpContext& ctx, const Meta& x, const Meta& scale, const Meta& shift, Meta& out) {
  const int rank = x.dims.rank();
  const Meta row{rank == 0 ? Dims{} : Dims{x.dims[rank - 1]}, x.dtype};
  if (rank == 0 || !(scale == row) || !(shift == row)) {
    fail(ErrorCode::shape_mismatch, "[{}] scale {} and shift {} must have the last dim and the dtype of x {}", ctx.op,
         to_string(scale), to_string(shift), to_string(x));
  }
  out = x;
}

}  // namespace shard::meta
