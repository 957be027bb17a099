# Adds the MPI transport to the layer comm, or the stub that says why there is none. Included from runtime/CMakeLists.txt.
set(SHARD_COMM_DIR ${CMAKE_CURRENT_SOURCE_DIR}/shard/comm)
set(SHARD_NO_MPI_REASON "")
if(NOT SHARD_MPI)
  set(SHARD_NO_MPI_REASON "SHARD_MPI is OFF")
elseif(SHARD_SANITIZE)
  set(SHARD_NO_MPI_REASON "it does not go with SHARD_SANITIZE=${SHARD_SANITIZE}")
else()
  include(CheckLanguage)
  check_language(C)  # FindMPI's C interface asks for it
  if(CMAKE_C_COMPILER)
    enable_language(C)
    find_package(MPI QUIET GLOBAL COMPONENTS C)
  endif()
  if(NOT TARGET MPI::MPI_C)
    set(SHARD_NO_MPI_REASON "MPI was not found")
  endif()
endif()
set(SHARD_NO_MPI_REASON "${SHARD_NO_MPI_REASON}" CACHE INTERNAL "Why the MPI transport is not built; empty when it is")

if(SHARD_NO_MPI_REASON)
  if(SHARD_MPI AND NOT SHARD_MPI STREQUAL "AUTO" AND NOT SHARD_SANITIZE)
    message(FATAL_ERROR "SHARD_MPI is ${SHARD_MPI}, but ${SHARD_NO_MPI_REASON}")
  endif()
  message(STATUS "shard: built without MPI: ${SHARD_NO_MPI_REASON}")
  set_source_files_properties(${SHARD_COMM_DIR}/mpi.cc ${SHARD_COMM_DIR}/mpi_operation.cc PROPERTIES HEADER_FILE_ONLY ON)
  set_source_files_properties(${SHARD_COMM_DIR}/mpi_stub.cc PROPERTIES
    COMPILE_DEFINITIONS "SHARD_NO_MPI_REASON=\"built without MPI: ${SHARD_NO_MPI_REASON}\"")
  return()
endif()

message(STATUS "shard: MPI ${MPI_C_VERSION}, started with ${MPIEXEC_EXECUTABLE}")
set_source_files_properties(${SHARD_COMM_DIR}/mpi_stub.cc PROPERTIES HEADER_FILE_ONLY ON)
# Only these sources see its headers, without the C++ bindings that MPI has given up. Hidden from the export: programs that link an installed shard need no MPI package.
set_source_files_properties(${SHARD_COMM_DIR}/mpi.cc ${SHARD_COMM_DIR}/mpi_operation.cc PROPERTIES
  INCLUDE_DIRECTORIES "${MPI_C_INCLUDE_DIRS}" COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
target_link_libraries(shard_comm PRIVATE $<BUILD_INTERFACE:$<LINK_ONLY:MPI::MPI_C>>)
