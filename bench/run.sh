#!/usr/bin/env bash
# Builds the benchmarks, runs all of them and prints a table: ours beside the target and beside libtorch, where installed.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: bench/run.sh [--build DIR] [--jobs N] [--no-build] [--no-count]" >&2
  exit 2
}

build=build-release
jobs=$(nproc)
make=true
count=true
while (($# > 0)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --no-build) make=false; shift ;;
    --no-count) count=false; shift ;;
    *) usage ;;
  esac
done

if $make; then
  scripts/setup.sh
  cmake --preset release -B "$build" >/dev/null
  cmake --build "$build" -j"$jobs" --target dispatch_bench dispatch_loop program_bench reshard_bench codegen_bench bench_report
fi
out=$build/bench

# time_all PROGRAM JSON ARGUMENTS...: quiet; the table shows the medians. Repetitions of all benchmarks are mixed, so that
# load from elsewhere falls on ours and on the peer's alike.
time_all() {
  "$out/$1" "--benchmark_out=$out/$2" --benchmark_out_format=json --benchmark_enable_random_interleaving=true \
    --benchmark_report_aggregates_only=true "${@:3}" >/dev/null
}
time_all dispatch_bench dispatch.json --benchmark_repetitions=15 --benchmark_min_time=0.1
time_all codegen_bench codegen.json
rm -f "$out/codegen_memory.json"
if [[ -w /dev/shm ]]; then
  TMPDIR=/dev/shm time_all codegen_bench codegen_memory.json
fi

# instructions NAME CALLS: how many a run of dispatch_loop executes.
instructions() {
  valgrind --tool=callgrind --callgrind-out-file=/dev/null "$out/dispatch_loop" "$1" "$2" 2>&1 |
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p'
}
if $count && command -v valgrind >/dev/null; then
  : >"$out/instructions.txt"
  for name in add add_ view matmul_4x4 multiply multiply_recorded mul_sum_backward dist_add dist_view; do
    few=$(instructions "$name" 10000)
    many=$(instructions "$name" 30000)
    echo "$name $(((many - few) / 20000))" >>"$out/instructions.txt"
  done
fi

"$out/bench_report" "$out"
echo
"$out/program_bench"

# Collectives beside MPI's own, where MPI is there. Two processes have a core each on most machines; four may have to share.
if command -v mpirun >/dev/null && { ! $make || cmake --build "$build" -j"$jobs" --target mpi_bench >/dev/null 2>&1; } && [[ -x $out/mpi_bench ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
  for processes in 2 4; do
    echo
    mpirun -n "$processes" "$out/mpi_bench"
  done
fi
echo
"$out/reshard_bench"
