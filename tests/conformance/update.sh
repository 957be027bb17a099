#!/usr/bin/env bash
# Writes tests/conformance/expected_*.txt and python/tests/op_calls.json.gz anew, after ops or cases were added: update.sh BUILD_FOLDER,
# which has shard_tests_conformance.
# NumPy and SciPy are installed into a virtual environment in that folder.
set -euo pipefail
[[ $# == 1 ]] || { echo "usage: $0 BUILD_FOLDER (with the program shard_tests_conformance in it)" >&2; exit 2; }
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
program=$build/tests/shard_tests_conformance
[[ -x $program ]] || { echo "$program does not exist: build the target shard_tests_conformance" >&2; exit 2; }

python=$build/conformance_python
if [[ ! -x $python/bin/python ]]; then
  python3 -m venv "$python"
  "$python/bin/pip" install --quiet numpy==2.4.6 scipy==1.17.1
fi
SHARD_CONFORMANCE_INPUTS=$build/conformance_inputs.txt "$program" "every case of an op has expected values of its inputs"
PYTHONDONTWRITEBYTECODE=1 "$python/bin/python" "$folder/reference.py" "$build/conformance_inputs.txt"
SHARD_CONFORMANCE_CALLS=$build/conformance_calls.jsonl "$program" "cases are written as calls for Python"
PYTHONDONTWRITEBYTECODE=1 "$python/bin/python" "$folder/python_calls.py" "$build/conformance_calls.jsonl" "$folder/../.."
