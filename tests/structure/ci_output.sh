#!/usr/bin/env bash
# Runs scripts/test.sh ($1) with programs that stand for cmake and ctest, in folder $2: what a log ends with, of which only the end is kept.
set -euo pipefail
script=$1 scratch=$2
rm -rf "$scratch"
mkdir -p "$scratch/scripts" "$scratch/bin"
cp "$script" "$scratch/scripts/test.sh"
printf '#!/bin/sh\n' >"$scratch/scripts/setup.sh"
printf '#!/bin/sh\n' >"$scratch/scripts/test_python.sh"
printf '#!/bin/sh\n' >"$scratch/bin/cmake"
printf '#!/bin/sh\n' >"$scratch/scripts/pack_deps.sh"
printf '#!/bin/sh\n' >"$scratch/scripts/gpu_check.sh"
# A thousand tests, one of which fails under asan, and under dev where FAILING is dev.
cat >"$scratch/bin/ctest" <<'END'
#!/usr/bin/env bash
preset=$2
for ((i = 1; i <= 1000; ++i)); do
  echo "        Start $i: core: the layouts of preset $preset are Passed on, $i"
  [[ $i == 500 && $FAILING == *$preset* ]] && continue
  printf '%4d/1000 Test %5s: core: the layouts of preset %s are Passed on, %d ....   Passed    0.0%d sec\n' $i "#$i" "$preset" $i $((i % 10))
done
if [[ $FAILING == *$preset* ]]; then
  printf ' 500/1000 Test  #500: core: the layouts of preset %s are Passed on, 500 ....***Failed    0.05 sec\nwhat preset %s says\n\n' "$preset" "$preset"
  printf '99%% tests passed, 1 tests failed out of 1000\n\nThe following tests FAILED:\n\t500 - core: the layouts (Failed)\nErrors while running CTest\n'
  exit 8
fi
printf '\n100%% tests passed, 0 tests failed out of 1000\n\nTotal Test time (real) =  12.00 sec\n'
END
chmod +x "$scratch"/bin/* "$scratch"/scripts/*

# expect FAILING CODE LAST: runs it; afterwards $log is what it printed.
expect() {
  local code=0
  log=$(FAILING=$1 PATH="$scratch/bin:$PATH" "$scratch/scripts/test.sh" 2>&1) || code=$?
  [[ $code == "$2" ]] || { echo "with '$1' failing the exit code is $code, not $2"; exit 1; }
  [[ $(tail -n 1 <<<"$log") == "$3"* ]] || { echo "with '$1' failing the last line is '$(tail -n 1 <<<"$log")'"; exit 1; }
  end=$(sed -n '/^== dev tests/,$p' <<<"$log")
  (($(wc -l <<<"$end") < 20)) || { echo "with '$1' failing the dev tests print $(wc -l <<<"$end") lines"; exit 1; }
}
expect "" 0 "Total Test time"
expect asan 1 "Total Test time"
summary=$(sed -n '/^FAILED before the dev tests: asan$/,/^== dev tests/p' <<<"$log")
grep -q 'what preset asan says' <<<"$summary" || { echo "no reason of the stage that failed"; exit 1; }
expect dev 1 "Errors while running CTest"
grep -q 'what preset dev says' <<<"$end" || { echo "no output of the test that failed"; exit 1; }
