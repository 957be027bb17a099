// Integer arguments of kernels of sequences: their elements, and the check of lengths.
#pragma once

#include "shard/kernels/cpu/data_check.h"

namespace shard::cpu {

/// Element i of a tensor of int32 or int64.
inline int64_t integer_at(const DenseTensor& x, int64_t i) {
  return x.dtype() == DType::int64 ? x.data<int64_t>()[i] : x.data<int32_t>()[i];
}

/// Throws out_of_range unless all lengths, in flat input `input`, are from `least` to `most`.
inline void check_lengths(const OpContext& ctx, const char* name, size_t input, const DenseTensor& lengths,
                          int64_t least, int64_t most) {
  for (int64_t i = 0; i < lengths.numel(); ++i) {
    const int64_t length = integer_at(lengths, i);
    if (length >= least && length <= most) continue;
    fail_check(ErrorCode::out_of_range, "[{}] {} is {} at element {}, but must be from {} to {}, the size of that dim",
               ctx.op, name, length, index_text(ctx, input, lengths, i), least, most);
  }
}

}  // namespace shard::cpu
