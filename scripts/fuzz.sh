#!/usr/bin/env bash
# Fuzzes the tool: scripts/fuzz.sh [seconds]. Findings are left in build-fuzz/findings; each becomes a file in tests/codegen/bad
# before it is mended.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
build=build-fuzz

[ -f $build/build.ninja ] || cmake --preset fuzz
cmake --build $build -j "${JOBS:-2}" --target shardgen_fuzz

# The seeds: every op of the YAML at hand in a file of its own, forward and backward ops of one name together, and the bad files.
seeds=$build/seeds
rm -rf $seeds && mkdir -p $seeds $build/corpus $build/findings
split() {  # FILE: an op a file, named by family and op
  awk -v out="$seeds/$(basename "$1" .yaml)" '
    /^- *(op|backward_op) *:/ { name = $0; sub(/^[^:]*: */, "", name); gsub(/[^A-Za-z0-9_]/, "", name); file = out "." name }
    file != "" { print > file }' "$1"
}
for yaml in ops_yaml/*.yaml tests/codegen/fixtures/*.yaml ../shared/paddle_yaml/*/*.yaml; do
  if [ -f "$yaml" ]; then split "$yaml"; fi
done
for backward in $seeds/*_grad; do
  op=$(basename "$backward" _grad); op=${op#*.}
  for forward in $seeds/*ops."$op"; do
    if [ -f "$forward" ]; then { cat "$forward"; printf '\n#file\n'; cat "$backward"; } > "$backward.pair"; fi
  done
done
cp tests/codegen/bad/*.yaml $seeds/

for folder in tests/codegen/bad/*/; do
  first=1
  for yaml in "$folder"*.yaml; do
    [ $first = 1 ] || printf '\n#file\n'
    first=0
    cat "$yaml"
  done > "$seeds/$(basename "$folder").folder"
done
echo "$(find $seeds -type f | wc -l) seeds"

exec $build/codegen/fuzz/shardgen_fuzz -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=2048 \
  -dict=codegen/fuzz/op_yaml.dict -artifact_prefix=$build/findings/ -print_final_stats=1 $build/corpus $seeds
