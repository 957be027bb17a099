# A second shardgen_generate() for one target is refused with what to do; two targets work.
file(REMOVE_RECURSE ${SCRATCH})
foreach(name a b)
  file(WRITE ${SCRATCH}/${name}.yaml "- op : op_${name}\n  args : (Tensor x)\n  output : Tensor(out)\n  infer_meta : {func : UnchangedInferMeta}\n  kernel : {func : f}\n")
endforeach()
set(head "cmake_minimum_required(VERSION 3.25)\nproject(twice LANGUAGES CXX)\nadd_executable(shardgen::shardgen IMPORTED)\n"
         "set_target_properties(shardgen::shardgen PROPERTIES IMPORTED_LOCATION ${TOOL})\n"
         "include(${SOURCE}/cmake/ShardgenGenerate.cmake)\nfile(WRITE \${CMAKE_BINARY_DIR}/x.cc \"\")\n"
         "add_library(one STATIC \${CMAKE_BINARY_DIR}/x.cc)\nadd_library(two STATIC \${CMAKE_BINARY_DIR}/x.cc)\nshardgen_generate(one YAML a.yaml)\n")
string(CONCAT head ${head})
foreach(second one two)
  file(WRITE ${SCRATCH}/CMakeLists.txt "${head}shardgen_generate(${second} YAML b.yaml)\n")
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SCRATCH} -B ${SCRATCH}/${second} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER}
                  RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE errors)
  string(REGEX REPLACE "[ \n]+" " " errors "${errors}")
  if(second STREQUAL one AND NOT errors MATCHES "shardgen_generate.one.: this target has the ops of a.yaml already. Pass all files to one call")
    message(SEND_ERROR "two calls for one target end with ${result}: ${errors}")
  elseif(second STREQUAL two AND result)
    message(SEND_ERROR "two targets do not configure: ${errors}")
  endif()
endforeach()
