# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step probe.

# Probes the behaviour of the driver, with one process for each question: a hang is a valid answer, too. No result of a
# probe is a failure.
probe_step() {
  say "probe"
  if ! program gpu_probe; then not_run "probe" "not in the bundle"; return; fi
  local name text code
  while read -r name text; do
    ask "$name" "$text"
  done < <(LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$here/bin/gpu_probe" --list)
  [[ -z ${OURO_FAKE_GPUS:-} ]] || return
  for code in 1 8 32; do
    CUDA_DEVICE_MAX_CONNECTIONS=$code ask waiting-streams "the same with $code connections" "-$code"
  done
}

ask() { # NAME TEXT [SUFFIX]
  local log=probe-$1${3:-} code=0 answer
  attempt "$log" "$([[ $quick == yes ]] && echo 6 || echo 15)" "$here/bin/gpu_probe" "$1" || code=$?
  out_of_time $code "probe: $2" && return
  answer=$(tail -1 "$out/logs/$log.log" | tr '|' '/' | cut -c1-120)
  ((code != 124 && code != 137)) || answer="no: the driver did not return"
  row "probe: $2" 1 "$((code == 0))" 0 "$answer" "-"
}
