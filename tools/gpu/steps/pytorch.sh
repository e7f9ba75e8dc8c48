# shellcheck shell=bash disable=SC2034,SC2154
# gpu-check runs this as its step pytorch.

# Times of PyTorch for what bench_gpu_floor and bench_gpu_optimiser time: a copy, a sum, a fused AdamW.
pytorch_step() {
  local code=0 name value unit
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "PyTorch" "it knows no fake GPU"; return; fi
  # It runs with its own libraries, not the bundle's.
  attempt torch 90 env LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" python3 "$here/gpu/torch_times.py" || code=$?
  out_of_time $code "PyTorch" && return
  if ((code == 77 || code == 127)); then not_run "PyTorch" "$(tail -1 "$out/logs/torch.log")"; return; fi
  if ((code != 0)); then failed=1; row "PyTorch" 1 0 0 "$(reason $code torch)" "-"; return; fi
  while read -r name value unit; do row "PyTorch: $name" 1 1 0 "$value $unit" "-"; done < \
    <(grep -E '^[a-zA-Z0-9_]+ [0-9.]+ [A-Za-z/]+$' "$out/logs/torch.log")
}
