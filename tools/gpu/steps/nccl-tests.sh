# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step nccl-tests.

# Prints the us of the last row that a program of nccl-tests has printed if it found all values correct, otherwise ''.
last_time() {
  grep -q 'Out of bounds values : 0 OK' "$1" && awk '$1 ~ /^[0-9]+$/ { us = $6 } END { print us }' "$1"
}

# Runs unmodified nccl-tests on ouro's library and on the machine's, in turn.
nccl_tests_step() {
  if [[ -n $no_runtime ]]; then not_run "nccl-tests" "$no_runtime"; return; fi
  if [[ -z ${NCCL_TESTS_DIR:-} ]]; then not_run "nccl-tests" "NCCL_TESTS_DIR names no folder with them"; return; fi
  local kind size ours theirs code gpus name
  gpus=$(grep -cE '^ +[0-9]+: ' "$out/logs/gpus.txt")
  for kind in all_reduce all_gather reduce_scatter broadcast alltoall sendrecv; do
    for size in 8 64M; do
      name=nccl-tests-$kind-$size code=0
      local what=("$NCCL_TESTS_DIR/${kind}_perf" -b "$size" -e "$size" -g "$((gpus > 0 ? gpus : 1))" -n 20 -w 5 -c 1)
      attempt "$name-ouro" 40 env LD_PRELOAD="$here/lib/libnccl.so.2" "${what[@]}" || code=$?
      out_of_time $code "nccl-tests $kind $size" && continue
      attempt "$name-nccl" 40 env -u LD_PRELOAD LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" "${what[@]}"
      ours=$(last_time "$out/logs/$name-ouro.log") theirs=$(last_time "$out/logs/$name-nccl.log")
      if ((code == 0)) && [[ -n $ours ]]; then
        row "nccl-tests $kind $size, $gpus GPUs" 1 1 0 "$ours us; NCCL: ${theirs:-not here}${theirs:+ us}" "all"
      else failed=1; row "nccl-tests $kind $size, $gpus GPUs" 1 0 0 "$(reason $code "$name-ouro")" "all"; fi
    done
  done
}
