# Writes a C++ file that holds templates as text:
#   cmake -DOUT=file.cc -DFUNCTION=embedded_templates "-DTEMPLATES=a;b" -P embed_templates.cmake
# The texts stand in raw strings, so nothing in them is escaped.
set(entries "")
foreach(path IN LISTS TEMPLATES)
  get_filename_component(name "${path}" NAME)
  file(READ "${path}" text)
  if(text MATCHES "\\)shardgen\"")
    message(FATAL_ERROR "${path} holds the text that ends a raw string")
  endif()
  string(APPEND entries "    {\"${name}\", R\"shardgen(${text})shardgen\"},\n")
endforeach()
set(content "// Written by codegen/embed_templates.cmake from templates/; do not edit.
#include \"emit/templates.h\"

namespace shardgen {
namespace {

constexpr EmbeddedTemplate kTemplates[] = {
${entries}};

}  // namespace

std::span<const EmbeddedTemplate> ${FUNCTION}() { return kTemplates; }

}  // namespace shardgen
")
file(WRITE "${OUT}" "${content}")
