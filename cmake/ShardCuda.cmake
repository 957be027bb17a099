# Adds the CUDA backend to the layer core and its kernels to the layer kernels, or the stubs that say why there are none. Included from
# runtime/CMakeLists.txt.
set(SHARD_CUDA_BACKEND_DIR ${CMAKE_CURRENT_SOURCE_DIR}/shard/core/cuda)
set(SHARD_CUDA_KERNELS_DIR ${CMAKE_CURRENT_SOURCE_DIR}/shard/kernels/cuda)
set(SHARD_CUDA_STUBS ${SHARD_CUDA_BACKEND_DIR}/cuda_stub.cc ${SHARD_CUDA_KERNELS_DIR}/register_stub.cc)

# Sets `reason` to why CUDA cannot be built; empty, with the language enabled, where it can. A macro, because languages
# are enabled for the scope of the caller.
macro(shard_enable_cuda reason)
  set(${reason} "")
  if(NOT SHARD_CUDA)
    set(${reason} "SHARD_CUDA is OFF")
  elseif(SHARD_SANITIZE)
    set(${reason} "it does not go with SHARD_SANITIZE=${SHARD_SANITIZE}")
  else()
    find_program(SHARD_NVCC nvcc HINTS ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
    if(SHARD_NVCC AND NOT DEFINED ENV{CUDACXX})
      set(ENV{CUDACXX} ${SHARD_NVCC})
    endif()
    if(SHARD_NVCC OR DEFINED ENV{CUDACXX} OR CMAKE_CUDA_COMPILER)
      include(CheckLanguage)
      check_language(CUDA)
      if(NOT CMAKE_CUDA_COMPILER)
        set(${reason} "nvcc does not work with this host compiler")
      endif()
    else()
      set(${reason} "nvcc was not found")
    endif()
  endif()
  if(NOT ${reason})
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
      set(CMAKE_CUDA_ARCHITECTURES 90 CACHE STRING "GPU architectures to compile for; 90 is Hopper")
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(NOT TARGET CUDA::cudart OR NOT TARGET CUDA::cublasLt OR NOT TARGET CUDA::cublas OR NOT TARGET CUDA::cusolver)
      set(${reason} "the toolkit lacks cudart, cublas, cublasLt or cusolver")
    endif()
  endif()
endmacro()

shard_enable_cuda(SHARD_NO_CUDA_REASON)
set(SHARD_NO_CUDA_REASON "${SHARD_NO_CUDA_REASON}" CACHE INTERNAL "Why the CUDA backend is not built; empty when it is")
file(GLOB SHARD_CUDA_HOST_SOURCES CONFIGURE_DEPENDS ${SHARD_CUDA_BACKEND_DIR}/*.cc ${SHARD_CUDA_KERNELS_DIR}/*.cc)
list(REMOVE_ITEM SHARD_CUDA_HOST_SOURCES ${SHARD_CUDA_STUBS})
file(GLOB SHARD_CUDA_SOURCES CONFIGURE_DEPENDS ${SHARD_CUDA_KERNELS_DIR}/*.cu)
set(SHARD_CUDA_OBJECTS shard_cuda CACHE INTERNAL "The libraries of objects that make the CUDA backend")
if(SHARD_NO_CUDA_REASON)
  message(STATUS "shard: built without CUDA: ${SHARD_NO_CUDA_REASON}")
  set_source_files_properties(${SHARD_CUDA_BACKEND_DIR}/cuda_stub.cc PROPERTIES
    COMPILE_DEFINITIONS "SHARD_NO_CUDA_REASON=\"built without CUDA: ${SHARD_NO_CUDA_REASON}\"")
  add_library(shard_cuda OBJECT ${SHARD_CUDA_STUBS})
  target_link_libraries(shard_cuda PRIVATE shard_core shard_options)
  target_link_libraries(shard PRIVATE shard_cuda)
  return()
endif()

message(STATUS "shard: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for architectures ${CMAKE_CUDA_ARCHITECTURES}")
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
add_library(shard_cuda OBJECT ${SHARD_CUDA_HOST_SOURCES})
target_link_libraries(shard_cuda PRIVATE shard_core shard_options PUBLIC CUDA::cudart CUDA::cublasLt CUDA::cublas CUDA::cusolver)

# A library of its own, because nvcc does not know the warning options of shard_options.
add_library(shard_cuda_kernels OBJECT ${SHARD_CUDA_SOURCES})
# What these make has the bits, and the truth, that it has on the CPU.
set_source_files_properties(${SHARD_CUDA_KERNELS_DIR}/creation.cu ${SHARD_CUDA_KERNELS_DIR}/mixed.cu ${SHARD_CUDA_KERNELS_DIR}/nms.cu
                            ${SHARD_CUDA_KERNELS_DIR}/random.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
set(SHARD_CUDA_OBJECTS shard_cuda shard_cuda_kernels CACHE INTERNAL "The libraries of objects that make the CUDA backend")
set_target_properties(shard_cuda_kernels PROPERTIES CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
                      CUDA_RUNTIME_LIBRARY Shared)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25.1 does not know that nvcc has it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
target_include_directories(shard_cuda_kernels PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(shard_cuda_kernels PRIVATE fmt::fmt CUDA::cudart)
# fmt 9 takes nvcc for a compiler without constexpr, and then does not compile as C++20.
target_compile_definitions(shard_cuda_kernels PRIVATE FMT_USE_CONSTEXPR=1)
target_compile_options(shard_cuda_kernels PRIVATE -Xcompiler=-Wall,-Wextra $<$<BOOL:${SHARD_WERROR}>:--Werror=all-warnings>)

set_target_properties(shard PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
target_link_libraries(shard PRIVATE ${SHARD_CUDA_OBJECTS})
