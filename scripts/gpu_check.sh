#!/usr/bin/env bash
# Builds the CUDA backend from the committed generated/, runs the device tests (of every op, its gradients, random graphs and programs) and,
# where it is found, compute-sanitizer on tests of kernels; with --bench it ends with tables of figures for docs/performance.md, beside
# PyTorch where python3 has it for this device. What fails is told at the end, and the rest goes on. Needs a compiler, CMake and the CUDA
# toolkit; the libraries may come from a folder that scripts/pack_deps.sh filled.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: scripts/gpu_check.sh [--prefix DIR] [--bench] [--build DIR] [--compile]" >&2
  exit 2
}

prefix=
bench=OFF
build=build-gpu
compile=false
tests=ON
architectures=native
flavour=(-DCMAKE_BUILD_TYPE=Release)
while (($# > 0)); do
  case $1 in
    --prefix) prefix=$(cd "${2:?--prefix needs a folder}" && pwd); shift 2 ;;
    --build) build=${2:?--build needs a folder}; shift 2 ;;
    --bench) bench=ON; shift ;;
    # Compiles the sources that only builds with CUDA have, with warnings as errors, and links nothing. Nothing runs, so device code is
    # hardly optimised, which takes less than half the time.
    --compile)
      compile=true
      tests=OFF
      fast="-O1 -Xcicc -O1 -Xptxas -O1"
      nvcc=$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc || true)
      if [[ -n $nvcc && $("$nvcc" --help) == *Ofast-compile* ]]; then fast="-O1 --Ofast-compile=max"; fi  # nvcc 12.9 and newer
      architectures=90
      flavour=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" -DSHARD_WERROR=ON
               "-DCMAKE_CUDA_FLAGS_RELWITHDEBINFO=$fast")
      shift
      ;;
    *) usage ;;
  esac
done

options=(
  "${flavour[@]}" -DSHARD_CODEGEN=OFF -DSHARD_REGENERATE=OFF "-DSHARD_EXAMPLES=$bench"
  "-DCMAKE_CUDA_ARCHITECTURES=${CUDAARCHS:-$architectures}" -DSHARD_CUDA=ON "-DSHARD_TESTS=$tests" "-DSHARD_BENCH=$bench"
  "-DSHARD_TEST_FOLDERS=cuda;conformance;gradients;autograd;program"
)
if command -v ninja >/dev/null; then
  options+=(-G Ninja)
else
  options+=(-G "Unix Makefiles")
fi
if [[ -n $prefix ]]; then
  find "$prefix" -name '*.so*.gz' -exec gunzip -f {} +  # packed by scripts/pack_deps.sh
  # The prefix comes first everywhere: in CMake, pkg-config, the compiler and the loader.
  libraries=$prefix/usr/lib/x86_64-linux-gnu
  export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  export PKG_CONFIG_LIBDIR=$libraries/pkgconfig:$prefix/usr/share/pkgconfig
  options+=(
    "-DCMAKE_PREFIX_PATH=$prefix/usr" "-DCMAKE_LIBRARY_ARCHITECTURE=x86_64-linux-gnu"
    "-DPKG_CONFIG_EXECUTABLE=$prefix/usr/bin/pkgconf"
    "-DCMAKE_CXX_FLAGS=-isystem $prefix/usr/include" "-DCMAKE_BUILD_RPATH=$libraries"
    "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,$libraries" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$libraries"
  )
fi

cmake -S . -B "$build" "${options[@]}"
if grep -q '^SHARD_NO_CUDA_REASON:INTERNAL=.' "$build/CMakeCache.txt"; then
  echo "gpu_check: built without CUDA, so there is nothing to check" >&2
  exit 1
fi
if $compile; then
  objects=$(ninja -C "$build" -t targets all | grep -oE '^[^:]*(/core/cuda/|/kernels/cuda/)[^:]*[.]o')
  # shellcheck disable=SC2086  # a list of names
  cmake --build "$build" -j"$(nproc)" -t $objects
  echo "gpu_check: $(wc -w <<<"$objects") objects compile"
  exit 0
fi
cmake --build "$build" -j"$(nproc)"

reason=$("$build/tests/shard_tests_cuda" -r compact 'threads use a device*' | grep -o 'skipped: [^'"'"']*' | head -n 1 || true)
if [[ -n $reason ]]; then
  echo "gpu_check: everything compiles; the device tests were ${reason}"
  exit 0
fi
failed=()
# check NAME COMMAND...: a failure is remembered.
check() {
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || failed+=("$name")
  echo "== $name took $((SECONDS - start)) s"
}

check "device tests" ctest --test-dir "$build" -j4 -R '^cuda:| on a device| on devices|CUDA' --output-on-failure --no-tests=error
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
if [[ -n $sanitizer ]]; then
  # Files of tests whose kernels share memory or find their places by data.
  files='[#reduce_test],[#softmax_test],[#norm_test],[#scan_test],[#sort_test],[#scatter_test],[#matrix_test]'
  for tool in memcheck racecheck synccheck; do
    check "$tool" timeout 180 "$sanitizer" --tool "$tool" --error-exitcode 1 "$build/tests/shard_tests_cuda" -# "$files"
  done
else
  echo "gpu_check: memcheck, racecheck and synccheck were not run, compute-sanitizer was not found"
fi
if [[ $bench == ON ]]; then
  check "figures" "$build/bench/kernel_bench" --device cuda --table
  if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    check "kernels beside PyTorch" python3 bench/kernel_bench.py --build "$build" --device cuda --runs 3
    check "gradients beside PyTorch" python3 bench/kernel_bench.py --build "$build" --device cuda --runs 3 --backward
    check "models beside PyTorch" python3 bench/model_bench.py --build "$build" --device cuda --steps 10
  else
    echo "gpu_check: nothing was timed beside PyTorch, which python3 does not have for this device"
  fi
fi
if ((${#failed[@]} > 0)); then
  printf 'gpu_check: FAILED: %s\n' "${failed[@]}"
  exit 1
fi
