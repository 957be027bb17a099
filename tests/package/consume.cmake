# Configures, builds and runs the project EXAMPLE against the package in PREFIX, with warnings as errors.
file(REMOVE_RECURSE ${SCRATCH})
execute_process(COMMAND ${CMAKE_COMMAND} -S ${EXAMPLE} -B ${SCRATCH} -G ${GENERATOR} -DCMAKE_PREFIX_PATH=${PREFIX}
                        -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror"
                RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "${EXAMPLE} does not configure")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH} RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "${EXAMPLE} does not build")
endif()
execute_process(COMMAND ${SCRATCH}/${PROGRAM} RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "${PROGRAM} ended with ${result}")
endif()
