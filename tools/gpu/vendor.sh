# shellcheck shell=bash disable=SC2034,SC2154
# What other tools of the machine say about the same kernels: PyTorch, ncu, compute-sanitizer. Sourced by gpu-check, which
# defines say, row, not_run, attempt, out_of_time and reason.

# Sets `command` to the path of a program of CUDA's, or to nothing.
find_tool() {
  command=$(command -v "$1" || ls "/usr/local/cuda/bin/$1" 2>/dev/null || true)
}

# Times of PyTorch for what bench_gpu_floor and bench_gpu_optimiser time: a copy, a sum, a fused AdamW.
pytorch() {
  say "PyTorch on the same device"
  local code=0 name value unit
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "PyTorch" "it knows no fake GPU"; return; fi
  # With its own libraries, not the bundle's.
  attempt torch 90 env LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" python3 "$here/gpu/torch_times.py" || code=$?
  out_of_time $code "PyTorch" && return
  if ((code == 77 || code == 127)); then not_run "PyTorch" "$(tail -1 "$out/logs/torch.log")"; return; fi
  if ((code != 0)); then failed=1; row "PyTorch" 1 0 0 "$(reason $code torch)" "-"; return; fi
  while read -r name value unit; do row "PyTorch: $name" 1 1 0 "$value $unit" "-"; done < \
    <(grep -E '^[a-zA-Z0-9_]+ [0-9.]+ [A-Za-z/]+$' "$out/logs/torch.log")
}

# PyTorch's collectives, messages, graphs and training with several ranks on one GPU, over ouro's libnccl.so.2 in place of
# NVIDIA's, and over the backend ouro. All compare with gloo on the host.
pytorch_ranks() {
  say "PyTorch, several ranks on one GPU"
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "PyTorch's ranks" "it knows no fake GPU"; return; fi
  local there='import sys, torch; sys.exit(0 if torch.cuda.is_available() else "PyTorch sees no GPU")' code=0 one
  attempt torch-there 40 env LD_LIBRARY_PATH="${LD_LIBRARY_PATH:-}" python3 -c "$there" || code=$?
  if ((code != 0)); then not_run "PyTorch's ranks" "$(tail -1 "$out/logs/torch-there.log")"; return; fi
  # Python has the C++ library of its own machine.
  mkdir -p "$out/python-lib"
  for one in "$here"/lib/*; do
    [[ $one =~ lib(stdc\+\+|gcc_s)\.so ]] || ln -sf "$one" "$out/python-lib/"
  done
  for one in nccl ouro; do
    torch_ranks $one groups 2
    torch_ranks $one groups 4
    torch_ranks $one graph 2
    torch_ranks $one training 2
  done
  torch_ranks ouro registered 2
  torch_ranks ouro segments 2 PYTORCH_ALLOC_CONF=expandable_segments:True
}

torch_ranks() { # CARRIER PROGRAM RANKS [VARIABLE=VALUE]...
  local name="PyTorch over $1: $2, $3 ranks" log=torch-$1-$2-$3 code=0 store
  local variables=(LD_LIBRARY_PATH="$out/python-lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONPATH="$here/python" OURO_HOME="$here"
    BACKEND="$1" OMP_NUM_THREADS=1 OURO_DEADLINE=40 GLOO_SOCKET_IFNAME=lo "${@:4}")
  [[ $1 == ouro ]] || variables+=(LD_PRELOAD="$here/lib/libnccl.so.2")
  store=$(mktemp -d)
  # shellcheck disable=SC2016
  attempt "$log" 60 bash -c 'ranks=$1 store=$2 program=$3 worst=0 all=()
    shift 3
    for ((rank = 0; rank < ranks; rank++)); do
      env "$@" python3 "$program" --rank "$rank" "$ranks" "$store" & all+=($!)
    done
    for one in "${all[@]}"; do wait "$one" || worst=$?; done
    exit $worst' ranks "$3" "$store" "$here/gpu/ranks/torch_$2.py" "${variables[@]}" || code=$?
  rm -rf "$store"
  out_of_time $code "$name" && return
  if ((code == 0)) && ! grep -q '^SKIP' "$out/logs/$log.log"; then row "$name" 1 1 0 "$(tail -1 "$out/logs/$log.log")" "all"
  elif ((code == 0)); then not_run "$name" "it skipped"
  else failed=1; row "$name" 1 0 0 "$(reason $code "$log")" "all"; fi
}

# Counters of kernels whose launches do not wait for each other: ncu runs one kernel at a time, several times.
profiler() {
  say "ncu"
  local command
  if [[ -n ${OURO_FAKE_GPUS:-} ]]; then not_run "ncu" "a fake GPU runs no device code"; return; fi
  find_tool ncu
  if [[ -z $command ]]; then not_run "ncu" "there is none here"; return; fi
  ! program bench_gpu_optimiser || profile "optimisers" update 8 "$here/bin/bench_gpu_optimiser" --quick
  profile "all_reduce, 2 ranks" fused 3 "$here/bin/ouro-perf" all_reduce --device cuda -t 2 -b 64M -e 64M -n 2 -w 1 -c 0 -T 45
}

profile() { # NAME KERNELS LAUNCHES PROGRAM ARGUMENT...
  local name=$1 kernels=$2 launches=$3 log="ncu-$2" code=0 kernel text
  shift 3
  local metrics=gpu__time_duration.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed
  metrics+=,launch__registers_per_thread,sm__warps_active.avg.pct_of_peak_sustained_active
  metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio
  metrics+=,l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_st.ratio
  # The clocks stay as they are: the machine may be shared.
  attempt "$log" 60 "$command" --clock-control none --csv --metrics "$metrics" -k "regex:$kernels" -c "$launches" "$@" || code=$?
  out_of_time $code "ncu, $name" && return
  if grep -qE 'ERR_NVGPUCTRPERM|LibraryNotLoaded|Failed to initialize the profiler' "$out/logs/$log.log"; then
    not_run "ncu, $name" "it may not read the counters here"
    return
  fi
  local seen=0
  while IFS='|' read -r kernel text; do
    seen=1
    row "ncu: $kernel" 1 1 0 "$text" "-"
  done < <(python3 "$here/gpu/ncu_rows.py" "$out/logs/$log.log" 2>>"$out/logs/$log.log")
  ((seen == 1)) || { failed=1; row "ncu, $name" 1 0 0 "$(reason $code "$log")" "-"; }
}

# memcheck sees addresses, racecheck and synccheck shared memory and barriers of blocks: the fused kernels have none, the
# optimisers and the resident kernels do.
sanitizer() {
  say "compute-sanitizer"
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
