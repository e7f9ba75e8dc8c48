# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step libnccl.

# Runs an ordinary program that uses CUDA and NCCL, with several ranks on one GPU.
libnccl_step() {
  if [[ -n $no_runtime ]]; then not_run "libnccl.so.2" "$no_runtime"; return; fi
  local how n code
  for how in threads processes; do
    for n in 2 4; do
      code=0
      attempt "nccl-$how-$n" 40 "$here/bin/nccl_cuda_client" "$how" "$n" 1 || code=$?
      out_of_time $code "libnccl.so.2, $n $how" && continue
      if ((code == 0)) && grep -q 'all results are right' "$out/logs/nccl-$how-$n.log"; then
        row "libnccl.so.2, $n $how" 1 1 0 "all results are right" "all"
      else failed=1; row "libnccl.so.2, $n $how" 1 0 0 "$(reason $code "nccl-$how-$n")" "all"; fi
    done
  done
}
