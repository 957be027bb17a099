#!/usr/bin/env bash
# Builds the tool, the library and the examples. Shows how ten lines of YAML become an op that runs on a mesh; then trains a small
# network on four ranks with its gradients written by hand, and a small GPT by autograd.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target demo_op demo_mlp train_gpt -j"$(nproc)"
examples=build-release/examples
examples/demo_op/show.sh "$examples"
printf '\n== 5. A network of ops of the library, trained on the same mesh: examples/demo_mlp.cc\n\n'
"$examples/demo_mlp" build-release/demo.trace.json
echo "trace: build-release/demo.trace.json (open it in https://ui.perfetto.dev or chrome://tracing)"
printf '\n== 6. A small GPT, trained by autograd on the same mesh: examples/train_gpt.cc\n\n'
"$examples/train_gpt" --text docs/semantics.md --dp 2 --tp 2 --steps 100
