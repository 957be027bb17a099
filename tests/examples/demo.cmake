# What scripts/demo.sh shows: the op from YAML to values (SHOW, a command that gets the folder BUILD), and the calls of the network
# (MLP). Each line fits 120 columns.
file(MAKE_DIRECTORY ${SCRATCH})

# shows(COMMAND... TEXTS text...): the command succeeds, and prints each of the texts.
function(shows)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "COMMAND;TEXTS")
  execute_process(COMMAND ${arg_COMMAND} TIMEOUT 60 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  message("${output}${errors}")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "it ended with '${result}'")
  endif()
  string(REGEX MATCH "[^\n]${long_line}" long "${output}")
  if(long)
    message(FATAL_ERROR "a line has more than 120 columns: ${long}")
  endif()
  foreach(text IN LISTS arg_TEXTS)
    string(FIND "${output}" "${text}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "it does not print '${text}'")
    endif()
  endforeach()
endfunction()
string(REPEAT "[^\n]" 120 long_line)

shows(COMMAND bash ${SHOW} ${BUILD} TEXTS
      "- op : squared_distance"
      "void squared_distance(const OpContext& ctx, const DenseTensor& x"  # the kernel
      "call::dispatch(ops::squared_distance"                               # the public function
      "call.run(infer::squared_distance"                                   # of the mesh
      "Meta squared_distance(const OpContext& ctx"                         # the shape
      "call::compute(ctx, kernels<\"squared_distance\">()"                 # of one device
      "out [dp, -] sum(tp)"
      "x: all_reduce(tp, sum)"
      " 12.806 12.530  9.055"                                               # a row of the values
      "all values are equal, in each of the three layouts")
shows(COMMAND ${MLP} ${SCRATCH}/demo.trace.json TEXTS "after 3 steps: largest difference to one rank")
