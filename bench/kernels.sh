#!/usr/bin/env bash
# Times kernels beside those of the current PyTorch wheel, which it installs into a virtual environment, and prints the tables of
# docs/performance.md: forward, and forward and backward, on one thread and on all.
# usage: bench/kernels.sh [--build DIR] [--match TEXT ...]
set -euo pipefail
cd "$(dirname "$0")/.."

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

# The CPU part of the wheel needs few of the packages that it names, beside the libraries of the CUDA toolkit.
python=$build/torch/bin/python
if [[ ! -x $python ]]; then
  python3 -m venv "$build/torch"
fi
if ! "$python" -c 'import torch' 2>/dev/null; then
  "$build/torch/bin/pip" install --quiet --no-deps torch typing_extensions sympy mpmath networkx filelock jinja2 markupsafe fsspec numpy \
    nvidia-cufile nvidia-cusparselt-cu13 nvidia-nvshmem-cu13 nvidia-nccl-cu13 || true
fi
if ! reason=$("$python" -c 'import torch' 2>&1); then
  echo "kernels: not measured, because PyTorch cannot be imported: ${reason##*$'\n'}"
  exit 0
fi

for threads in 1 "$(nproc)"; do
  for mode in "" --backward; do
    echo
    "$python" bench/kernel_bench.py --build "$build" --threads "$threads" --markdown ${mode:+"$mode"} "${options[@]}"
  done
done
