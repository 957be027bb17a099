# Writes a C++ file that holds the description of this project's own runtime as text:
# cmake -DOUT=file.cc -DDESCRIPTION=shard.json -DDECLARATIONS=infer_meta.h -P embed_runtime.cmake
file(READ "${DESCRIPTION}" description)
file(READ "${DECLARATIONS}" declarations)
foreach(text IN ITEMS "${description}" "${declarations}")
  if(text MATCHES "\\)shardgen\"")
    message(FATAL_ERROR "a file holds the text that ends a raw string")
  endif()
endforeach()
file(WRITE "${OUT}" "// Written by codegen/embed_runtime.cmake; do not edit.
#include \"lower/description.h\"

namespace shardgen {

std::string_view embedded_runtime() { return R\"shardgen(${description})shardgen\"; }
std::string_view embedded_infer_meta() { return R\"shardgen(${declarations})shardgen\"; }

}  // namespace shardgen
")
