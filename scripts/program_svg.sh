#!/usr/bin/env bash
# Draws programs that were written with to_dot (docs/programs_files.md): PROGRAM.dot becomes PROGRAM.svg.
set -euo pipefail

if (($# == 0)); then
  echo "usage: scripts/program_svg.sh PROGRAM.dot..." >&2
  exit 2
fi
if ! command -v dot >/dev/null; then
  echo "program_svg: Graphviz is missing; install the Debian package graphviz" >&2
  exit 1
fi
for file in "$@"; do
  dot -Tsvg "$file" -o "${file%.dot}.svg"
  echo "${file%.dot}.svg"
done
