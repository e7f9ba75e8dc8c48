# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step probe; the step threads uses questions, too.

# Probes the behaviour of the driver by the questions that are left.
probe_step() {
  questions -v '^(eight-)?threads-'
  [[ -z ${OURO_FAKE_GPUS:-} ]] && program gpu_probe || return
  local n
  for n in 1 8; do
    CUDA_DEVICE_MAX_CONNECTIONS=$n ask waiting-streams "streams that can wait, with $n connections" "-$n"
  done
}

# Asks the questions whose names grep finds with these arguments, with one process for each: a hang is a valid answer, too. No
# result of a probe is a failure.
questions() {
  if ! program gpu_probe; then not_run "probe" "not in the bundle"; return; fi
  local name text
  while read -r name text; do ask "$name" "$text"; done < \
    <(LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$here/bin/gpu_probe" --list | grep -E "$@")
}

ask() { # NAME TEXT [SUFFIX]
  local log=probe-$1${3:-} code=0 answer
  attempt "$log" "$([[ $quick == yes ]] && echo 6 || echo 15)" "$here/bin/gpu_probe" "$1" || code=$?
  out_of_time $code "probe: $2" && return
  answer=$(tail -1 "$out/logs/$log.log" | tr '|' '/' | cut -c1-120)
  ((code != 124 && code != 137)) || answer="no: the driver did not return"
  row "probe: $2" 1 "$((code == 0))" 0 "$answer" "-"
}
