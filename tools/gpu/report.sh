# shellcheck shell=bash disable=SC2034,SC2154
# The device and its libraries, before all steps, and the table after them. Sourced by gpu-check.

facts() {
  say "device"
  attempt info 60 "$here/bin/ouro-info" -d || { cat "$out/logs/info.log"; return 1; }
  attempt info-json 60 "$here/bin/ouro-info" --json
  sed -n '/^GPUs/,/^transports/p' "$out/logs/info.log" | grep -v '^transports' | tee "$out/logs/gpus.txt"
  grep -q '^GPUs' "$out/logs/gpus.txt" && ! grep -q '^GPUs  *none' "$out/logs/gpus.txt"
}

# Sets no_runtime: why programs that use CUDA's own runtime cannot run here; '' if they can.
find_runtime() {
  no_runtime=''
  if ! program nccl_cuda_client; then no_runtime="not in the bundle"
  elif [[ -n ${OURO_FAKE_GPUS:-} ]]; then no_runtime="CUDA's runtime knows no fake GPU"
  elif LD_LIBRARY_PATH="$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ldd "$here/bin/nccl_cuda_client" |
    grep -q 'libcudart.*not found'; then no_runtime="there is no libcudart.so.13 here"; fi
}

table() {
  local line
  printf '| step | ran | passed | skipped | figure | target |\n|---|---|---|---|---|---|\n'
  for line in "${rows[@]}"; do
    local step ran passed skipped figure target
    IFS='|' read -r step ran passed skipped figure target <<<"$line"
    printf '| %s | %s | %s | %s | %s | %s |\n' "$step" "$ran" "$passed" "$skipped" "${figure:-}" "$target"
  done
}

report() {
  local verdict="all that ran passed"
  ((failed == 0)) || verdict="something failed, see the table"
  {
    printf '## %s%s\n\n' "$label" "$(sed -n 's/^  0: //p' "$out/logs/gpus.txt" | head -1)"
    printf -- '- date: %s; ouro at commit %s, CUDA %s for architectures %s\n' "$(date -u +%Y-%m-%d)" \
      "${commit:-unknown}" "${cuda:-unknown}" "${architectures:-unknown}"
    printf -- '- %s\n' "$(head -1 "$out/logs/gpus.txt")"
    printf -- '- kernel driver: %s; MPS: %s\n' \
      "$(sed -n 's/^NVRM version: *//p' /proc/driver/nvidia/version 2>/dev/null | tr -s ' ' | grep . || echo none)" \
      "$([[ -e ${CUDA_MPS_PIPE_DIRECTORY:-/tmp/nvidia-mps}/control ]] && echo running || echo "not running")"
    printf -- '- host: %s processors, Linux %s, %s\n' "$(nproc)" "$(uname -r)" "$(getconf GNU_LIBC_VERSION)"
    printf -- '- command: gpu-check%s; %d s; %s\n\n' "$([[ $quick == no ]] || printf ' --quick')$([[ -z $only ]] || printf ' --only %s' "${only:1:-1}")" \
      "$SECONDS" "$verdict"
    table
  } >"$out/gpu-status.md"
  tar -C "$out" -czf "$out/logs.tar.gz" logs  # in one file, where few may be copied from the machine
  say "result"
  cat "$out/gpu-status.md"
}
