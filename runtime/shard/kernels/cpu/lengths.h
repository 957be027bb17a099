// The check of lengths of sequences, which are integer arguments of kernels.
#pragma once

#include "shard/kernels/cpu/index.h"

namespace shard::cpu {

/// Throws out_of_range unless all lengths, in flat input `input`, are from `least` to `most`.
inline void check_lengths(const OpContext& ctx, const char* name, size_t input, const DenseTensor& lengths,
                          int64_t least, int64_t most) {
  const auto wrong = [&](int64_t i) { return integer_at(lengths, i) < least || integer_at(lengths, i) > most; };
  const int64_t at = first_where(lengths.numel(), 2, wrong);
  if (at == lengths.numel()) return;
  fail_check(ErrorCode::out_of_range, "[{}] {} is {} at element {}, but must be from {} to {}, the size of that dim",
             ctx.op, name, integer_at(lengths, at), index_text(ctx, input, lengths, at), least, most);
}

}  // namespace shard::cpu
