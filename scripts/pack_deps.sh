#!/usr/bin/env bash
# Fills a folder with the libraries that scripts/gpu_check.sh needs, for a machine that has none of them and no network.
set -euo pipefail

if (($# != 1)); then
  echo "usage: scripts/pack_deps.sh DIR" >&2
  exit 2
fi
mkdir -p "$1"
rm -rf "${1:?}/usr"
prefix=$(cd "$1" && pwd)
limit_mib=40
arch=x86_64-linux-gnu
libraries=usr/lib/$arch

packages=(
  libfmt-dev libfmt9
  libtbb-dev libtbb12 libtbbmalloc2 libtbbbind-2-5
  libopenblas-pthread-dev libopenblas0-pthread libgfortran5 libquadmath0
  libhwy-dev libhwy1
  libsleef-dev libsleef3
  libdnnl-dev libdnnl2 libgomp1
  nlohmann-json3-dev
  libbenchmark-dev libbenchmark1debian
  catch2
  libcli11-dev
  pkgconf-bin libpkgconf3
)

# wanted FILE: whether a build uses that file of a package.
wanted() {
  case $1 in
    */openblas-pthread/*.a | */libblas.* | */liblapack.*) return 1 ;;  # the interfaces of the reference BLAS, and 58 MB
    /usr/include/* | /usr/lib/*.so* | /usr/lib/*.a | *.pc | */cmake/*.cmake | /usr/bin/pkgconf) return 0 ;;
    *) return 1 ;;
  esac
}

# The CMake files of these packages find their libraries from where they stand; the pkg-config files must be told to.
relocate() {
  find "$prefix" -name '*.pc' | while read -r file; do
    local up
    up=$(realpath --relative-to="$(dirname "$file")" "$prefix/usr")
    sed -i -e "s#/usr/#\${pcfiledir}/$up/#g" -e "s#^prefix=/usr\$#prefix=\${pcfiledir}/$up#" "$file"
  done
}

for package in "${packages[@]}"; do
  dpkg-query -L "$package" | while read -r file; do
    if wanted "$file" && [[ -f $file ]]; then
      mkdir -p "$prefix$(dirname "$file")"
      cp -a "$file" "$prefix$file"
    fi
  done
done
# Debian puts these in place through alternatives, which point outside the folder.
ln -sf openblas-pthread/libopenblas.so "$prefix/$libraries/libopenblas.so"
ln -sf openblas-pthread/libopenblas.so.0 "$prefix/$libraries/libopenblas.so.0"
cp "$prefix/$libraries/openblas-pthread/pkgconfig/openblas.pc" "$prefix/$libraries/pkgconfig/openblas.pc"
relocate
# OpenBLAS holds its kernels for every processor: 35 MiB that shrink to a third. gpu_check.sh unpacks them in place.
find "$prefix/$libraries" -type f -name '*.so*' -not -name '*.gz' -size +1M -exec gzip -n -f {} +

size_mib=$(du -sm "$prefix" | cut -f 1)
echo "$prefix: $size_mib MiB"
if ((size_mib > limit_mib)); then
  echo "pack_deps: $size_mib MiB is more than $limit_mib MiB" >&2
  exit 1
fi
