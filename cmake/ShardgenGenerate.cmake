# shardgen_generate(): compiles what shardgen writes for op YAML into a target; shardgen_add_regenerate(): the target
# `regenerate`.

# The number of parts that a family is split into; emit/generate.cc counts the same way. Editing the YAML does not configure
# again: the number is passed to the tool, and stays until the next configure.
function(_shardgen_count_parts yaml result)
  file(STRINGS "${yaml}" ops REGEX "^ *- *(op|backward_op) *:")
  list(LENGTH ops count)
  math(EXPR parts "(${count} + 127) / 128")
  if(parts EQUAL 0)
    set(parts 1)
  endif()
  set(${result} ${parts} PARENT_SCOPE)
endfunction()

# What a description of a runtime (docs/other_runtimes.md) says about the files that are written and read: whether there is a
# dist layer, an autograd layer and a program layer, whether the ops of shard are there, and the headers in `infer_meta`.
function(_shardgen_read_runtime path dist autograd program extends headers)
  file(READ "${path}" json)
  string(JSON kind ERROR_VARIABLE error TYPE "${json}")
  if(error)
    message(FATAL_ERROR "${path}: ${error}")
  endif()
  string(JSON layers ERROR_VARIABLE no_layers GET "${json}" layers)
  string(JSON base ERROR_VARIABLE no_base GET "${json}" extends)
  string(JSON count ERROR_VARIABLE no_headers LENGTH "${json}" infer_meta)
  set(found "")
  if(NOT no_headers AND count GREATER 0)
    get_filename_component(folder "${path}" DIRECTORY)
    math(EXPR last "${count} - 1")
    foreach(i RANGE ${last})
      string(JSON header GET "${json}" infer_meta ${i})
      get_filename_component(header "${header}" ABSOLUTE BASE_DIR "${folder}")
      list(APPEND found ${header})
    endforeach()
  endif()
  set(${dist} OFF PARENT_SCOPE)
  if(no_layers OR layers MATCHES "\"dist\"")
    set(${dist} ON PARENT_SCOPE)
  endif()
  set(${autograd} OFF PARENT_SCOPE)
  if(no_layers OR layers MATCHES "\"autograd\"")
    set(${autograd} ON PARENT_SCOPE)
  endif()
  set(${program} OFF PARENT_SCOPE)
  if(no_layers OR layers MATCHES "\"program\"")
    set(${program} ON PARENT_SCOPE)
  endif()
  set(${extends} ON PARENT_SCOPE)
  if(no_base)
    set(${extends} OFF PARENT_SCOPE)
  endif()
  set(${headers} ${found} PARENT_SCOPE)
endfunction()

# shardgen_generate(TARGET YAML file... [OVERLAY file...] [OUT dir] [TEMPLATES dir] [RUNTIME file] [FOREIGN])
# Adds to TARGET the C++ for the ops of the YAML files. Warnings are errors, unless FOREIGN. TARGET links shard::shard or, with RUNTIME, the
# runtime that is described.
#   YAML       own ops; they may `invoke` ops of the runtime, and must not have their names
#   OVERLAY    files that add placement rules and `shard:` blocks to those ops
#   FOREIGN    the files are another project's and stay as they are: warnings are printed, ops with errors are left out, and names
#              may be those of the runtime's ops, which then cannot be invoked
#   OUT        where the C++ is written, by default <binary dir>/<TARGET>_generated; it becomes an include directory that has
#              a header for each file (ops.yaml: ops.h) and <TARGET>_api.h, which includes them all
#   TEMPLATES  a folder with templates to use instead of the built-in ones of the same names
#   RUNTIME    the description of another runtime, docs/other_runtimes.md; the ops of shard are then not there to invoke, unless
#              the description extends that of shard
# A target takes one call. Only files whose text changes are compiled again. OWN is for the ops of shard itself.
function(shardgen_generate target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "OWN;FOREIGN" "OUT;TEMPLATES;RUNTIME" "YAML;OVERLAY")
  if(NOT TARGET shardgen::shardgen)
    message(FATAL_ERROR "shardgen_generate(${target}): there is no tool, because this shardgen was built with SHARD_CODEGEN=OFF; "
                        "build it with ON, or define the imported executable shardgen::shardgen")
  endif()
  if(NOT arg_YAML)
    message(FATAL_ERROR "shardgen_generate(${target}): pass the op YAML files after YAML")
  endif()
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "shardgen_generate(${target}): unknown arguments: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  get_target_property(others ${target} SHARDGEN_YAML)
  if(others)
    message(FATAL_ERROR "shardgen_generate(${target}): this target has the ops of ${others} already. Pass all files to one call, "
                        "or generate ${arg_YAML} for another library and link both.")
  endif()
  set_property(TARGET ${target} PROPERTY SHARDGEN_YAML ${arg_YAML})
  if(NOT arg_OUT)
    set(arg_OUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_generated)
  endif()
  get_filename_component(out "${arg_OUT}" ABSOLUTE BASE_DIR ${CMAKE_CURRENT_BINARY_DIR})

  set(yaml "")
  set(sources "")
  set(imports "")
  set(description "")
  set(dist ON)
  set(autograd ON)
  set(program ON)
  set(extends ON)
  if(arg_RUNTIME)
    get_filename_component(runtime "${arg_RUNTIME}" ABSOLUTE)
    _shardgen_read_runtime("${runtime}" dist autograd program extends description)
    list(PREPEND description ${runtime})
    # The layers decide which files there are.
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${runtime})
  endif()
  if(arg_OWN)
    set(umbrella api.h)
  else()
    # Another name than the runtime's api.h, which the sources of the target include too.
    set(umbrella ${target}_api.h)
    if(extends AND NOT arg_FOREIGN)
      get_property(imports GLOBAL PROPERTY SHARDGEN_RUNTIME_YAML)
    endif()
  endif()
  set(headers ${out}/${umbrella})
  set(options --umbrella ${umbrella})
  if(arg_FOREIGN)
    list(APPEND options --keep-going)
  else()
    list(APPEND options --strict)
  endif()
  set(overlays "")
  foreach(file IN LISTS arg_OVERLAY)
    get_filename_component(path "${file}" ABSOLUTE)
    list(APPEND overlays ${path})
    list(APPEND options --overlay ${path})
  endforeach()
  if(arg_RUNTIME)
    list(APPEND options --runtime ${runtime})
  endif()
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
      list(APPEND sources ${stem}.cc ${stem}_dense.cc)
      list(APPEND headers ${stem}.h ${stem}_dense.h ${stem}_ops.h)
      if(dist)
        list(APPEND sources ${stem}_dist.cc)
        list(APPEND headers ${stem}_dist.h)
      endif()
      if(autograd)
        list(APPEND sources ${stem}_autograd.cc)
        list(APPEND headers ${stem}_autograd.h)
      endif()
      if(program)
        list(APPEND sources ${stem}_program.cc)
      endif()
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
    COMMAND shardgen::shardgen generate ${yaml} --out ${out} --depfile ${depfile} ${options}
    DEPENDS shardgen::shardgen ${yaml} ${overlays} ${imports} ${description}
    DEPFILE ${depfile}
    COMMENT "Generating ${target} from op YAML"
    VERBATIM)
  if(arg_OWN)
    set_property(TARGET ${target} PROPERTY SHARDGEN_SOURCES ${sources})  # which the layers of the runtime share out
  else()
    target_sources(${target} PRIVATE ${sources})
  endif()
  # Sources that are not generated may include generated headers: those must exist before anything is compiled.
  add_custom_target(${id}_generate DEPENDS ${out}/manifest.json ${sources} ${headers})
  add_dependencies(${target} ${id}_generate)
  if(NOT arg_OWN)
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
