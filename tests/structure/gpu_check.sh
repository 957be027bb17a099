#!/usr/bin/env bash
# usage: gpu_check.sh SCRIPT SCRATCH: runs scripts/gpu_check.sh between stand-ins for CMake, the programs that it builds, Python and the tools of
# CUDA: the order of its stages, their time limits, what is named at the end, and what is left where it is killed.
set -euo pipefail

script=$1 scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch"/{scripts,bin,toolkit/bin,programs/tests,programs/bench}
# With seconds where the script has minutes.
sed -e 's/^least=30 /least=2 /' -e 's/ conv:180 / conv:2 /' -e 's/"first test on the device" 120 /"first test on the device" 3 /' \
  -e 's/"figures" 600 /"figures" 8 /' "$script" >"$scratch/scripts/gpu_check.sh"
cd "$scratch"
scratch=$PWD
program() {
  { echo '#!/bin/bash'; cat; } >"$1"
  chmod +x "$1"
}

# The programs that are there after a build, of which $UNBUILT is missing because a source does not compile.
for folder in cuda conformance gradients autograd program; do
  program programs/tests/shard_tests_$folder <<'END'
name=${*: -1}
case $* in
  *--list-test-names-only*) printf '%s\n' "threads use a device side by side" "$(basename "$0"), on a device" "on the host"; exit 3 ;;
  *-w\ NoTests*) ;;
  *) echo "a filter that matches nothing would pass"; exit 1 ;;
esac
if [[ -n ${HANGING:-} && $name == *"$HANGING"* ]]; then sleep 60; fi
if [[ -n ${SKIPPED:-} && $name == *"$SKIPPED"* ]]; then echo "a.cc:17: warning: 'skipped: ${REASON:-it takes two devices}'"; fi
if [[ -n ${FAILING:-} && $name == *"$FAILING"* ]]; then exit 1; fi
echo "ran $name" >>"$RAN"
echo "All tests passed"
END
done
program programs/bench/kernel_bench <<'END'
echo "cuda:0: memory 4000.0 GB/s, read and written

| case | ms | memory | host, us | backward, ms |
|---|---|---|---|---|
| add | 0.5 | 0.91 | 2.5 | 1.5 |"
if [[ -n ${BENCH_HANGS:-} ]]; then echo $$ >bench_pid; exec sleep 60; fi
echo "| add int64 | 0.7 | 0.92 | 2.6 |  |
| conv2d 3x3, 64 channels | failed: no such kernel | | | |"
exit "${BENCH_STATUS:-1}"
END
program bin/cmake <<'END'
case $1 in
  -S) printf '%s\n' "$@" >configured
      build=$4
      mkdir -p "$build"
      printf 'CMAKE_GENERATOR:INTERNAL=%s\nSHARD_NO_CUDA_REASON:INTERNAL=%s\n' "${GENERATOR:-Ninja}" "${NO_CUDA:-}" >"$build/CMakeCache.txt" ;;
  --build) echo "cmake $*"
           cp -r programs/. "$2"
           [[ -z ${UNBUILT:-} ]] || { for each in $UNBUILT; do rm "$2/$each"; done; exit 1; } ;;
esac
END
# CTest itself, but for the time of a test.
program bin/ctest <<END
exec $(command -v ctest) "\${@/#240/2}"
END
program bin/nvcc <<<'echo Ofast-compile'
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
# Of three tools one finds something, one does not end in its time, and one finds something before its time ends.
program toolkit/bin/compute-sanitizer <<'END'
if [[ -n ${REFUSED:-} ]]; then echo "========= COMPUTE-SANITIZER"; echo "$REFUSED"; exit "${REFUSED_STATUS:-1}"; fi
[[ -z ${SLOWLY:-} ]] || sleep "$SLOWLY"
case "$*" in
  *"threads use a device"*) echo "All tests passed (4 assertions in 1 test case)" ;;
  *racecheck*reduce_test*) exit 1 ;;
  *racecheck*sort_test*) echo "========= Error: Race reported between Write access and Read access"; echo "========= RACECHECK SUMMARY: 1 hazard" ;;
  *memcheck*conv_test*) sleep 60 ;;
  *synccheck*conv_test*) echo "========= Barrier error detected. Divergent thread(s) in block."; sleep 60 ;;
  *) echo "$* ran" ;;
esac
END
for name in bash sh grep sed awk find tee cat cp rm mkdir touch dirname basename realpath timeout nproc env mv ls sort tail wc sleep; do
  path=$(command -v "$name") && ln -s "$path" "bin/$name"
done

# run STATUS VARIABLE=VALUE... -- OPTIONS...: runs the script, which must end with the status. Its output is in `output`, what tests ran in `ran`.
run() {
  local expected=$1 status=0 settings=()
  shift
  while [[ $1 != -- ]]; do settings+=("$1"); shift; done
  shift
  rm -rf build-gpu
  : >ran
  env -i PATH="$scratch/bin" CUDA_PATH="$scratch/nowhere" RAN="$scratch/ran" "${settings[@]}" bash "$scratch/scripts/gpu_check.sh" "$@" \
    >"$scratch/output" 2>&1 || status=$?
  if ((status != expected)); then fail "status $status instead of $expected"; fi
}
fail() {
  echo "gpu_check.sh: $*; its output:" >&2
  cat "$scratch/output" >&2
  exit 1
}
has() {
  local line
  for line in "$@"; do grep -Fqx -- "$line" "$scratch/output" || fail "there is no line '$line'"; done
}
has_not() { if grep -F -- "$1" "$scratch/output"; then fail "there is '$1'"; fi; }
# ends_with LINE...: these, and no others, are in the list at the end.
ends_with() {
  [[ $(grep '^gpu_check: ' output) == "$(printf 'gpu_check: %s\n' "$@")" ]] || fail "the list is not: $*"
  [[ $(tail -n 1 output) == "gpu_check: ${*: -1}" ]] || fail "the list is not at the end"
}
toolkit=CUDA_PATH=$scratch/toolkit

# Everything is there; the sanitizer and a benchmark have findings.
run 1 "$toolkit" SKIPPED="program\\, on" -- --bench
order=$(sed -n 's/^== //p' output | grep -v ' took ')
[[ $order == "build
first test on the device
device tests
figures
kernels beside PyTorch
gradients beside PyTorch
models beside PyTorch
trial of compute-sanitizer
memcheck of attention_test
"* ]] || fail "another order: $order"
build=$scratch/build-gpu tests=$scratch/build-gpu/tests/shard_tests
has "cmake --build $build -j$(nproc) -t shard_tests_cuda shard_tests_conformance shard_tests_gradients shard_tests_autograd shard_tests_program kernel_bench model_bench -- -k 0" \
  "--tool memcheck --report-api-errors no --error-exitcode 1 ${tests}_cuda -w NoTests -# [#attention_test] ran" \
  "--tool synccheck --error-exitcode 1 ${tests}_cuda -w NoTests -# [#vision_test] ran" \
  "| add | 0.5 | 0.91 | 2.5 | 1.02 | 2.02 | 1.5 | 3.2 | 2.01 |" "| add int64 | 0.7 | 0.92 | 2.6 | | | | | |" \
  "| conv2d 3x3, 64 channels | failed: no such kernel | | | | | | | |" "| gpt 2x64, eager / eager | | | | | | 3.00 | 6.00 | 2.00 |" \
  "cuda:0: memory 4000.0 GB/s, read and written" "A device, 1.2"
ends_with "absent: device tests skipped: it takes two devices" "absent: the rest of memcheck of conv_test: its time was over" \
  "FAILED: figures" "FAILED: racecheck of reduce_test" "FAILED: racecheck of sort_test" \
  "FAILED: synccheck of conv_test, which did not end in its time either"
[[ $(grep -c '^| case | ms | memory | host, us | PyTorch' output) == 1 ]] || fail "not one table"
[[ $(sort ran | uniq -c | tr -s ' ') == " 1 ran on the host
 1 ran shard_tests_autograd\\, on a device
 1 ran shard_tests_conformance\\, on a device
 1 ran shard_tests_cuda\\, on a device
 1 ran shard_tests_gradients\\, on a device
 1 ran shard_tests_program\\, on a device
 1 ran threads use a device side by side
 1 ran threads use a device*" ]] || fail "other tests ran: $(<ran)"
for file in build.log device_tests.log sanitizers.log kernels.md forward.md backward.md models.md table.md list; do
  [[ -s build-gpu/gpu_check/$file ]] || fail "there is no $file"
done
# Some also where --compile has set others in the same folder before.
for option in -DSHARD_TOOLS=OFF -DSHARD_MPI=OFF "-DCMAKE_CUDA_ARCHITECTURES=80-real;90" -DSHARD_CUDA_UNITY=OFF -UCMAKE_CUDA_COMPILE_OBJECT; do
  grep -Fqx -- "$option" configured || fail "$option is not set"
done

# Nothing optional is there: all of it is named, and that is no failure. Without --bench no figures are missed.
run 0 BENCH_STATUS=0 TORCH_STATUS=1 -- --bench
ends_with "absent: PyTorch for this device in python3: nothing was timed beside it" \
  "absent: compute-sanitizer: memcheck, racecheck and synccheck were not run"
run 0 --
ends_with "absent: compute-sanitizer: memcheck, racecheck and synccheck were not run"

# A sanitizer that refuses the device, or runs nothing without an error.
refused="compute-sanitizer, which does not run a test here"
run 0 "$toolkit" REFUSED=$'========= Device not supported. See the documentation\n========= Program hit error 999' --
ends_with "absent: $refused: Device not supported. See the documentation"
run 0 "$toolkit" REFUSED="========= ERROR SUMMARY: 0 errors" REFUSED_STATUS=0 --
ends_with "absent: $refused: see $scratch/build-gpu/gpu_check/sanitizers.log"
has_not "== memcheck"

# Sources that do not compile, and failed tests: the rest goes on.
run 1 UNBUILT="bench/kernel_bench tests/shard_tests_gradients" FAILING="autograd\\, on" -- --bench
has "| add | | | | 1.02 | 2.02 | | 3.2 | 2.01 |"
ends_with "absent: shard_tests_gradients, which was not built: none of its tests ran" \
  "absent: compute-sanitizer: memcheck, racecheck and synccheck were not run" "FAILED: build" "FAILED: device tests" "FAILED: figures"
run 1 "$toolkit" GENERATOR="Unix Makefiles" UNBUILT=tests/shard_tests_cuda --
has "cmake --build $build -j$(nproc) -t shard_tests_cuda shard_tests_conformance shard_tests_gradients shard_tests_autograd shard_tests_program -- -k"
ends_with "absent: shard_tests_cuda, which was not built: none of its tests ran" "absent: compute-sanitizer, which had no tests to run" \
  "FAILED: build"

# A test that hangs, a device on which nothing ends, and a status that only looks like the end of the time.
run 1 HANGING="cuda\\, on" --
grep -q '[*]Timeout' output || fail "no test ran out of time"
ends_with "absent: compute-sanitizer: memcheck, racecheck and synccheck were not run" "FAILED: device tests"
run 1 HANGING="a device*" --
ends_with "absent: device tests: not reached" "absent: compute-sanitizer: not reached" \
  "FAILED: first test on the device: it did not end in its time"
run 1 BENCH_HANGS=1 TORCH_STATUS=1 -- --bench
has "gpu_check: FAILED: figures: it did not end in its time"
run 1 BENCH_STATUS=124 TORCH_STATUS=1 -- --bench
has "gpu_check: FAILED: figures"

# With little time the check ends in it, and says where.
begin=$SECONDS
run 0 "$toolkit" SLOWLY=2 -- --time 18
((SECONDS - begin <= 18)) || fail "it took $((SECONDS - begin)) s"
grep -q '^gpu_check: absent: memcheck of .*_test: the time of the check was over$' output || fail "no stage was too late"
grep -q '^gpu_check: absent: all that compute-sanitizer runs after memcheck of ' output || fail "it is not said what follows"
has_not "== racecheck"
has_not FAILED

# The check is ended while a benchmark runs: what there is so far is kept, and nothing runs on.
kill_check() {
  until [[ -s bench_pid ]]; do sleep 0.1; done
  kill -TERM "$(<check_pid)"
}
rm -f bench_pid
program bin/hold <<<'echo $$ >check_pid; exec bash "$@"'
kill_check &
status=0
env -i PATH="$scratch/bin" CUDA_PATH="$scratch/nowhere" RAN="$scratch/ran" BENCH_HANGS=1 hold scripts/gpu_check.sh --bench --out results/here \
  >output 2>&1 || status=$?
((status == 143)) || fail "status $status instead of 143"
ends_with "absent: the rest of figures: the check was ended" "absent: compute-sanitizer: not reached"
grep -Fqx "| add | 0.5 | 0.91 | 2.5 | | | 1.5 | | |" results/here/table.md || fail "the table is lost"
grep -Fqx "absent: compute-sanitizer: not reached" results/here/list || fail "the list is lost"
for ((i = 0; i < 30; ++i)); do kill -0 "$(<bench_pid)" 2>/dev/null || break; sleep 0.1; done
((i < 30)) || fail "the benchmark runs on"

# No device, and no CUDA.
run 77 SKIPPED="a device*" REASON="no device is there" -- --bench
ends_with "absent: a device: the tests were skipped: no device is there" "absent: device tests: not reached" \
  "absent: benchmarks: not reached" "absent: compute-sanitizer: not reached"
run 1 SKIPPED="a device*" UNBUILT=tests/shard_tests_program --
has "gpu_check: FAILED: build"
run 1 NO_CUDA="nvcc was not found" --
has "gpu_check: built without CUDA (nvcc was not found), so there is nothing to check"
run 2 -- --time soon
has "usage: scripts/gpu_check.sh [--bench] [--prefix DIR] [--build DIR] [--no-build] [--out DIR] [--time SECONDS] [--compile]"

# Programs that were built elsewhere, and folders that are named from where the caller is.
mkdir -p caller/packed/usr caller/other
cp -r programs caller/other/build
cd caller
run 0 NO_CUDA="not looked at" -- --no-build --build other/build --out results
cd ..
has_not "cmake --build"
[[ -s caller/results/device_tests.log ]] || fail "there are no results"
(cd caller && run 0 -- --prefix packed --compile)
grep -Fqx -- "-DCMAKE_PREFIX_PATH=$scratch/caller/packed/usr" configured || fail "the prefix is another folder"

# Without Ninja, objects are compiled by Make, for one architecture.
run 0 GENERATOR="Unix Makefiles" -- --compile
has "cmake --build $build -j$(nproc) -t shard_cuda shard_cuda_kernels -- -k"
grep -Fqx -- "-DCMAKE_CUDA_ARCHITECTURES=90" configured || fail "it is compiled for other architectures"
run 1 UNBUILT=tests/shard_tests_cuda -- --compile
has_not "gpu_check: the sources"
