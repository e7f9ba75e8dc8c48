# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step sanitizer.

# memcheck sees addresses, racecheck and synccheck shared memory and barriers of blocks: the fused kernels have none, the
# optimisers and the resident kernels do.
sanitizer_step() {
  local command tool
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "compute-sanitizer" "a fake GPU runs no device code"; return; fi
  find_tool compute-sanitizer
  if [[ -z $command ]]; then not_run "compute-sanitizer" "there is none here"; return; fi
  local small=(--device cuda -t 2 -n 1 -w 0 -c 1 -T 35)
  for tool in memcheck racecheck synccheck; do
    sanitize $tool "resident all_reduce" env OURO_GPU_PATH=resident "$here/bin/ouro-perf" all_reduce "${small[@]}" -b 4K -e 64K -f 16
    ! program bench_gpu_optimiser || sanitize $tool "optimisers" "$here/bin/bench_gpu_optimiser" --quick
  done
  sanitize memcheck "all_reduce at odd addresses" "$here/bin/ouro-perf" all_reduce "${small[@]}" -b 4K -e 64K -f 16 -u 3 -d half
  sanitize memcheck "alltoall at odd addresses" "$here/bin/ouro-perf" alltoall "${small[@]}" -b 4K -e 64K -f 16 -u 5 -d int8
}

sanitize() { # TOOL NAME PROGRAM ARGUMENT...
  local tool=$1 name="$1, $2" log="$1-${2// /-}" code=0
  shift 2
  attempt "$log" 45 "$command" --tool "$tool" --target-processes all --error-exitcode 99 "$@" || code=$?
  out_of_time $code "$name" && return
  if grep -q 'Device not supported' "$out/logs/$log.log"; then not_run "$name" "it refuses this device"; return; fi
  if ((code == 0)); then row "$name" 1 1 0 "$(tail -1 "$out/logs/$log.log" | tr -d '=')" "no report"
  else failed=1; row "$name" 1 0 0 "$(reason $code "$log")" "no report"; fi
}
