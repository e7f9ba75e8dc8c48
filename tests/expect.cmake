# expect(CODE PATTERN ARGUMENT...): runs ${PROGRAM} and judges its exit code and what it prints. Included by *_test.cmake.
function(expect code pattern)
  execute_process(COMMAND ${PROGRAM} ${ARGN} RESULT_VARIABLE got OUTPUT_VARIABLE text ERROR_VARIABLE text TIMEOUT 120)
  if(NOT got EQUAL code OR NOT text MATCHES "${pattern}")
    cmake_path(GET PROGRAM FILENAME name)
    message(FATAL_ERROR "${name} ${ARGN}: expected exit ${code} and \"${pattern}\", got exit ${got}:\n${text}")
  endif()
endfunction()
