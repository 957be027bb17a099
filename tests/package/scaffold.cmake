# Skeletons of ops compile against the package in PREFIX, with nothing of the checkout.
file(REMOVE_RECURSE ${SCRATCH})
file(WRITE ${SCRATCH}/new.yaml "\
- op : blend
  args : (Tensor x, Tensor[] others, Tensor weight, IntArray axis={}, DataType dtype=DataType::UNDEFINED, str mode)
  output : Tensor(out), Tensor[](parts){others.size()}, Tensor(state)
  infer_meta : {func : BlendInferMeta, spmd_rule : BlendRule}
  kernel : {func : blend, data_type : x}
  optional : weight
  intermediate : state
  inplace : (x -> out)
  shard : {random : true}
- op : fill_new
  args : (IntArray shape, float value, DataType dtype=DataType::FLOAT32, Place place=CPUPlace())
  output : Tensor(out)
  infer_meta : {func : FillNewInferMeta, param : [shape, dtype]}
  kernel : {func : fill_new, data_type : dtype, backend : place}
")
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result)
    message(FATAL_ERROR "${ARGN}\n${output}")
  endif()
endfunction()
run(${PREFIX}/bin/shardgen generate ${SCRATCH}/new.yaml --out ${SCRATCH}/generated)
foreach(op blend fill_new)
  run(${PREFIX}/bin/shardgen scaffold ${op} --yaml ${SCRATCH}/new.yaml --out ${SCRATCH}/made)
endforeach()
run(${PREFIX}/bin/shardgen scaffold --missing --yaml ${SCRATCH}/new.yaml --out ${SCRATCH}/made)
file(GLOB sources ${SCRATCH}/made/*.cc)
list(LENGTH sources count)
if(NOT count EQUAL 8)
  message(FATAL_ERROR "${count} skeletons: ${sources}")
endif()
foreach(source IN LISTS sources)
  run(${COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra -Werror -I${PREFIX}/include -I${SCRATCH}/generated ${source})
endforeach()
