#!/bin/bash
# Fails when an object of a layer needs a symbol that only a higher layer defines. Takes a file with a line for each layer, lowest first:
# its name and its objects.
set -eu
layers=$1
needed=$(mktemp)
trap 'rm -f "$needed"' EXIT
level=0
while read -r name objects; do
  # shellcheck disable=SC2086  # a list of paths without spaces
  [ -z "$objects" ] || nm -A --format=posix $objects | awk -v level=$level -v layer="$name" '{ sub(/:$/, "", $1); print level, layer, $1, $2, $3 }'
  level=$((level + 1))
done < "$layers" > "$needed"
symbols=$(wc -l < "$needed")
if [ "$level" -lt 10 ] || [ "$symbols" -lt 10000 ]; then
  echo "only $symbols symbols of $level layers were read; the test no longer finds the objects"
  exit 1
fi
upward=$(awk '
  # U: needed; w and v: may be absent; everything else is a definition.
  $5 == "U" { next_need[++count] = $0; next }
  $5 != "w" && $5 != "v" && (!($4 in lowest) || $1 < lowest[$4]) { lowest[$4] = $1; owner[$4] = $2 }
  END {
    for (i = 1; i <= count; ++i) {
      split(next_need[i], f, " ")
      if (f[4] in lowest && lowest[f[4]] > f[1]) {
        sub(/^.*[.]dir\//, "", f[3])
        printf "layer %s: %s needs %s, which only layer %s defines\n", f[2], f[3], f[4], owner[f[4]]
      }
    }
  }' "$needed" | c++filt)
if [ -n "$upward" ]; then
  echo "$upward"
  exit 1
fi
echo "$symbols symbols of $level layers need nothing from above"
