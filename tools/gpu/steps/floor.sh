# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step floor.

# Measures the device's limits and the prices of calls, one line "name value unit" each.
floor_step() {
  if ! program bench_gpu_floor; then not_run "bench_gpu_floor" "not in the bundle"; return; fi
  local small=() code=0 name value unit
  [[ $quick == no ]] || small=(--quick)
  attempt floor 48 "$here/bin/bench_gpu_floor" "${small[@]}" || code=$?
  while read -r name value unit; do row "$name" 1 1 0 "$value $unit" "-"; done < \
    <(grep -E '^[A-Za-z0-9_]+ [0-9.]+ [A-Za-z/]+$' "$out/logs/floor.log")
  out_of_time $code "bench_gpu_floor" && return
  ((code == 0)) || { failed=1; row "bench_gpu_floor" 1 0 0 "$(reason $code floor)" "-"; }
}
