# Trains for 100 steps in float64 on one rank and on other meshes: every loss must agree to 1e-9, and they must go
# from above LEARNT to below it. So do steps that are captured. PROGRAM is a command as a list, LAUNCHER what starts the processes of a mesh (empty: threads), MESHES a list of
# dp x tp ("2x2").
file(MAKE_DIRECTORY ${SCRATCH})

# run(MESH NAME ARGUMENTS...): trains, and leaves the exit status in `result` and what it printed in `output`.
function(run mesh)
  string(REPLACE "x" ";" sizes "${mesh}")
  list(GET sizes 0 dp)
  list(GET sizes 1 tp)
  set(launcher)
  if(NOT mesh STREQUAL "1x1")
    set(launcher ${LAUNCHER})
  endif()
  execute_process(COMMAND ${launcher} ${PROGRAM} --dp ${dp} --tp ${tp} --steps 100 --dtype float64 --quiet ${ARGN}
                  TIMEOUT 100 RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  message("${output}${errors}")
  set(result "${result}" PARENT_SCOPE)
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(1x1 --losses ${SCRATCH}/one_rank.txt)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "on one rank it ended with '${result}'")
endif()
file(STRINGS ${SCRATCH}/one_rank.txt losses)
list(LENGTH losses count)
list(GET losses 0 first)
list(GET losses -1 last)
if(NOT count EQUAL 100)
  message(FATAL_ERROR "it has written ${count} losses, not 100")
endif()
if(NOT count EQUAL 100 OR NOT first GREATER LEARNT OR NOT last LESS LEARNT)
  message(FATAL_ERROR "the ${count} losses go from ${first} to ${last}, not from above ${LEARNT} to below it")
endif()

# Captured, a step does the same to the last bit.
run(1x1 --captured --compare ${SCRATCH}/one_rank.txt --tolerance 0)
if(NOT result EQUAL 0 OR NOT output MATCHES "largest relative difference")
  message(FATAL_ERROR "captured on one rank it ended with '${result}'")
endif()
list(GET MESHES 0 first_mesh)
run(${first_mesh} --captured --compare ${SCRATCH}/one_rank.txt --tolerance 1e-9)
if(NOT result EQUAL 0 OR NOT output MATCHES "largest relative difference")
  message(FATAL_ERROR "captured on ${first_mesh} ranks it ended with '${result}'")
endif()

foreach(mesh IN LISTS MESHES)
  run(${mesh} --compare ${SCRATCH}/one_rank.txt --tolerance 1e-9)
  if(NOT result EQUAL 0 OR NOT output MATCHES "largest relative difference")
    message(FATAL_ERROR "on ${mesh} ranks it ended with '${result}'")
  endif()
endforeach()

# Other batches have other losses, and the comparison finds that.
run(1x1 --seed 2 --compare ${SCRATCH}/one_rank.txt --tolerance 1e-9)
if(NOT result EQUAL 1 OR NOT output MATCHES "largest relative difference")
  message(FATAL_ERROR "with another seed it ended with '${result}', though the losses must differ")
endif()
