#!/usr/bin/env bash
# Times steps of training beside the current PyTorch wheel, which it installs into a virtual environment, eager and compiled, on one
# thread and on all, and prints the tables of docs/performance.md.
# usage: bench/models.sh [--build DIR] [--match TEXT]
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/torch.sh

build=build-release
options=()
while (($# > 0)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --match) options+=(--match "${2:?--match needs a text}"); shift 2 ;;
    *) echo "usage: bench/models.sh [--build DIR] [--match TEXT]" >&2; exit 2 ;;
  esac
done

scripts/setup.sh
cmake --preset release -B "$build" >/dev/null
cmake --build "$build" -j"$(nproc)" --target model_bench
make_torch "$build"

for threads in 1 "$(nproc)"; do
  printf '\n%s\n' "$threads threads"
  "$python" bench/model_bench.py --build "$build" --threads "$threads" --markdown "${options[@]}"
done
