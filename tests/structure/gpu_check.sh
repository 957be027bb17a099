#!/usr/bin/env bash
# usage: gpu_check.sh SCRIPT SCRATCH: runs scripts/gpu_check.sh between stand-ins for CMake, the programs that it builds, Python and the tools of
# CUDA: what fails and what is absent must be named at the end, after everything else has run, and figures must come as one table.
set -euo pipefail

script=$1 scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch/scripts" "$scratch/bin" "$scratch/tools" "$scratch/programs/tests" "$scratch/programs/bench"
cp "$script" "$scratch/scripts/gpu_check.sh"
cd "$scratch"
scratch=$PWD
program() {
  { echo '#!/bin/sh'; cat; } >"$1"
  chmod +x "$1"
}

# The programs that are there after a build, of which $UNBUILT is missing because a source does not compile.
program programs/tests/shard_tests_cuda <<<'echo "${SKIPPED:-All tests passed}"; [ -z "${SKIPPED:-}" ]'
program programs/bench/kernel_bench <<'END'
echo "cuda:0: memory 4000.0 GB/s, read and written

| case | ms | memory | host, us | backward, ms |
|---|---|---|---|---|
| add | 0.5 | 0.91 | 2.5 | 1.5 |
| add int64 | 0.7 | 0.92 | 2.6 |  |
| conv2d 3x3, 64 channels | failed: no such kernel | | | |"
exit 1
END
program bin/cmake <<'END'
case $1 in
  -S) mkdir -p build-gpu
      printf 'CMAKE_GENERATOR:INTERNAL=%s\n' "${GENERATOR:-Ninja}" >build-gpu/CMakeCache.txt
      printf '%s\n' "$CACHE" >>build-gpu/CMakeCache.txt ;;
  --build) echo "cmake $*"
           cp -r programs/. build-gpu
           [ -z "${UNBUILT:-}" ] || { rm "build-gpu/$UNBUILT"; exit 1; } ;;
esac
END
program bin/ctest <<<'echo "ctest was run"; exit "${CTEST_STATUS:-0}"'
program bin/nvcc <<<'echo Ofast-compile'
program bin/ldconfig <<<'echo "	libcudnn_graph.so.9 => /usr/lib/libcudnn_graph.so.9"'
program bin/nvidia-smi <<<'echo "A device, 1.2"'
program bin/python3 <<'END'
case $* in
  -c*) exit "${TORCH_STATUS:-0}" ;;
  *model_bench*) echo '| model | ours / PyTorch | shard, ms | PyTorch | ratio |
|---|---|---|---|---|
| gpt 2x64 | eager / eager | 3.00 | 6.00 | 2.00 |' ;;
  *backward*) echo '| case | shard, ms | PyTorch | ratio | memory |
|---|---|---|---|---|
| add | 1.6 | 3.2 | 2.01 |  |' ;;
  *) echo '| case | shard, ms | PyTorch | ratio | memory |
|---|---|---|---|---|
| add | 0.51 | 1.02 | 2.02 | 0.9 |

1 cases, forward' ;;
esac
END
# One of three tools finds something, and one does not end in its time.
program tools/compute-sanitizer <<'END'
case "$*" in
  *racecheck*reduce_test*) exit 1 ;;
  *memcheck*conv_test*) exit 124 ;;
  *) echo "sanitizer $2 of $7" ;;
esac
END
for name in bash sh grep sed awk find tee cat cp rm mkdir touch dirname timeout nproc env mv head ls sort id; do
  path=$(command -v "$name") && ln -s "$path" "bin/$name"
done

found='SHARD_NO_CUDA_REASON:INTERNAL=
SHARD_NCCL_INCLUDE:PATH=/nccl
SHARD_NCCL:FILEPATH=/nccl/libnccl.so
SHARD_CUDNN_INCLUDE:PATH=/cudnn
CUDA_cudart_LIBRARY:FILEPATH='$scratch'/toolkit/libcudart.so'
none='SHARD_NO_CUDA_REASON:INTERNAL=
SHARD_NCCL_INCLUDE:PATH=SHARD_NCCL_INCLUDE-NOTFOUND
SHARD_NCCL:FILEPATH=SHARD_NCCL-NOTFOUND
SHARD_CUDNN_INCLUDE:PATH=SHARD_CUDNN_INCLUDE-NOTFOUND'
mkdir toolkit
touch toolkit/libcudnn.so.9 toolkit/libnvrtc.so.12

# run STATUS VARIABLE=VALUE... -- OPTIONS...: runs the script, which must end with the status. Its output is in `output`.
run() {
  local expected=$1 status=0 settings=()
  shift
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  rm -rf build-gpu
  env -i PATH="$scratch/bin" CACHE="$none" "${settings[@]}" bash scripts/gpu_check.sh "$@" >output 2>&1 || status=$?
  if ((status != expected)); then fail "status $status instead of $expected"; fi
}
fail() {
  echo "gpu_check.sh: $*; its output:" >&2
  cat output >&2
  exit 1
}
has() {
  local line
  for line in "$@"; do grep -Fqx -- "$line" output || fail "there is no line '$line'"; done
}
has_not() { if grep -F -- "$1" output; then fail "there is '$1'"; fi; }

# Everything is there; the sanitizer and a benchmark have findings.
run 1 CACHE="$found" PATH="$scratch/bin:$scratch/tools" -- --bench
has "ctest was run" "sanitizer memcheck of [#attention_test]" "sanitizer synccheck of [#rope_test]" \
  "| add | 0.5 | 0.91 | 2.5 | 1.02 | 2.02 | 1.5 | 3.2 | 2.01 |" "| add int64 | 0.7 | 0.92 | 2.6 | | | | | |" \
  "| conv2d 3x3, 64 channels | failed: no such kernel | | | | | | | |" "| gpt 2x64, eager / eager | | | | | | 3.00 | 6.00 | 2.00 |" \
  "cuda:0: memory 4000.0 GB/s, read and written" "A device, 1.2" \
  "gpu_check: absent: the rest of memcheck of conv_test: its time was over" "gpu_check: FAILED: racecheck of reduce_test" \
  "gpu_check: FAILED: figures"
[[ $(grep -c '^gpu_check: ' output) == 3 && $(tail -n 1 output) == "gpu_check: FAILED: figures" ]] || fail "other findings, or in another place"
[[ $(grep -c '^| case | ms | memory | host, us | PyTorch' output) == 1 ]] || fail "not one table"

# Nothing optional is there: all of it is named, and that is no failure.
run 0 TORCH_STATUS=1 --
has "ctest was run" "gpu_check: absent: NCCL: devices exchanged data by copies" \
  "gpu_check: absent: the header of cuDNN: convolutions, pooling and recurrent networks were those of the library" \
  "gpu_check: absent: NVRTC (libnvrtc.so): captured programs ran without fused loops" \
  "gpu_check: absent: compute-sanitizer: memcheck, racecheck and synccheck were not run" \
  "gpu_check: absent: PyTorch for this device in python3: nothing was timed beside it"
has_not FAILED

run 0 CACHE="SHARD_CUDNN_INCLUDE:PATH=/cudnn"$'\n'"$none" --
has "gpu_check: absent: cuDNN (libcudnn.so): convolutions, pooling and recurrent networks were those of the library"

# A source that does not compile, and failed tests: the rest goes on.
run 1 CACHE="$found" UNBUILT=bench/kernel_bench CTEST_STATUS=8 -- --bench
has "cmake --build build-gpu -j$(nproc) -- -k 0" "ctest was run" "| add | | | | 1.02 | 2.02 | | 3.2 | 2.01 |" "gpu_check: FAILED: build" \
  "gpu_check: FAILED: device tests" "gpu_check: FAILED: figures"
run 1 CACHE="$found" GENERATOR="Unix Makefiles" UNBUILT=tests/shard_tests_cuda PATH="$scratch/bin:$scratch/tools" --
has "cmake --build build-gpu -j$(nproc) -- -k" "ctest was run" \
  "gpu_check: absent: shard_tests_cuda, which was not built: no test of a kernel was run" "gpu_check: FAILED: build"
has_not "sanitizer "

# No device, and no CUDA.
run 0 SKIPPED="skipped: no device is there" --
has "gpu_check: absent: a device: the tests were skipped: no device is there"
has_not "ctest was run"
run 1 CACHE="SHARD_NO_CUDA_REASON:INTERNAL=nvcc was not found" --
has "gpu_check: built without CUDA (nvcc was not found), so there is nothing to check"

# Without Ninja, objects are compiled by Make.
run 0 GENERATOR="Unix Makefiles" -- --compile
has "cmake --build build-gpu -j$(nproc) -t shard_cuda shard_cuda_kernels -- -k"
run 1 UNBUILT=tests/shard_tests_cuda -- --compile
has_not "gpu_check: the sources"
