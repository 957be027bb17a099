#!/usr/bin/env bash
# Formats every C++ file with clang-format 14. --check: changes nothing, exits 1 where a file would change and 77 where the program is absent.
set -euo pipefail
cd "$(dirname "$0")/.."

case ${1:-} in
  "") options=(-i) ;;
  --check) options=(--dry-run --Werror) ;;
  *) echo "usage: scripts/format.sh [--check]" >&2; exit 2 ;;
esac
format=$(command -v clang-format-14) || { echo "clang-format 14 was not found: apt-get install clang-format-14" >&2; exit 77; }
find bench codegen examples python runtime tests tools -type f \( -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) \
  -not -path '*/golden/*' -not -path '*/build*/*' -print0 | xargs -0 -n 40 -P "$(nproc)" "$format" "${options[@]}"
