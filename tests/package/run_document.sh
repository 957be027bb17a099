#!/usr/bin/env bash
# Carries out what a document tells its reader to do: run_document.sh REPOSITORY DOCUMENT PREFIX SCRATCH
# In DOCUMENT, from top to bottom:
#   <!-- folder: NAME -->   what follows happens in SCRATCH/NAME; "shardgen" is a copy of the repository's sources
#   a block that starts with a comment of a file's name alone ("# ops.yaml", "// main.cc") is written to that file;
#     "# append to ops.yaml" adds the block to its end
#   in ```console blocks, lines after "$ " are run, with PREFIX set and its bin/ in PATH, and must succeed; every other line must
#     be in what they print. Lines that start with "$ mpirun" are passed over where NO_MPI says why
# Other blocks are only to be read.
set -euo pipefail
repository=$1 document=$1/$2 scratch=$4
export PREFIX=$3 PATH=$3/bin:$PATH

rm -rf "$scratch"
mkdir -p "$scratch/shardgen"
cp -r "$repository"/{ops_yaml,templates,generated,runtime,tests} "$scratch/shardgen/"
cd "$scratch"

line_number=0 in_block=false language='' first='' target='' append=false output='' commands=0 files=0 passed_over=false
# Root may start jobs, and more processes than cores share them.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1

fail() {
  echo "$document:$line_number: $1" >&2
  exit 1
}

run_line() {
  if [[ $1 == '$ mpirun '* && -n ${NO_MPI:-} ]]; then
    echo "passed over: $1 ($NO_MPI)"
    passed_over=true
  elif [[ $1 == '$ '* ]]; then
    passed_over=false
    commands=$((commands + 1))
    echo "$1"
    output=$(bash -c "${1#'$ '}" 2>&1 </dev/null) || fail "the command failed:"$'\n'"$output"
  elif ! $passed_over && [[ $output != *"$1"* ]]; then
    fail "'$1' is not in what the command printed:"$'\n'"$output"
  fi
}

# Looks at the first line of a block: does it name a file?
open_file() {
  target='' append=false
  if [[ $1 =~ ^(#|//)\ append\ to\ ([A-Za-z0-9_./-]+)$ ]]; then
    target=${BASH_REMATCH[2]} append=true
  elif [[ $1 =~ ^(#|//)\ ([A-Za-z0-9_./-]+\.[a-z]+)$ ]]; then
    target=${BASH_REMATCH[2]}
  fi
  [[ -n $target ]] || return 0
  files=$((files + 1))
  echo "writes $target"
  mkdir -p "$(dirname "$target")"
  if $append; then
    [[ -f $target ]] || fail "there is no file $target to append to"
    printf '\n' >>"$target"
  else
    printf '%s\n' "$1" >"$target"
  fi
}

while IFS= read -r line; do
  line_number=$((line_number + 1))
  if [[ $line == '```'* ]]; then
    if $in_block; then
      in_block=false
    else
      in_block=true language=${line#'```'} first=yes target='' output=''
    fi
  elif ! $in_block; then
    if [[ $line =~ ^\<!--\ folder:\ ([a-z_]+)\ --\>$ ]]; then
      mkdir -p "$scratch/${BASH_REMATCH[1]}"
      cd "$scratch/${BASH_REMATCH[1]}"
    fi
  elif [[ $language == console ]]; then
    run_line "$line"
  elif [[ -n $first ]]; then
    first=''
    open_file "$line"
  elif [[ -n $target ]]; then
    printf '%s\n' "$line" >>"$target"
  fi
done <"$document"

echo "$files files written, $commands commands run"
((files > 0 && commands > 0)) || fail "nothing to carry out was found"
