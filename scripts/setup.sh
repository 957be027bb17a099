#!/usr/bin/env bash
# Installs the packages that a build needs and that are missing. Silent and instant when all are there.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config
  clang lld clang-format-14 libclang-rt-dev llvm doxygen
  libfmt-dev libtbb-dev libopenblas-dev libdnnl-dev libhwy-dev libsleef-dev
  libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
  catch2 libbenchmark-dev
  libopenmpi-dev openmpi-bin
  python3-dev python3-venv graphviz
)

if [[ ${SHARD_SETUP:-} == skip ]]; then
  exit 0
fi
if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  cat >&2 <<TEXT
This script installs packages on Debian and Ubuntu only. Install what these Debian packages hold:
  ${packages[*]}
(a C++20 compiler, Clang 14 for the sanitizers, CMake 3.25, Ninja, ccache, fmt 9, oneTBB 2021.8, OpenBLAS 0.3.21, oneDNN 2.6, Highway 1.0, SLEEF 3.5, yaml-cpp 0.7,
nlohmann-json 3.11, CLI11 2.1, Catch2 2.13, Google Benchmark 1.7, Open MPI 4.1, Doxygen 1.9),
then run the command again with SHARD_SETUP=skip.
TEXT
  exit 1
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == *installed* && $status != *not-installed* ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing, and only root can install them: ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "installing: ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
