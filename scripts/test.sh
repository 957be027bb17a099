#!/usr/bin/env bash
# Runs every check: the dev build and its tests, both sanitizers, the CUDA build where nvcc is found, and the Python package. --quick: dev and Python only.
set -euo pipefail
cd "$(dirname "$0")/.."

quick=false
for argument in "$@"; do
  case $argument in
    --quick) quick=true ;;
    *) echo "usage: scripts/test.sh [--quick]" >&2; exit 2 ;;
  esac
done

failed=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# stage NAME COMMAND...: runs the command; a failure is remembered, and the other stages still run.
stage() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" 2>&1 | tee "$logs/$name" || { failed+=("$name"); echo "== $name FAILED"; }
  echo "== $name took $((SECONDS - start)) s"
}

# What failed in a stage, once more where a reader who sees only the end of a long log finds it.
why() {
  grep -nE -A 25 'error:|ERROR: |FAILED:|pack_deps:|dpkg-query:|\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception|runtime error' "$logs/$1" | head -n 150 || true
  grep -A 50 'The following tests FAILED' "$logs/$1" || true
}

build() { cmake --preset "$1" -DSHARD_UNITY=ON "${@:2}" >/dev/null && cmake --build --preset "$1" -j"$(nproc)"; }
# The tests of a preset, without the lines of those that pass: at the end of a log there is room for what failed, in this stage and before.
run_tests() {
  ctest --preset "$1" -j"$(nproc)" 2>&1 | sed -uE '/^ +Start +[0-9]+: /d; /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: .* Passed +[0-9.]+ sec *$/d'
}
build_and_test() { build "$1" && run_tests "$1"; }
# With the libraries that a machine without network gets, which come before those that are installed.
compile_cuda() { scripts/pack_deps.sh build-gpu/deps && scripts/gpu_check.sh --compile --prefix build-gpu/deps; }

scripts/setup.sh
echo "== dev build"
build dev -DSHARD_INSTRUCTION_SETS=avx  # nothing else is worth a run when this fails
echo "== dev build took $SECONDS s"
if ! $quick; then
  stage asan build_and_test asan
  stage tsan build_and_test tsan
  if command -v nvcc >/dev/null || [[ -x /usr/local/cuda/bin/nvcc ]]; then
    stage cuda compile_cuda
  else
    echo "== cuda: not run, nvcc was not found"
  fi
fi

stage python scripts/test_python.sh build-dev

if ((${#failed[@]} > 0)); then
  echo "FAILED before the dev tests: ${failed[*]}"
  for name in "${failed[@]}"; do why "$name"; done
fi
echo "== dev tests"
run_tests dev || failed+=(dev)
((${#failed[@]} == 0))
