# What `cmake --install` puts into a prefix: the tool, the library with its headers, and the CMake package shardgen, which finds
# them relative to itself, so that the prefix may be moved.
include(CMakePackageConfigHelpers)
set(SHARD_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/shardgen)
set(SHARD_DATA_DIR ${CMAKE_INSTALL_DATADIR}/shardgen)

if(SHARD_CODEGEN)
  install(TARGETS shardgen EXPORT shardgen-tool)
  install(EXPORT shardgen-tool NAMESPACE shardgen:: DESTINATION ${SHARD_PACKAGE_DIR})
endif()
install(TARGETS shard shard_testing EXPORT shardgen-runtime)
install(EXPORT shardgen-runtime NAMESPACE shard:: DESTINATION ${SHARD_PACKAGE_DIR})

if(SHARD_REGENERATE)
  set(SHARD_OPS_HEADERS ${PROJECT_BINARY_DIR}/include/shard/ops)
else()
  set(SHARD_OPS_HEADERS ${PROJECT_SOURCE_DIR}/generated)
endif()
# Public headers alone, all under include/shard.
install(CODE "execute_process(COMMAND \"${CMAKE_COMMAND}\" \"-DRUNTIME=${PROJECT_SOURCE_DIR}/runtime\" \"-DOPS=${SHARD_OPS_HEADERS}\"
  \"-DOUT=\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\" -P \"${CMAKE_CURRENT_LIST_DIR}/ShardPublicHeaders.cmake\" COMMAND_ERROR_IS_FATAL ANY)")

file(GLOB SHARD_TEMPLATES CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/templates/*.mustache)  # those that a user may replace
install(FILES ${SHARD_TEMPLATES} DESTINATION ${SHARD_DATA_DIR}/templates)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/python/include ${PROJECT_SOURCE_DIR}/python/binding DESTINATION ${SHARD_DATA_DIR}/python)
install(FILES ${SHARD_OPS_YAML} DESTINATION ${SHARD_DATA_DIR}/ops_yaml)
install(FILES ${PROJECT_SOURCE_DIR}/overlays/paddle.yaml DESTINATION ${SHARD_DATA_DIR}/overlays)
install(FILES ${PROJECT_SOURCE_DIR}/docs/op_yaml.schema.json DESTINATION ${SHARD_DATA_DIR})
# The links between these are relative: the tree of the documents stays as it is.
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")

if(SHARD_NO_CUDA_REASON)
  set(SHARD_FIND_CUDA "")
else()
  set(SHARD_FIND_CUDA "find_dependency(CUDAToolkit)")
endif()
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/shardgen-config.cmake.in ${PROJECT_BINARY_DIR}/shardgen-config.cmake
                              INSTALL_DESTINATION ${SHARD_PACKAGE_DIR} PATH_VARS SHARD_DATA_DIR)
# Before 1.0 a new minor version may change anything.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/shardgen-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/shardgen-config.cmake ${PROJECT_BINARY_DIR}/shardgen-config-version.cmake
              ${CMAKE_CURRENT_LIST_DIR}/ShardgenGenerate.cmake DESTINATION ${SHARD_PACKAGE_DIR})
