#!/usr/bin/env bash
# usage: bench_failures.sh BENCH SCRATCH: runs kernel_bench.py and model_bench.py of the folder BENCH beside stand-ins for PyTorch and for
# the programs that they time, some of whose cases fail: the others must be timed, and the failures named.
set -euo pipefail

bench=$(realpath "$1") scratch=$2
command -v python3 >/dev/null || { echo "python3 was not found" >&2; exit 77; }
rm -rf "$scratch"
mkdir -p "$scratch"/{torch,build/bench}
cd "$scratch"

cat >torch/__init__.py <<'END'
"""Takes any call. exp has not enough memory."""
import sys
from unittest.mock import MagicMock

torch = MagicMock()
torch.get_num_threads.return_value = 1
torch.exp.side_effect = RuntimeError("out of\nmemory")
torch.compile.side_effect = lambda function: function
torch.nn.functional.cross_entropy.return_value.item.return_value = 1.0
sys.modules.update({"torch": torch, "torch.nn": torch.nn, "torch.nn.functional": torch.nn.functional})
END
cat >build/bench/kernel_bench <<'END'
#!/bin/sh
while read -r line; do
  case $line in
    list) echo "exp-;sin-;relu-;unknown-;add-" ;;
    triad) echo 1e9 ;;
    "make sin") echo "failed: no memory" ;;
    "make relu") exit 1 ;;
    make*) echo "ok 1000" ;;
    *) echo 0.01 ;;
  esac
done
END
cat >build/bench/model_bench <<'END'
#!/bin/sh
while read -r line; do
  case $line in
    list) echo "gpt 2x64;lstm;resnet" ;;
    "make eager"*lstm) exit 1 ;;
    make*) [ "${line##* }" != resnet ] || loss=2
           line=${line#make * }
           : >"${line%% *}"
           echo ok ;;
    *) echo "0.01 ${loss:-1}" ;;
  esac
done
END
chmod +x build/bench/*

# run STATUS PROGRAM OPTIONS...: its output is in `output`.
run() {
  local expected=$1 program=$2 status=0
  shift 2
  PYTHONPATH=$PWD PYTHONDONTWRITEBYTECODE=1 python3 "$bench/$program" --build build --markdown "$@" >output 2>&1 || status=$?
  ((status == expected)) || fail "the status of $program is $status"
}
fail() {
  echo "bench_failures.sh: $*; the output:" >&2
  cat output >&2
  exit 1
}
has() {
  local line
  for line in "$@"; do grep -Eqx -- "$line" output || fail "there is no line '$line'"; done
}

run 1 kernel_bench.py
has "exp: failed: RuntimeError: out of memory" "sin: failed: no memory" "relu: kernel_bench ended" \
  "unknown: failed: kernel_bench.cc has this case, which is missing here" "[|] add [|] 10 [|].*" "1 cases, .*" \
  "failed: exp, sin, relu, unknown"
run 1 kernel_bench.py --match exp
has "0 cases, .*: geometric mean none, 0 below 1" "failed: exp"
run 0 kernel_bench.py --match add
run 1 model_bench.py --steps 2
has "[|] gpt 2x64 [|] eager / eager [|] 10.00 [|].*" "[|] gpt 2x64 [|] captured / torch.compile [|] 10.00 [|].*" \
  "[|] lstm [|] eager / eager [|] failed: RuntimeError: model_bench ended [|]  [|]  [|]" "[|] lstm [|] captured / torch.compile [|] 10.00 [|].*" \
  "[|] resnet [|] eager / eager [|] failed: RuntimeError: step 0: the losses 2.0 and 1.0 differ: the models are not the same [|]  [|]  [|]" \
  "failed: lstm .eager / eager., resnet .*"
run 0 model_bench.py --steps 2 --match gpt
