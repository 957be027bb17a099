#!/usr/bin/env bash
# Builds the CUDA backend from the committed generated/, runs the device tests (of every op, its gradients, random graphs and programs) and,
# where it is found, compute-sanitizer on tests of kernels. With --bench it ends with one table of figures for docs/performance.md, beside
# PyTorch where python3 has it for this device. What fails does not end it: the rest goes on with what was built, and the end names what
# failed and what was absent. Needs a compiler, CMake and the CUDA toolkit; the libraries may come from a folder that scripts/pack_deps.sh
# filled. CUDAARCHS chooses the architectures to compile for, instead of that of the GPU that is there (native).
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

failed=()
absent=()
# check NAME COMMAND...: a failure is remembered. What ends because its time is over (timeout) was not checked to the end.
check() {
  local name=$1 start=$SECONDS status=0
  shift
  echo "== $name"
  "$@" || status=$?
  case $status in
    0) ;;
    124 | 137) absent+=("the rest of $name: its time was over") ;;
    *) failed+=("$name") ;;
  esac
  echo "== $name took $((SECONDS - start)) s"
}
# keep FILE COMMAND...: prints what the command prints, and keeps it in the file.
keep() {
  local file=$1
  shift
  "$@" | tee "$file"
}
# finish: names what was absent and what failed.
finish() {
  if ((${#absent[@]} > 0)); then printf 'gpu_check: absent: %s\n' "${absent[@]}"; fi
  if ((${#failed[@]} > 0)); then
    printf 'gpu_check: FAILED: %s\n' "${failed[@]}"
    exit 1
  fi
  exit 0
}

cmake -S . -B "$build" "${options[@]}"
# cached NAME: what CMake has found under this name; empty where it has not.
cached() {
  local line
  line=$(grep -m 1 "^$1:" "$build/CMakeCache.txt" || true)
  line=${line#*=}
  if [[ $line != *-NOTFOUND ]]; then echo "$line"; fi
}
reason=$(cached SHARD_NO_CUDA_REASON)
if [[ -n $reason ]]; then
  echo "gpu_check: built without CUDA ($reason), so there is nothing to check" >&2
  exit 1
fi
keep_going=(-k)
if [[ $(cached CMAKE_GENERATOR) == Ninja ]]; then keep_going=(-k 0); fi
if $compile; then
  cmake --build "$build" -j"$(nproc)" -t shard_cuda shard_cuda_kernels -- "${keep_going[@]}"
  echo "gpu_check: the sources that only builds with CUDA have compile"
  exit 0
fi
check "build" cmake --build "$build" -j"$(nproc)" -- "${keep_going[@]}"

# can_load NAME: whether the loader finds a library that is opened at run time, here or beside the toolkit's.
can_load() {
  local folder folders
  IFS=: read -ra folders <<<"${LD_LIBRARY_PATH:-}"
  folders+=("$(dirname "$(cached CUDA_cudart_LIBRARY)")")
  for folder in "${folders[@]}"; do
    if compgen -G "$folder/$1*" >/dev/null; then return 0; fi
  done
  PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -F "$1" >/dev/null
}
if [[ -z $(cached SHARD_NCCL_INCLUDE) || -z $(cached SHARD_NCCL) ]]; then absent+=("NCCL: devices exchanged data by copies"); fi
if [[ -z $(cached SHARD_CUDNN_INCLUDE) ]]; then
  absent+=("the header of cuDNN: convolutions, pooling and recurrent networks were those of the library")
elif ! can_load libcudnn.so.; then
  absent+=("cuDNN (libcudnn.so): convolutions, pooling and recurrent networks were those of the library")
fi
if ! can_load libnvrtc.so; then absent+=("NVRTC (libnvrtc.so): captured programs ran without fused loops"); fi
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
if [[ -z $sanitizer ]]; then absent+=("compute-sanitizer: memcheck, racecheck and synccheck were not run"); fi
has_torch=false
if python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then has_torch=true
else absent+=("PyTorch for this device in python3: nothing was timed beside it"); fi

kernel_tests=$build/tests/shard_tests_cuda
if [[ ! -x $kernel_tests ]]; then
  absent+=("shard_tests_cuda, which was not built: no test of a kernel was run")
else
  reason=$("$kernel_tests" -r compact 'threads use a device*' | grep -o 'skipped: [^'"'"']*' | head -n 1 || true)
  if [[ -n $reason ]]; then
    absent+=("a device: the tests were $reason")
    finish
  fi
fi

check "device tests" ctest --test-dir "$build" -j4 -R '^cuda:| on a device| on devices|CUDA' --output-on-failure --no-tests=error
# Files of tests whose kernels share memory or find their places by data, and the seconds that a tool may take for each.
sanitized=(
  attention:240 channel_norm:90 conv:180 creation:60 cross_entropy:60 dynamic:90 embedding:60 linalg:60 many:60 matrix:60 nll_loss:60
  norm:90 reduce:60 rope:60 scan:60 scatter:120 softmax:90 sort:120 vision:60
)
if [[ -n $sanitizer && -x $kernel_tests ]]; then
  for tool in memcheck racecheck synccheck; do
    for file in "${sanitized[@]}"; do
      check "$tool of ${file%:*}_test" timeout -k 10 "${file#*:}" "$sanitizer" --tool "$tool" --error-exitcode 1 \
        "$kernel_tests" -# "[#${file%:*}_test]"
    done
  done
fi
if [[ $bench == ON ]]; then
  figures=$build/gpu_check
  rm -rf "$figures"
  mkdir -p "$figures"
  check "figures" keep "$figures/kernels" "$build/bench/kernel_bench" --device cuda --table
  if $has_torch; then
    options=(--build "$build" --device cuda --markdown)
    check "kernels beside PyTorch" keep "$figures/forward" python3 bench/kernel_bench.py "${options[@]}" --runs 3
    check "gradients beside PyTorch" keep "$figures/backward" python3 bench/kernel_bench.py "${options[@]}" --runs 3 --backward
    check "models beside PyTorch" keep "$figures/models" python3 bench/model_bench.py "${options[@]}" --steps 10
  fi
  # One row for each case and model, from the rows that were printed for it.
  echo "== for docs/performance.md"
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null || true
  touch "$figures"/{kernels,forward,backward,models}
  awk -F ' *[|] *' -v kernels="$figures/kernels" -v forward="$figures/forward" -v backward="$figures/backward" '
    FILENAME == kernels && NF < 3 && $0 != "" { print $0 "\n" }
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
    }' "$figures"/{kernels,forward,backward,models} | sed -E 's/ +/ /g'
fi
finish
