#include "shard/kernels/cpu/data_check.h"

#include "shard/kernels/data_text.h"

namespace shard::cpu {

std::string index_text(const OpContext& ctx, size_t input, const DenseTensor& local, int64_t i) {
  return ArgumentPlace(ctx, input, local).index_text(i);
}

std::string global_text(const OpContext& ctx, size_t input, const DenseTensor& local) {
  return ArgumentPlace(ctx, input, local).global_text();
}

}  // namespace shard::cpu
