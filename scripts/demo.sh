#!/usr/bin/env bash
# Builds the examples; trains a small network on four ranks with its gradients written by hand, and then a small GPT by autograd.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target demo_mlp train_gpt -j"$(nproc)"
examples=build-release/examples
"$examples/demo_mlp" build-release/demo.trace.json
echo "trace: build-release/demo.trace.json (open it in https://ui.perfetto.dev or chrome://tracing)"
echo
"$examples/train_gpt" --text docs/semantics.md --dp 2 --tp 2 --steps 100
