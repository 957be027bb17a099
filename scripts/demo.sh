#!/usr/bin/env bash
# Builds the tool, the library and the examples. Shows how ten lines of YAML become an op that runs on a mesh; then trains a small
# network on four ranks with its gradients written by hand, and a small GPT by autograd.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
# For the CPU alone: kernels for devices would take as long again to compile, and nothing here runs on one.
cmake --preset release -B build-demo -DSHARD_CUDA=OFF >/dev/null
cmake --build build-demo --target demo_op demo_mlp train_gpt -j"$(nproc)"
examples=build-demo/examples
examples/demo_op/show.sh "$examples"
printf '\n== 5. A network of ops of the library, trained on the same mesh: examples/demo_mlp.cc\n\n'
"$examples/demo_mlp" build-demo/demo.trace.json
echo "trace: build-demo/demo.trace.json (open it in https://ui.perfetto.dev or chrome://tracing)"
printf '\n== 6. A small GPT, trained by autograd on the same mesh: examples/train_gpt.cc\n\n'
"$examples/train_gpt" --text docs/semantics.md --dp 2 --tp 2 --steps 100
