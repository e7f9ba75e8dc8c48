# Exit codes and messages of ouro-sim. Run by ctest.
include(${CMAKE_CURRENT_LIST_DIR}/../../expect.cmake)

expect(2 "ouro-sim: allreduce: no such collective; one of: all_reduce, " allreduce)
expect(0 "pairwise" alltoall --ranks 4)
expect(2 "--ranks" all_reduce --ranks 0)
expect(2 "--bytes 1Q" all_reduce --bytes 1Q)
expect(2 "--algorithms linear: all_reduce has ring" all_reduce --algorithms linear)
expect(2 "nowhere" all_reduce --cluster nowhere)
expect(2 "--root 8: there are 8 ranks" broadcast --root 8)
expect(2 "--root 3: all_reduce has no root" all_reduce --root 3)
expect(2 "^ouro-sim: .*--nonsense.*Try: ouro-sim --help" --nonsense)
expect(2 "nothing could be predicted" all_to_all --ranks 16384 --algorithms pairwise)
expect(0 "Examples:" --help)
expect(0 "64 +1048576 tree .*fastest" all_reduce --ranks 8:64 --bytes 1K,1M --algorithms ring,tree --cluster nvlink-ndr)
expect(0 " pull +[0-9.]+ .* zerocopy" all_reduce --algorithms pull,zerocopy)
expect(0 "ring .* as fast as any\n.*chain .* as fast as any\n" all_reduce --ranks 1 --algorithms ring,chain)

# A value that is given twice is predicted once.
execute_process(COMMAND ${PROGRAM} all_reduce --ranks 4,4,2:4 --bytes 8,8 --algorithms ring,tree,ring --json -
                OUTPUT_VARIABLE json COMMAND_ERROR_IS_FATAL ANY)
string(JSON points LENGTH "${json}" points)
if(NOT points EQUAL 4)
  message(FATAL_ERROR "ouro-sim: ${points} points, expected 2 numbers of ranks by 2 algorithms:\n${json}")
endif()
