#!/usr/bin/env bash
# Checks the CUDA backend on a machine with a GPU, which needs no network: builds it from the committed generated/, runs the device tests
# (of every op, its gradients, random graphs and programs), the benchmarks, and compute-sanitizer on tests of kernels. What fails does not
# end it. At the end it prints a table for docs/performance.md, then what was absent and what failed.
#
# usage: scripts/gpu_check.sh [--bench] [--prefix DIR] [--build DIR] [--no-build] [--out DIR] [--time SECONDS] [--compile]
#
# --bench     also the benchmarks, beside PyTorch where python3 has it for this device
# --prefix    a folder with libraries that scripts/pack_deps.sh has filled. A compiler, CMake and the CUDA toolkit must be there
# --build     the build folder (build-gpu)
# --no-build  checks the programs that are in the build folder, which may come from another machine
# --out       a folder for the log of each stage, the outputs of the benchmarks, table.md and the list of what was absent and
#             failed (gpu_check in the build folder). They are written as the check goes on, so that they survive its end
# --time      ends the check after so many seconds. A stage that no longer fits is not begun
# --compile   compiles the sources that only builds with CUDA have, for sm_90, with warnings as errors. Links and runs nothing
#
# CUDAARCHS chooses the architectures (80-real;90: sm_80, sm_90 and PTX; 90 with --compile), CXXFLAGS adds compiler options, CUDA_PATH is
# the folder of the toolkit (/usr/local/cuda).
#
# Exit status: 0 passed, 1 something failed, 2 wrong options, 77 there is no device, or its driver does not load. A signal: 128 and its number.
set -euo pipefail

usage() {
  sed -n '/^# usage:/,/^set /s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

prefix= build= out= time=
bench=OFF tests=ON compile=false built=false
cuda=${CUDA_PATH:-/usr/local/cuda}
architectures='80-real;90'
flavour=(-DCMAKE_BUILD_TYPE=Release -DSHARD_WERROR=OFF -DSHARD_CUDA_UNITY=OFF -UCMAKE_CUDA_COMPILE_OBJECT)  # also after --compile
while (($# > 0)); do
  case $1 in
    --prefix) prefix=$(cd "${2:?--prefix needs a folder}" && pwd); shift 2 ;;
    --build) build=$(realpath -m "${2:?--build needs a folder}"); shift 2 ;;
    --out) out=$(realpath -m "${2:?--out needs a folder}"); shift 2 ;;
    --time) time=${2:?--time needs seconds}; shift 2 ;;
    --bench) bench=ON; shift ;;
    --no-build) built=true; shift ;;
    # Nothing runs, so code is hardly optimised, which takes less than half the time. Of the kernels' sources nvcc checks all and assembles
    # device code; host code, which the dev build compiles against the model of CUDA, goes to no compiler (-cuda). ccache keeps nothing of it.
    --compile)
      compile=true
      tests=OFF
      fast="-O0 -Xcicc -O1 -Xptxas -O1"
      nvcc=$(PATH=$PATH:$cuda/bin command -v nvcc || true)
      if [[ -n $nvcc && $("$nvcc" --help) == *Ofast-compile* ]]; then fast="-O0 --Ofast-compile=max"; fi  # nvcc 12.9 and newer
      architectures=90
      flavour=(-DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" -DSHARD_WERROR=ON
               -DSHARD_CUDA_UNITY=ON "-DCMAKE_CUDA_FLAGS_RELWITHDEBINFO=$fast"
               "-DCMAKE_CUDA_COMPILE_OBJECT=<CMAKE_CUDA_COMPILER> -forward-unknown-to-host-compiler${CUDAHOSTCXX:+ -ccbin=$CUDAHOSTCXX} <DEFINES> <INCLUDES> <FLAGS> -x cu -cuda <SOURCE> -o <OBJECT>")
      shift
      ;;
    *) usage ;;
  esac
done
if [[ $time == *[!0-9]* ]]; then usage; fi
cd "$(dirname "$0")/.."
build=${build:-$PWD/build-gpu}
out=${out:-$build/gpu_check}
folders=(cuda conformance gradients autograd program)  # of tests, those that run on devices

options=(
  "${flavour[@]}" -DSHARD_CODEGEN=OFF -DSHARD_REGENERATE=OFF -DSHARD_TOOLS=OFF -DSHARD_MPI=OFF "-DSHARD_EXAMPLES=$bench"
  "-DCMAKE_CUDA_ARCHITECTURES=${CUDAARCHS:-$architectures}" -DSHARD_CUDA=ON "-DSHARD_TESTS=$tests" "-DSHARD_BENCH=$bench"
  "-DSHARD_TEST_FOLDERS=$(IFS=';'; echo "${folders[*]}")"
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
    "-DCMAKE_CXX_FLAGS=${CXXFLAGS:+$CXXFLAGS }-isystem $prefix/usr/include" "-DCMAKE_BUILD_RPATH=$libraries"
    "-DCMAKE_SHARED_LINKER_FLAGS=-Wl,-rpath-link,$libraries" "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,$libraries"
  )
fi

# cached NAME: the value of this variable of CMake.
cached() { sed -n "s/^$1:[^=]*=//p" "$build/CMakeCache.txt"; }
if ! $built; then
  cmake -S . -B "$build" "${options[@]}"
  reason=$(cached SHARD_NO_CUDA_REASON)
  if [[ -n $reason ]]; then
    echo "gpu_check: built without CUDA ($reason), so there is nothing to check" >&2
    exit 1
  fi
  keep_going=(-k)
  if [[ $(cached CMAKE_GENERATOR) == Ninja ]]; then keep_going=(-k 0); fi
fi
if $compile; then
  cmake --build "$build" -j"$(nproc)" -t shard_cuda shard_cuda_kernels -- "${keep_going[@]}"
  echo "gpu_check: the sources that only builds with CUDA have compile"
  exit 0
fi
if $built; then
  export LD_LIBRARY_PATH=$build/runtime${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} SHARD_SOURCE_DIR=$PWD
fi

mkdir -p "$out"
rm -f "$out"/{build,device_tests,sanitizers}.log "$out"/{kernels,forward,backward,models,table}.md
: >"$out/list"
absent() { echo "absent: $*" >>"$out/list"; }
failed() { echo "FAILED: $*" >>"$out/list"; }

grace=5   # seconds between SIGTERM and SIGKILL
least=30  # seconds without which no stage begins
slow_is_fine=false
findings='ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]|Invalid __|Misaligned |Race reported|Barrier error|[*]{3}(Failed|Timeout|Exception)'
stage= running= log= size= outcome= sections=()

# output: what the stage has added to its log.
output() { tail -c "+$((size + 1))" "$log"; }
has_finding() { output | grep -E "$findings" >/dev/null; }

# attempt LOG STAGE LIMIT COMMAND...: runs the command for at most LIMIT seconds, or what --time leaves, and adds what it prints to the log.
# Sets `outcome`: late (it was not begun), over (its time ran out), or its exit status.
attempt() {
  local limit=$3 left status=0 copy copier start=$SECONDS
  stage=$2 log=$out/$1 outcome=late
  if [[ -n $time ]]; then
    left=$((time - SECONDS - grace))
    if ((left < limit && left < least)); then
      absent "$stage: the time of the check was over"
      return
    fi
    if ((left < limit)); then limit=$left; fi
  fi
  shift 3
  echo "== $stage"
  touch "$log"
  size=$(wc -c <"$log")
  exec {copy}> >(exec tee -ai "$log")
  copier=$!
  timeout -k "$grace" "$limit" "$@" >&"$copy" 2>&1 &  # in the background, so that signals are seen meanwhile
  running=$!
  exec {copy}>&-
  wait "$running" || status=$?
  running=
  wait "$copier" || true
  outcome=$status
  if ((SECONDS - start >= limit && (status == 124 || status == 137))); then outcome=over; fi
  echo "== $stage took $((SECONDS - start)) s"
}
# check LOG STAGE LIMIT COMMAND...: an attempt that fails when it has findings, whatever its status, and when it does not end: it may hang.
check() {
  attempt "$@"
  case $outcome in
    late) ;;
    over)
      if has_finding; then failed "$stage, which did not end in its time either"
      elif $slow_is_fine; then absent "the rest of $stage: its time was over"
      else failed "$stage: it did not end in its time"; fi
      ;;
    0) if has_finding; then failed "$stage"; fi ;;
    *) failed "$stage" ;;
  esac
}

# One row for each case and model, from the rows that the benchmarks printed for it.
table() {
  touch "$out"/{kernels,forward,backward,models}.md
  awk -F ' *[|] *' -v kernels="$out/kernels.md" -v forward="$out/forward.md" -v backward="$out/backward.md" '
    FILENAME == kernels && / GB\/s/ { print $0 "\n" }
    NF < 3 || $2 == "case" || $2 == "model" || $2 ~ /^-+$/ { next }
    FILENAME == kernels { own[$2] = $3 " | " $4 " | " $5; gradients[$2] = $6 }
    FILENAME == forward { peer[$2] = $4 " | " $5 }
    FILENAME == backward { peer_gradients[$2] = $4 " | " $5 }
    FILENAME != kernels && FILENAME != forward && FILENAME != backward {
      name = $2 ", " $3
      gradients[name] = $4
      peer_gradients[name] = $5 " | " $6
      $2 = name
    }
    !($2 in known) { known[$2] = 1; names[++count] = $2 }
    function or_empty(text, empty) { return text == "" ? empty : text }
    END {
      print "| case | ms | memory | host, us | PyTorch, ms | ratio | with gradients, ms | PyTorch, ms | ratio |"
      print "|---|---|---|---|---|---|---|---|---|"
      for (i = 1; i <= count; ++i) {
        name = names[i]
        print "| " name " | " or_empty(own[name], " | | ") " | " or_empty(peer[name], " | ") " | " gradients[name] " | " \
              or_empty(peer_gradients[name], " | ") " |"
      }
    }' "$out"/{kernels,forward,backward,models}.md | sed -E 's/ +/ /g'
}

# The end, however it comes: the table, and the list of what was absent and what failed.
finish() {
  local status=$? section
  trap - EXIT
  trap '' INT TERM
  if [[ -n $running ]]; then
    kill "$running" || true
    absent "the rest of $stage: the check was ended"
    if has_finding; then failed "$stage"; fi
  fi
  for section in "${sections[@]}"; do absent "$section: not reached"; done
  if [[ -f $out/kernels.md ]]; then
    echo "== for docs/performance.md"
    { echo "$device_name"; table; } | tee "$out/table.md"
  fi
  sed -n 's/^absent: /gpu_check: &/p' "$out/list"
  sed -n 's/^FAILED: /gpu_check: &/p' "$out/list"
  if ((status < 128)) && grep -q '^FAILED: ' "$out/list"; then status=1; fi
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

sections=("device tests" "compute-sanitizer")
targets=("${folders[@]/#/shard_tests_}")
if [[ $bench == ON ]]; then
  sections=("device tests" "benchmarks" "compute-sanitizer")
  targets+=(kernel_bench model_bench)
fi
# reached: the first of the sections begins.
reached() { sections=("${sections[@]:1}"); }

if ! $built; then
  check build.log "build" 14400 cmake --build "$build" -j"$(nproc)" -t "${targets[@]}" -- "${keep_going[@]}"
fi

# skipped: the reasons of skipped tests in what a compact reporter printed.
skipped() { sed -n "s/.*'\(skipped: [^']*\).*/\1/p" "$@"; }
kernel_tests=$build/tests/shard_tests_cuda
if [[ -x $kernel_tests ]]; then
  attempt device_tests.log "first test on the device" 120 "$kernel_tests" -r compact -w NoTests 'threads use a device*'
  if [[ $outcome == over ]]; then
    failed "$stage: it did not end in its time"
    exit 1
  fi
  if [[ $outcome != late ]]; then reasons=$(output | skipped); fi
  if [[ -n ${reasons:-} ]]; then
    absent "a device: the tests were ${reasons%%$'\n'*}"
    exit 77
  fi
fi

reached
# The tests by themselves, without the folders of the build: it may have been made elsewhere.
device_tests=$build/device_tests
rm -rf "$device_tests"
mkdir -p "$device_tests"
for folder in "${folders[@]}"; do
  program=$build/tests/shard_tests_$folder
  if [[ ! -x $program ]]; then
    absent "shard_tests_$folder, which was not built: none of its tests ran"
    continue
  fi
  names=$(timeout -k "$grace" 60 "$program" --list-test-names-only || true)  # the status is their number
  if [[ -z $names ]]; then
    failed "shard_tests_$folder, which does not run"
    continue
  fi
  while IFS= read -r name; do
    echo "add_test([==[$folder: $name]==] [==[$program]==] -r compact -w NoTests [==[${name//,/\\,}]==])"
  done <<<"$names"
done >"$device_tests/CTestTestfile.cmake"
limit=1200
if [[ -n $time ]]; then limit=$(((time - SECONDS) / 2)); fi
check device_tests.log "device tests" "$limit" ctest --test-dir "$device_tests" -j4 --timeout 240 \
  -R '^cuda:| on a device| on devices|CUDA' --output-on-failure --no-tests=error
while IFS= read -r reason; do absent "device tests $reason"; done < <(
  skipped "$device_tests"/Testing/Temporary/LastTest.log* | sort -u)

if [[ $bench == ON ]]; then
  reached
  device_name=$(timeout -k "$grace" 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true)
  check kernels.md "figures" 600 "$build/bench/kernel_bench" --device cuda --table
  if timeout -k "$grace" 120 python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    options=(--build "$build" --device cuda --markdown)
    check forward.md "kernels beside PyTorch" 600 python3 bench/kernel_bench.py "${options[@]}" --runs 3
    check backward.md "gradients beside PyTorch" 600 python3 bench/kernel_bench.py "${options[@]}" --runs 3 --backward
    check models.md "models beside PyTorch" 900 python3 bench/model_bench.py "${options[@]}" --steps 10
  else
    absent "PyTorch for this device in python3: nothing was timed beside it"
  fi
fi

reached
slow_is_fine=true
sanitizer=$(PATH=$PATH:$cuda/bin command -v compute-sanitizer || true)
if [[ -z $sanitizer ]]; then
  absent "compute-sanitizer: memcheck, racecheck and synccheck were not run"
  exit 0
elif [[ ! -x $kernel_tests ]]; then
  absent "compute-sanitizer, which had no tests to run"
  exit 0
fi
# It may refuse this device or driver, or run nothing at all without an error.
attempt sanitizers.log "trial of compute-sanitizer" 120 "$sanitizer" --tool memcheck --report-api-errors no "$kernel_tests" -w NoTests 'threads use a device*'
if [[ $outcome == late ]]; then exit 0; fi
if [[ $outcome != 0 ]] || ! output | grep "All tests passed" >/dev/null; then
  reasons=$(output | sed -n 's/^==* *\(.*\(Error\|not supported\).*\)/\1/p')
  reasons=${reasons:-see $log}
  absent "compute-sanitizer, which does not run a test here: ${reasons%%$'\n'*}"
  exit 0
fi
# Files of tests whose kernels share memory or find their places by data, are compiled at run time, recorded, or move between ranks, and the seconds
# that a tool may take for each.
sanitized=(
  attention:240 channel_norm:90 conv:180 creation:60 cross_entropy:60 data_check:60 distributed:120 dynamic:90 elementwise:60 embedding:60 epilogue:90 graph:60
  linalg:60 loop:120 many:60 matrix:60 nll_loss:60 norm:90 pool:60 reduce:120 rnn:60 rope:60 scan:60 scatter:120 softmax:90 sort:120 vision:60
)
for tool in memcheck racecheck synccheck; do
  options=(--tool "$tool")
  if [[ $tool == memcheck ]]; then options+=(--report-api-errors no); fi  # of calls that fail on purpose, and are answered
  for file in "${sanitized[@]}"; do
    check sanitizers.log "$tool of ${file%:*}_test" "${file#*:}" "$sanitizer" "${options[@]}" --error-exitcode 1 \
      "$kernel_tests" -w NoTests -# "[#${file%:*}_test]"
    if [[ $outcome == late ]]; then
      absent "all that compute-sanitizer runs after $stage"
      exit 0
    fi
  done
done
