# Generates for the op files of another project, which lie beside the checkout, with the overlay of the package, compiles everything against
# the package in PREFIX, links and runs it.
set(files ${SOURCE}/../shared/paddle_yaml/2024-05)
if(NOT EXISTS ${files}/ops.yaml)
  message(STATUS "skipped: no foreign op files beside the checkout")
  return()
endif()
set(yaml ${files}/ops.yaml ${files}/legacy_ops.yaml ${files}/backward.yaml ${files}/legacy_backward.yaml)
file(REMOVE_RECURSE ${SCRATCH}/missing)
execute_process(COMMAND ${TOOL} scaffold --missing --yaml ${yaml} --out ${SCRATCH}/missing RESULT_VARIABLE result ERROR_VARIABLE errors OUTPUT_QUIET)
if(result)
  message(FATAL_ERROR "shardgen scaffold: ${errors}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE}/tests/package/foreign -B ${SCRATCH}/build -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${PREFIX}
                        -DFILES=${files} -DMISSING=${SCRATCH}/missing/missing.cc
                        -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
                        "-DCMAKE_CXX_FLAGS=-O0 -Wall -Wextra -Werror"
                RESULT_VARIABLE result OUTPUT_QUIET)
if(result)
  message(FATAL_ERROR "the project does not configure")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH}/build RESULT_VARIABLE result OUTPUT_VARIABLE output)
if(result)
  message(FATAL_ERROR "the generated code does not build\n${output}")
endif()
execute_process(COMMAND ${SCRATCH}/build/foreign RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "the program ended with ${result}")
endif()
