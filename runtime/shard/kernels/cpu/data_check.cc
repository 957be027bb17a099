#include "shard/kernels/cpu/data_check.h"

namespace shard::cpu {

std::string index_text(const OpContext& ctx, size_t input, const DenseTensor& local, int64_t i) {
  const Box box = ctx.input_box(input, local);
  Dims index = box.begin;
  for (int d = local.dims().rank() - 1; d >= 0; --d) {
    index[d] += i % local.dims()[d];
    i /= local.dims()[d];
  }
  return index.rank() > 1 ? to_string(index) : std::to_string(index.rank() == 1 ? index[0] : 0);
}

std::string global_text(const OpContext& ctx, size_t input, const DenseTensor& local) {
  return to_string(Meta{ctx.input_box(input, local).global, local.dtype()});
}

}  // namespace shard::cpu
