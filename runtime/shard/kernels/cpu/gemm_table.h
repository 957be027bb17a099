// From how many multiplications on products of float32 are faster by oneDNN than by OpenBLAS, by instruction set. Written by
// bench/gemm.sh.
#pragma once

namespace shard::cpu {

struct GemmTableRow {
  unsigned isa;                           // a dnnl::cpu_isa
  int plain, transposed_x, transposed_y;  // log2 of multiplications
};

/// The last row whose instruction set a processor has is its row.
inline constexpr GemmTableRow kGemmTable[] = {
    {0x7, 18, 18, 18},
    {0x27, 19, 20, 17},
    {0x3e7, 19, 20, 17},
};

}  // namespace shard::cpu
