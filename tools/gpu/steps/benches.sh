# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step benches.

# Runs the bundle's benches.
benches_step() {
  local file name code small=()
  [[ $quick == no ]] || small=(--quick)
  for file in "$here"/bin/bench_gpu_*; do
    name=$(basename "$file")
    [[ $name != bench_gpu_floor && -x $file ]] || continue
    attempt "$name" 90 "$file" "${small[@]}"
    code=$?
    out_of_time $code "$name" && continue
    if ((code == 0 || code == 77)); then row "$name" 1 1 0 "$(grep . "$out/logs/$name.log" | tail -1 | cut -c1-120)" "see its log"
    else failed=1; row "$name" 1 0 0 "$(reason $code "$name")" "-"; fi
  done
}
