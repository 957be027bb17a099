# Compile options that every target of this project shares. Options of a single target stand with the target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache must look through precompiled headers, whose time stamps change with every fresh checkout, and see paths relative to it.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endif()

# Test programs are large, and the linker that compilers take by default needs seconds for each.
find_program(SHARD_LLD ld.lld)
if(SHARD_LLD AND (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_BUILD_TYPE STREQUAL "RelWithDebInfo"))
  add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=lld>)
endif()

add_library(shard_options INTERFACE)
target_compile_options(shard_options INTERFACE -Wall -Wextra -Wpedantic -Wswitch $<$<BOOL:${SHARD_WERROR}>:-Werror>)
if(SHARD_WERROR AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC 12 reports inlined std::string concatenations falsely, depending on the lengths of literals (GCC bugs 105329, 105651).
  # They stay visible as warnings; Clang and the sanitizers look for the real ones.
  target_compile_options(shard_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-error=array-bounds -Wno-error=restrict -Wno-error=stringop-overflow -Wno-error=stringop-overread>)
endif()
# GCC collects garbage in its memory again and again while that grows: a tenth of the time for the sources that take longest.
target_compile_options(shard_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
# Kernels give the same bits in vector bodies and scalar tails only when neither contracts a*b+c on its own.
# errno of math functions is never read; setting it would keep sqrt from being vectorised.
target_compile_options(shard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off -fno-math-errno>)
if(SHARD_SANITIZE)
  # Not for kernels of the model of CUDA: the address sanitizer knows nothing of device memory (tests/cuda/host).
  set(is_host_code $<NOT:$<BOOL:$<TARGET_PROPERTY:SHARD_DEVICE_CODE>>>)
  target_compile_options(shard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                         $<$<AND:$<COMPILE_LANGUAGE:CXX>,${is_host_code}>:-fsanitize=${SHARD_SANITIZE}>)
  target_link_options(shard_options INTERFACE -fsanitize=${SHARD_SANITIZE})
  # Each file of tests is a process, and there are millions of relocations in programs of any address.
  string(APPEND CMAKE_EXE_LINKER_FLAGS " -no-pie")
  if(SHARD_SANITIZE STREQUAL "address")
    # Without checks of each access, most of whose findings the address sanitizer has too: they take 40 % of the time to compile large kernels.
    target_compile_options(shard_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=undefined -fno-sanitize-recover=undefined -fno-sanitize=null,object-size,pointer-overflow,vptr>)
    target_link_options(shard_options INTERFACE -fsanitize=undefined)
  endif()
endif()
if(SHARD_FUZZ)
  # Coverage for libFuzzer in every object; only the fuzzer itself links its main().
  target_compile_options(shard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
  target_link_options(shard_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# Compiles the sources of a target six at a time where SHARD_UNITY says so. What a source names in an anonymous namespace is then seen by
# others of its folder, so that no two of them give one name to two things; each file of tests has a namespace of its own.
function(shard_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SHARD_UNITY} UNITY_BUILD_BATCH_SIZE 6)
endfunction()
