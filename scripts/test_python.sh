#!/usr/bin/env bash
# Installs the Python package into a virtual environment of its own, build-python, and runs its tests there: test_python.sh [BUILD]
# The package builds the library, or takes that of BUILD, a folder with a build of it.
set -euo pipefail
cd "$(dirname "$0")/.."

environment=build-python
options=()
if (($# > 0)); then
  build=$(cd "$1" && pwd)
  rm -rf "$environment/prefix"
  cmake --install "$build" --prefix "$PWD/$environment/prefix" >/dev/null
  export SHARD_PREFIX=$PWD/$environment/prefix  # for the test of a project with ops of its own
  model=$build/tests/on_cuda_model  # a library with devices, which need no GPU
  if [[ -e $model ]]; then export SHARD_ON_CUDA_MODEL=$model; fi
  options=(-C cmake.source-dir=python -C "cmake.define.CMAKE_PREFIX_PATH=$PWD/$environment/prefix" -C "build-dir=$environment/wheel"
           -C "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG")  # compiles in two thirds of the time
fi
rm -rf "$environment/venv"
"${PYTHON:-python3}" -m venv "$environment/venv"
"$environment/venv/bin/pip" install --quiet --upgrade pip
"$environment/venv/bin/pip" install --quiet ${options[@]+"${options[@]}"} '.[test]'
# A test that hangs shows where all threads are, and ends the run.
exec timeout --kill-after=30 1800 "$environment/venv/bin/python" -m pytest -q -n "$(nproc)" -p no:cacheprovider -o faulthandler_timeout=300 --durations=15 python/tests
