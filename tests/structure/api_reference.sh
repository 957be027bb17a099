#!/usr/bin/env bash
# Makes the API reference into a folder of its own, as the target docs does: a docstring that Doxygen complains about fails.
# usage: api_reference.sh SCRATCH DOXYFILE; without DOXYFILE, Doxygen was not found when this build was configured
set -euo pipefail
scratch=$1
doxyfile=${2:-}
if [[ -z $doxyfile ]]; then
  echo "skipped: Doxygen was not found; install the Debian package doxygen and configure again"
  exit 77
fi

rm -rf "$scratch"
mkdir -p "$scratch"
(cat "$doxyfile"; echo "OUTPUT_DIRECTORY = $scratch") | doxygen -
for page in index classshard_1_1Tensor classshard_1_1DistSpec math_8h layout_8h; do
  if ! [[ -s $scratch/api/$page.html ]]; then
    echo "there is no page $page.html"
    exit 1
  fi
done
if compgen -G "$scratch/api/namespace*detail*" >/dev/null; then
  echo "the reference shows a namespace detail, which is internal"
  exit 1
fi
