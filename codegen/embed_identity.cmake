# Writes a C++ file that holds a hash of the generator's sources: cmake -DOUT=file.cc "-DSOURCES=a;b" -P embed_identity.cmake
# It depends on their bytes and names alone, so that the same sources have the same hash on every machine.
set(hashes "")
foreach(path IN LISTS SOURCES)
  get_filename_component(name "${path}" NAME)
  file(SHA256 "${path}" hash)
  list(APPEND hashes "${name} ${hash}")
endforeach()
list(SORT hashes)
string(SHA256 identity "${hashes}")
file(WRITE "${OUT}" "// Written by codegen/embed_identity.cmake; do not edit.
#include \"emit/manifest.h\"

namespace shardgen {

std::string_view tool_identity() { return \"${identity}\"; }

}  // namespace shardgen
")
