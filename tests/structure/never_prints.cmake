# The library never prints, exits or aborts: libshard must not use the functions that do.
execute_process(COMMAND nm -D --undefined-only ${LIBRARY} RESULT_VARIABLE result OUTPUT_VARIABLE symbols)
if(result OR NOT symbols MATCHES "malloc")
  message(FATAL_ERROR "nm did not list the symbols of ${LIBRARY}")
endif()
string(REGEX MATCHALL " (printf|fprintf|vprintf|vfprintf|puts|putchar|fputs|perror|exit|_exit|quick_exit|abort|_ZSt4cout|_ZSt4cerr|_ZSt4clog)[@\n]" found "${symbols}")
if(found)
  message(FATAL_ERROR "${LIBRARY} uses: ${found}")
endif()
