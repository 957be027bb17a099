#!/usr/bin/env bash
# Runs clang-tidy 14 with the checks of .clang-tidy over FILES, or over all sources of the tool and the library.
# usage: scripts/tidy.sh [--changed [BASE] | FILES]; --changed: the sources that differ from the branch BASE (origin/main).
# A file takes about ten seconds, so CI does not run it over all of them.
set -euo pipefail
cd "$(dirname "$0")/.."
build=build-quick

tidy=$(command -v clang-tidy-14) || { echo "clang-tidy 14 was not found: apt-get install clang-tidy-14" >&2; exit 77; }
case ${1:-} in
  "") mapfile -t files < <(find codegen runtime -name '*.cc' -not -path '*/cuda/*' | sort) ;;
  --changed)
    base=$(git merge-base HEAD "${2:-origin/main}")
    # For a header, the source of the same name: what it reports about the header is shown too.
    mapfile -t files < <({ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } \
      | sed -n 's/[.]h$/.cc/; /[.]cc$/p' | sort -u) ;;
  -*) echo "usage: scripts/tidy.sh [--changed [BASE] | FILES]" >&2; exit 2 ;;
  *) files=("$@") ;;
esac

[[ -f $build/compile_commands.json ]] || cmake --preset quick >/dev/null
cmake --build $build --target shard_generate >/dev/null  # headers that sources include
compiled=()
for file in "${files[@]}"; do
  # Only files that this build compiles: not generated ones, stubs of what is absent, or headers without a source.
  if [[ $file != generated/* ]] && grep -q "\"file\": \".*/$file\"" $build/compile_commands.json; then
    compiled+=("$file")
  else
    echo "skipped: $file, which the preset quick does not compile"
  fi
done
if ((${#compiled[@]} == 0)); then
  echo "no file to check"
  exit 0
fi
# "N warnings generated." counts what is in other projects' headers, which is not shown.
printf '%s\0' "${compiled[@]}" | nice -n 19 xargs -0 -n 1 -P "${JOBS:-$(nproc)}" "$tidy" --quiet -p $build \
  2> >(grep -v '^[0-9]* warnings\? generated[.]$' >&2)
