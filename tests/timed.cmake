# Read by ctest behind the lists of tests that gtest_discover_tests wrote for a folder. Suites named Timed* measure time:
# their tests get the label `timed` and run alone, so that no other test takes the processor from them. And none chooses
# by what this machine does, but those of calibration. TESTS_TIMEOUT is for builds that are slow (tools/gate).
get_cmake_property(names VARIABLES)
foreach(name IN LISTS names)
  foreach(test IN LISTS ${name})
    if(test MATCHES "^[a-z0-9_.]+[.](.*/)?Timed")
      set_tests_properties("${test}" PROPERTIES LABELS timed RUN_SERIAL ON)
    endif()
    if(DEFINED ENV{TESTS_TIMEOUT})
      set_tests_properties("${test}" PROPERTIES TIMEOUT "$ENV{TESTS_TIMEOUT}")
    endif()
    if(NOT test MATCHES "^calibration[.]")
      set_tests_properties("${test}" PROPERTIES ENVIRONMENT_MODIFICATION OURO_CALIBRATION=set:off)
    endif()
  endforeach()
endforeach()
