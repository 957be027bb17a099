#!/usr/bin/env bash
# Times kernels beside those of the current PyTorch wheel, which it installs into a virtual environment: forward, and forward and
# backward, on one thread and on all. Without --match it writes the table of docs/performance.md.
# usage: bench/kernels.sh [--build DIR] [--match TEXT ...]
set -euo pipefail
cd "$(dirname "$0")/.."
source bench/torch.sh

build=build-release
options=()
while (($# > 0)); do
  case $1 in
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --match) options+=(--match "${2:?--match needs a text}"); shift 2 ;;
    *) echo "usage: bench/kernels.sh [--build DIR] [--match TEXT ...]" >&2; exit 2 ;;
  esac
done

scripts/setup.sh
cmake --preset release -B "$build" >/dev/null
cmake --build "$build" -j"$(nproc)" --target kernel_bench
make_torch "$build"

files=()
for mode in "" --backward; do
  for threads in 1 "$(nproc)"; do
    echo
    files+=("$build/kernels${mode}_$threads.json")
    "$python" bench/kernel_bench.py --build "$build" --threads "$threads" --json "${files[-1]}" ${mode:+"$mode"} "${options[@]}"
  done
done
if ((${#options[@]} == 0)); then
  "$python" bench/kernel_table.py docs/performance.md "${files[@]}"
fi
