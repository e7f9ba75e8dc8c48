# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step limits.

# Measures the device's limits, one line "name value unit" each. Sets copy_gbs, which counts bytes read and written.
limits_step() {
  say "limits of the device"
  copy_gbs=''
  if ! program bench_gpu_floor; then not_run "bench_gpu_floor" "not in the bundle"; return; fi
  local small=()
  [[ $quick == no ]] || small=(--quick)
  local code=0
  attempt floor 60 "$here/bin/bench_gpu_floor" "${small[@]}" || code=$?
  if ((code != 0)); then
    failed=1
    row "bench_gpu_floor" 1 0 0 "$(reason $code floor)" "-"
    return
  fi
  copy_gbs=$(awk '$1 == "copy_kernel" { print $2 }' "$out/logs/floor.log")
  local name value unit
  while read -r name value unit; do row "$name" 1 1 0 "$value $unit" "-"; done < \
    <(grep -E '^[a-z0-9_]+ [0-9.]+ [A-Za-z/]+$' "$out/logs/floor.log")
}
