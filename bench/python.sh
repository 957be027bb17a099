#!/usr/bin/env bash
# Times small calls of the Python package beside PyTorch's: python.sh [BUILD]. Installs the package, with the library of the build folder
# (build-release), into the environment of the peer there.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build-release}
[[ -e $build/CMakeCache.txt ]] || { cmake --preset release && cmake --build --preset release; }
source bench/torch.sh
make_torch "$build"
cmake --install "$build" --prefix "$PWD/$build/python-prefix" >/dev/null
"$python" -m pip install --quiet --no-deps --force-reinstall . -C cmake.source-dir=python -C "cmake.define.CMAKE_PREFIX_PATH=$PWD/$build/python-prefix" \
  -C "build-dir=$build/python-wheel"
exec "$python" bench/python_bench.py
