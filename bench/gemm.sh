#!/usr/bin/env bash
# Measures from which sizes on products of float32 are faster by oneDNN than by OpenBLAS, for each instruction set that this machine
# has, and writes runtime/shard/kernels/cpu/gemm_table.h. With --products it writes nothing, and prints the table of products beside
# the raw calls of both libraries, on one thread and on all.
# usage: bench/gemm.sh [--build DIR] [--products]
set -euo pipefail
cd "$(dirname "$0")/.."

build=build-release
products=false
while (($# > 0)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --products) products=true; shift ;;
    *) echo "usage: bench/gemm.sh [--build DIR] [--products]" >&2; exit 2 ;;
  esac
done

scripts/setup.sh
cmake --preset release -B "$build" >/dev/null
cmake --build "$build" -j"$(nproc)" --target gemm_bench product_bench >/dev/null

if $products; then
  echo "| product | threads | shard, ms | OpenBLAS, ms | oneDNN, ms | faster one / shard |"
  echo "|---|---|---|---|---|---|"
  for threads in 1 "$(nproc)"; do  # threads of OpenMP that wait would take the cores from ours
    OMP_NUM_THREADS=$threads OMP_WAIT_POLICY=passive "$build/bench/product_bench" "$threads"
  done
  exit 0
fi

# measure ISA CORE: the row of an instruction set, by the names that oneDNN and OpenBLAS have for it.
measure() { OMP_NUM_THREADS=1 DNNL_MAX_CPU_ISA=$1 OPENBLAS_CORETYPE=$2 "$build/bench/gemm_bench" 2>/dev/null; }
rows=$({ measure AVX2 Haswell; measure AVX512_CORE SkylakeX; measure ALL SkylakeX; } | sort -u -t, -k1,1 | sed 's/^/    /')

cat >runtime/shard/kernels/cpu/gemm_table.h <<HEADER
// From how many multiplications on products of float32 are faster by oneDNN than by OpenBLAS, by instruction set. Written by
// bench/gemm.sh.
#pragma once

namespace shard::cpu {

struct GemmTableRow {
  unsigned isa;                        // a dnnl::cpu_isa
  int plain, transposed_x, transposed_y;  // log2 of multiplications
};

/// The last row whose instruction set a processor has is its row.
inline constexpr GemmTableRow kGemmTable[] = {
$rows
};

}  // namespace shard::cpu
HEADER
clang-format-14 -i runtime/shard/kernels/cpu/gemm_table.h
cat runtime/shard/kernels/cpu/gemm_table.h
