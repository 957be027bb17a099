# A project takes this one in with add_subdirectory: it configures with the tool built along, and compiles ops with a tool that is
# there already.
file(REMOVE_RECURSE ${SCRATCH})
set(configure ${CMAKE_COMMAND} -S ${SOURCE}/tests/package/subdirectory -G ${GENERATOR} -DSHARD_SOURCE=${SOURCE} -DSHARD_CUDA=OFF
    -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
execute_process(COMMAND ${configure} -B ${SCRATCH}/whole RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "the project does not configure")
endif()
execute_process(COMMAND ${configure} -B ${SCRATCH}/ops -DTOOL=${TOOL} RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "the project does not configure with a tool of its own")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${SCRATCH}/ops --target ops RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "its ops do not compile")
endif()
