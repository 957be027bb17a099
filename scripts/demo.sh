#!/usr/bin/env bash
# Builds the example that trains a small network on four ranks, and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset release >/dev/null
cmake --build --preset release --target demo_mlp -j"$(nproc)"
demo=$(find build-release/examples -name demo_mlp -type f -perm -u+x | head -n 1)
"$demo" build-release/demo.trace.json
echo "trace: build-release/demo.trace.json (open it in https://ui.perfetto.dev or chrome://tracing)"
