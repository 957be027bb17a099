# The target `docs`: the reference of the ops (shardgen docs) in docs/ops and, where Doxygen is found, that of the C++ API in
# docs/api, both in the build folder.

# What a program may include. Insides (namespaces `detail`, what generated code calls) are left out.
set(SHARD_DOCS_HEADERS ${PROJECT_SOURCE_DIR}/docs/api.dox)
foreach(header IN ITEMS
    api/* dist/dist_tensor dist/mesh dist/policies dist/save_trace dist/spec dist/world
    core/attr core/dense_tensor core/device core/dims core/dtype core/error core/log core/op_context core/random core/reduce_type core/tensor core/waiting
    autograd/autograd autograd/grad_mode reshard/plan reshard/reshard call/dry_report comm/communicator comm/options
    shard runtime program kernel testing core/index
    program/ir/diff program/ir/program program/ir/scope program/io/dot program/io/json program/exec/executor program/capture/function program/capture/trace
    program/passes/passes
    kernels/registry meta/infer_meta meta/infer_meta_layers spmd/notation spmd/rule testing/backend_conformance testing/rule_check)
  file(GLOB found CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/runtime/shard/${header}.h)
  if(NOT found)
    message(FATAL_ERROR "runtime/shard/${header}.h, which the API reference shows, was not found")
  endif()
  list(APPEND SHARD_DOCS_HEADERS ${found})
endforeach()
foreach(yaml IN LISTS SHARD_OPS_YAML)
  get_filename_component(family ${yaml} NAME_WE)
  list(APPEND SHARD_DOCS_HEADERS ${PROJECT_SOURCE_DIR}/generated/${family}.h)
endforeach()

find_package(Doxygen 1.9 QUIET)
if(DOXYGEN_FOUND)
  set(DOXYGEN_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/docs)
  set(DOXYGEN_HTML_OUTPUT api)
  set(DOXYGEN_GENERATE_LATEX NO)
  set(DOXYGEN_HAVE_DOT NO)
  set(DOXYGEN_QUIET YES)
  set(DOXYGEN_EXTRACT_ALL YES)
  set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
  set(DOXYGEN_HIDE_FRIEND_COMPOUNDS YES)
  set(DOXYGEN_VERBATIM_HEADERS NO)
  set(DOXYGEN_STRIP_FROM_PATH ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR})
  set(DOXYGEN_STRIP_FROM_INC_PATH ${PROJECT_SOURCE_DIR}/runtime)
  set(DOXYGEN_FORCE_LOCAL_INCLUDES YES)
  set(DOXYGEN_MACRO_EXPANSION YES)
  set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
  set(DOXYGEN_PREDEFINED SHARD_API=)
  set(DOXYGEN_EXCLUDE_SYMBOLS *::detail)
  set(DOXYGEN_INPUT_FILTER "sed -f ${PROJECT_SOURCE_DIR}/cmake/doxygen_filter.sed")
  set(DOXYGEN_WARN_IF_UNDOCUMENTED NO)
  set(DOXYGEN_WARN_IF_DOC_ERROR YES)
  set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
  doxygen_add_docs(docs_api ${SHARD_DOCS_HEADERS} COMMENT "Writing docs/api/index.html of the build folder with Doxygen")
else()
  add_custom_target(docs_api
    COMMAND ${CMAKE_COMMAND} -E echo "There is no API reference: Doxygen was not found. Install the Debian package doxygen and configure again."
    VERBATIM)
endif()

add_custom_target(docs DEPENDS docs_api)
if(SHARD_CODEGEN)
  add_custom_target(docs_ops
    COMMAND shardgen::shardgen docs ${SHARD_OPS_YAML} --out ${PROJECT_BINARY_DIR}/docs/ops
    COMMENT "Writing docs/ops/index.html of the build folder"
    VERBATIM)
  add_dependencies(docs docs_ops)
endif()
