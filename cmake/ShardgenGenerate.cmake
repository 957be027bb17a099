# shardgen_generate(): compiles what shardgen writes for op YAML into a target; shardgen_add_regenerate(): the target
# `regenerate`.

# The number of parts that a family is split into; emit/generate.cc counts the same way. Editing the YAML does not configure
# again: the number is passed to the tool, and stays until the next configure.
function(_shardgen_count_parts yaml result)
  file(STRINGS "${yaml}" ops REGEX "^ *- *(op|backward_op) *:")
  list(LENGTH ops count)
  math(EXPR parts "(${count} + 63) / 64")
  if(parts EQUAL 0)
    set(parts 1)
  endif()
  set(${result} ${parts} PARENT_SCOPE)
endfunction()

# shardgen_generate(TARGET YAML file... [OUT dir] [TEMPLATES dir])
# Adds to TARGET, which links shard::shard, the C++ for the ops of the YAML files. Warnings are errors.
#   YAML       own ops; they may `invoke` ops of the runtime, and must not have their names
#   OUT        where the C++ is written, by default <binary dir>/<TARGET>_generated; it becomes an include directory that has
#              a header for each file (ops.yaml: ops.h) and <TARGET>_api.h, which includes them all
#   TEMPLATES  a folder with templates to use instead of the built-in ones of the same names
# Only files whose text changes are compiled again. RUNTIME is for the runtime's own ops alone.
function(shardgen_generate target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "RUNTIME" "OUT;TEMPLATES" "YAML")
  if(NOT TARGET shardgen::shardgen)
    message(FATAL_ERROR "shardgen_generate(${target}): there is no tool, because this shardgen was built with SHARD_CODEGEN=OFF; "
                        "build it with ON, or define the imported executable shardgen::shardgen")
  endif()
  if(NOT arg_YAML)
    message(FATAL_ERROR "shardgen_generate(${target}): give the op YAML files after YAML")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "shardgen_generate(${target}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT arg_OUT)
    set(arg_OUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_generated)
  endif()
  get_filename_component(out "${arg_OUT}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_BINARY_DIR})

  set(yaml "")
  set(sources "")
  set(imports "")
  if(arg_RUNTIME)
    set(umbrella api.h)
  else()
    # Another name than the runtime's api.h, which the sources of the target include too.
    set(umbrella ${target}_api.h)
    get_property(imports GLOBAL PROPERTY SHARDGEN_RUNTIME_YAML)
  endif()
  set(headers ${out}/${umbrella})
  set(options --umbrella ${umbrella})
  foreach(file IN LISTS imports)
    list(APPEND options --import ${file})
  endforeach()
  foreach(file IN LISTS arg_YAML)
    get_filename_component(path "${file}" ABSOLUTE)
    list(APPEND yaml ${path})
    get_filename_component(family "${path}" NAME_WLE)
    _shardgen_count_parts("${path}" parts)
    list(APPEND options --parts ${family}=${parts})
    math(EXPR last "${parts} - 1")
    foreach(part RANGE ${last})
      set(stem ${out}/${family})
      if(parts GREATER 1)
        string(APPEND stem _${part})
      endif()
      list(APPEND sources ${stem}.cc ${stem}_dense.cc ${stem}_dist.cc)
      list(APPEND headers ${stem}.h ${stem}_dense.h ${stem}_dist.h ${stem}_ops.h)
    endforeach()
  endforeach()
  if(arg_TEMPLATES)
    get_filename_component(templates "${arg_TEMPLATES}" ABSOLUTE)
    list(APPEND options --templates ${templates})
  endif()

  # Every file is an output of its own: ninja looks at each after the run (restat) and rebuilds only from those that changed.
  string(MAKE_C_IDENTIFIER "${target}" id)
  set(depfile ${CMAKE_CURRENT_BINARY_DIR}/shardgen_${id}.d)
  add_custom_command(
    OUTPUT ${out}/manifest.json ${sources} ${headers}
    COMMAND shardgen::shardgen generate ${yaml} --out ${out} --strict --depfile ${depfile} ${options}
    DEPENDS shardgen::shardgen ${yaml} ${imports}
    DEPFILE ${depfile}
    COMMENT "Generating ${target} from op YAML"
    VERBATIM)
  target_sources(${target} PRIVATE ${sources})
  # Sources that are not generated may include generated headers: those must exist before anything is compiled.
  add_custom_target(${id}_generate DEPENDS ${out}/manifest.json ${sources} ${headers})
  add_dependencies(${target} ${id}_generate)
  if(NOT arg_RUNTIME)
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${out}>)
  endif()
endfunction()

# The target `regenerate`: writes generated/ of this project from ops_yaml/. The committed files are the ones that are
# compiled when SHARD_REGENERATE is off.
function(shardgen_add_regenerate)
  file(GLOB yaml CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/ops_yaml/*.yaml)
  if(NOT yaml)
    return()
  endif()
  add_custom_target(
    regenerate
    COMMAND shardgen::shardgen generate ${yaml} --out ${PROJECT_SOURCE_DIR}/generated --strict
    COMMENT "Writing generated/ from ops_yaml/"
    VERBATIM)
endfunction()
