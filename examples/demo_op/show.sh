#!/usr/bin/env bash
# Shows what becomes of the op in distance.yaml: its YAML, its kernel, the generated C++, and the values on one rank and on a mesh.
# usage: show.sh BUILD/examples, the folder of a build that has demo_op
set -euo pipefail
build=$(cd "${1:?usage: show.sh BUILD/examples}" && pwd)
cd "$(dirname "$0")"
generated=$build/demo_op_generated

title() { printf '\n== %s\n\n' "$1"; }
# functions FILE: the functions of the op in a C++ file.
functions() { sed -n '/^[A-Za-z]* squared_distance(/,/^}/p' "$1"; }
# layer TEXT FILE: the functions of the op in a generated file.
layer() {
  printf '%s// %s\n' "$gap" "$1"
  functions "$generated/$2"
  gap=$'\n'
}
gap=

title "1. An op that the library lacks: examples/demo_op/distance.yaml"
cat distance.yaml
title "2. Its kernel, for plain tensors on one device: examples/demo_op/kernel.cc"
functions kernel.cc
title "3. What shardgen writes: $(cat "$generated"/*.cc "$generated"/*.h | wc -l) lines in examples/demo_op_generated of the build folder; a call runs these"
layer "distance.cc: the public function; no backward op is named, so gradients end here" distance.cc
layer "distance_dist.cc: on a mesh; plans the placement, reshards, calls the dense function on local shards" distance_dist.cc
layer "distance_dense.cc: on one device; infers the shape, allocates, runs the kernel" distance_dense.cc
title "4. Compiled, and called on one rank and on a 2x2 mesh: examples/demo_op/main.cc"
"$build/demo_op"
