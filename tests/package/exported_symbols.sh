#!/usr/bin/env bash
# usage: exported_symbols.sh PREFIX LIBDIR. Reads the symbols that the installed libshard.so defines: each must be of namespace shard, and its
# name must stand in an installed header; weak symbols of std and of other libraries come from templates, which every program has. And each
# function that an installed header declares must be exported (unexported.awk; the library of shard/testing hides nothing).
set -euo pipefail
prefix=$1 libdir=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The words of the headers without their comments.
find "$prefix/include/shard" -name '*.h' -exec cat {} + | sed 's://.*$::' | grep -oE '[A-Za-z_][A-Za-z0-9_]*' | sort -u >"$scratch/words"
# "T shard::autograd::Recording::link(...) const" becomes "link": the name before the parameters and template arguments.
nm -DC --defined-only "$prefix/$libdir/libshard.so" | grep -vE '^[0-9a-f]+ [VWui] ' | cut -d' ' -f3- >"$scratch/symbols"
total=$(wc -l <"$scratch/symbols")
((total > 500)) || { echo "only $total symbols; this test no longer finds them" >&2; exit 1; }

bad=0
while read -r symbol; do
  name=${symbol//(anonymous namespace)/anonymous}
  name=$(sed -E 's/\[abi:[a-z0-9]+\]//g; s/^(vtable|typeinfo|typeinfo name|VTT|TLS init function|TLS wrapper function|guard variable) for //; s/operator.*$/operator/; s/\(.*$//; s/<.*$//' <<<"$name")
  case $symbol in
    *shard::*) ;;
    *) echo "not of namespace shard: $symbol"; bad=$((bad + 1)); continue ;;
  esac
  word=${name##*::}
  if ! grep -qxF "${word#\~}" "$scratch/words"; then
    echo "in no public header: $symbol"
    bad=$((bad + 1))
  fi
done <"$scratch/symbols"
echo "$total symbols, $bad of them not public"

find "$prefix/include/shard" -name '*.h' -not -path '*/testing/*' -exec awk -f "$(dirname "$0")/unexported.awk" {} + >"$scratch/unexported"
sed "s|^$prefix/include/|declared without SHARD_API: |" "$scratch/unexported"
((bad == 0)) && [[ ! -s $scratch/unexported ]]
